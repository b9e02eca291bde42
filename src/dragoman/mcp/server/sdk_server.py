"""The engine: the MCP SDK at work behind HTTP, from the first request that needs it to the hub's end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from dragoman.errors import Unavailable
from dragoman.identity import Identity
from dragoman.mcp.client import sdk
from dragoman.mcp.server.stateless import IDENTITY_KEY, TASKS_KEY

log = logging.getLogger(__name__)
BuildSdkServer = Callable[[], Any]
FLUSH_SECONDS = 0.1


class SdkServer:
    """Serves MCP over HTTP with the SDK.

    `build` makes the SDK's server. It is called in a thread at the first request: importing the SDK takes a
    second, and a hub without such requests does not pay for it. `body` is the most bytes of a request.
    """

    def __init__(self, build: BuildSdkServer, *, body_limit: int) -> None:
        self._build = build
        self._body_limit = body_limit
        self._sessions_task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._stopping = asyncio.Event()
        self._request_tasks: list[set[asyncio.Task[Any]]] = []  # the calls of each request under way

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, *, identity: Identity, stateless: bool
    ) -> None:
        """Answer a request; a `stateless` one belongs to no session and opens none.

        When the client leaves before it is answered, the calls that it made are aborted.
        """
        sessions = await self._started_sessions()
        scope[IDENTITY_KEY] = identity
        scope[TASKS_KEY] = held = set[asyncio.Task[Any]]()
        self._request_tasks.append(held)

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                for task in list(held):
                    task.cancel()
            return message

        try:
            await sessions.serve(scope, heard, send, identity=identity, stateless=stateless)
        finally:
            self._request_tasks = [each for each in self._request_tasks if each is not held]

    async def drain(self, seconds: float) -> None:
        """Give the calls under way so many seconds, and their answers a moment to be written."""
        tasks = [task for held in self._request_tasks for task in held]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
            await asyncio.sleep(FLUSH_SECONDS)

    async def close(self) -> None:
        """End all sessions and what they wait for."""
        self._stopping.set()
        if self._sessions_task is not None:
            await asyncio.wait([self._sessions_task])

    async def _started_sessions(self) -> Any:
        """The SDK's side, ready. One task owns it: what it opens has to be closed where it was opened."""
        if self._stopping.is_set():
            raise Unavailable("the hub is being stopped")
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._sessions_task = asyncio.create_task(self._run_sessions(self._ready))
        return await asyncio.shield(self._ready)

    async def _run_sessions(self, ready: asyncio.Future[Any]) -> None:
        try:
            sessions = await asyncio.to_thread(self._load_sessions)
            async with sessions.open():
                ready.set_result(sessions)
                await self._stopping.wait()
        except Exception as error:
            log.exception("the MCP server failed")
            self._ready = None  # the next request tries again
            if not ready.done():
                ready.set_exception(Unavailable(f"MCP cannot be served: {type(error).__name__}"))

    def _load_sessions(self) -> Any:
        """Import the SDK, and build all that needs it."""
        sessions = sdk.import_sdk_module("dragoman.mcp.server.handlers")
        return sessions.SdkSessions(self._build(), body_limit=self._body_limit)


def build_sdk_server(tool_server: Any) -> Any:
    """The SDK's server for these tools; imports the SDK."""
    return sdk.import_sdk_module("dragoman.mcp.server.handlers").build_sdk_server(tool_server)
