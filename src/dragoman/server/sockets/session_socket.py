"""One open socket of a session: its first frame, events and answers, and what its client sends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from dragoman.errors import BadRequest, DragomanError, NotFound, RateLimited, TooLarge
from dragoman.http.asgi_websocket import Socket, SocketClosed
from dragoman.hub_events.event_log import EventFollower, EventLog
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.large_json import encode_large, measure, weigh
from dragoman.messages import Message, encode, encode_messages, messages_size
from dragoman.offload import offload
from dragoman.operations.approval import approval_not_found
from dragoman.runs.active_run import ActiveRun, StartedRun
from dragoman.runs.live_tail import Follower
from dragoman.runs.registry import RunRegistry
from dragoman.server.approval_json import approval_to_json
from dragoman.server.approvals import AnswerApproval, ApprovalBody, parse_answer
from dragoman.server.event_json import event_to_json
from dragoman.server.sessions.session_lookup import find_role, find_session_for
from dragoman.server.sockets.frames import (
    AgentStatus,
    AnyFrame,
    SocketAbort,
    SocketAnswer,
    SocketKey,
    SocketPing,
    SocketPrompt,
    agent_status,
    decode_frame,
    encode_frame,
    error_frame,
    run_frames,
)
from dragoman.server.sockets.people import SessionPeople
from dragoman.server.token_bounds import require_write, run_caller
from dragoman.session_ids import session_id_for
from dragoman.store.hub_events import HubEvent
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.wire.ui.client_request import ChatRequest, parse_chat_request

log = logging.getLogger(__name__)
MAX_BAD_FRAMES = 20
MAX_REQUESTS = 16  # of a socket that are under way
SHOWN_AUDIT = 50
SHOWN_APPROVALS = 500
SHOWN_MESSAGES = 200
SHOWN_SIZE = 262_144  # bytes, about, of the messages in one frame: some clients take frames of up to 1 MiB


class SocketServices(msgspec.Struct, frozen=True, kw_only=True):
    """What sockets need of the hub. `keep_alive` is in seconds, `max_frame` and `max_part` in characters."""

    store: Store
    runs: RunRegistry
    events: EventLog
    answer_approval: AnswerApproval
    models: Sequence[str]
    keep_alive: float
    max_frame: int
    max_part: int


class SessionSocket:
    """One socket, of one caller."""

    __slots__ = (
        "_caller",
        "_requests",
        "_run_id",
        "_run_task",
        "_services",
        "_session",
        "_socket",
        "_status",
    )

    def __init__(
        self, socket: Socket, session: Session, *, caller: Identity, services: SocketServices
    ) -> None:
        self._socket = socket
        self._session = session
        self._caller = caller
        self._services = services
        self._status: AgentStatus = "idle"
        self._run_task: asyncio.Task[None] | None = None
        self._run_id: str | None = None
        self._requests: set[asyncio.Task[None]] = set()

    async def serve(self, follower: EventFollower, *, people: SessionPeople) -> None:
        """Serve until the client disconnects or `follower` is closed. Raises SocketClosed."""
        await self._send_init(people)
        self._follow_run()
        sending = asyncio.create_task(self._send_events(follower))
        try:
            await self._read_until(sending)
        finally:
            tasks = [sending, *self._requests]
            tasks += [] if self._run_task is None else [self._run_task]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not sending.cancelled():
            sending.result()

    async def _read_until(self, sending: asyncio.Task[None]) -> None:
        """Read what the client sends until it disconnects, or `sending` is done.

        A task of its own for reading would take a kilobyte for each socket.
        """
        reader, is_reading = asyncio.current_task(), True

        def stop_reading(_: object) -> None:
            if is_reading and reader is not None:
                reader.cancel()

        sending.add_done_callback(stop_reading)
        try:
            await self._read()
        except asyncio.CancelledError:
            if not sending.done() or (reader is not None and reader.uncancel() > 0):
                raise
        finally:
            is_reading = False

    # ---- hub to client

    async def _send_init(self, people: SessionPeople) -> None:
        present = await people.read(self._session.id)
        store, session, owner = self._services.store, self._session, self._caller.owner
        found, earlier = await store.messages.last(session.id, limit=SHOWN_MESSAGES, size=SHOWN_SIZE)
        stored = list(found)
        current = await self._services.runs.current_message(session.id)
        if current is not None and stored and stored[-1].id == current.id:
            stored[-1] = current
        shown = last_messages(stored)
        messages = await offload(messages_size(shown), lambda: encode_messages(shown))
        audit = await store.events.audit(session.id, limit=SHOWN_AUDIT)
        pending = await store.approvals.list(session_id=session.id, status="pending", limit=SHOWN_APPROVALS)
        may_write = await self._may_write()
        frame = encode_frame(
            "init",
            session={
                "id": session_id_for(owner, session.id),
                "hubId": session.id,
                "owner": session.owner,
                "title": session.title,
                "agent": session.agent,
                "model": session.model,
            },
            messages=msgspec.Raw(messages),
            earlierMessages=earlier + len(stored) - len(shown),
            models=self._services.models,
            people=[{"owner": name, "sockets": count} for name, count in present.items()],
            status="idle" if current is None else "running",
            audit=[event_to_json(event, owner=owner) for event in audit],
            approvals=[approval_to_json(each, self._caller, may_write=may_write) for each in pending],
        )
        await self._socket.send(frame)

    async def _may_write(self) -> bool:
        sessions = self._services.store.sessions
        return await find_role(sessions, self._session.id, caller=self._caller) == "write"

    async def _send_events(self, follower: EventFollower) -> None:
        while True:
            try:
                async with asyncio.timeout(self._services.keep_alive):
                    events = await follower.next()
            except TimeoutError:
                await self._socket.send(encode_frame("keepalive"))
                continue
            if events is None:
                return
            if follower.has_gap:
                follower.has_gap = False
                await self._socket.send(encode_frame("reset"))
            for event in events:
                for frame in await self._frames_of(event):
                    await self._socket.send(frame)

    async def _frames_of(self, event: HubEvent) -> Sequence[str]:
        body: Mapping[str, Any] = msgspec.json.decode(event.data)
        described = event_to_json(event, owner=self._caller.owner)
        common = {"eventId": described["id"], "actor": event.actor, "createdAt": event.created_at}
        match event.name:
            case "message":
                message = await self._services.store.messages.get(self._session.id, body["messageId"])
                if message is None:
                    return []
                type = "message" if body["role"] == "user" else "message.updated"
                return [encode_frame(type, message=msgspec.Raw(encode(message)), **common)]
            case "run.started":
                self._follow_run()
                return [encode_frame("status", status="running", data=body, **common)]
            case "run.ended":
                await self._wait_sent(body["runId"])
                frames = [encode_frame("status", status="idle", data=body, **common)]
                if body["error"] is not None:
                    failure = {"code": "run_failed", "message": body["error"]}
                    frames.insert(0, encode_frame("error", error=failure, data=body, **common))
                return frames
            case "approval.requested":
                return await self._approval_frames(body["approvalId"], is_question=body["question"], **common)
            case _:
                return [encode_frame(event.name, data=event.data, **common)]

    async def _approval_frames(self, id: str, *, is_question: bool, **common: Any) -> Sequence[str]:
        """Return the frames of a new approval; none for one that was deleted since."""
        try:
            approval = await self._services.store.approvals.get(id)
        except NotFound:
            return []
        described = approval_to_json(approval, self._caller, may_write=await self._may_write())
        if is_question:
            question = described["question"] or {}
            return [encode_frame("question", questionId=id, **question, approval=described, **common)]
        return [encode_frame("approval.requested", approval=described, **common)]

    def _follow_run(self, run: ActiveRun | None = None) -> None:
        """Send the answer of `run`, or of the active run, from its beginning, unless one is being sent."""
        if self._run_task is None or self._run_task.done():
            self._run_task = asyncio.create_task(self._send_run(run))
            self._run_task.add_done_callback(self._forget_run)

    def _forget_run(self, task: asyncio.Task[None]) -> None:
        if self._run_task is task:
            self._run_task = None
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            log.debug("an answer was not sent to the end: %r", error)

    async def _send_run(self, run: ActiveRun | None) -> None:
        with suppress(DragomanError):
            run = run or await self._services.runs.find_begun(self._session.id)
            if run is not None:
                self._run_id = run.row.id
                with run.follow(replay=True) as follower:
                    await self._send_batches(follower, message_id=run.row.message_id)

    async def _wait_sent(self, run_id: str) -> None:
        """Wait until all of a run that has ended is sent, so that nothing of it follows its end."""
        if self._run_task is not None and self._run_id == run_id:
            await asyncio.wait([self._run_task])

    async def _send_batches(self, follower: Follower, *, message_id: str) -> None:
        while (batch := await follower.next()) is not None:
            await self._send_batch(batch, message_id=message_id)

    async def _send_batch(self, batch: Sequence[Any], *, message_id: str) -> None:
        status = agent_status(batch, self._status)
        if status != self._status:
            self._status = status
            await self._socket.send(encode_frame("agentStatus", status=status, messageId=message_id))
        for frame in run_frames(batch, message_id=message_id):
            await self._socket.send(frame)

    # ---- client to hub

    async def _read(self) -> None:
        bad = 0
        while True:
            text = await self._socket.receive()
            try:
                if len(text) > self._services.max_frame:
                    raise BadRequest(f"a frame has at most {self._services.max_frame} characters")
                raw = text.encode()
                frame = await offload(weigh(raw), partial(decode_frame, raw))
                if isinstance(frame, SocketPing):
                    await self._socket.send(encode_frame("pong"))
                    continue
                if len(self._requests) >= MAX_REQUESTS:
                    busy = RateLimited(f"{MAX_REQUESTS} requests of this socket are in progress")
                    await self._socket.send(error_frame(busy, request_id=request_id_of(frame)))
                    continue
            except (BadRequest, TooLarge) as error:
                bad += 1
                await self._socket.send(error_frame(error))
                if bad >= MAX_BAD_FRAMES:
                    return
                continue
            request = asyncio.create_task(self._handle(frame))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)

    async def _handle(self, frame: Any) -> None:
        request_id = request_id_of(frame)
        try:
            answer = encode_frame("done", requestId=request_id, **await self._respond(frame))
        except DragomanError as error:
            answer = error_frame(error, request_id=request_id)
        except Exception:
            log.exception("a request on the socket of session %s failed", self._session.id)
            internal = DragomanError("internal error of the hub; see its log")
            answer = error_frame(internal, request_id=request_id)
        with suppress(SocketClosed):  # `_read` raises it too, which ends the connection
            await self._socket.send(answer)

    async def _respond(self, frame: Any) -> dict[str, Any]:
        match frame:
            case SocketPrompt():
                return await self._prompt(frame)
            case SocketAbort():
                session = await find_session_for(
                    self._services.store.sessions, self._session.id, caller=self._caller, role="write"
                )
                run = await self._services.runs.stop_run(session.id, "stopped by the user")
                return {"stopped": run is not None}
            case SocketAnswer():
                return await self._answer(frame)
            case _:
                raise BadRequest("the first frame may be `auth`, and no later one")

    async def _prompt(self, frame: SocketPrompt) -> dict[str, Any]:
        """Begin a run. One channel's message waits for the answer to another's."""
        message = dict(frame.message or {})
        message.setdefault("id", frame.id or new_id("msg"))
        message["role"] = "user"
        if frame.text is not None:
            message["parts"] = [{"type": "text", "text": frame.text}]
        optional = {
            "model": frame.model,
            "agent": frame.agent,
            "whenBusy": frame.when_busy,
            "channelType": frame.channel_type,
            "channelId": frame.channel_id,
        }
        fields = {
            "messages": [message],
            **{name: value for name, value in optional.items() if value is not None},
        }

        def parse() -> ChatRequest:
            return parse_chat_request(
                encode_large(fields), session_id=self._session.id, max_part=self._services.max_part
            )

        request = await offload(measure(fields), parse)
        caller = run_caller(self._caller, self._session.id)
        started = await self._services.runs.start_run(request, caller)
        if isinstance(started, StartedRun):
            self._follow_run(started.run)
        return {"runId": started.run_id, "messageId": message["id"]}

    async def _answer(self, frame: SocketAnswer) -> dict[str, Any]:
        approval = await self._services.store.approvals.get(frame.approval_id)
        if approval.session_id != self._session.id:  # others are answered where they are shown
            raise approval_not_found(frame.approval_id)
        require_write(self._caller, approval.session_id)
        body = ApprovalBody(approved=frame.approved, reason=frame.reason, answer=frame.answer)
        approved, reason = parse_answer(body, approval)
        found = await self._services.answer_approval(
            approval.id, approved=approved, by=self._caller, reason=reason
        )
        return {"approvalId": found.id, "status": found.status}


def request_id_of(frame: AnyFrame) -> str | None:
    """Return the id that the answer to a frame repeats."""
    return None if isinstance(frame, SocketKey | SocketPing) else frame.request_id


def last_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the last messages, as many as one frame shows; at least one."""
    size, first = 0, len(messages)
    while first > 0 and len(messages) - first < SHOWN_MESSAGES:
        size += messages_size([messages[first - 1]])
        if size > SHOWN_SIZE and first < len(messages):
            break
        first -= 1
    return messages[first:]
