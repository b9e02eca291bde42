"""A filter between an MCP server and the SDK, so that one invalid tool or result breaks nothing else.

The SDK refuses a whole `tools/list` for one invalid tool, and every later call with it. So the contents of
lists and results bypass its checks, under a key of the hub in `_meta`, and are checked one by one afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
from mcp.shared.inbound import x_mcp_header_map
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from dragoman.large_json import SMALL, measure
from dragoman.mcp.client.definitions import tool_problem
from dragoman.mcp.client.flood import FloodMeter
from dragoman.mcp.client.large_messages import MessageBodies
from dragoman.offload import offload
from dragoman.redaction import Redactor

log = logging.getLogger(__name__)
WRITE_SECONDS = 60.0  # a server that reads nothing for so long is disconnected: messages wait in memory
RAW_KEY = "dragoman/raw"
LISTS = {  # methods whose results are lists, and the field that has it
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
    "resources/read": "contents",
}
CLIENT_METHODS = ("elicitation/create", "sampling/createMessage", "roots/list")
METHOD_NOT_FOUND = -32601  # JSON-RPC's method not found


class Sanitizer:
    """Sanitizes the messages of a connection. `bodies` has the contents of large messages.

    `on_question` is called with the method and parameters of each request to the client, which is refused;
    `on_change` is called when a list of the server has changed.
    """

    def __init__(
        self,
        redactor: Redactor,
        *,
        meter: FloodMeter,
        bodies: MessageBodies,
        on_question: Callable[[str, Any], None],
        on_change: Callable[[], None],
    ) -> None:
        self.closed = asyncio.Event()
        self._redactor = redactor
        self._meter = meter
        self._bodies = bodies
        self._on_question = on_question
        self._on_change = on_change
        self._methods: dict[str, str] = {}  # request id -> method

    @asynccontextmanager
    async def wrap(self, transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        """Wrap a transport's two streams. Writing never waits, so that a server that does not read blocks
        neither callers nor aborts.
        """
        async with transport as (incoming, outgoing), asyncio.TaskGroup() as group:
            to_server, leaving = anyio.create_memory_object_stream[SessionMessage](math.inf)
            to_client, arrived = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            async with to_server, leaving, to_client, arrived, to_server.clone() as back:
                pumps = [
                    group.create_task(self._write(leaving, outgoing)),
                    group.create_task(self._read(incoming, to_client, to_server=back)),
                ]
                for pump in pumps:
                    pump.add_done_callback(lambda _: self._close(pumps, to_client))
                try:
                    yield arrived, to_server
                finally:
                    cancel_all(pumps)

    def _close(self, pumps: list[asyncio.Task[None]], to_client: Any) -> None:
        """Mark the connection as closed: one direction has ended."""
        self.closed.set()
        to_client.close()
        cancel_all(pumps)

    async def _write(self, from_client: Any, outgoing: Any) -> None:
        try:
            async for message in from_client:
                if isinstance(message.message, JSONRPCRequest):
                    self._methods[str(message.message.id)] = message.message.method
                elif getattr(message.message, "method", "") == "notifications/cancelled":
                    self._methods.pop(str((message.message.params or {}).get("requestId")), None)
                async with asyncio.timeout(WRITE_SECONDS):
                    await outgoing.send(message)
        except TimeoutError:
            log.warning("an MCP server has not read its input for %g seconds", WRITE_SECONDS)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    async def _read(self, incoming: Any, to_client: Any, *, to_server: Any) -> None:
        async with to_server:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for message in incoming:
                    await self._forward(message, to_client, to_server=to_server)

    async def _forward(self, message: Any, to_client: Any, *, to_server: Any) -> None:
        await self._meter.pause()
        kind = self._unrequested_kind(message)
        if not isinstance(message, Exception):
            self._take_body(message.message)
        if (kind is not None and not self._meter.admit(kind)) or isinstance(message, Exception):
            return
        answer = await self._sanitize(message.message)
        if answer is not None:
            await to_server.send(SessionMessage(answer))
        else:
            await to_client.send(message)

    def _unrequested_kind(self, message: Any) -> str | None:
        """Return the kind of a message that answers no request; None for an answer."""
        if isinstance(message, Exception):
            return "events that are not messages"
        match message.message:
            case JSONRPCResponse(id=id) | JSONRPCError(id=id):
                return None if str(id) in self._methods else "responses to no request"
            case other:
                return str(other.method)[:60]

    def _take_body(self, message: Any) -> None:
        """Replace the reference in a large message by its contents."""
        if isinstance(message, JSONRPCResponse):
            message.result = self._bodies.take(message.result)
        elif isinstance(message, JSONRPCRequest | JSONRPCNotification):
            message.params = self._bodies.take(message.params)

    async def _sanitize(self, message: Any) -> JSONRPCError | None:
        """Sanitize a message in place, or return the response that it gets instead."""
        match message:
            case JSONRPCRequest(method=method) if method in CLIENT_METHODS:
                self._on_question(method, await self._redact(message.params))
                error = ErrorData(code=METHOD_NOT_FOUND, message=f"{method} is not offered by this client")
                return JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
            case JSONRPCNotification(method=method) if method.endswith("/list_changed"):
                self._on_change()
            case JSONRPCResponse():
                method = self._methods.pop(str(message.id), "")
                message.result = await offload(
                    measure(message.result), partial(self._sanitize_result, method, message.result)
                )
            case JSONRPCError():
                self._methods.pop(str(message.id), None)
                message.error.message = self._redactor(message.error.message)
                message.error.data = await self._redact(message.error.data)
            case _:
                pass
        return None

    def _sanitize_result(self, method: str, result: Any) -> dict[str, Any]:
        sanitized = sanitize_result(method, self._redactor.redact_json(result))
        meta = sanitized.get("_meta")
        if isinstance(meta, dict) and measure(raw := meta.get(RAW_KEY)) > SMALL:
            meta[RAW_KEY] = self._bodies.put(raw)  # the SDK would copy it in the event loop
        return sanitized

    async def _redact(self, value: Any) -> Any:
        return await offload(measure(value), partial(self._redactor.redact_json, value))


def cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def schema_for_sdk(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an input schema that the SDK needs to mirror arguments into headers.

    One schema with a field of another type would make it refuse the whole list.
    """
    properties = {name: value for name, value in schema["properties"].items() if isinstance(value, dict)}
    return {"type": "object", "properties": properties}


def sanitize_result(method: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result in a form that the SDK accepts; what it would reject is kept under `RAW_KEY`."""
    if method == "tools/call" and result.get("resultType") != "input_required":
        raw = {key: result.get(key) for key in ("content", "structuredContent", "isError")}
        return {"content": [], "resultType": "complete", "_meta": {RAW_KEY: raw}}
    if method not in LISTS or result.get("resultType", "complete") != "complete":
        return result
    cursor, entries = result.get("nextCursor"), result.get(LISTS[method])
    if not isinstance(entries, list) and method != "tools/list":
        return result  # the SDK reports what is wrong
    entries = entries if isinstance(entries, list) else []
    mirrored = [
        {"name": each["name"], "inputSchema": schema_for_sdk(each["inputSchema"])}
        for each in (entries if method == "tools/list" else ())
        if tool_problem(each) is None and x_mcp_header_map(each["inputSchema"])
    ]
    following = {"nextCursor": cursor} if isinstance(cursor, str) else {}
    return {
        LISTS[method]: mirrored,
        "_meta": {RAW_KEY: entries},
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        **following,
    }
