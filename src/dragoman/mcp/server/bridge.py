"""The bridge: an MCP client that speaks over stdin and stdout, and a hub that is reached over HTTP.

It carries messages as they are, of whatever revision: each one from the client is a POST, and what the hub
answers is a line. Specification: 2025-11-25 and 2026-07-28, basic/transports.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

import msgspec

from dragoman.errors import ProviderError
from dragoman.http.transport import Response, Transport
from dragoman.wire.sse import Splitter

log = logging.getLogger(__name__)

LARGEST = 64_000_000
PARSE_ERROR, INVALID_REQUEST, UNREACHED = -32700, -32600, -32000
VERSION = "io.modelcontextprotocol/protocolVersion"
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
PLAIN = re.compile(r"[\x21-\x7E]([\x20-\x7E]*[\x21-\x7E])?")
Write: TypeAlias = Callable[[bytes], Awaitable[None]]
Message: TypeAlias = dict[str, Any]


class Bridge:
    """Carries messages between a client and the hub at `url`, with the hub's key. `write` takes a line."""

    def __init__(self, url: str, key: str | None, *, transport: Transport, write: Write) -> None:
        self._url = url
        self._transport = transport
        self._write = write
        self._own = {"authorization": f"Bearer {key}"} if key else {}
        self._asked: dict[Any, asyncio.Task[None]] = {}
        self._greeting: Message | None = None  # the client's `initialize`, for a session that was lost
        self._session: dict[str, str] = {}

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Carry until the client has no more to say; what is under way then is aborted, the session ended."""
        try:
            async for line in lines:
                await self._take(line)
        finally:
            left = list(self._asked.values())
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
            if "mcp-session-id" in self._session:
                await self._leave()

    async def _take(self, line: bytes) -> None:
        """One message of the client. A handshake is waited for: what follows belongs to its session."""
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            await self._fail(None, "this line is no JSON", code=PARSE_ERROR)
            return
        if not isinstance(message, dict):
            await self._fail(None, "a message is an object", code=INVALID_REQUEST)
            return
        method = message.get("method")
        if method == "initialize":
            self._greeting, self._session = message, {}
            await self._carry(message)
        elif method is not None and "id" in message:
            self._begin(message)
        else:
            await self._carry(message)
            if method == "notifications/cancelled":
                self._cancel(message)

    def _begin(self, message: Message) -> None:
        task = asyncio.ensure_future(self._carry(message))
        self._asked[message["id"]] = task
        task.add_done_callback(lambda _: self._asked.pop(message["id"], None))

    def _cancel(self, message: Message) -> None:
        """Leave the request that is no longer wanted: the hub aborts it when its connection closes."""
        task = self._asked.get((message.get("params") or {}).get("requestId"))
        if task is not None:
            task.cancel()

    async def _carry(self, message: Message) -> None:
        """Send a message, and hand on what comes back. Whatever fails is told as the answer."""
        try:
            if await self._sent(message) == 404 and self._session and self._greeting is not None:
                await self._greet()
                await self._sent(message, last=True)
        except ProviderError as error:
            log.warning("the hub was not reached: %s", error.message)
            if "method" in message and "id" in message:
                await self._fail(message["id"], f"no hub answers at {self._url}: {error.message}")

    async def _sent(self, message: Message, *, last: bool = False) -> int:
        """The status of the answer; one of 404 is handed on only when it is the `last` word."""
        body = msgspec.json.encode(message)
        response = await self._transport.send("POST", self._url, headers=self._headers(message), body=body)
        async with response:
            if response.status == 404 and self._session and not last:
                return 404
            if message is self._greeting:
                self._session = session_in(response)
            await self._hand_on(response, message)
        return response.status

    async def _hand_on(self, response: Response, message: Message) -> None:
        kind = response.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            async with aclosing(frames(response)) as said:
                async for frame in said:
                    await self._say(frame, message)
            return
        raw = await response.read(LARGEST)
        if "id" not in message or "method" not in message:
            return
        if kind.startswith("application/json"):
            await self._say(raw, message)
        else:
            await self._fail(message["id"], f"the hub answers with status {response.status}")

    async def _say(self, raw: bytes, message: Message) -> None:
        """A message of the hub, as a line. A refusal that names no request is of the one that was sent."""
        try:
            said = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            await self._fail(message.get("id"), "the hub's answer is no JSON")
            return
        if isinstance(said, dict) and "error" in said and said.get("id") is None:
            said["id"] = message.get("id")
        if message is self._greeting and isinstance(said, dict) and "result" in said:
            self._session["mcp-protocol-version"] = str(said["result"].get("protocolVersion"))
        await self._write(msgspec.json.encode(said))

    async def _greet(self) -> None:
        """Begin a new session as the client began the last: the hub was started anew, or forgot it."""
        greeting = self._greeting or {}
        self._session = {}
        body = msgspec.json.encode(greeting)
        response = await self._transport.send("POST", self._url, headers=self._headers(greeting), body=body)
        async with response:
            self._session = session_in(response)
            await response.read(LARGEST)
        self._session["mcp-protocol-version"] = str(greeting["params"].get("protocolVersion"))
        await self._sent({"jsonrpc": "2.0", "method": "notifications/initialized"}, last=True)

    async def _leave(self) -> None:
        headers = {**self._own, **self._session}
        with suppress(ProviderError):
            response = await self._transport.send("DELETE", self._url, headers=headers)
            response.abort()

    def _headers(self, message: Message) -> dict[str, str]:
        """The headers of a message, as its revision wants them."""
        common = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **self._own,
        }
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        version = meta.get(VERSION) if isinstance(meta, dict) else None
        if not isinstance(params, dict) or not isinstance(version, str):
            return {**common, **self._session}
        mirrored = {"mcp-protocol-version": version, "mcp-method": str(message.get("method"))}
        name = params.get(NAMED.get(str(message.get("method")), ""))
        if isinstance(name, str):
            mirrored["mcp-name"] = header(name)
        return {**common, **mirrored}

    async def _fail(self, id: Any, message: str, *, code: int = UNREACHED) -> None:
        said: Mapping[str, Any] = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}
        await self._write(msgspec.json.encode(said))


async def frames(response: Response) -> AsyncGenerator[bytes, None]:
    """The messages in a stream, as they come."""
    splitter = Splitter(limit=LARGEST)
    async with aclosing(response.reads()) as reads:
        async for raw in reads:
            for frame in splitter.feed(raw):
                yield frame


def session_in(response: Response) -> dict[str, str]:
    """The header of the session that an answer opens."""
    id = response.headers.get("mcp-session-id")
    return {} if id is None else {"mcp-session-id": id}


def header(value: str) -> str:
    """A name as a header may hold it: encoded, where it is more than plain text."""
    if PLAIN.fullmatch(value) and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="
