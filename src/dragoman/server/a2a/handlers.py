"""HTTP handlers of A2A: agent cards, and tasks over JSON-RPC and over REST, which do the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias

import msgspec

from dragoman.errors import A2aError, BadRequest, DragomanError, Forbidden, NotFound, Unauthorized
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.http.sse_keepalive import KeepAlive
from dragoman.identity import Identity
from dragoman.large_json import weigh
from dragoman.messages import messages_size
from dragoman.offload import offload
from dragoman.operations.authorization import require_scope
from dragoman.runs.registry import RunRegistry
from dragoman.runs.withdrawal import as_admin
from dragoman.server.a2a.push import PushConfigs
from dragoman.server.a2a.tasks import (
    BegunTask,
    TaskRecord,
    TaskService,
    WaitingTask,
    task_status,
    write_task,
)
from dragoman.server.approvals import AnswerApproval
from dragoman.server.auth import Auth
from dragoman.server.http.endpoint import send_error
from dragoman.server.http.time_expressions import parse_past
from dragoman.server.sessions.grant_revocation import SharedAccess
from dragoman.server.streaming import send_end, stream_run
from dragoman.store.store import Store
from dragoman.version import version
from dragoman.wire.a2a.card import CardSubject, agent_card
from dragoman.wire.a2a.client_request import (
    DEFAULT_PAGE,
    MAX_PAGE,
    JsonRpcRequest,
    ListTasksParams,
    PushConfigId,
    PushConfigParams,
    PushConfigTask,
    SendParams,
    TaskParams,
    check_version,
    convert_params,
    parse_params,
    parse_rpc,
)
from dragoman.wire.a2a.encoder import CHUNK_SECONDS, StreamEnvelope, TaskStreamEncoder
from dragoman.wire.a2a.errors import rest_error, rpc_error
from dragoman.wire.a2a.types import TASK_STATES, TERMINAL_STATES, A2aTask, StatusUpdate, StreamItem
from dragoman.wire.encoder import KEEP_ALIVE

NO_DESCRIPTION = "An agent of a Dragoman hub."
Method: TypeAlias = Callable[[TaskService, bytes], Awaitable[Any]]


class A2aSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`agents` are those whose cards need no key; `url` replaces the address that cards derive from requests.

    Sizes in bytes and characters, `keep_alive` in seconds. `requires_key`: whether callers need one.
    """

    agents: tuple[str, ...] = ("default",)
    url: str | None = None
    body: int = 8_000_000
    part: int = 4_000_000
    keep_alive: float = 15.0
    requires_key: bool = True


class A2aServices(msgspec.Struct, frozen=True, kw_only=True):
    """The services of the hub that the handlers use."""

    runs: RunRegistry
    store: Store
    access: SharedAccess
    answer_approval: AnswerApproval


class A2aHandlers:
    """Handlers of `/a2a/{agent}` and of agent cards."""

    def __init__(
        self,
        services: A2aServices,
        *,
        auth: Auth,
        settings: A2aSettings,
        push: PushConfigs,
    ) -> None:
        self._runs = services.runs
        self._store = services.store
        self._access = services.access
        self._answer_approval = services.answer_approval
        self._auth = auth
        self._settings = settings
        self._push = push
        self._methods: Mapping[str, Method] = {
            "GetTask": self._get_task,
            "ListTasks": self._list_tasks,
            "CancelTask": self._cancel_task,
            "CreateTaskPushNotificationConfig": self._create_push_config,
            "GetTaskPushNotificationConfig": self._get_push_config,
            "ListTaskPushNotificationConfigs": self._list_push_configs,
            "DeleteTaskPushNotificationConfig": self._delete_push_config,
        }

    # ---- cards ------------------------------------------------------------------------------------------

    async def card(self, exchange: Exchange) -> None:
        """Respond with the card of an agent: anybody may read a public agent's, others need a key."""
        agent = exchange.path_params.get("agent", "default")
        if agent not in self._settings.agents:
            exchange.identity = await self._auth.identify(exchange.headers, at=exchange.local_address)
            require_scope(exchange.identity, "chat")
        headers = {"cache-control": "max-age=300" if agent in self._settings.agents else "no-store"}
        await exchange.respond(200, self._card(exchange, agent), headers=headers)

    async def extended_card(self, exchange: Exchange) -> None:
        """Respond with the card of an agent, with the namespaces of its operations."""
        check_version(requested_version(exchange))
        await exchange.respond(200, self._card(exchange, self._agent_name(exchange), is_extended=True))

    def _card(self, exchange: Exchange, agent: str, *, is_extended: bool = False) -> dict[str, Any]:
        spec = self._runs.agents.agents.get(agent)
        if spec is None:
            raise NotFound(f"there is no agent {agent!r}")
        base = self._settings.url or f"{exchange.scheme}://{exchange.headers.get('host', 'localhost')}"
        namespaces = sorted({id.partition(".")[0] for id in spec.operations}) if is_extended else ()
        return agent_card(
            CardSubject(
                name=agent,
                description=spec.description or NO_DESCRIPTION,
                url=f"{base.rstrip('/')}/a2a/{agent}",
                version=version(),
                namespaces=namespaces,
                requires_key=self._settings.requires_key,
            )
        )

    # ---- JSON-RPC ---------------------------------------------------------------------------------------

    async def rpc(self, exchange: Exchange) -> None:
        """Answer one JSON-RPC request; its errors are responses with status 200."""
        request = JsonRpcRequest(method="")
        try:
            raw = await exchange.read_body(self._settings.body)
            request = await offload(weigh(raw), partial(parse_rpc, raw))
            check_version(requested_version(exchange))
            await self._answer_rpc(exchange, request)
        except DragomanError as error:
            if exchange.response_started or isinstance(error, Unauthorized | Forbidden):
                raise  # authentication and authorization use HTTP's own statuses
            await exchange.respond(200, {"jsonrpc": "2.0", "id": request.id, "error": rpc_error(error)})

    async def _answer_rpc(self, exchange: Exchange, request: JsonRpcRequest) -> None:
        params = b"" if request.params is msgspec.UNSET else bytes(request.params)
        service = self._service(exchange)
        envelope = StreamEnvelope(request.id)
        match request.method:
            case "SendStreamingMessage":
                await self._stream_message(exchange, service, raw=params, envelope=envelope)
                return
            case "SubscribeToTask":
                await self._subscribe(exchange, service, raw=params, envelope=envelope)
                return
            case "SendMessage":
                result = await self._send_message(exchange, service, raw=params)
            case "GetExtendedAgentCard":
                result = self._card(exchange, self._agent_name(exchange), is_extended=True)
            case name if name in self._methods:
                result = await self._methods[name](service, params)
            case name:
                raise A2aError(f"there is no method {name:.100}", "METHOD_NOT_FOUND")
        if result is not None:
            await exchange.respond(200, {"jsonrpc": "2.0", "id": request.id, "result": result})

    # ---- REST -------------------------------------------------------------------------------------------

    async def send(self, exchange: Exchange) -> None:
        """`POST /message:send`."""
        result = await self._send_message(exchange, self._rest(exchange), raw=await self._body(exchange))
        if result is not None:
            await exchange.respond(200, result)

    async def stream(self, exchange: Exchange) -> None:
        """`POST /message:stream`."""
        service, raw = self._rest(exchange), await self._body(exchange)
        await self._stream_message(exchange, service, raw=raw, envelope=StreamEnvelope())

    async def get(self, exchange: Exchange) -> None:
        """`GET /tasks/{id}`."""
        await self._rest_call(exchange, self._get_task, fields={"id": exchange.path_params["id"]})

    async def list(self, exchange: Exchange) -> None:
        """`GET /tasks`."""
        await self._rest_call(exchange, self._list_tasks, fields={})

    async def cancel(self, exchange: Exchange) -> None:
        """`POST /tasks/{id}:cancel`."""
        await self._rest_call(exchange, self._cancel_task, fields={"id": exchange.path_params["id"]})

    async def subscribe(self, exchange: Exchange) -> None:
        """`GET` or `POST /tasks/{id}:subscribe`."""
        params = msgspec.json.encode({"id": exchange.path_params["id"]})
        await self._subscribe(exchange, self._rest(exchange), raw=params, envelope=StreamEnvelope())

    async def create_push_config(self, exchange: Exchange) -> None:
        """`POST /tasks/{id}/pushNotificationConfigs`."""
        service, raw = self._rest(exchange), await self._body(exchange)
        params = msgspec.structs.replace(
            parse_params(raw, PushConfigParams), task_id=exchange.path_params["id"]
        )
        await exchange.respond(200, await self._create_push_config(service, msgspec.json.encode(params)))

    async def list_push_configs(self, exchange: Exchange) -> None:
        """`GET /tasks/{id}/pushNotificationConfigs`."""
        raw = msgspec.json.encode({"taskId": exchange.path_params["id"]})
        await exchange.respond(200, await self._list_push_configs(self._rest(exchange), raw))

    async def get_push_config(self, exchange: Exchange) -> None:
        """`GET /tasks/{id}/pushNotificationConfigs/{config}`."""
        await exchange.respond(
            200, await self._get_push_config(self._rest(exchange), config_params(exchange))
        )

    async def delete_push_config(self, exchange: Exchange) -> None:
        """`DELETE /tasks/{id}/pushNotificationConfigs/{config}`."""
        result = await self._delete_push_config(self._rest(exchange), config_params(exchange))
        await exchange.respond(200, result)

    async def _rest_call(self, exchange: Exchange, method: Method, *, fields: Mapping[str, str]) -> None:
        service = self._rest(exchange)
        kind = ListTasksParams if not fields else TaskParams
        params = convert_params({**exchange.query, **fields}, kind)
        await exchange.respond(200, await method(service, msgspec.json.encode(params)))

    def _rest(self, exchange: Exchange) -> TaskService:
        check_version(requested_version(exchange))
        return self._service(exchange)

    async def _body(self, exchange: Exchange) -> bytes:
        return await exchange.read_body(self._settings.body)

    # ---- both -------------------------------------------------------------------------------------------

    def _agent_name(self, exchange: Exchange) -> str:
        agent = exchange.path_params["agent"]
        if agent not in self._runs.agents.agents:
            raise NotFound(f"there is no agent {agent!r}")
        return agent

    def _service(self, exchange: Exchange) -> TaskService:
        return self._service_for(self._agent_name(exchange), exchange.identity)

    def _service_for(self, agent: str, caller: Identity) -> TaskService:
        async def decline(id: str, reason: str) -> None:
            await self._answer_approval(id, approved=False, by=as_admin(caller), reason=reason)

        return TaskService(self._runs, self._store, agent=agent, caller=caller, decline=decline)

    async def _begin(self, service: TaskService, raw: bytes) -> tuple[SendParams, BegunTask | WaitingTask]:
        params = await offload(weigh(raw), partial(parse_params, raw, SendParams))
        push = None if params.configuration is None else params.configuration.task_push_notification_config
        if push is not None:
            self._push.check(push)
        begun = await service.begin(params, max_part=self._settings.part)
        if push is None:
            return params, begun
        if isinstance(begun, WaitingTask):
            begun = await service.wait_begun(begun)  # what is posted is the end of a run
        if isinstance(begun, BegunTask) and begun.task.state not in TERMINAL_STATES:
            task = await service.find_own(begun.task.id)
            await self._push.create(task, push, begun_at=begun.task.run.started_at)
        return params, begun

    async def _send_message(self, exchange: Exchange, service: TaskService, *, raw: bytes) -> Any:
        """Return the task once it has ended or waits; None when the client did not wait for it."""
        params, begun = await self._begin(service, raw)
        configuration = params.configuration
        length = None if configuration is None else configuration.history_length
        task: TaskRecord | WaitingTask = begun if isinstance(begun, WaitingTask) else begun.task
        if not (configuration and configuration.return_immediately):
            with self._track(exchange, begun), DisconnectWatch(exchange) as watch:
                task = await self._wait_ended(service, begun)
            if watch.disconnected:
                return None
        return {"task": await write_offloaded(task, history_length=length)}

    async def _wait_ended(
        self, service: TaskService, begun: BegunTask | WaitingTask
    ) -> TaskRecord | WaitingTask:
        """Return a task once it has ended, or waits for a person."""
        if isinstance(begun, WaitingTask):
            begun = await service.wait_begun(begun)
        if isinstance(begun, WaitingTask):
            return begun
        if begun.run is None:
            return begun.task
        await begun.run.wait_ended()
        return await service.find(begun.task.id)

    def _track(self, exchange: Exchange, begun: BegunTask | WaitingTask) -> AbstractContextManager[None]:
        """End the exchange when its caller may no longer read the session of a task."""
        row = begun.queued if isinstance(begun, WaitingTask) else begun.task.run
        return self._access.track_id(row.session_id, exchange)

    async def _stream_message(
        self, exchange: Exchange, service: TaskService, *, raw: bytes, envelope: StreamEnvelope
    ) -> None:
        params, begun = await self._begin(service, raw)
        length = None if params.configuration is None else params.configuration.history_length
        await self._stream(exchange, service, begun=begun, envelope=envelope, history_length=length)

    async def _subscribe(
        self, exchange: Exchange, service: TaskService, *, raw: bytes, envelope: StreamEnvelope
    ) -> None:
        id = parse_params(raw, TaskParams).id
        task = await service.find_any(id)
        run = None if isinstance(task, WaitingTask) else await service.active_run(task)
        if run is None and task.state == "TASK_STATE_WORKING":  # its run may have ended since
            task = await service.find_any(id)
        if run is None and task.state in TERMINAL_STATES:
            raise A2aError(f"task {id!r} has ended", "UNSUPPORTED_OPERATION", hint="GetTask returns it")
        begun = task if isinstance(task, WaitingTask) else BegunTask(task, run)
        await self._stream(exchange, service, begun=begun, envelope=envelope, is_new=False)

    async def _stream(
        self,
        exchange: Exchange,
        service: TaskService,
        *,
        begun: BegunTask | WaitingTask,
        envelope: StreamEnvelope,
        history_length: int | None = None,
        is_new: bool = True,
    ) -> None:
        """Send a task, as submitted if it is new, and its run from the start; or the whole ended task."""
        if isinstance(begun, WaitingTask) and begun.state not in TERMINAL_STATES:
            written = write_task(begun, history_length=history_length)
            first = envelope.frame(StreamItem(task=written))
            waited = await self._stream_waiting(exchange, service, waiting=begun, first=first)
            if waited is None:
                return
            begun = waited
        if isinstance(begun, BegunTask) and begun.run is not None:
            first_task = write_task(begun.task, history_length=history_length, with_artifacts=False)
            if is_new:
                first_task = first_task.in_state("TASK_STATE_SUBMITTED")
            await self._follow(exchange, service, begun=begun, first=first_task, envelope=envelope)
            return
        task = begun if isinstance(begun, WaitingTask) else begun.task
        written = await write_offloaded(task, history_length=history_length)
        size = 0 if isinstance(task, WaitingTask) else messages_size([task.answer])
        frame = await offload(size, partial(envelope.frame, StreamItem(task=written)))
        if not exchange.response_started:
            await exchange.start_response(200, TaskStreamEncoder.headers)
        await send_end(exchange, frame)

    async def _stream_waiting(
        self, exchange: Exchange, service: TaskService, *, waiting: WaitingTask, first: bytes
    ) -> BegunTask | WaitingTask | None:
        """Send a task that waits for its turn, and wait until it begins; None when the client is gone."""
        await exchange.start_response(200, TaskStreamEncoder.headers)
        await exchange.send_chunk(first)
        comment = partial(exchange.send_chunk, KEEP_ALIVE)
        with self._track(exchange, waiting), DisconnectWatch(exchange, at_once=True) as watch:
            async with KeepAlive(comment, self._settings.keep_alive):
                begun = await service.wait_begun(waiting)
        return None if watch.disconnected else begun

    async def _follow(
        self,
        exchange: Exchange,
        service: TaskService,
        *,
        begun: BegunTask,
        first: A2aTask,
        envelope: StreamEnvelope,
    ) -> None:
        task, run = begun.task, begun.run
        if run is None:
            return
        follower = run.follow(replay=True)
        loop = asyncio.get_running_loop()

        def flush_later() -> None:
            loop.call_later(CHUNK_SECONDS, follower.wake)

        encoder = TaskStreamEncoder(
            first,
            envelope=envelope,
            clock=loop.time,
            on_waiting=flush_later,
            is_task_sent=exchange.response_started,
        )

        async def closing() -> bytes:
            ended = await service.find(task.id)
            written = write_task(ended, with_artifacts=False)
            update = StatusUpdate(
                task_id=task.id,
                context_id=task.context_id,
                status=task_status(ended),
                metadata=written.metadata,
            )
            return envelope.frame(StreamItem(status_update=update))

        with self._track(exchange, begun):
            await stream_run(
                exchange, follower, dialect=encoder, keep_alive=self._settings.keep_alive, closing=closing
            )

    async def _get_task(self, service: TaskService, raw: bytes) -> Any:
        params = parse_params(raw, TaskParams)
        return await write_offloaded(await service.find_any(params.id), history_length=params.history_length)

    async def _cancel_task(self, service: TaskService, raw: bytes) -> Any:
        return await write_offloaded(await service.cancel(parse_params(raw, TaskParams).id))

    async def _create_push_config(self, service: TaskService, raw: bytes) -> Any:
        params = parse_params(raw, PushConfigParams)
        return await self._push.create(await service.find_own(params.task_id), params)

    async def _get_push_config(self, service: TaskService, raw: bytes) -> Any:
        params = parse_params(raw, PushConfigId)
        return await self._push.get(await service.find_own(params.task_id), params.id)

    async def _list_push_configs(self, service: TaskService, raw: bytes) -> Any:
        task = await service.find_own(parse_params(raw, PushConfigTask).task_id)
        return {"configs": await self._push.list(task), "nextPageToken": ""}

    async def _delete_push_config(self, service: TaskService, raw: bytes) -> Any:
        params = parse_params(raw, PushConfigId)
        await self._push.delete(await service.find_own(params.task_id), params.id)
        return {}

    async def find_task(self, caller: Identity, id: str, *, agent: str) -> TaskRecord:
        """Return a task as `caller` sees it. Raises A2aError, NotFound."""
        return await self._service_for(agent, caller).find(id)

    async def _list_tasks(self, service: TaskService, raw: bytes) -> Any:
        params = parse_params(raw, ListTasksParams)
        size = DEFAULT_PAGE if params.page_size is None else params.page_size
        if not 1 <= size <= MAX_PAGE:
            raise BadRequest(f"pageSize must be 1 to {MAX_PAGE}", field="pageSize")
        state = "" if params.status == "TASK_STATE_UNSPECIFIED" else params.status
        if state not in ("", *TASK_STATES):
            raise BadRequest(f"there is no state {state!r:.60}", field="status")
        after = params.status_timestamp_after
        since = parse_past(after, time.time(), field="statusTimestampAfter") if after else 0.0
        page = await service.list(context_id=params.context_id or None, before=params.page_token, limit=size)
        length = 0 if params.history_length is None else params.history_length
        return {
            "tasks": [
                await write_offloaded(task, history_length=length, with_artifacts=params.include_artifacts)
                for task in page.tasks
                if state in ("", task.state) and task.changed_at >= since
            ],
            "nextPageToken": page.next,
            "pageSize": size,
            "totalSize": await service.count(params.context_id or None, state=state, since=since),
        }


async def write_offloaded(
    task: TaskRecord | WaitingTask, *, history_length: int | None = None, with_artifacts: bool = True
) -> Any:
    """Return a task as a client gets it; a large one is written in a thread."""
    write = partial(write_task, task, history_length=history_length, with_artifacts=with_artifacts)
    return write() if isinstance(task, WaitingTask) else await offload(messages_size([task.answer]), write)


def config_params(exchange: Exchange) -> bytes:
    """Return the parameters in the path of a push configuration."""
    path = exchange.path_params
    return msgspec.json.encode({"taskId": path["id"], "id": path["config"]})


def requested_version(exchange: Exchange) -> str:
    """Return the version of A2A that a client speaks, in a header or the query; empty if it says none."""
    return exchange.headers.get("a2a-version") or exchange.query.get("A2A-Version", "")


async def send_rest_error(exchange: Exchange, error: DragomanError) -> None:
    """Respond with an error in the format of A2A's REST binding."""
    if exchange.response_started or error.status == 401:
        await send_error(exchange, error)
        return
    await exchange.respond(*rest_error(error))
