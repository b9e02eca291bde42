"""The MCP SDK behind HTTP: loaded at the first request that needs it, closed with the hub."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from dragoman.errors import KeyEnded, Unavailable
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.in_flight import InFlightRequests
from dragoman.identity import Identity
from dragoman.mcp.sdk_import import import_sdk_module
from dragoman.mcp.server.limits import McpLimits
from dragoman.mcp.server.open_sessions import OpenSessions
from dragoman.mcp.server.running_call import CALLS_KEY, IDENTITY_KEY, RunningCall
from dragoman.mcp.server.stateless import HANDSHAKE_REVISIONS
from dragoman.revocable_work import ActiveWork

log = logging.getLogger(__name__)
COLLECT_BYTES = 8_000_000
BuildSdkServer = Callable[[], Any]
LAST_MESSAGES_WAIT = 1.0  # seconds for the last messages of a session whose key has ended
SESSION_HEADER = b"mcp-session-id"
VERSION_HEADER = b"mcp-protocol-version"


class SdkServer:
    """Serves MCP over HTTP with the SDK.

    `build` makes the SDK's server. It is called in a thread at the first request: importing the SDK takes a
    second, which a hub without such requests does not pay.
    """

    def __init__(
        self,
        build: BuildSdkServer,
        *,
        limits: McpLimits,
        in_flight: InFlightRequests,
        work: ActiveWork,
    ) -> None:
        self._build = build
        self._limits = limits
        self._in_flight = in_flight
        self.sessions = OpenSessions(work, end=self._end_session, limits=limits)
        self._ending: set[asyncio.Task[None]] = set()
        self._sessions_task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._stopping = asyncio.Event()
        self._uncollected = 0

    async def serve(
        self,
        scope: Scope,
        exchange: Exchange,
        *,
        body: bytes | None = None,
        request_id: str | int | None = None,
        stateless: bool,
    ) -> None:
        """Answer a request whose `body` was read. A `stateless` one belongs to no session and opens none.

        Raises Conflict if its session has a request with this id in progress: the SDK would forget one.

        When the client disconnects before the response, the calls of the request are aborted. When the
        caller's key ends, they end with that error, and so do the sessions that the key opened.
        """
        sessions = await self._started_sessions()
        calls: set[RunningCall] = set()
        scope[IDENTITY_KEY], scope[CALLS_KEY] = exchange.identity, calls

        def cancel_calls(error: KeyEnded | None = None) -> None:
            for call in list(calls):
                call.cancel(error)

        # The SDK reads `receive` itself, so the exchange reports the disconnect instead of a DisconnectWatch.
        exchange.on_disconnect(cancel_calls)
        receive = exchange.receive if body is None else replay_body(body, exchange.receive)
        if exchange.method == "POST":
            exchange.on_key_ended = cancel_calls
        # A GET is a stream of notifications that does not end by itself: a drain does not wait for it.
        post = exchange.method == "POST"
        with (
            self._in_flight.track(cancel_calls) if post else nullcontext(),
            self._track_session(scope, exchange, request_id=request_id, stateless=stateless) as send,
        ):
            await sessions.serve(scope, receive, send, identity=exchange.identity, stateless=stateless)
        self._collect_bodies(0 if body is None else len(body))

    @contextmanager
    def _track_session(
        self, scope: Scope, exchange: Exchange, *, request_id: str | int | None, stateless: bool
    ) -> Iterator[Send]:
        """Register a request of a session while the block runs, or one that may open a session.

        Yields the `send` for the response, which sees whether the session was opened or has ended.
        """
        session_id, identity = session_id_in(scope["headers"]), exchange.identity
        if stateless or not is_handshake_revision(scope["headers"]):
            yield exchange.send_from_app
            return
        if session_id is None:
            with self.sessions.open(identity) as opened:
                yield watch_opening(exchange.send_from_app, opened)
            return
        post = asyncio.current_task() if exchange.method == "POST" else None
        name = None if request_id is None else str(request_id)  # as the SDK compares them
        with self.sessions.use(session_id, identity, post=post, request_id=name):
            yield self._watch_end(exchange, session_id)

    def _watch_end(self, exchange: Exchange, session_id: str) -> Send:
        """Return a `send` that forgets the session if the response says that it has ended."""

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                ended = message["status"] == 404 or (exchange.method == "DELETE" and message["status"] < 300)
                if ended and self.sessions.owns(session_id, exchange.identity):
                    self.sessions.remove(session_id)
            await exchange.send_from_app(message)

        return send

    def _collect_bodies(self, size: int) -> None:
        """Collect the youngest garbage after every COLLECT_BYTES of bodies: errors of the SDK keep them in
        reference cycles.
        """
        self._uncollected += size
        if self._uncollected > COLLECT_BYTES:
            self._uncollected = 0
            gc.collect(0)

    async def close(self) -> None:
        """End all sessions and the requests that wait in them."""
        self._stopping.set()
        if self._sessions_task is not None:
            await asyncio.wait([self._sessions_task])

    def _end_session(self, session_id: str, identity: Identity) -> None:
        """End a session whose key has ended, or that makes room for another, in a task."""
        task = asyncio.ensure_future(self._delete_session(session_id, identity))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _delete_session(self, session_id: str, identity: Identity) -> None:
        if self._ready is None or self._stopping.is_set():
            return
        sessions = await asyncio.shield(self._ready)
        if posts := self.sessions.posts(session_id):  # their calls are aborted; let them send their errors
            await asyncio.wait(list(posts), timeout=LAST_MESSAGES_WAIT)
        self.sessions.remove(session_id)
        await sessions.delete(session_id, identity=identity)

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
        return handlers.SdkSessions(self._build(), limits=self._limits)


def session_id_in(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the value of `mcp-session-id`."""
    return header_in(headers, SESSION_HEADER)


def is_handshake_revision(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the SDK serves a request with these headers in a session, if it has or opens one."""
    return header_in(headers, VERSION_HEADER) in (None, *HANDSHAKE_REVISIONS)


def header_in(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    """Return the first value of a header, as the SDK reads it."""
    return next((value.decode("latin-1") for name, value in headers if name.lower() == wanted), None)


def watch_opening(send: Send, opened: Callable[[str], None]) -> Send:
    """Return a `send` that calls `opened` with the id of the session that a response opens."""

    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] < 400:
            session_id = session_id_in(message.get("headers", ()))
            if session_id is not None:
                opened(session_id)
        await send(message)

    return watched


def build_sdk_server(tool_server: Any) -> Any:
    """Import the SDK and return its server for these tools."""
    return import_sdk_module("dragoman.mcp.server.handlers").build_sdk_server(tool_server)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was already read, then the messages after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
