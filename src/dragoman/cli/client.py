"""A client of a hub: its HTTP API, as any program would use it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from dragoman import events
from dragoman.errors import (
    BadRequest,
    Conflict,
    DragomanError,
    Forbidden,
    NotFound,
    ProviderError,
    Unauthorized,
    Unavailable,
    WireError,
)
from dragoman.http.transport import Response, Timeouts, Transport, proxies_from
from dragoman.messages import Message, parse_message
from dragoman.wire.sse import SSEParser

EventBatches: TypeAlias = AsyncGenerator[Sequence[events.Event], None]

MAX_RESPONSE = 64_000_000
TIMEOUTS = Timeouts(connect=5.0, first_byte=120.0, idle=300.0)
ERRORS: Mapping[int, type[DragomanError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    503: Unavailable,
}
NO_HUB_HINT = "is it running? `dragoman serve` starts one, --hub or DRAGOMAN_HUB names another"
NO_KEY_HINT = "`dragoman keys create --owner NAME` makes one; give it as DRAGOMAN_KEY"


class HubClient:
    """A running hub. Use it in `async with`; what it refuses is raised as the error that it names."""

    def __init__(self, url: str, key: str | None = None) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise BadRequest(f"{url!r} is no address of a hub", hint="one reads like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._transport = Transport(timeouts=TIMEOUTS, proxies=proxies_from(os.environ))

    async def __aenter__(self) -> HubClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def request(self, method: str, path: str, *, body: Any = None) -> Any:
        """The JSON value that the hub answers with; None for an empty answer."""
        response = await self._send(method, path, body=body)
        raw = await response.read(MAX_RESPONSE)
        return msgspec.json.decode(raw) if raw else None

    async def sessions(self, limit: int = 50) -> list[dict[str, Any]]:
        """The caller's sessions, the last changed first."""
        answer = await self.request("GET", f"/api/sessions?limit={limit}")
        found: list[dict[str, Any]] = answer["sessions"]
        return found

    async def session(self, id: str) -> dict[str, Any]:
        """One session's settings. NotFound."""
        found: dict[str, Any] = await self.request("GET", f"/api/sessions/{path_segment(id)}")
        return found

    async def messages(self, id: str) -> list[Message]:
        """What was said in a session. NotFound."""
        answer = await self.request("GET", f"/api/sessions/{path_segment(id)}/messages")
        return [parse_message(message) for message in answer["messages"]]

    async def search(self, query: str, *, session: str | None = None, limit: int = 20) -> dict[str, Any]:
        """What was said in the caller's sessions, as `GET /api/search` tells it."""
        asked = {"q": query, "limit": limit, **({"session": session} if session is not None else {})}
        found: dict[str, Any] = await self.request("GET", f"/api/search?{urlencode(asked)}")
        return found

    async def stop(self, id: str) -> None:
        """Stop the session's run."""
        await self.request("POST", f"/api/chat/{path_segment(id)}/stop")

    async def chat(self, body: Mapping[str, Any]) -> EventBatches:
        """The events of the answer to a chat request, as they come."""
        async with await self._send("POST", "/api/chat?sdk=7", body=body) as response:
            async for batch in read_events(response):
                yield batch

    async def resume(self, id: str) -> EventBatches:
        """The events of the answer under way, from its beginning; none when nothing runs."""
        async with await self._send("GET", f"/api/chat/{path_segment(id)}/stream?sdk=7") as response:
            async for batch in read_events(response):
                yield batch

    async def _send(self, method: str, path: str, *, body: Any = None) -> Response:
        payload = b"" if body is None else msgspec.json.encode(body)
        headers = {**self._headers, **({"content-type": "application/json"} if payload else {})}
        try:
            response = await self._transport.send(method, self.url + path, headers=headers, body=payload)
        except ProviderError as error:
            raise Unavailable(f"no hub answers at {self.url}: {error.message}", hint=NO_HUB_HINT) from None
        if response.status >= 400:
            raise error_from(response.status, await response.read(MAX_RESPONSE))
        return response


async def read_events(response: Response) -> EventBatches:
    """The events in a stream, a batch a read."""
    splitter = SSEParser()
    async with aclosing(response.iter_raw()) as reads:
        async for raw in reads:
            if batch := [decode_event(frame) for frame in splitter.feed(raw) if frame != b"[DONE]"]:
                yield batch


def path_segment(id: str) -> str:
    """An id as one step of a path."""
    return quote(id, safe="")


def decode_event(frame: bytes) -> events.Event:
    try:
        return events.decode(frame)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise WireError(
            f"the hub said something unknown: {error}", hint="is it of another version?"
        ) from None


def error_from(status: int, raw: bytes) -> DragomanError:
    """The error that an answer tells of."""
    try:
        said = msgspec.json.decode(raw)["error"]
        message, hint = str(said["message"]), said.get("hint")
    except (msgspec.DecodeError, KeyError, TypeError):
        message, hint = f"the address answers with status {status}, not as a hub does", NO_HUB_HINT
    if status == 401:
        hint = NO_KEY_HINT
    return ERRORS.get(status, DragomanError)(message, hint=hint)
