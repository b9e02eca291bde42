"""Bounded HTTP: MCP servers' answers up to a limit; a broken request fails alone, not its connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx2
import msgspec

from dragoman.mcp.client.frames import prune

LOST = -32050  # our own codes, where JSON-RPC leaves room: it was sent, and no answer came
UNREACHED = -32051  # it was not sent
TOO_LARGE = -32052

SOCKET_SECONDS = 15.0
NOTICE_SECONDS = 3.0  # notices are sent one by one, and one that hangs holds up the next request
LISTS = b'"method":"tools/list"'
NOTICES = b'"method":"notifications/'
JSON = "application/json"


class Bounded(httpx2.AsyncBaseTransport):
    """A transport for the SDK, whose answers have at most `limit` bytes each.

    JSON is read whole here, so that a connection that breaks in the middle of it is the failure of that
    request; left to the SDK it would end all others too. Lists of tools lose what is nested too deep to read.
    """

    def __init__(self, url: str, *, limit: int) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=url.lower().startswith("https:"))
        self._limit = limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            body = request.content if request.method == "POST" else b""
            if NOTICES in body or request.method == "DELETE":
                request.extensions = {**request.extensions, "timeout": dict.fromkeys(TIMES, NOTICE_SECONDS)}
            response = await self._inner.handle_async_request(request)
            return await self._whole(response, listing=LISTS in body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return refusal(UNREACHED, f"it cannot be reached: {reason_of(error)}")
        except httpx2.TransportError as error:
            return refusal(LOST, f"the connection broke: {reason_of(error)}")

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _whole(self, response: httpx2.Response, *, listing: bool) -> httpx2.Response:
        json = response.headers.get("content-type", "").lower().startswith(JSON)
        if not (json or listing):
            return response
        try:
            pieces, size = [], 0
            async for piece in bytes_of(response):
                size += len(piece)
                if size > self._limit:
                    return refusal(TOO_LARGE, too_large(self._limit))
                pieces.append(piece)
        finally:
            await response.aclose()
        body = b"".join(pieces)
        headers = [each for each in response.headers.multi_items() if each[0].lower() not in FRAMING]
        return httpx2.Response(
            response.status_code, headers=headers, content=prune(body) if listing else body
        )


TIMES = ("connect", "read", "write", "pool")
FRAMING = ("content-length", "content-encoding", "transfer-encoding")


def too_large(limit: int) -> str:
    return f"its answer has more than {limit:,} bytes, and that is the most that is taken"


async def bytes_of(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The body, decompressed piece by piece, so that a small one that blows up is noticed as it grows."""
    async for piece in response.aiter_bytes():
        yield piece


def refusal(code: int, message: str) -> httpx2.Response:
    """A response that the SDK hands to the one request that it answers."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(502, headers={"content-type": JSON}, content=msgspec.json.encode(body))


def reason_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def client_for(url: str, headers: Mapping[str, str], *, limit: int) -> httpx2.AsyncClient:
    """A client for one server, with its own headers; no time limit on answers but the call's."""
    return httpx2.AsyncClient(
        transport=Bounded(url, limit=limit),
        headers=dict(headers),
        timeout=httpx2.Timeout(SOCKET_SECONDS, read=None),
        follow_redirects=False,
    )
