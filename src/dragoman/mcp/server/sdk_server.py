"""The MCP SDK behind HTTP: loaded at the first request that needs it, closed with the hub."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from starlette.types import Message, Receive, Scope

from dragoman.active_work import ActiveWork
from dragoman.errors import KeyEnded, Unavailable
from dragoman.http.exchange import Exchange
from dragoman.http.in_flight import InFlightRequests
from dragoman.identity import Identity
from dragoman.mcp.sdk_import import import_sdk_module
from dragoman.mcp.server.running_call import CALLS_KEY, IDENTITY_KEY, RunningCall

log = logging.getLogger(__name__)
COLLECT_BYTES = 8_000_000
BuildSdkServer = Callable[[], Any]
LAST_MESSAGES_WAIT = 1.0  # seconds for the last messages of a session whose key has ended
SESSION_HEADER = b"mcp-session-id"
MAX_TRACKED_SESSIONS = 10_000  # several times the number of sessions that can be open


class SdkServer:
    """Serves MCP over HTTP with the SDK.

    `build` makes the SDK's server. It is called in a thread at the first request: importing the SDK takes a
    second, which a hub without such requests does not pay. `body_limit` is in bytes.
    """

    def __init__(
        self,
        build: BuildSdkServer,
        *,
        body_limit: int,
        in_flight: InFlightRequests,
        work: ActiveWork,
    ) -> None:
        self._build = build
        self._body_limit = body_limit
        self._in_flight = in_flight
        self._session_keys = SessionKeys(work, end=self._end_session)
        self._posts: dict[str, set[asyncio.Task[Any]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._sessions_task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._stopping = asyncio.Event()
        self._uncollected = 0

    async def serve(
        self, scope: Scope, exchange: Exchange, *, body: bytes | None = None, stateless: bool
    ) -> None:
        """Answer a request whose `body` was read. A `stateless` one belongs to no session and opens none.

        When the client disconnects before the response, the calls of the request are aborted. When the
        caller's key ends, they end with that error, and so do the sessions that the key opened.
        """
        sessions = await self._started_sessions()
        calls: set[RunningCall] = set()
        scope[IDENTITY_KEY], scope[CALLS_KEY] = exchange.identity, calls

        def cancel_calls(error: KeyEnded | None = None) -> None:
            for call in list(calls):
                call.cancel(error)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._session_keys.note_response(scope, message, identity=exchange.identity)
            await exchange.send_from_app(message)

        # The SDK reads `receive` itself, so the exchange reports the disconnect instead of a DisconnectWatch.
        exchange.on_disconnect(cancel_calls)
        receive = exchange.receive if body is None else replay_body(body, exchange.receive)
        if exchange.method == "POST":
            exchange.on_key_ended = cancel_calls
        # A GET is a stream of notifications that does not end by itself: a drain does not wait for it.
        post = exchange.method == "POST"
        with self._in_flight.track(cancel_calls) if post else nullcontext(), self._track_post(scope, post):
            await sessions.serve(scope, receive, send, identity=exchange.identity, stateless=stateless)
        self._collect_bodies(0 if body is None else len(body))

    @contextmanager
    def _track_post(self, scope: Scope, is_post: bool) -> Iterator[None]:
        """Note the request as one of its session while the block runs."""
        session_id, task = session_id_in(scope["headers"]), asyncio.current_task()
        if not is_post or session_id is None or task is None:
            yield
            return
        posts = self._posts.setdefault(session_id, set())
        posts.add(task)
        try:
            yield
        finally:
            posts.discard(task)
            if not posts:
                self._posts.pop(session_id, None)

    def _collect_bodies(self, size: int) -> None:
        """Collect the young garbage when it may hold many bytes: errors of the SDK keep bodies in cycles."""
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
        """End a session whose key has ended, in a task."""
        task = asyncio.ensure_future(self._delete_session(session_id, identity))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _delete_session(self, session_id: str, identity: Identity) -> None:
        if self._ready is None or self._stopping.is_set():
            return
        sessions = await asyncio.shield(self._ready)
        if posts := self._posts.get(session_id):  # their calls are aborted; let them send their errors
            await asyncio.wait(list(posts), timeout=LAST_MESSAGES_WAIT)
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
        return handlers.SdkSessions(self._build(), body_limit=self._body_limit)


class SessionKeys:
    """The open sessions, each with the key that opened it."""

    def __init__(self, work: ActiveWork, *, end: Callable[[str, Identity], None]) -> None:
        self._work = work
        self._end = end
        self._removers: dict[str, Callable[[], None]] = {}

    def note_response(self, scope: Scope, response: Message, *, identity: Identity) -> None:
        """Register a session that this response opens; remove one that it ends or does not know."""
        requested = session_id_in(scope["headers"])
        if requested is None:
            opened = session_id_in(response.get("headers", ()))
            if opened is not None and response["status"] < 400:
                self._add(opened, identity)
        elif response["status"] == 404 or scope["method"] == "DELETE":
            self._remove(requested)

    def _add(self, session_id: str, identity: Identity) -> None:
        while len(self._removers) >= MAX_TRACKED_SESSIONS:
            self._remove(next(iter(self._removers)))  # the SDK does not tell which sessions idled out

        def stop(_: KeyEnded) -> None:
            self._removers.pop(session_id, None)
            self._end(session_id, identity)

        self._removers[session_id] = self._work.add(identity, stop)

    def _remove(self, session_id: str) -> None:
        self._removers.pop(session_id, _no_remover)()


def _no_remover() -> None:
    """Remove nothing."""


def session_id_in(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the value of `mcp-session-id`."""
    return next((value.decode("latin-1") for name, value in headers if name.lower() == SESSION_HEADER), None)


def build_sdk_server(tool_server: Any) -> Any:
    """Import the SDK and return its server for these tools."""
    return import_sdk_module("dragoman.mcp.server.handlers").build_sdk_server(tool_server)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was already read, then the messages after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
