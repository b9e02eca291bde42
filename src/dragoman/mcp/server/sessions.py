"""Sessions: the MCP SDK's HTTP side, with and without a session. Importing this takes a second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from dragoman.operations.identity import Identity

MOST = 2_000
IDLE = 1_800.0  # seconds that a session without a request is kept


class Sessions:
    """Serves requests that belong to a session, and those that belong to none."""

    def __init__(self, server: Server[Any], *, body: int) -> None:
        self._kept = StreamableHTTPSessionManager(
            server, session_idle_timeout=IDLE, max_sessions=MOST, max_request_body_size=body
        )
        self._single = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=body)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve while the block runs. It has to be left by the task that entered it."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._kept.run())
            await stack.enter_async_context(self._single.run())
            yield

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, *, identity: Identity, single: bool
    ) -> None:
        """Answer one request; `single`: it belongs to no session, and opens none."""
        token = AccessToken(token="", client_id=identity.owner, scopes=[])
        scope["user"] = AuthenticatedUser(token)  # a session is its owner's only
        manager = self._single if single else self._kept
        await manager.handle_request(scope, receive, send)
