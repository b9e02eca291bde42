"""The memory of an open socket of a session, on the server that the hub is served by."""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from dragoman.config import parse_config
from dragoman.server.app import Hub
from dragoman.server.http.connection_limits import ConnectionLimits
from dragoman.server.http.listener import bind_listener, build_server
from dragoman.session_ids import hub_session_id
from dragoman.store.sessions.sessions import Session
from tests.effort import rounds
from tests.waiting import LIMIT

SOCKETS = rounds(quick=60, thorough=500)
ALLOWED = 25 * 1_024  # bytes of each
UPGRADE = (
    b"GET /api/sessions/s/socket HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: test\r\nupgrade: websocket\r\n"
    b"connection: Upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: AQIDBAUGBwgJCgsMDQ4PEA==\r\n\r\n"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def served(hub: Hub) -> AsyncIterator[int]:
    """Serve a hub as `dragoman serve` does; the port."""
    listener = bind_listener("127.0.0.1", 0)
    server = build_server(hub.app, ConnectionLimits())
    await server.startup(sockets=[listener])
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await server.shutdown(sockets=[listener])


async def open_socket(port: int) -> socket.socket:
    """A client of almost no memory, that has read the first frame."""
    loop, client = asyncio.get_running_loop(), socket.socket()
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", port))
    await loop.sock_sendall(client, UPGRADE)
    read = b""
    async with asyncio.timeout(LIMIT):
        while b'"init"' not in read:
            part = await loop.sock_recv(client, 65_536)
            assert part, read
            read += part
    return client


async def test_an_open_socket_takes_at_most_25_kib(tmp_path: Path) -> None:
    config = parse_config({"model": "none/none", "providers": {"none": {"type": "ollama"}}})
    async with Hub.open(config, tmp_path, require_keys=False) as hub, served(hub) as port:
        session = Session(id=hub_session_id("s", owner="local"), owner="local", created_at=0, updated_at=0)
        await hub.store.sessions.create(session)
        with ExitStack() as stack:
            for _ in range(5):  # what the first ones load stays
                stack.enter_context(await open_socket(port))
            gc.collect()
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                for _ in range(SOCKETS):
                    stack.enter_context(await open_socket(port))
                gc.collect()
                grown = tracemalloc.get_traced_memory()[0] - before
            finally:
                tracemalloc.stop()
        assert grown / SOCKETS < ALLOWED
