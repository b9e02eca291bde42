"""A bridge from an MCP client on stdin and stdout to a hub over HTTP.

It forwards messages of every protocol revision unchanged: each message of the client becomes a POST, and each
message of the response becomes a line. Specification: 2025-11-25 and 2026-07-28, basic/transports.
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
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.wire.sse import SSEParser

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64_000_000
PARSE_ERROR, INVALID_REQUEST, HUB_UNREACHABLE = -32700, -32600, -32000
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
NAME_PARAMS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
PLAIN_HEADER_VALUE = re.compile(r"[\x21-\x7E]([\x20-\x7E]*[\x21-\x7E])?")
WriteLine: TypeAlias = Callable[[bytes], Awaitable[None]]
JsonRpcMessage: TypeAlias = dict[str, Any]


class StdioBridge:
    """Forwards messages between a client and the hub at `url`, with `key` as bearer token.

    `write` is called with each line for the client, without its newline.
    """

    def __init__(self, url: str, key: str | None, *, transport: Transport, write: WriteLine) -> None:
        self._url = url
        self._transport = transport
        self._write = write
        self._auth_headers = {"authorization": f"Bearer {key}"} if key else {}
        self._requests: dict[Any, asyncio.Task[None]] = {}  # by request id
        self._session_headers: dict[str, str] = {}
        self._initialize_request: JsonRpcMessage | None = None
        """The client's `initialize`, to be sent again if the hub has forgotten the session."""

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Forward messages until `lines` ends; then abort requests in flight and end the session."""
        try:
            async for line in lines:
                await self._handle_line(line)
        finally:
            active = list(self._requests.values())
            for task in active:
                task.cancel()
            if active:
                await asyncio.wait(active)
            if "mcp-session-id" in self._session_headers:
                await self._delete_session()

    async def _handle_line(self, line: bytes) -> None:
        """Handle one message of the client. Requests run in tasks, except for `initialize`, which opens the
        session that the next messages need.
        """
        try:
            message = decode_json(line)
        except DECODE_ERRORS:
            await self._write_error(None, "this line is not valid JSON", code=PARSE_ERROR)
            return
        problem = message_problem(message) or self._duplicate_problem(message)
        if problem is not None:
            id = message.get("id") if isinstance(message, dict) else None
            await self._write_error(id if is_id(id) else None, problem, code=INVALID_REQUEST)
            return
        method = message.get("method")
        if method == "initialize":
            self._initialize_request, self._session_headers = message, {}
            await self._forward(message)
        elif method is not None and "id" in message:
            self._start_request(message)
        else:
            await self._forward(message)
            if method == "notifications/cancelled":
                self._cancel_request(message)

    def _duplicate_problem(self, message: JsonRpcMessage) -> str | None:
        is_request = "method" in message and "id" in message
        return "a request with this id is active" if is_request and message["id"] in self._requests else None

    def _start_request(self, message: JsonRpcMessage) -> None:
        task = asyncio.ensure_future(self._forward(message))
        self._requests[message["id"]] = task
        task.add_done_callback(lambda _: self._requests.pop(message["id"], None))

    def _cancel_request(self, message: JsonRpcMessage) -> None:
        """Close the connection of a cancelled request; the hub then aborts it."""
        id = (message.get("params") or {}).get("requestId")
        task = self._requests.get(id) if is_id(id) else None
        if task is not None:
            task.cancel()

    async def _forward(self, message: JsonRpcMessage) -> None:
        """Send a message and write the response. Failures become error responses."""
        try:
            if (
                await self._post(message) == 404
                and self._session_headers
                and self._initialize_request is not None
            ):
                await self._reinitialize()
                await self._post(message, is_final=True)
        except ProviderError as error:
            log.warning("the hub was not reached: %s", error.message)
            if "method" in message and "id" in message:
                await self._write_error(message["id"], f"no hub answers at {self._url}: {error.message}")

    async def _post(self, message: JsonRpcMessage, *, is_final: bool = False) -> int:
        """Return the status of the response; a 404 is written only if `is_final`."""
        body = msgspec.json.encode(message)
        response = await self._transport.send("POST", self._url, headers=self._headers(message), body=body)
        async with response:
            if response.status == 404 and self._session_headers and not is_final:
                return 404
            if message is self._initialize_request:
                self._session_headers = session_header(response)
            await self._relay_response(response, message)
        return response.status

    async def _relay_response(self, response: Response, message: JsonRpcMessage) -> None:
        kind = response.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            async with aclosing(sse_messages(response)) as messages:
                async for frame in messages:
                    await self._write_message(frame, message)
            return
        raw = await response.read(MAX_MESSAGE_BYTES)
        if "id" not in message or "method" not in message:
            return
        if kind.startswith("application/json"):
            await self._write_message(raw, message)
        else:
            await self._write_error(message["id"], f"the hub answers with status {response.status}")

    async def _write_message(self, raw: bytes, message: JsonRpcMessage) -> None:
        """Write a message of the hub as a line. An error without an id belongs to the request."""
        try:
            reply = decode_json(raw)
        except DECODE_ERRORS:
            await self._write_error(message.get("id"), "the hub's response is not valid JSON")
            return
        if isinstance(reply, dict) and "error" in reply and reply.get("id") is None:
            reply["id"] = message.get("id")
        if message is self._initialize_request and isinstance(reply, dict) and "result" in reply:
            self._session_headers["mcp-protocol-version"] = str(reply["result"].get("protocolVersion"))
        await self._write(msgspec.json.encode(reply))

    async def _reinitialize(self) -> None:
        """Open a new session with the client's `initialize`: the hub has restarted, or forgotten the last."""
        initialize = self._initialize_request or {}
        self._session_headers = {}
        body = msgspec.json.encode(initialize)
        headers = self._headers(initialize)
        response = await self._transport.send("POST", self._url, headers=headers, body=body)
        async with response:
            self._session_headers = session_header(response)
            await response.read(MAX_MESSAGE_BYTES)
        self._session_headers["mcp-protocol-version"] = str(initialize["params"].get("protocolVersion"))
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, is_final=True)

    async def _delete_session(self) -> None:
        headers = {**self._auth_headers, **self._session_headers}
        with suppress(ProviderError):
            response = await self._transport.send("DELETE", self._url, headers=headers)
            response.abort()

    def _headers(self, message: JsonRpcMessage) -> dict[str, str]:
        """Return the headers of a message, as its protocol revision requires."""
        common = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **self._auth_headers,
        }
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        if not isinstance(params, dict) or not isinstance(version, str):
            return {**common, **self._session_headers}
        mirrored = {"mcp-protocol-version": version, "mcp-method": str(message.get("method"))}
        name = params.get(NAME_PARAMS.get(str(message.get("method")), ""))
        if isinstance(name, str):
            mirrored["mcp-name"] = encode_header(name)
        return {**common, **mirrored}

    async def _write_error(self, id: Any, message: str, *, code: int = HUB_UNREACHABLE) -> None:
        reply: Mapping[str, Any] = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}
        await self._write(msgspec.json.encode(reply))


def message_problem(message: Any) -> str | None:
    """Return why a JSON value is not a message of MCP; None if it may be one."""
    if not isinstance(message, dict):
        return "a message is an object"
    if not (message.get("id") is None or is_id(message["id"])):
        return "an id is a string or a number"
    if not isinstance(message.get("params"), dict | None):
        return "params is an object"
    return None


def is_id(value: Any) -> bool:
    return isinstance(value, str | int | float)


async def sse_messages(response: Response) -> AsyncGenerator[bytes, None]:
    """Yield the data of the events of a response."""
    parser = SSEParser(limit=MAX_MESSAGE_BYTES)
    async with aclosing(response.iter_raw()) as chunks:
        async for chunk in chunks:
            for data in parser.feed(chunk):
                yield data


def session_header(response: Response) -> dict[str, str]:
    """Return the session header of a response that opens a session."""
    id = response.headers.get("mcp-session-id")
    return {} if id is None else {"mcp-session-id": id}


def encode_header(value: str) -> str:
    """Return a name as a header value: in base64 unless it is plain ASCII without outer spaces."""
    if PLAIN_HEADER_VALUE.fullmatch(value) and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="
