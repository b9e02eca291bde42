"""HTTP transport for the MCP SDK that limits the size of responses and isolates broken ones.

The SDK parses responses itself. What it cannot decode (a lone surrogate) is mended here, before it sees it; a
JSON body that answers another request, which it would drop, becomes the error of the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import httpx2
import msgspec

from dragoman.json_text import DECODE_ERRORS, decode_json, mend_json, prune_depth
from dragoman.large_json import weigh
from dragoman.mcp.client.jsonrpc import MAX_DEPTH, PARSE_ERROR, TOO_MANY, has_too_many_values
from dragoman.offload import offload

CONNECTION_LOST = -32050  # our own codes, where JSON-RPC leaves room: it was sent, and no answer came
UNREACHABLE = -32051  # it was not sent
TOO_LARGE = -32052

SOCKET_SECONDS = 15.0
NOTIFICATION_SECONDS = 3.0  # notices are sent one by one, and one that hangs holds up the next request
TOOLS_LIST_METHOD = b'"method":"tools/list"'
NOTIFICATION_METHOD = b'"method":"notifications/'
JSON_TYPE, SSE_TYPE = "application/json", "text/event-stream"
NOT_JSON = "its response is not valid JSON"


class BoundedHttpTransport(httpx2.AsyncBaseTransport):
    """A transport for the SDK whose responses have at most `limit` bytes each.

    JSON is read whole here, so that a connection that breaks in the middle of it is the failure of that
    request; left to the SDK it would end all others too. Lists of tools lose what is nested too deep to read.
    """

    def __init__(self, url: str, *, limit: int) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=url.lower().startswith("https:"))
        self._limit = limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            body = request.content if request.method == "POST" else b""
            if NOTIFICATION_METHOD in body or request.method == "DELETE":
                request.extensions = {
                    **request.extensions,
                    "timeout": dict.fromkeys(TIMEOUT_KINDS, NOTIFICATION_SECONDS),
                }
            response = await self._inner.handle_async_request(request)
            return await self._read_bounded(response, request=body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return error_response(UNREACHABLE, f"it cannot be reached: {error_text(error)}")
        except httpx2.TransportError as error:
            return error_response(CONNECTION_LOST, f"the connection broke: {error_text(error)}")

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _read_bounded(self, response: httpx2.Response, *, request: bytes) -> httpx2.Response:
        content_type = response.headers.get("content-type", "").lower()
        is_tools_list, is_json = TOOLS_LIST_METHOD in request, content_type.startswith(JSON_TYPE)
        headers = [each for each in response.headers.multi_items() if each[0].lower() not in FRAMING_HEADERS]
        if not (is_json or is_tools_list):
            if not content_type.startswith(SSE_TYPE):
                return response
            events = MendedEvents(response, limit=self._limit)
            return httpx2.Response(response.status_code, headers=headers, stream=events)
        body = await self._read_body(response)
        if body is None:
            return error_response(TOO_LARGE, too_large_message(self._limit))
        size = weigh(body)
        if await offload(size, partial(has_too_many_values, body)):
            return error_response(TOO_LARGE, f"its response {TOO_MANY}")
        body = await offload(size, partial(mend_body, body, is_json=is_json, is_tools_list=is_tools_list))
        status = response.status_code
        if is_json and response.is_success:
            answered = await offload(size, partial(check_answer, body, request))
            if isinstance(answered, str):
                return error_response(PARSE_ERROR, answered)
            status = status if answered else 400  # of an error without an id, which the SDK drops otherwise
        return httpx2.Response(status, headers=headers, content=body)

    async def _read_body(self, response: httpx2.Response) -> bytes | None:
        """Return the whole body; None if it is above the limit."""
        try:
            pieces, size = [], 0
            async for piece in body_chunks(response):
                size += len(piece)
                if size > self._limit:
                    return None
                pieces.append(piece)
        finally:
            await response.aclose()
        return b"".join(pieces)


class MendedEvents(httpx2.AsyncByteStream):
    """The lines of an event stream, each without lone surrogates.

    A line is sent on when it has ended, or when it is longer than `limit` bytes, which the SDK refuses.
    """

    def __init__(self, response: httpx2.Response, *, limit: int) -> None:
        self._response = response
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pending: list[bytes] = []
        size = 0
        async for chunk in body_chunks(self._response):
            end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
            if end == 0 and size + len(chunk) <= self._limit:
                pending.append(chunk)
                size += len(chunk)
                continue
            end = end or len(chunk)
            lines = b"".join([*pending, chunk[:end]])
            pending, size = [chunk[end:]], len(chunk) - end
            yield await offload(len(lines), partial(mend_lines, lines))
        rest = b"".join(pending)
        yield await offload(len(rest), partial(mend_line, rest))

    async def aclose(self) -> None:
        await self._response.aclose()


def mend_body(body: bytes, *, is_json: bool, is_tools_list: bool) -> bytes:
    """Return a body without lone surrogates; a list of tools also without what is nested too deep."""
    body = prune_depth(body, MAX_DEPTH) if is_tools_list else body
    return mend_line(body) if is_json else mend_lines(body)


def mend_lines(text: bytes) -> bytes:
    """Return the lines of an event stream without lone surrogates."""
    if b"\\u" not in text and b"\xed" not in text:  # neither an escape of one nor its bytes
        return text
    return b"".join(map(mend_line, text.splitlines(keepends=True)))


def mend_line(line: bytes) -> bytes:
    """Return a line without lone surrogates."""
    return mend_json(line) or line


class RpcMessageHead(msgspec.Struct):
    """What tells which request a message answers."""

    id: Any = None
    method: str | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_head_decoder = msgspec.json.Decoder(RpcMessageHead)


def decode_head(body: bytes) -> RpcMessageHead | None:
    """Return the head of a JSON-RPC message; None if it is none, as the SDK then says. Raises DecodeError."""
    try:
        return decode_json(body, _head_decoder) if body else None
    except (msgspec.ValidationError, RecursionError):
        return None


def check_answer(body: bytes, request: bytes) -> bool | str:
    """Return whether a JSON body names the request that it answers, or why it cannot be the response to it.

    It is False for an error without an id. The SDK would drop a message that names no pending request, and
    the request would wait for another until its timeout.
    """
    sent = decode_head(request)
    if sent is None or sent.id is None:
        return True
    try:
        reply = decode_head(body)
    except DECODE_ERRORS:
        return NOT_JSON
    if reply is None:
        return True
    if reply.method is not msgspec.UNSET:
        return f"its response is the message {reply.method[:100]!r} instead of a result or an error"
    if reply.id is None and reply.error is not msgspec.UNSET:
        return False
    if isinstance(reply.id, bool) or str(reply.id) != str(sent.id):
        return f"its response has the id {str(reply.id)[:100]!r}, the request has {sent.id!r}"
    return True


TIMEOUT_KINDS = ("connect", "read", "write", "pool")
FRAMING_HEADERS = ("content-length", "content-encoding", "transfer-encoding")


def too_large_message(limit: int) -> str:
    return f"its response has more than {limit:,} bytes, the limit"


async def body_chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the decompressed body in chunks, so that a decompression bomb is noticed as it grows."""
    async for piece in response.aiter_bytes():
        yield piece


def error_response(code: int, message: str) -> httpx2.Response:
    """Return a response that the SDK turns into the error of the one request that it answers."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(502, headers={"content-type": JSON_TYPE}, content=msgspec.json.encode(body))


def error_text(error: Exception) -> str:
    return str(error) or type(error).__name__


def make_client(url: str, headers: Mapping[str, str], *, limit: int) -> httpx2.AsyncClient:
    """Return the HTTP client of one server. Responses have no timeout but that of the call."""
    return httpx2.AsyncClient(
        transport=BoundedHttpTransport(url, limit=limit),
        headers=dict(headers),
        timeout=httpx2.Timeout(SOCKET_SECONDS, read=None),
        follow_redirects=False,
    )
