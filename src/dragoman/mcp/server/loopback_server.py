"""Tools served over MCP on a loopback port, with a token, while a block runs."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp

from dragoman.errors import Unauthorized
from dragoman.identity import LOCAL, Identity
from dragoman.mcp.server.endpoint import McpEndpoint
from dragoman.mcp.server.server import ToolServer

HOST = "127.0.0.1"
BACKLOG = 16


class LocalMcpServer(NamedTuple):
    """The URL of the server and the token for `Authorization: Bearer TOKEN`."""

    url: str
    token: str


@asynccontextmanager
async def serve_locally(tool_server: ToolServer) -> AsyncIterator[LocalMcpServer]:
    """Serve the tools while the block runs; calls in flight at its end are aborted."""
    token = secrets.token_urlsafe(32)

    async def identify(headers: Mapping[str, str]) -> Identity:
        authorization = headers.get("authorization", "").encode()
        if not hmac.compare_digest(authorization, f"Bearer {token}".encode()):
            raise Unauthorized("the token is not that of this server")
        return LOCAL

    endpoint = McpEndpoint(tool_server, identify=identify)
    try:
        async with serve_on_loopback(endpoint) as port:
            yield LocalMcpServer(f"http://{HOST}:{port}/mcp", token)
    finally:
        await endpoint.close()


@asynccontextmanager
async def serve_on_loopback(app: ASGIApp) -> AsyncIterator[int]:
    """Serve an app on a free port; at the end its connections are closed at once."""
    with socket.create_server((HOST, 0), backlog=BACKLOG) as listener:
        server = make_uvicorn(app)
        await server.startup(sockets=[listener])
        main_loop = asyncio.create_task(server.main_loop())
        try:
            yield listener.getsockname()[1]
        finally:
            main_loop.cancel()
            for socket_server in server.servers:
                socket_server.close()
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            if tasks := list(server.server_state.tasks):
                await asyncio.wait(tasks)


def make_uvicorn(app: ASGIApp) -> uvicorn.Server:
    """Return a uvicorn server for this app. Its `serve()` would install signal handlers."""
    settings = uvicorn.Config(
        app, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False
    )
    settings.load()
    server = uvicorn.Server(settings)
    server.lifespan = settings.lifespan_class(settings)
    return server
