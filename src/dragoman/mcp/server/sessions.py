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

MAX_SESSIONS = 2_000
IDLE_SECONDS = 1_800.0  # seconds that a session without a request is kept


class SdkSessions:
    """Serves requests that belong to a session, and those that belong to none."""

    def __init__(self, server: Server[Any], *, body_limit: int) -> None:
        self._stateful = StreamableHTTPSessionManager(
            server,
            session_idle_timeout=IDLE_SECONDS,
            max_sessions=MAX_SESSIONS,
            max_request_body_size=body_limit,
        )
        self._stateless = StreamableHTTPSessionManager(
            server, stateless=True, max_request_body_size=body_limit
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve while the block runs. It has to be left by the task that entered it."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._stateful.run())
            await stack.enter_async_context(self._stateless.run())
            yield

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, *, identity: Identity, stateless: bool
    ) -> None:
        """Answer one request; `single`: it belongs to no session, and opens none."""
        token = AccessToken(token="", client_id=identity.owner, scopes=[])
        scope["user"] = AuthenticatedUser(token)  # a session is its owner's only
        manager = self._stateless if stateless else self._stateful
        await manager.handle_request(scope, receive, send)
