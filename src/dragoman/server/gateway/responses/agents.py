"""Agents of the hub as models of the Responses API: `agent/NAME`.

A chain of responses is a session, and a response is a run in it. The history that a client sends is not
trusted: only what follows the last item that the hub made is new. A request that continues an earlier
response of the chain continues in a fork of the session.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from dragoman.errors import (
    BadRequest,
    DragomanError,
    Forbidden,
    LimitReached,
    NotFound,
    ProviderError,
    ResponseNotFound,
    UnknownPreviousResponse,
)
from dragoman.events import Event, ToolInputAvailable, ToolInputStart
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.large_json import weigh
from dragoman.messages import ToolPart
from dragoman.offload import offload
from dragoman.runs.active_run import StartedRun
from dragoman.runs.deduplication import StoredAnswer
from dragoman.runs.forks import fork_session
from dragoman.runs.registry import RunRegistry
from dragoman.server.gateway.response_headers import format_names, request_id_headers
from dragoman.server.gateway.responses.agent_input import (
    AgentInput,
    continue_answer,
    read_input,
    user_message,
)
from dragoman.server.gateway.responses.agent_turn import (
    AgentTurn,
    response_head,
    stored_head,
    turn_of,
)
from dragoman.server.gateway.responses.background import BackgroundAnswer, BackgroundResponses
from dragoman.server.gateway.responses.creation import ResponseMemory
from dragoman.server.gateway.responses.recorder import ResponseRecorder
from dragoman.server.gateway.responses.state import (
    ExpandedRequest,
    ItemHead,
    RequestState,
    ResponseContext,
    ResponseObject,
    ResponseStates,
    read_state,
)
from dragoman.server.streaming import encode_batch, send_end, send_large, stream_run
from dragoman.store.hosts.queued_runs import QueuedRun
from dragoman.store.responses import StoredResponse
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.unfold import START_POSITION
from dragoman.wire.client_request import RawRequestBody
from dragoman.wire.responses.encoder import ResponseHead, ResponsesStreamEncoder
from dragoman.wire.ui.client_request import (
    ChatAction,
    ChatRequest,
    NewMessage,
)

PREFIX = "agent/"
_OWN_ITEM = re.compile(
    r"(?:msg|rs|fc|ctc|mcp|ig|cmp)_([\w-]{18})\d{4}"
)  # the id of an item that the hub made
CANCELLED = "cancelled by the client"
_encode = msgspec.json.Encoder().encode


class AgentRequested(Exception):
    """A request is for an agent, not for a model."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body


class DetachedAgentResponse(msgspec.Struct, frozen=True):
    """A response that is made in the background; `streams`: whether its client wants its events."""

    response: StoredResponse
    streams: bool


class PreviousResponse(msgspec.Struct, frozen=True):
    """The response that a request continues."""

    stored: StoredResponse
    turn: AgentTurn


def require_model(body: bytes) -> bytes:
    """Return the body of a request for a model. Raises AgentRequested for one for an agent, BadRequest."""
    if RawRequestBody(body).model.startswith(PREFIX):
        raise AgentRequested(body)
    return body


class AgentEncoder(ResponsesStreamEncoder):
    """Encodes a response that continues an answer: approved calls are shown with their output."""

    def __init__(self, head: ResponseHead, *, approved: Sequence[ToolPart]) -> None:
        super().__init__(head)
        self._approved = approved

    def encode(self, batch: Sequence[Event]) -> bytes:
        """See `ResponsesStreamEncoder`."""
        calls, self._approved = self._approved, ()
        events: list[Event] = []
        for call in calls:
            events.append(ToolInputStart(call.tool_call_id, call.name))
            events.append(ToolInputAvailable(call.tool_call_id, call.name, call.input))
        return super().encode([*events, *batch])


class AgentResponses:
    """Creates responses of agents."""

    def __init__(self, runs: RunRegistry, store: Store, *, states: ResponseStates, keep_alive: float) -> None:
        self._runs = runs
        self._store = store
        self._states = states
        self._keep_alive = keep_alive
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by session

    def require_agent(self, model: str, *, identity: Identity) -> str:
        """Return the name of the agent that is named as a model. Raises Forbidden, NotFound."""
        if not identity.may("chat"):
            raise Forbidden("agents need a key with the scope 'chat'")
        name = model.removeprefix(PREFIX)
        if name not in self._runs.agents.agents:
            raise NotFound(f"there is no agent {name!r:.100}", hint="the models of this hub: GET /v1/models")
        return name

    async def create(
        self,
        exchange: Exchange,
        body: bytes,
        *,
        background: BackgroundResponses,
        memory: ResponseMemory | None = None,
    ) -> DetachedAgentResponse | None:
        """Run the agent on the new items of a request; answer as JSON or as a stream.

        `memory` has the warm-ups of a connection. A response in the background is
        returned, and has yet to be answered.
        """
        identity = exchange.identity
        name = self.require_agent(RawRequestBody(body).model, identity=identity)
        state = await offload(weigh(body), partial(read_state, body))
        if memory is not None:
            state = after_warm_up(state, memory)
        if state.background:
            background.check_room(state, owner=identity.owner)
        if state.conversation_id is not None:
            hint = "continue with previous_response_id: a chain of an agent's responses is a session"
            raise BadRequest("agents take no conversation", field="conversation", hint=hint)
        previous, state = await self._find_previous(state, owner=identity.owner)
        agent_input = await offload(weigh(body), partial(read_input, state))
        started, session_id, approved = await self._continue(agent_input, previous, name=name, by=identity)
        turn = AgentTurn(session_id, message_id_of(started), parts=parts_before(started))
        head = response_head(
            agent_input.parsed, turn, model=f"{PREFIX}{name}", is_queued=agent_input.state.background
        )
        encoder = AgentEncoder(head, approved=approved)
        if state.background:
            answer = self._background_answer(agent_input, started, encoder=encoder, previous=previous)
            try:
                return DetachedAgentResponse(await background.start(exchange, answer), state.stream)
            except DragomanError:  # the response is not stored, so nobody could read the run's answer
                if answer.stop is not None:
                    await answer.stop()
                raise
        record = partial(self._record, state=agent_input.state, previous=previous, owner=identity.owner)
        exchange.send = ResponseRecorder(exchange.send, record)
        await self._answer(exchange, started, encoder=encoder, agent_input=agent_input, session_id=session_id)
        return None

    async def _continue(
        self, agent_input: AgentInput, previous: PreviousResponse | None, *, name: str, by: Identity
    ) -> tuple[StartedRun | StoredAnswer, str, Sequence[ToolPart]]:
        """Begin the run of a request; return it, its session, and the calls that the request answers.

        Requests that continue the same response take turns: the first continues in its session, the others in
        forks.
        """
        key = new_id("turn") if previous is None else previous.turn.session
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            session_id, action, approved = await self._choose_action(agent_input, previous, caller=by)
            chat = ChatRequest(
                session_id=session_id,
                action=action,
                agent=name,
                tools=tuple(agent_input.tools),
                background=agent_input.state.background,
                compact_threshold=agent_input.parsed.compact_threshold,
                max_tool_calls=agent_input.max_tool_calls,
                output_format=agent_input.output_format,
            )
            return await self._start(chat, by), session_id, approved

    async def _start(self, chat: ChatRequest, identity: Identity) -> StartedRun | StoredAnswer:
        """Begin the run of a request. Raises LimitReached when too many run in the background."""
        if not chat.background:
            return await self._runs.start_run(chat, identity)
        started = await self._runs.start_run(chat, identity, waits=False)
        if isinstance(started, QueuedRun):
            await self._runs.queue.withdraw(started)
            raise LimitReached("too many background runs of agents; try again when one has ended")
        return started

    # ---- in the background ---------------------------------------------------------------------------

    def _background_answer(
        self,
        agent_input: AgentInput,
        started: StartedRun | StoredAnswer,
        *,
        encoder: AgentEncoder,
        previous: PreviousResponse | None,
    ) -> BackgroundAnswer:
        state = agent_input.state
        root_id = None if previous is None else previous.stored.root_id

        async def serve(exchange: Exchange) -> None:
            followed = started
            if isinstance(started, StartedRun):  # it has begun before it is followed
                followed = replace(started, replay=started.replay or "run")
            await self._send_stream(exchange, followed, encoder=encoder, headers={})

        async def stop() -> None:
            if isinstance(started, StartedRun):
                await started.run.stop_and_wait(CANCELLED)

        return BackgroundAnswer(
            request=state,
            expanded=ExpandedRequest(state.raw, ResponseContext(root_id), state.items),
            encoder=encoder,
            serve=serve,
            stop=stop,
        )

    def owns(self, response: StoredResponse) -> bool:
        """See `LastingAnswers`."""
        return turn_of(response) is not None

    async def find(self, response: StoredResponse) -> bytes | None:
        """See `LastingAnswers`: the answer as its message has it, once its run has ended."""
        turn, session = await self._stored_turn(response)
        if await self._runs.find_active(session.id) is not None:
            return None
        run = await self._store.runs.get_last(session.id, message_id=turn.message_id)
        message = await self._store.messages.get(session.id, turn.message_id)
        if run is None or message is None:
            raise ResponseNotFound("the run of this response is gone")
        if run.status == "running":  # a host is about to continue it
            return None
        position = START_POSITION._replace(builders=min(turn.parts, len(message.parts)))
        answer = StoredAnswer(run.id, message, position, run.error)
        head = await offload(len(response.body), partial(stored_head, response))
        encoder = ResponsesStreamEncoder(head)
        for event in answer.events():
            encoder.encode([event])
        try:
            encoder.end()
        except ProviderError as error:  # the run's events have no end
            encoder.encode_error(error)
        return _encode(encoder.response)

    async def stop(self, response: StoredResponse) -> None:
        """See `LastingAnswers`."""
        turn, session = await self._stored_turn(response)
        run = await self._runs.find_begun(session.id)
        if run is not None and run.row.message_id == turn.message_id:
            await run.stop_and_wait(CANCELLED)

    async def _stored_turn(self, response: StoredResponse) -> tuple[AgentTurn, Session]:
        turn = turn_of(response)
        session = None
        if turn is not None:
            session = await self._store.sessions.get_own(turn.session, owner=response.owner)
        if turn is None or session is None:
            raise ResponseNotFound("the session of this response was deleted")
        return turn, session

    # ---- what the request continues ------------------------------------------------------------------

    async def _find_previous(
        self, state: RequestState, *, owner: str
    ) -> tuple[PreviousResponse | None, RequestState]:
        """Return the response that a request continues, and the request with only its new items."""
        id, first = state.previous_id, 0
        if id is None:
            for index, head in enumerate(state.heads):
                own = _OWN_ITEM.fullmatch(head.id) if isinstance(head.id, str) else None
                if own is not None and head.role in (None, "assistant"):
                    id, first = f"resp_{own[1]}", index + 1
        if id is None:
            return None, state
        try:
            stored = await self._states.repository.get(id, owner=owner)
        except ResponseNotFound:
            raise UnknownPreviousResponse(
                f"there is no response {id[:100]!r}", field="previous_response_id"
            ) from None
        turn = turn_of(stored)
        if stored.is_active:
            raise BadRequest(f"the response {id[:100]!r} is still in progress", field="previous_response_id")
        if turn is None:
            raise BadRequest(f"the response {id[:100]!r} is not an agent's", field="previous_response_id")
        rest = replace(state, previous_id=id, items=state.items[first:], heads=state.heads[first:])
        return PreviousResponse(stored, turn), rest

    async def _choose_action(
        self, agent_input: AgentInput, previous: PreviousResponse | None, *, caller: Identity
    ) -> tuple[str, ChatAction, Sequence[ToolPart]]:
        """Return the session of a request, what it asks for there, and the calls that it approves or denies.

        Raises BadRequest, Conflict.
        """
        message = user_message(agent_input.parsed)
        if previous is None:
            if message is None or agent_input.outputs or agent_input.answers:
                raise BadRequest("input must have a user message", field="input")
            return new_id("responses"), NewMessage(message), ()
        session = await self._session(previous.turn, owner=caller.owner)
        stored = await self._store.messages.list(session.id)
        is_last = bool(stored) and stored[-1].id == previous.turn.message_id
        if agent_input.outputs or agent_input.answers:
            if not is_last or message is not None:
                text = "outputs and approvals must be for the last response, and come without a new message"
                raise BadRequest(text, field="input")
            action = continue_answer(stored[-1], agent_input)
            ids = {answer.tool_call_id for answer in action.answers}
            calls = [call for call in stored[-1].tool_calls if call.tool_call_id in ids]
            return previous.turn.session, action, calls
        if message is None:
            raise BadRequest("input has no new item", field="input")
        if is_last:
            return previous.turn.session, NewMessage(message), ()
        fork_id = new_id("responses")
        await fork_session(self._store, session, message_id=previous.turn.message_id, id=fork_id, by=caller)
        return fork_id, NewMessage(message), ()

    async def _session(self, turn: AgentTurn, *, owner: str) -> Session:
        session = await self._store.sessions.get_own(turn.session, owner=owner)
        if session is None:
            raise UnknownPreviousResponse(
                "the session of this response was deleted", field="previous_response_id"
            )
        return session

    # ---- the answer ----------------------------------------------------------------------------------

    async def _answer(
        self,
        exchange: Exchange,
        started: StartedRun | StoredAnswer,
        *,
        encoder: ResponsesStreamEncoder,
        agent_input: AgentInput,
        session_id: str,
    ) -> None:
        headers = {"x-dragoman-session": session_id, **request_id_headers(exchange.request_id)}
        if agent_input.dropped:
            headers["x-dragoman-dropped"] = format_names(agent_input.dropped)
        if agent_input.state.stream:
            await self._send_stream(exchange, started, encoder=encoder, headers=headers)
            return
        if isinstance(started, StoredAnswer):
            await encode_batch(encoder, list(started.events()))
            await encode_batch(encoder, None)
        else:
            await read_run(exchange, started, encoder=encoder)
        await exchange.respond(200, encoder.response, headers=headers)

    async def _send_stream(
        self,
        exchange: Exchange,
        started: StartedRun | StoredAnswer,
        *,
        encoder: ResponsesStreamEncoder,
        headers: Mapping[str, str],
    ) -> None:
        if isinstance(started, StartedRun):
            await stream_run(
                exchange, started.follow(), dialect=encoder, keep_alive=self._keep_alive, headers=headers
            )
            return
        await exchange.start_response(200, {**encoder.headers, **headers})
        await send_large(exchange, await encode_batch(encoder, list(started.events())))
        await send_end(exchange, await encode_batch(encoder, None))

    async def _record(
        self, raw: bytes, *, state: RequestState, previous: PreviousResponse | None, owner: str
    ) -> None:
        """Store a response, whatever `store` says: its session is stored too, and is found through it."""
        response = await offload(len(raw), partial(msgspec.json.decode, raw, type=ResponseObject))
        body, added, now = raw.decode(), _encode(list(state.items)).decode(), time.time()
        stored = StoredResponse(
            id=response.id,
            owner=owner,
            root_id=response.id if previous is None else previous.stored.root_id,
            previous_id=None if previous is None else previous.stored.id,
            status=response.status,
            created_at=now,
            updated_at=now,
            size=len(body) + len(added),
            body=body,
            input=added,
        )
        await self._states.save(stored, state)


def after_warm_up(state: RequestState, memory: ResponseMemory) -> RequestState:
    """Return a request that continues a warm-up, with the warm-up's items, which no run has answered."""
    warm_up = memory.find(state.previous_id or "")
    if warm_up is None:
        return state
    heads = [msgspec.json.decode(item, type=ItemHead) for item in warm_up.items]
    items = [*warm_up.items, *state.items]
    return replace(state, previous_id=None, items=items, heads=[*heads, *state.heads])


async def read_run(exchange: Exchange, started: StartedRun, *, encoder: ResponsesStreamEncoder) -> None:
    """Read a run to its end; `encoder.response` is then the whole response. ClientDisconnected."""
    with DisconnectWatch(exchange, at_once=True) as watch, started.follow() as follower:
        while (batch := await follower.next()) is not None:
            await encode_batch(encoder, batch)
        watch.response_complete = True
    await encode_batch(encoder, None)


def message_id_of(started: StartedRun | StoredAnswer) -> str:
    """Return the id of the message that holds the answer."""
    return started.message.id if isinstance(started, StoredAnswer) else started.run.row.message_id


def parts_before(started: StartedRun | StoredAnswer) -> int:
    """Return how many parts the message had before the run."""
    if isinstance(started, StoredAnswer):
        return started.position.builders
    return started.run.row.settled_parts or 0
