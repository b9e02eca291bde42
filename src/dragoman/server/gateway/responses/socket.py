"""The WebSocket at `/v1/responses`: many requests over one connection, which remembers their responses.

Each `response.create` is answered by the handler of `POST /v1/responses`, as a stream whose events become
messages: so limits, costs, routes and errors are the same. Source: wire notes on the Responses API, §7.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.types import Message, Receive, Scope, Send

from dragoman.errors import BadRequest, DragomanError, KeyEnded, LimitReached, WireError
from dragoman.http.asgi_exchange import ClientDisconnected, Exchange, handle
from dragoman.http.asgi_websocket import AsgiSocket, SocketClosed
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.json_decoding import DECODE_ERRORS, decode_fields
from dragoman.json_limits import check_shape
from dragoman.large_json import weigh
from dragoman.offload import offload
from dragoman.operations.authorization import require_scope
from dragoman.revocable_work import ActiveWork
from dragoman.server.gateway.responses.creation import ResponseMemory
from dragoman.server.gateway.responses.dialect import ResponsesDialect
from dragoman.wire.sse import SSEParser

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
CONNECTION_SECONDS = 3_600.0
MAX_LANE_ID = 200  # characters, which each of its events repeats
MAX_LANES = 16  # with requests that are not answered yet
MAX_WAITING = 8  # requests of a lane behind the one that is answered
MAX_WAITING_SIZE = 64_000_000  # bytes of all that wait; one request of any size may
POLICY_VIOLATION, NORMAL_CLOSURE = 1008, 1000
PIECE = 262_144  # bytes of a request that are checked at once
_DIALECT = ResponsesDialect()
_OWN_FIELDS = ("type", "stream_id", "generate", "background", "stream_options")


class CreateResponse(Protocol):
    """Answers a request on an exchange, with `warm_up` without asking a model."""

    def __call__(
        self, exchange: Exchange, *, memory: ResponseMemory | None = None, warm_up: bool = False
    ) -> Awaitable[None]: ...


class SocketAuth(Protocol):
    """Who may connect. See `Auth`."""

    work: ActiveWork

    def identify(self, headers: Mapping[str, str], *, at: str | None = None) -> Awaitable[Identity]: ...

    def check_host(self, headers: Mapping[str, str], *, at: str | None = None) -> None: ...


class ResponsesSocket:
    """The ASGI app of these WebSockets."""

    def __init__(self, create: CreateResponse, auth: SocketAuth, *, max_memory: int) -> None:
        """`max_memory` is the most bytes of the responses that a connection remembers."""
        self.connection_seconds = CONNECTION_SECONDS
        self._create = create
        self._auth = auth
        self._max_memory = max_memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = AsgiSocket(scope, receive, send)
        address = (scope.get("server") or (None,))[0]
        try:
            self._auth.check_host(socket.headers, at=address)
            identity = await self._auth.identify(socket.headers, at=address)
            require_scope(identity, "gateway")
        except DragomanError as error:
            with suppress(SocketClosed):
                await socket.refuse(error)
            return
        try:
            await socket.accept()
            connection = ResponsesConnection(
                socket, scope, identity=identity, create=self._create, memory=ResponseMemory(self._max_memory)
            )
            await self._serve(connection, identity)
        except SocketClosed:
            return
        except Exception:
            log.exception("a connection of a client of the Responses API failed")

    async def _serve(self, connection: ResponsesConnection, identity: Identity) -> None:
        with self._auth.work.track(identity, connection.end):
            try:
                async with asyncio.timeout(self.connection_seconds):
                    await connection.serve()
            except TimeoutError:
                error = BadRequest(f"a connection lasts {self.connection_seconds:.0f} seconds; open another")
                error.code = "websocket_connection_limit_reached"
                await connection.send_error(error)
                await connection.close(NORMAL_CLOSURE, error.message)


class ResponsesConnection:
    """One connection. Requests of one `stream_id` (a lane) are answered in order, others concurrently."""

    def __init__(
        self,
        socket: AsgiSocket,
        scope: Scope,
        *,
        identity: Identity,
        create: CreateResponse,
        memory: ResponseMemory,
    ) -> None:
        self._socket = socket
        self._scope = scope
        self._identity = identity
        self._create = create
        self._memory = memory
        self._lanes: dict[str | None, Lane] = {}
        self._waiting_size = 0
        self._ended: KeyEnded | None = None
        self._task: asyncio.Task[object] | None = None

    def end(self, error: KeyEnded) -> None:
        """End the connection: its key is no longer valid."""
        self._ended = error
        if self._task is not None:
            self._task.cancel()

    async def serve(self) -> None:
        """Answer messages until the client closes the connection. Raises SocketClosed then."""
        self._task = asyncio.current_task()
        try:
            while True:
                await self._receive()
        except asyncio.CancelledError:
            if self._ended is None or self._task is None:
                raise
            self._task.uncancel()
            await self.send_error(self._ended)
            await self.close(POLICY_VIOLATION, self._ended.message)
        finally:
            tasks = [lane.task for lane in self._lanes.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self, code: int, reason: str) -> None:
        """Close the connection."""
        await self._socket.close(code, reason[:100])

    async def send_error(self, error: DragomanError, *, lane: str | None = None) -> None:
        """Send an error that is not the end of a response."""
        body = {"type": "error", "status": _DIALECT.error_status(error), **_DIALECT.error_body(error, "")}
        await self._socket.send(_encode(body if lane is None else {**body, "stream_id": lane}).decode())

    async def _receive(self) -> None:
        """Receive the next message, and act on it or send an error."""
        try:
            raw = (await self._socket.receive()).encode()
        except WireError:
            await self.send_error(BadRequest("messages are JSON in text frames, not binary"))
            return
        lane: str | None = None
        try:
            head = await offload(weigh(raw), partial(_read_head, raw))
            if head.stream_id is not None and len(head.stream_id) > MAX_LANE_ID:
                text = f"stream_id has {len(head.stream_id)} characters; {MAX_LANE_ID} are allowed"
                raise BadRequest(text, field="stream_id")
            lane = head.stream_id
            match head.type:
                case "response.create":
                    self._put(raw, lane)
                case "response.steer":
                    await self._refuse_steer(raw, lane)
                case other:
                    raise BadRequest(f"there is no message of the type {str(other)[:60]!r}", field="type")
        except DragomanError as error:
            await self.send_error(error, lane=lane)

    def _put(self, raw: bytes, id: str | None) -> None:
        """Add a request to its lane. Raises LimitReached."""
        if self._waiting_size + len(raw) > MAX_WAITING_SIZE and self._waiting_size:
            raise LimitReached(f"requests of {self._waiting_size} bytes wait on this connection already")
        lane = self._lanes.get(id)
        if lane is None:
            if len(self._lanes) >= MAX_LANES:
                raise LimitReached(f"a connection has at most {MAX_LANES} lanes with requests at once")
            lane = self._lanes[id] = Lane()
            lane.waiting.append(raw)
            self._waiting_size += len(raw)
            lane.task = asyncio.ensure_future(self._answer_lane(id, lane))
            return
        if len(lane.waiting) >= MAX_WAITING:
            raise LimitReached(f"{MAX_WAITING} requests of this lane are waiting already")
        lane.waiting.append(raw)
        self._waiting_size += len(raw)

    async def _answer_lane(self, id: str | None, lane: Lane) -> None:
        try:
            while lane.waiting:
                raw = lane.waiting.pop(0)
                self._waiting_size -= len(raw)
                await self._try_answer(raw, id)
        finally:
            del self._lanes[id]

    async def _try_answer(self, raw: bytes, lane: str | None) -> None:
        """Answer a request; one that fails before it has a response fails alone."""
        try:
            await self._answer(raw, lane)
        except Exception as error:
            if not isinstance(error, DragomanError):
                log.exception("a request of a client of the Responses API failed")
                error = DragomanError("internal error of the hub; see its log")
            with suppress(SocketClosed):
                await self.send_error(error, lane=lane)

    async def _answer(self, raw: bytes, lane: str | None) -> None:
        body, warm_up = await offload(weigh(raw), partial(_read_request, raw))
        writer = SocketEventWriter(self._socket, lane)
        scope = {**self._scope, "type": "http", "method": "POST"}
        exchange = Exchange(scope, _receive_body(body), writer)
        exchange.identity, exchange.request_id = self._identity, new_id("req")

        async def create(exchange: Exchange) -> None:
            await self._create(exchange, memory=self._memory, warm_up=warm_up)

        async def fail(_: Exchange, error: DragomanError) -> None:
            with suppress(SocketClosed):
                await self.send_error(error, lane=lane)

        await handle(exchange, create, on_error=fail)

    async def _refuse_steer(self, raw: bytes, lane: str | None) -> None:
        """Send that an answer cannot be steered: no provider takes input while it answers."""
        fields = await offload(weigh(raw), partial(decode_fields, raw))
        steer = {name: fields[name] for name in ("previous_response_id", "input") if name in fields}
        message: dict[str, Any] = {
            "type": "response.steer.failed",
            "sequence_number": 0,
            "steer": steer,
            "error": {
                "type": "invalid_request_error",
                "code": "steering_not_supported",
                "message": "the hub cannot steer an answer; send the input with the next response.create",
            },
        }
        await self._socket.send(_encode(message if lane is None else {**message, "stream_id": lane}).decode())


class Lane:
    """The requests of one `stream_id` that wait, and the task that answers them."""

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.waiting: list[bytes] = []


class SocketMessageHead(msgspec.Struct):
    """The fields of a message that tell what to do with it."""

    type: Any = None
    stream_id: str | None = None


class SocketEventWriter:
    """An ASGI `send` whose server-sent events become messages of a WebSocket."""

    def __init__(self, socket: AsgiSocket, lane: str | None) -> None:
        self._socket = socket
        self._parser = SSEParser()
        self._prefix = "{" if lane is None else f'{{"stream_id":{_encode(lane).decode()},'

    async def __call__(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            return
        for frame in self._parser.feed(message.get("body", b"")):
            if not frame.startswith(b"{"):  # `[DONE]`
                continue
            try:
                await self._socket.send(self._prefix + frame[1:].decode(errors="replace"))
            except SocketClosed:
                raise ClientDisconnected from None


def _read_head(raw: bytes) -> SocketMessageHead:
    check_shape(raw)
    try:
        return msgspec.json.decode(raw, type=SocketMessageHead)
    except DECODE_ERRORS as error:
        raise BadRequest(f"the message is not a JSON object with a type: {error}") from None


def _read_request(raw: bytes) -> tuple[bytes, bool]:
    """Return the body of a message's request, and whether it is a warm-up."""
    fields = decode_fields(raw)
    is_warm_up = bytes(fields.get("generate", b"")) == b"false"
    body = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
    return _encode({**body, "stream": True}), is_warm_up


def _receive_body(body: bytes) -> Receive:
    """Return an ASGI `receive` with this body in pieces; its client never disconnects."""
    starts = range(0, max(1, len(body)), PIECE)
    messages: list[Message] = [
        {"type": "http.request", "body": body[start : start + PIECE], "more_body": start != starts[-1]}
        for start in reversed(starts)
    ]

    async def receive() -> Message:
        if messages:
            await asyncio.sleep(0)  # each piece is checked when it arrives
            return messages.pop()
        await asyncio.Event().wait()  # until the task is cancelled
        return {"type": "http.disconnect"}

    return receive
