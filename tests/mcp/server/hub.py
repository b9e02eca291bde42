"""A small hub behind `/mcp` on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import uvicorn

from dragoman.errors import Unauthorized
from dragoman.identity import Identity
from dragoman.mcp.server.endpoint import McpEndpoint
from dragoman.mcp.server.sdk_server import BuildSdkServer
from dragoman.mcp.server.server import McpServer
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from tests.serving import KEEP_ALIVE

MODERN = "2026-07-28"
BOTH = "application/json, text/event-stream"
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
SCOPES = {"reader": frozenset({"chat"}), "ops": frozenset({"operations"})}


class Hub:
    """The hub, and what its operations have seen."""

    def __init__(
        self,
        *,
        keys: bool = False,
        pinned: Sequence[str] = (),
        operations: Sequence[Operation] = (),
        **door: Any,
    ) -> None:
        self.hanging = asyncio.Event()
        self.stopped = asyncio.Event()
        self.wiped: list[Any] = []
        self.url = ""
        self.registry = Registry(*self._operations(), *operations)
        self.ledger = MemoryLedger()
        self.calls = Calls(self.registry, self.ledger)
        self._keys = keys
        meta = MetaTools(self.registry, self.calls)
        self.server = McpServer(meta, self.calls, registry=self.registry, pinned=pinned, version="1")
        self.door = McpEndpoint(self.server, identify=self.identify, **door)

    def _operations(self) -> list[Operation]:
        made = Operation.from_schema
        anything = {"type": "object"}
        return [
            made(self._add, NUMBERS, namespace="math", name="add", effect="read", description="Add two."),
            made(self._count, anything, namespace="time", name="count", effect="read"),
            made(self._hang, anything, namespace="time", name="hang"),
            made(self._wipe, anything, namespace="disk", name="wipe", approval=True),
        ]

    async def identify(self, headers: Mapping[str, str]) -> Identity:
        key = headers.get("authorization", "").removeprefix("Bearer ")
        if self._keys and not key:
            raise Unauthorized("this hub requires a key")
        return Identity(owner=key or "me", key_id=key or None, scopes=SCOPES.get(key, frozenset()))

    async def _add(self, input: Mapping[str, Any], _: Context) -> int:
        total: int = input["a"] + input["b"]
        return total

    async def _count(self, _: Any, context: Context) -> str:
        for step in ("one", "two"):
            context.progress(step)
            await asyncio.sleep(0)  # so that it is told before the next
            await asyncio.sleep(0)
        return "counted"

    async def _hang(self, _: Any, context: Context) -> None:
        context.progress("hanging")
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()

    async def _wipe(self, input: Any, _: Context) -> str:
        self.wiped.append(input)
        return "wiped"


@asynccontextmanager
async def served(*, build: BuildSdkServer | None = None, **options: Any) -> AsyncIterator[Hub]:
    """A hub that answers at `hub.url`."""
    hub = Hub(build_sdk_server=build, **options)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    hub.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    settings = uvicorn.Config(
        hub.door,
        lifespan="off",
        log_config=None,
        ws="none",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=KEEP_ALIVE,
    )
    server = uvicorn.Server(settings)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield hub
    finally:
        await hub.door.close()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await task
        listener.close()
        await hub.calls.close()


def batch(tool: str, **input: Any) -> dict[str, Any]:
    """The arguments of hub_call for one operation."""
    return {"calls": [{"tool": tool, "input": input}]}


def body(
    method: str, *, id: int = 1, modern: bool = False, asks: bool = False, **params: Any
) -> dict[str, Any]:
    """A request of either era."""
    meta = dict(params.pop("_meta", {}))
    if modern:
        capabilities: dict[str, Any] = {"elicitation": {}} if asks else {}
        prefix = "io.modelcontextprotocol/"
        meta |= {f"{prefix}protocolVersion": MODERN, f"{prefix}clientCapabilities": capabilities}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta}}


async def post(hub: Hub, message: Any, **headers: str) -> httpx2.Response:
    """POST a message with the headers that it wants, and these."""
    params = message.get("params", {}) if isinstance(message, dict) else {}
    reply = {"accept": BOTH, "content-type": "application/json"}
    if "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {}):
        reply |= {"mcp-protocol-version": MODERN, "mcp-method": message["method"]}
        reply |= {"mcp-name": params["name"]} if "name" in params else {}
    reply |= {name.replace("_", "-"): value for name, value in headers.items()}
    stored = {name: value for name, value in reply.items() if value}
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        if isinstance(message, bytes):
            return await http.post(hub.url, content=message, headers=stored)
        return await http.post(hub.url, json=message, headers=stored)
