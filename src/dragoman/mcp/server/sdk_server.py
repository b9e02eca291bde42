"""The MCP SDK behind HTTP: loaded at the first request that needs it, closed with the hub."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from starlette.types import Message, Receive, Scope

from dragoman.errors import Unavailable
from dragoman.http.exchange import Exchange
from dragoman.http.in_flight import InFlightRequests
from dragoman.mcp.sdk_import import import_sdk_module
from dragoman.mcp.server.running_call import CALLS_KEY, IDENTITY_KEY, RunningCall

log = logging.getLogger(__name__)
BuildSdkServer = Callable[[], Any]


class SdkServer:
    """Serves MCP over HTTP with the SDK.

    `build` makes the SDK's server. It is called in a thread at the first request: importing the SDK takes a
    second, which a hub without such requests does not pay. `body_limit` is in bytes.
    """

    def __init__(self, build: BuildSdkServer, *, body_limit: int, in_flight: InFlightRequests) -> None:
        self._build = build
        self._body_limit = body_limit
        self._in_flight = in_flight
        self._sessions_task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._stopping = asyncio.Event()

    async def serve(
        self, scope: Scope, exchange: Exchange, *, body: bytes | None = None, stateless: bool
    ) -> None:
        """Answer a request whose `body` was read. A `stateless` one belongs to no session and opens none.

        When the client disconnects before the response, the calls of the request are aborted.
        """
        sessions = await self._started_sessions()
        calls: set[RunningCall] = set()
        scope[IDENTITY_KEY], scope[CALLS_KEY] = exchange.identity, calls

        def cancel_calls() -> None:
            for call in list(calls):
                call.cancel()

        # The SDK reads `receive` itself, so the exchange reports the disconnect instead of a DisconnectWatch.
        exchange.on_disconnect(cancel_calls)
        receive = exchange.receive if body is None else replay_body(body, exchange.receive)
        # A GET is a stream of notifications that does not end by itself: a drain does not wait for it.
        with self._in_flight.track(cancel_calls) if exchange.method == "POST" else nullcontext():
            await sessions.serve(
                scope, receive, exchange.send_from_app, identity=exchange.identity, stateless=stateless
            )

    async def close(self) -> None:
        """End all sessions and the requests that wait in them."""
        self._stopping.set()
        if self._sessions_task is not None:
            await asyncio.wait([self._sessions_task])

    async def _started_sessions(self) -> Any:
        """Return the SDK's sessions, opened. One task opens and closes them, as task groups require."""
        if self._stopping.is_set():
            raise Unavailable("the hub is shutting down; retry the request")
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
        """Import the SDK and build what needs it."""
        handlers = import_sdk_module("dragoman.mcp.server.handlers")
        return handlers.SdkSessions(self._build(), body_limit=self._body_limit)


def build_sdk_server(tool_server: Any) -> Any:
    """Import the SDK and return its server for these tools."""
    return import_sdk_module("dragoman.mcp.server.handlers").build_sdk_server(tool_server)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was already read, then the messages after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
