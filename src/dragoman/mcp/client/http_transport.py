"""HTTP transport for the MCP SDK that limits the size of responses and isolates broken ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx2
import msgspec

from dragoman.json_text import prune_depth
from dragoman.mcp.client.jsonrpc import MAX_DEPTH

CONNECTION_LOST = -32050  # our own codes, where JSON-RPC leaves room: it was sent, and no answer came
UNREACHABLE = -32051  # it was not sent
TOO_LARGE = -32052

SOCKET_SECONDS = 15.0
NOTIFICATION_SECONDS = 3.0  # notices are sent one by one, and one that hangs holds up the next request
TOOLS_LIST_METHOD = b'"method":"tools/list"'
NOTIFICATION_METHOD = b'"method":"notifications/'
JSON_TYPE = "application/json"


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
            return await self._read_bounded(response, is_tools_list=TOOLS_LIST_METHOD in body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return error_response(UNREACHABLE, f"it cannot be reached: {error_text(error)}")
        except httpx2.TransportError as error:
            return error_response(CONNECTION_LOST, f"the connection broke: {error_text(error)}")

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _read_bounded(self, response: httpx2.Response, *, is_tools_list: bool) -> httpx2.Response:
        json = response.headers.get("content-type", "").lower().startswith(JSON_TYPE)
        if not (json or is_tools_list):
            return response
        try:
            pieces, size = [], 0
            async for piece in body_chunks(response):
                size += len(piece)
                if size > self._limit:
                    return error_response(TOO_LARGE, too_large_message(self._limit))
                pieces.append(piece)
        finally:
            await response.aclose()
        body = b"".join(pieces)
        headers = [each for each in response.headers.multi_items() if each[0].lower() not in FRAMING_HEADERS]
        return httpx2.Response(
            response.status_code,
            headers=headers,
            content=prune_depth(body, MAX_DEPTH) if is_tools_list else body,
        )


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
