"""A hub with MCP servers that misbehave."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dragoman.mcp.client.client import McpClient
from dragoman.mcp.server_spec import ServerSpec
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.outcome import CallOutcome
from dragoman.store.mcp_servers import PinStore

RAW = Path(__file__).with_name("raw_server.py")
ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/", "LANG": "C.UTF-8", "API_TOKEN": "hub's own token"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Hub:
    """Servers with a registry, and calls to them."""

    def __init__(self, servers: McpClient, registry: Registry, calls: Calls) -> None:
        self.servers = servers
        self.registry = registry
        self.calls = calls

    async def call(self, id: str, input: dict[str, Any] | None = None, **more: Any) -> CallOutcome:
        return await self.calls.call(id, input or {}, context=Context(), **more)

    def ids(self) -> list[str]:
        return [operation.id for operation in self.registry.list()]


@asynccontextmanager
async def hub(*specs: ServerSpec, pins: PinStore | None = None, **more: Any) -> AsyncIterator[Hub]:
    registry = Registry()
    with pytest.MonkeyPatch.context() as patch:  # servers of a loaded machine take longer to list and to exit
        patch.setattr("dragoman.mcp.client.connection.PROBE_SECONDS", 60.0)
        patch.setattr("dragoman.mcp.client.process.EXIT_WAIT_SECONDS", 3.0)
        async with (
            Calls(registry, MemoryLedger()) as calls,
            McpClient(registry, specs, pin_store=pins, environ=ENVIRON, **more) as servers,
        ):
            yield Hub(servers, registry, calls)


OpenHub: TypeAlias = Callable[..., Any]
Spec: TypeAlias = Callable[..., ServerSpec]


@pytest.fixture
def open_hub() -> OpenHub:
    return hub


@pytest.fixture
def raw(tmp_path: Path) -> Spec:
    """Makes the spec of a raw server, with these modes; its state is in `NAME.txt`."""

    def make(name: str = "raw", *modes: str, **details: Any) -> ServerSpec:
        state = tmp_path / f"{name}.txt"
        command = (sys.executable, "-S", "-E", str(RAW), str(state), *modes)
        return ServerSpec(name=name, command=command, **{"connect_timeout": 120, **details})

    return make


Until: TypeAlias = Callable[[Callable[[], Any]], Awaitable[None]]


@pytest.fixture
def until() -> Until:
    """Waits until something is true."""
    import anyio  # late: tests that do not wait need none

    async def wait(true: Callable[[], Any]) -> None:
        with anyio.fail_after(120):
            while not true():
                await anyio.lowlevel.checkpoint()
                await anyio.sleep(0.01)

    return wait
