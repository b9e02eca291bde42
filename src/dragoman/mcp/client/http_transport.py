"""HTTP transport for the MCP SDK that limits the size of responses and isolates broken ones.

The SDK parses responses itself. Lone surrogates, which it cannot decode, are replaced here first; a JSON body
with the id of another request, which it would drop, becomes the error of the request. Large messages are
decoded here, and the SDK gets references to their contents (`large_messages.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import httpx2
import msgspec

from dragoman.json_decoding import DECODE_ERRORS, decode_json, prune_depth
from dragoman.large_json import SMALL, weigh
from dragoman.mcp.client.jsonrpc import MAX_DEPTH, PARSE_ERROR, TOO_MANY, has_too_many_values
from dragoman.mcp.client.large_messages import EVENT_ENDS, MessageBodies, mend_line, mend_lines
from dragoman.offload import offload

# Error codes of the hub, in JSON-RPC's range for implementations.
CONNECTION_LOST = -32050  # the request was sent, and no response came
UNREACHABLE = -32051  # the request was not sent
TOO_LARGE = -32052  # the response is above a limit

SOCKET_SECONDS = 15.0
NOTIFICATION_SECONDS = 3.0  # the SDK sends notifications one by one; one that hangs delays the next request
TOOLS_LIST_METHOD = b'"method":"tools/list"'
NOTIFICATION_METHOD = b'"method":"notifications/'
JSON_TYPE, SSE_TYPE = "application/json", "text/event-stream"
NOT_JSON = "its response is not valid JSON"
LONGEST_END = 2  # bytes of the longest of EVENT_ENDS without its last byte


class BoundedHttpTransport(httpx2.AsyncBaseTransport):
    """A transport for the SDK whose responses have at most `limit` bytes each.

    JSON is read whole here, so that a connection that breaks in the middle of it fails only that request; in
    the SDK it would end all others too. Parts of a list of tools that are nested too deep are left out. Of
    bodies that are neither JSON nor events, only the first `limit` bytes are read.
    """

    def __init__(self, url: str, *, limit: int, bodies: MessageBodies) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=url.lower().startswith("https:"))
        self._limit = limit
        self._bodies = bodies

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            body = request.content if request.method == "POST" else b""
            if NOTIFICATION_METHOD in body or request.method == "DELETE":
                request.extensions = {
                    **request.extensions,
                    "timeout": dict.fromkeys(TIMEOUT_KINDS, NOTIFICATION_SECONDS),
                }
            response = await self._inner.handle_async_request(with_body(request, self._bodies.fill_in(body)))
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
            is_events = content_type.startswith(SSE_TYPE)
            stream: httpx2.AsyncByteStream = (
                MendedEvents(response, limit=self._limit, bodies=self._bodies)
                if is_events
                else TruncatedBody(response, limit=self._limit)
            )
            return httpx2.Response(response.status_code, headers=headers, stream=stream)
        body = await self._read_body(response)
        if body is None:
            return error_response(TOO_LARGE, too_large_message(self._limit))
        size = weigh(body)
        if await offload(size, partial(has_too_many_values, body)):
            return error_response(TOO_LARGE, f"its response {TOO_MANY}")
        mend = partial(mend_body, body, is_json=is_json, is_tools_list=is_tools_list)
        if size > SMALL:
            mend = partial(shorten_body, body, self._bodies, is_json=is_json)
        body = await offload(size, mend)
        status = response.status_code
        if is_json and response.is_success:
            answered = check_answer(body, request)
            if isinstance(answered, str):
                return error_response(PARSE_ERROR, answered)
            status = status if answered else 400  # of an error without an id, which the SDK drops otherwise
        return httpx2.Response(status, headers=headers, content=body)

    async def _read_body(self, response: httpx2.Response) -> bytes | None:
        """Return the whole body; None if it is above the limit."""
        try:
            chunks, size = [], 0
            async for chunk in body_chunks(response):
                size += len(chunk)
                if size > self._limit:
                    return None
                chunks.append(chunk)
        finally:
            await response.aclose()
        return b"".join(chunks)


class TruncatedBody(httpx2.AsyncByteStream):
    """The first `limit` bytes of a body. Nobody uses it, but the SDK reads some to their end."""

    def __init__(self, response: httpx2.Response, *, limit: int) -> None:
        self._response = response
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async for chunk in body_chunks(self._response):
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return

    async def aclose(self) -> None:
        await self._response.aclose()


class MendedEvents(httpx2.AsyncByteStream):
    """The events of a stream, without lone surrogates; a large event is replaced by a short one.

    An event is sent on when it has ended, or when it is longer than `limit` bytes, which the SDK refuses.
    """

    def __init__(self, response: httpx2.Response, *, limit: int, bodies: MessageBodies) -> None:
        self._response = response
        self._limit = limit
        self._bodies = bodies

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pending: list[bytes] = []
        size, last = 0, b""
        async for chunk in body_chunks(self._response):
            end = find_end(last + chunk) - len(last)
            last = (last + chunk)[-LONGEST_END:]
            if end <= 0 and size + len(chunk) <= self._limit:
                pending.append(chunk)
                size += len(chunk)
                continue
            end = end if end > 0 else len(chunk)
            events = b"".join([*pending, chunk[:end]])
            pending, size = [chunk[end:]], len(chunk) - end
            yield await offload(len(events), partial(self._mend, events))
        rest = b"".join(pending)
        yield await offload(len(rest), partial(mend_lines, rest))

    def _mend(self, events: bytes) -> bytes:
        is_large = SMALL < len(events) <= self._limit
        return self._bodies.shorten_events(events) if is_large else mend_lines(events)

    async def aclose(self) -> None:
        await self._response.aclose()


def find_end(text: bytes) -> int:
    """Return where the last event that has ended ends; 0 if none has."""
    return max(at + len(end) if (at := text.rfind(end)) >= 0 else 0 for end in EVENT_ENDS)


def mend_body(body: bytes, *, is_json: bool, is_tools_list: bool) -> bytes:
    """Return a body without lone surrogates; a list of tools also without what is nested too deep."""
    body = prune_depth(body, MAX_DEPTH) if is_tools_list else body
    return mend_line(body) if is_json else mend_lines(body)


def shorten_body(body: bytes, bodies: MessageBodies, *, is_json: bool) -> bytes:
    """Return a short body for a large one. A list of tools is without what is nested too deep then."""
    return bodies.shorten(body) if is_json else bodies.shorten_events(body)


def with_body(request: httpx2.Request, body: bytes | None) -> httpx2.Request:
    """Return a request with another body, if there is one."""
    if body is None:
        return request
    headers = [each for each in request.headers.multi_items() if each[0].lower() not in FRAMING_HEADERS]
    return httpx2.Request(
        request.method, request.url, headers=headers, content=body, extensions=request.extensions
    )


class RpcMessageHead(msgspec.Struct):
    """The fields of a message that show which request it answers."""

    id: Any = None
    method: str | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_head_decoder = msgspec.json.Decoder(RpcMessageHead)


def decode_head(body: bytes) -> RpcMessageHead | None:
    """Return the head of a JSON-RPC message; None if it is not one, which the SDK then reports.

    Raises DecodeError if it is not JSON.
    """
    try:
        return decode_json(body, _head_decoder) if body else None
    except (msgspec.ValidationError, RecursionError):
        return None


def check_answer(body: bytes, request: bytes) -> bool | str:
    """Return True if a JSON body may answer the request, False for an error without an id, else the problem.

    The SDK would drop a message with the id of no active request, and the request would wait until its
    timeout.
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
    async for chunk in response.aiter_bytes():
        yield chunk


def error_response(code: int, message: str) -> httpx2.Response:
    """Return a response that the SDK turns into the error of the one request that it answers."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(502, headers={"content-type": JSON_TYPE}, content=msgspec.json.encode(body))


def error_text(error: Exception) -> str:
    return str(error) or type(error).__name__


def make_client(
    url: str, headers: Mapping[str, str], *, limit: int, bodies: MessageBodies
) -> httpx2.AsyncClient:
    """Return the HTTP client of one server. Responses have no timeout but that of the call."""
    return httpx2.AsyncClient(
        transport=BoundedHttpTransport(url, limit=limit, bodies=bodies),
        headers=dict(headers),
        timeout=httpx2.Timeout(SOCKET_SECONDS, read=None),
        follow_redirects=False,
    )
