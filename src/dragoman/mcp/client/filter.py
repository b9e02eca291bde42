"""The filter: stands between a server and the SDK, so that one bad tool or answer breaks nothing else.

The SDK refuses a whole `tools/list` for one tool that is wrong, and every later call with it. So the contents
of lists and results travel past its checks, under a key of our own in `_meta`, and are judged one by one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from dragoman.mcp.client.blot import Blot
from dragoman.mcp.client.listing import fault_of

RAW = "dragoman/raw"
LISTS = ("tools/list", "resources/list", "resources/templates/list", "prompts/list", "resources/read")
QUESTIONS = ("elicitation/create", "sampling/createMessage", "roots/list")
NOT_OFFERED = -32601  # JSON-RPC's method not found


class Filter:
    """What of a connection's messages passes. `on_question` and `on_change` hear of what a server asks and
    of lists that changed.
    """

    def __init__(
        self, blot: Blot, *, on_question: Callable[[str, Any], None], on_change: Callable[[], None]
    ) -> None:
        self.ended = asyncio.Event()
        self._blot = blot
        self._on_question = on_question
        self._on_change = on_change
        self._asked: dict[str, str] = {}  # request id -> method

    @asynccontextmanager
    async def about(self, transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        """The transport's two streams, filtered. Writing never waits: a server that does not read must not
        hold up who calls it, or aborts.
        """
        async with transport as (incoming, outgoing), asyncio.TaskGroup() as group:
            to_server, leaving = anyio.create_memory_object_stream[SessionMessage](math.inf)
            to_client, arrived = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            async with to_server, leaving, to_client, arrived, to_server.clone() as back:
                pumps = [
                    group.create_task(self._write(leaving, outgoing)),
                    group.create_task(self._read(incoming, to_client, back=back)),
                ]
                for pump in pumps:
                    pump.add_done_callback(lambda _: self._end(pumps, to_client))
                try:
                    yield arrived, to_server
                finally:
                    stop(pumps)

    def _end(self, pumps: list[asyncio.Task[None]], to_client: Any) -> None:
        """One way is closed, so the connection is over."""
        self.ended.set()
        to_client.close()
        stop(pumps)

    async def _write(self, leaving: Any, outgoing: Any) -> None:
        try:
            async for message in leaving:
                if isinstance(message.message, JSONRPCRequest):
                    self._asked[str(message.message.id)] = message.message.method
                elif getattr(message.message, "method", "") == "notifications/cancelled":
                    self._asked.pop(str((message.message.params or {}).get("requestId")), None)
                await outgoing.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    async def _read(self, incoming: Any, to_client: Any, *, back: Any) -> None:
        async with back:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for message in incoming:
                    await self._pass(message, to_client, back=back)

    async def _pass(self, message: Any, to_client: Any, *, back: Any) -> None:
        if isinstance(message, Exception):
            return  # the transport has logged it
        answer = self._judge(message.message)
        if answer is not None:
            await back.send(SessionMessage(answer))
        else:
            await to_client.send(message)

    def _judge(self, message: Any) -> JSONRPCError | None:
        """Make a message fit to pass; or the answer that it gets instead."""
        match message:
            case JSONRPCRequest(method=method) if method in QUESTIONS:
                self._on_question(method, self._blot.within(message.params))
                said = ErrorData(code=NOT_OFFERED, message=f"{method} is not offered by this client")
                return JSONRPCError(jsonrpc="2.0", id=message.id, error=said)
            case JSONRPCNotification(method=method) if method.endswith("/list_changed"):
                self._on_change()
            case JSONRPCResponse():
                method = self._asked.pop(str(message.id), "")
                message.result = passable(method, self._blot.within(message.result))
            case JSONRPCError():
                self._asked.pop(str(message.id), None)
                message.error.message = self._blot(message.error.message)
                message.error.data = self._blot.within(message.error.data)
            case _:
                pass
        return None


def stop(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


def passable(method: str, result: dict[str, Any]) -> dict[str, Any]:
    """The result as the SDK takes it: with what it would refuse the whole for laid aside under `RAW`."""
    if method == "tools/call" and result.get("resultType") != "input_required":
        raw = {key: result.get(key) for key in ("content", "structuredContent", "isError")}
        return {"content": [], "resultType": "complete", "_meta": {RAW: raw}}
    if method not in LISTS or result.get("resultType", "complete") != "complete":
        return result
    cursor = result.get("nextCursor")
    kept = {key: value for key, value in result.items() if key != "nextCursor" or isinstance(value, str)}
    known = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **kept}
    if method != "tools/list":
        return known
    tools = result.get("tools")
    offered = tools if isinstance(tools, list) else []
    good = [
        {"name": each["name"], "inputSchema": each["inputSchema"]}
        for each in offered
        if fault_of(each) is None
    ]
    following = {"nextCursor": cursor} if isinstance(cursor, str) else {}
    meta = {RAW: offered}
    return {
        "tools": good,
        "_meta": meta,
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        **following,
    }
