"""`tools/call` of a meta-tool without a session, answered without the MCP SDK.

This is the most frequent request of a hub, so it has to cost little. Requests of any other form
(specification 2026-07-28, basic/transports), such as invalid ones, are left to the SDK.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dragoman.errors import BadRequest, DragomanError
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.http.in_flight import InFlightRequests
from dragoman.http.sse_keepalive import KeepAlive
from dragoman.json_decoding import decode_typed
from dragoman.mcp.server.running_call import ProgressUpdate, RunningCall
from dragoman.mcp.server.server import NAME, ToolCall, ToolServer
from dragoman.mcp.server.tool_list import meta_tool_id
from dragoman.operations.context import ProgressCallback

log = logging.getLogger(__name__)

STATELESS_REVISION = "2026-07-28"
HANDSHAKE_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
KEEP_ALIVE_SECONDS = 15.0
PING_COMMENT = b": ping\r\n\r\n"
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
META_PREFIX = "io.modelcontextprotocol/"


class DeclaredClient(msgspec.Struct, frozen=True):
    """The name and version that the client declares."""

    name: str
    version: str


class RequestMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The `_meta` of a request."""

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
    """The JSON-RPC message of a `tools/call`."""

    jsonrpc: Literal["2.0"]
    id: int | str
    method: Literal["tools/call"]
    params: ToolCallParams


_decoder = msgspec.json.Decoder(ToolCallMessage)


def parse_tool_call(headers: Mapping[str, str], body: bytes) -> ToolCallMessage | None:
    """Return the request if it can be answered without the SDK, else None."""
    version = headers.get("mcp-protocol-version")
    if "mcp-session-id" in headers or not accepts_json_and_sse(headers) or b'"tools/call"' not in body:
        return None
    try:
        request = decode_typed(body, _decoder)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    params, meta = request.params, request.params.meta
    if meta_tool_id(params.name) is None or (params.arguments is None and version == STATELESS_REVISION):
        return None
    if version != STATELESS_REVISION:
        plain = meta.version is None and params.request_state is None
        return request if plain and version in (None, *HANDSHAKE_REVISIONS) else None
    mirrored = (headers.get("mcp-method"), headers.get("mcp-name"), meta.version)
    complete = mirrored == ("tools/call", params.name, STATELESS_REVISION) and meta.capabilities is not None
    return request if complete else None


def accepts_json_and_sse(headers: Mapping[str, str]) -> bool:
    """Return whether the client sends JSON and accepts JSON and an event stream."""
    accept = headers.get("accept", "")
    return (
        headers.get("content-type", "").startswith("application/json")
        and "application/json" in accept
        and "text/event-stream" in accept
    )


class JsonRpcResponse:
    """A response that is one JSON message, or a stream once there is progress or the call takes long."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def send_comment(self) -> None:
        """Send a keep-alive comment."""
        await self._send_part(PING_COMMENT)

    async def send_message(self, message: dict[str, Any]) -> None:
        """Send a message before the last one."""
        await self._send_part(sse_message(message))

    async def finish(self, status: int, message: dict[str, Any]) -> None:
        """Send the last message. `status` is used when no part was sent before it."""
        if self._exchange.response_started:
            await self._exchange.send({"type": "http.response.body", "body": sse_message(message)})
        else:
            await self._exchange.respond(status, message)

    async def _send_part(self, part: bytes) -> None:
        if not self._exchange.response_started:
            await self._exchange.start_response(200, STREAM_HEADERS)
        await self._exchange.send_chunk(part)


def sse_message(message: dict[str, Any]) -> bytes:
    """Encode a message as a server-sent event."""
    return b"event: message\r\ndata: " + msgspec.json.encode(message) + b"\r\n\r\n"


def progress_message(token: str | int, update: ProgressUpdate) -> dict[str, Any]:
    """Return the `notifications/progress` message."""
    params = {"progressToken": token, "progress": update.count, "message": update.text}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


class StatelessCalls:
    """Answers the requests that `parse_tool_call` returns."""

    def __init__(self, tool_server: ToolServer, *, in_flight: InFlightRequests) -> None:
        self._tool_server = tool_server
        self._in_flight = in_flight
        self._server_meta = {
            f"{META_PREFIX}serverInfo": {"name": NAME, "title": "Dragoman", "version": tool_server.version}
        }

    async def serve(self, request: ToolCallMessage, exchange: Exchange) -> None:
        """Answer a request. When the client disconnects before, the call is aborted."""
        token = request.params.meta.progress_token
        call = RunningCall(
            lambda report: self._call(request, exchange=exchange, report=report),
            reports_progress=token is not None,
        )
        response = JsonRpcResponse(exchange)
        exchange.on_key_ended = call.cancel
        try:
            with self._in_flight.track(call.cancel), DisconnectWatch(exchange) as watch:
                await self._send_progress(call, response, token=token)
                watch.response_complete = True
                await response.finish(*self._result_message(request, call))
        finally:
            exchange.on_key_ended = None  # no cycles: they would wait for the garbage collector
            call.cancel()

    async def _send_progress(
        self, call: RunningCall, response: JsonRpcResponse, *, token: str | int | None
    ) -> None:
        """Send the updates of a call until it ends; comments while it sends none."""
        async with KeepAlive(response.send_comment, KEEP_ALIVE_SECONDS) as keep_alive:
            while (update := await call.next()) is not None:
                if token is not None:
                    keep_alive.last_output = asyncio.get_running_loop().time()
                    await response.send_message(progress_message(token, update))

    async def _call(
        self, request: ToolCallMessage, *, exchange: Exchange, report: ProgressCallback | None
    ) -> dict[str, Any]:
        params = request.params
        return await self._tool_server.call(
            ToolCall(
                name=params.name,
                arguments=params.arguments or {},
                identity=exchange.identity,
                report=report,
                can_resume=bool(params.meta.capabilities and "elicitation" in params.meta.capabilities),
                responses=params.input_responses,
                state=params.request_state,
            )
        )

    def _result_message(self, request: ToolCallMessage, call: RunningCall) -> tuple[int, dict[str, Any]]:
        """Return the status and the message of a call that has ended."""
        head = {"jsonrpc": "2.0", "id": request.id}
        if call.task.cancelled() and call.error is not None:
            key_ended = call.error
            failure = {"code": INTERNAL_ERROR, "message": key_ended.message, "data": key_ended.to_json()}
            return key_ended.status, {**head, "error": failure}
        if call.task.cancelled():
            return 200, {**head, "error": {"code": INTERNAL_ERROR, "message": "the call was aborted"}}
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
        meta = {**result.get("_meta", {}), **self._server_meta}
        return 200, {**head, "result": {"resultType": "complete", **result, "_meta": meta}}
