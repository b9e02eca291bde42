"""Stateless: a `tools/call` of a meta-tool that belongs to no session, answered without the SDK.

Which is what a hub does most, so it should cost little. Whatever is not plainly such a request, as it is in
the specification (2026-07-28, basic/transports), is left to the SDK, with its errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec
from starlette.types import Receive, Send

from dragoman.errors import BadRequest, DragomanError, Unavailable
from dragoman.identity import Identity
from dragoman.mcp.server.results import progress_text
from dragoman.mcp.server.server import NAME, ToolCall, ToolServer
from dragoman.mcp.server.tool_list import meta_tool_id
from dragoman.operations.context import ProgressCallback

# ---- Underway: a tool call in a task of its own, and what it says until it ends.

StartCall = Callable[[ProgressCallback | None], Awaitable[dict[str, Any]]]
NO_VALUE = object()
IDENTITY_KEY = "dragoman.identity"  # in an ASGI scope: who asks
TASKS_KEY = "dragoman.underway"  # in an ASGI scope: the tasks of the calls that end with the request


class NoProgress(msgspec.Struct, frozen=True):
    """It has said nothing for a while."""


class ProgressUpdate(msgspec.Struct, frozen=True):
    """How far a call is: `count` grows, `text` is for people."""

    count: int
    text: str


class RunningCall:
    """A call that was begun. It ends by itself, or with cancel(); whoever waits may leave at any time.

    What it says faster than it can be told on is skipped, but for the newest. `heard` False: nobody listens.
    """

    def __init__(self, start: StartCall, *, reports_progress: bool) -> None:
        self._value: Any = NO_VALUE
        self._count = 0
        self._changed = asyncio.Event()
        self.task = asyncio.ensure_future(start(self._report if reports_progress else None))
        self.task.add_done_callback(lambda _: self._changed.set())

    def cancel(self) -> None:
        """Abort the call with all that it called."""
        self.task.cancel()

    async def next(self, timeout: float | None = None) -> ProgressUpdate | NoProgress | None:
        """What it says next; Quiet when that takes longer than `timeout`; None when it has ended."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return NoProgress()
        if self._value is NO_VALUE:
            return None
        value, self._value = self._value, NO_VALUE
        if not self.task.done():
            self._changed.clear()
        self._count += 1
        return ProgressUpdate(self._count, progress_text(value))

    async def result(self) -> dict[str, Any]:
        """What came of it; whoever stops awaiting this cancels it. Unavailable when it was stopped."""
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.task.cancelled():
            raise Unavailable("the call was stopped")
        return self.task.result()

    def _report(self, value: Any) -> None:
        self._value = value
        self._changed.set()


# ---- A reply over HTTP: one JSON message, or a stream of them once there is something to say before the end.

PING_COMMENT = b": ping\r\n\r\n"
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_encoder = msgspec.json.Encoder()


class JsonRpcResponse:
    """An answer that is written as it comes."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = False

    async def send_message(self, message: dict[str, Any] | None) -> None:
        """A message before the last; without one, a sign of life."""
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        frame = PING_COMMENT if message is None else sse_message(message)
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def finish(self, status: int, message: dict[str, Any]) -> None:
        """The last message; `status` counts when it is the only one."""
        if self._started:
            await self._send({"type": "http.response.body", "body": sse_message(message)})
            return
        payload = _encoder.encode(message)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(payload))]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": payload})


class LeavingClient:
    """Watches for the client to leave before it is answered, and then aborts its call."""

    def __init__(self, receive: Receive, call: RunningCall) -> None:
        self.left = False
        self._receive = receive
        self._call = call
        self._task = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Watch no longer."""
        self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        self._call.cancel()


def sse_message(message: dict[str, Any]) -> bytes:
    """A message as a server-sent event."""
    return b"event: message\r\ndata: " + _encoder.encode(message) + b"\r\n\r\n"


def progress_message(token: str | int, *, count: int, text: str) -> dict[str, Any]:
    """The notification of how far a call is."""
    params = {"progressToken": token, "progress": count, "message": text}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


log = logging.getLogger(__name__)

STATELESS_REVISION = "2026-07-28"
HANDSHAKE_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
KEEP_ALIVE_SECONDS = 15.0
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
META_PREFIX = "io.modelcontextprotocol/"


class DeclaredClient(msgspec.Struct, frozen=True):
    """Who the client says it is."""

    name: str
    version: str


class RequestMeta(msgspec.Struct, frozen=True, rename="camel"):
    """What a request says of itself, in `_meta`."""

    version: str | None = msgspec.field(name=f"{META_PREFIX}protocolVersion", default=None)
    capabilities: dict[str, Any] | None = msgspec.field(name=f"{META_PREFIX}clientCapabilities", default=None)
    client: DeclaredClient | None = msgspec.field(name=f"{META_PREFIX}clientInfo", default=None)
    progress_token: str | int | None = None


class ToolCallParams(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of `tools/call`."""

    name: str
    arguments: dict[str, Any] | None = None
    meta: RequestMeta = msgspec.field(name="_meta", default=RequestMeta())
    input_responses: dict[str, Any] | None = None
    request_state: str | None = None


class ToolCallMessage(msgspec.Struct, frozen=True):
    """A request for a tool."""

    jsonrpc: Literal["2.0"]
    id: int | str
    method: Literal["tools/call"]
    params: ToolCallParams


_decoder = msgspec.json.Decoder(ToolCallMessage)


def parse_tool_call(headers: Mapping[str, str], body: bytes) -> ToolCallMessage | None:
    """The request, if it is plainly one of those that are answered here."""
    version = headers.get("mcp-protocol-version")
    if "mcp-session-id" in headers or not accepts_json_and_sse(headers) or b'"tools/call"' not in body:
        return None
    try:
        request = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    params, meta = request.params, request.params.meta
    if meta_tool_id(params.name) is None or (params.arguments is None and version == STATELESS_REVISION):
        return None
    if version != STATELESS_REVISION:
        plain = meta.version is None and params.request_state is None
        return request if plain and version in (None, *HANDSHAKE_REVISIONS) else None
    mirrored = (headers.get("mcp-method"), headers.get("mcp-name"), meta.version)
    said = mirrored == ("tools/call", params.name, STATELESS_REVISION) and meta.capabilities is not None
    return request if said else None


def accepts_json_and_sse(headers: Mapping[str, str]) -> bool:
    """Whether the client sends JSON, and takes either form of an answer."""
    accept = headers.get("accept", "")
    return (
        headers.get("content-type", "").startswith("application/json")
        and "application/json" in accept
        and "text/event-stream" in accept
    )


class StatelessCalls:
    """Answers such requests: with JSON, or with a stream once there is progress, or it takes long."""

    def __init__(self, tool_server: ToolServer) -> None:
        self._tool_server = tool_server
        self._running: set[RunningCall] = set()
        self._server_meta = {
            f"{META_PREFIX}serverInfo": {"name": NAME, "title": "Dragoman", "version": tool_server.version}
        }

    async def serve(
        self, request: ToolCallMessage, *, receive: Receive, send: Send, identity: Identity
    ) -> None:
        """Answer it. When the client leaves before that, the call is aborted."""
        token = request.params.meta.progress_token
        call = RunningCall(
            lambda report: self._call(request, identity=identity, report=report),
            reports_progress=token is not None,
        )
        self._running.add(call)
        leaving = LeavingClient(receive, call)
        try:
            reply = JsonRpcResponse(send)
            while (said := await call.next(KEEP_ALIVE_SECONDS)) is not None:
                await reply.send_message(progress_notification(token, said))
            if not leaving.left:
                await reply.finish(*self._response(request, call))
        finally:
            call.cancel()
            leaving.close()
            self._running.discard(call)

    async def drain(self, seconds: float) -> None:
        """Give what is under way so many seconds."""
        tasks = [call.task for call in self._running]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def close(self) -> None:
        """Abort what is under way; whoever waits is told."""
        tasks = [call.task for call in self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _call(
        self, request: ToolCallMessage, *, identity: Identity, report: ProgressCallback | None
    ) -> dict[str, Any]:
        params = request.params
        return await self._tool_server.call(
            ToolCall(
                name=params.name,
                arguments=params.arguments or {},
                identity=identity,
                report=report,
                can_resume=bool(params.meta.capabilities and "elicitation" in params.meta.capabilities),
                responses=params.input_responses,
                state=params.request_state,
            )
        )

    def _response(self, request: ToolCallMessage, call: RunningCall) -> tuple[int, dict[str, Any]]:
        """The status and the message."""
        head = {"jsonrpc": "2.0", "id": request.id}
        if call.task.cancelled():
            return 200, {**head, "error": {"code": INTERNAL_ERROR, "message": "the call was stopped"}}
        error = call.task.exception()
        if isinstance(error, DragomanError):
            code = INVALID_PARAMS if isinstance(error, BadRequest) else INTERNAL_ERROR
            return 400, {**head, "error": {"code": code, "message": error.message, "data": error.to_json()}}
        if error is not None:
            log.error("a tool call failed", exc_info=error)
            return 200, {**head, "error": {"code": INTERNAL_ERROR, "message": "Internal server error"}}
        result = call.task.result()
        if request.params.meta.version is None:
            return 200, {**head, "result": result}
        stamped = {**result.get("_meta", {}), **self._server_meta}
        return 200, {**head, "result": {"resultType": "complete", **result, "_meta": stamped}}


def progress_notification(
    token: str | int | None, update: ProgressUpdate | NoProgress
) -> dict[str, Any] | None:
    """What the client is told meanwhile; None for a mere sign of life."""
    if token is None or isinstance(update, NoProgress):
        return None
    return progress_message(token, count=update.count, text=update.text)
