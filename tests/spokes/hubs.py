"""A hub with operations and a spoke endpoint on a free port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from dragoman.errors import Unauthorized
from dragoman.identity import Identity
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import LedgerEntry, MemoryLedger
from dragoman.operations.outcome import CallOutcome
from dragoman.spokes.hub.endpoint import SpokeEndpoint
from dragoman.spokes.hub.permissions import NamespacePermissions
from dragoman.spokes.hub.server import SpokeServer
from dragoman.spokes.hub.settings import SpokeSettings
from tests.serving import KEEP_ALIVE
from tests.waiting import until

KEYS = {
    "key-a": Identity(owner="local", key_id="a", scopes=frozenset({"spoke"})),  # whose calls `House` makes
    "key-b": Identity(owner="bob", key_id="b", scopes=frozenset({"spoke", "operations"})),
    "key-admin": Identity(owner="root", key_id="r", scopes=frozenset({"admin"})),
    "key-plain": Identity(owner="ann", key_id="p"),
    "key-chat": Identity(owner="ann", key_id="c", scopes=frozenset({"chat", "operations"})),
}
LIMIT = 120.0
# Whatever a machine under load delays, no connection is given up, and no spoke that comes back is too late.
PATIENT = SpokeSettings(grace=LIMIT, claim_timeout=LIMIT, heartbeat=0.2, timeout=LIMIT)


class House:
    """A hub in this process."""

    def __init__(self, settings: SpokeSettings, permits: NamespacePermissions, *things: Any) -> None:
        self.registry = Registry(*things)
        self.ledger = MemoryLedger()
        self.calls = Calls(self.registry, self.ledger)
        self.board = SpokeServer(self.registry, permissions=permits, settings=settings)
        self.keys: dict[str, Identity] = dict(KEYS)
        self.url = ""
        self.door = SpokeEndpoint(self.board, identify=self.identify)

    async def identify(self, headers: Mapping[str, str]) -> Identity:
        secret = headers.get("authorization", "").removeprefix("Bearer ")
        if secret not in self.keys:
            raise Unauthorized("this key is unknown")
        return self.keys[secret]

    async def call(
        self, operation: str, input: Mapping[str, Any] | None = None, **context: Any
    ) -> CallOutcome:
        """The outcome of a call."""
        return await self.calls.call(operation, input, context=Context(**context))

    async def result(self, operation: str, input: Mapping[str, Any] | None = None, **context: Any) -> Any:
        """The result of a call, which must not fail."""
        async with asyncio.timeout(LIMIT):
            return (await self.call(operation, input, **context)).unwrap()

    def running(self) -> list[LedgerEntry]:
        """The calls that have not ended."""
        return [each for each in self.ledger._entries.values() if each.ended_at is None]

    async def has(self, *ids: str) -> None:
        """Wait until these operations are here."""
        await until(lambda: set(ids) <= {each.id for each in self.registry.list()})

    async def lacks(self, *ids: str) -> None:
        """Wait until these operations are gone."""
        await until(lambda: not set(ids) & {each.id for each in self.registry.list()})


@asynccontextmanager
async def house(
    *things: Any,
    settings: SpokeSettings = PATIENT,
    permits: NamespacePermissions | None = None,
    port: int = 0,
) -> AsyncIterator[House]:
    """A hub that is served."""
    here = House(settings, permits or NamespacePermissions(), *things)
    async with here.calls, served(here.door, settings, port=port) as url:
        here.url = url
        try:
            yield here
        finally:
            await here.board.close()


@asynccontextmanager
async def served(app: ASGIApp, settings: SpokeSettings, *, port: int = 0) -> AsyncIterator[str]:
    """Serve an app; its address."""
    # With its protocol named asyncio sends small messages at once, as it does for the hub's own listener.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        ws_max_size=2 * settings.message,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        log_level="warning",
        lifespan="off",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # the test runner keeps its own
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await task
