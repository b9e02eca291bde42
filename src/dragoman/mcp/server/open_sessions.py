"""The open MCP sessions: who opened each, when it was last used, and which is closed to make room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field

from dragoman.errors import Conflict, DragomanError, LimitReached, Unavailable
from dragoman.identity import Identity
from dragoman.mcp.server.limits import McpLimits
from dragoman.revocable_work import ActiveWork

RETRY_SECONDS = 10.0
DEFAULT_LIMITS = McpLimits()
EndSession = Callable[[str, Identity], None]


class OpenSession(Struct, eq=False):
    """A session, or a request that may open one, which has no `remove_work` yet.

    `remove_work` ends the registration of the session with the key that opened it. `requests` counts the
    requests in progress; `posts` are the tasks of those that wait for a response, `request_ids` their ids.
    """

    identity: Identity
    last_used: float
    remove_work: Callable[[], None] | None = None
    requests: int = 0
    posts: set[asyncio.Task[Any]] = field(default_factory=set)
    request_ids: set[str] = field(default_factory=set)


class OpenSessions:
    """Registers sessions, each with its owner and the key that opened it.

    `end` ends a session, because its key has ended or to make room. To make room, the session that has been
    unused for the longest time is chosen among those without a request in progress.
    """

    def __init__(
        self,
        work: ActiveWork,
        *,
        end: EndSession,
        limits: McpLimits = DEFAULT_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work
        self._end = end
        self._limits = limits
        self._clock = clock
        self._sessions: dict[str, OpenSession] = {}
        self._owners: dict[str, dict[str, OpenSession]] = {}  # by owner, each in the order of their last use
        self._openings = 0

    def __len__(self) -> int:
        """Return how many sessions are open or being opened."""
        return len(self._sessions)

    @contextmanager
    def open(self, identity: Identity) -> Iterator[Callable[[str], None]]:
        """Reserve a session while a request that may open one runs; yields the function that names it.

        Raises LimitReached if all sessions of the owner have requests in progress, and Unavailable if all
        sessions of the hub have.
        """
        self._make_room(identity.owner)
        self._openings += 1
        session_id = f"opening {self._openings}"  # no id of a session contains a space
        session = self._add(session_id, identity)
        session.requests += 1

        def opened(assigned_id: str) -> None:
            nonlocal session_id
            self._rename(session_id, assigned_id)
            session_id = assigned_id

        try:
            yield opened
        finally:
            session.requests -= 1
            self._touch(session_id, session)
            if session.remove_work is None:
                self.remove(session_id)

    @contextmanager
    def use(
        self,
        session_id: str,
        identity: Identity,
        *,
        post: asyncio.Task[Any] | None = None,
        request_id: str | None = None,
    ) -> Iterator[None]:
        """Register a request of a session while the block runs. `post` is the task of a POST, which ends.

        Raises Conflict if a request with its id is in progress.
        """
        if not self.owns(session_id, identity):
            yield
            return
        session = self._sessions[session_id]
        if request_id in session.request_ids:
            raise Conflict(
                f"a request with the id {request_id[:100]!r} is in progress in this session",
                hint="give each request of a session an id of its own",
            )
        session.requests += 1
        posts = set() if post is None else {post}
        ids = set() if request_id is None else {request_id}
        session.posts |= posts
        session.request_ids |= ids
        try:
            yield
        finally:
            session.requests -= 1
            session.posts -= posts
            session.request_ids -= ids
            self._touch(session_id, session)

    def posts(self, session_id: str) -> set[asyncio.Task[Any]]:
        """Return the tasks of the session's requests that wait for a response."""
        session = self._sessions.get(session_id)
        return set() if session is None else set(session.posts)

    def owns(self, session_id: str, identity: Identity) -> bool:
        """Return whether it is an open session of this owner."""
        session = self._sessions.get(session_id)
        return session is not None and session.identity.owner == identity.owner

    def remove(self, session_id: str) -> None:
        """Forget a session that has ended."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        owner = session.identity.owner
        del self._owners[owner][session_id]
        if not self._owners[owner]:
            del self._owners[owner]
        if session.remove_work is not None:
            session.remove_work()

    def _add(self, session_id: str, identity: Identity) -> OpenSession:
        session = OpenSession(identity, self._clock())
        self._sessions[session_id] = session
        self._owners.setdefault(identity.owner, {})[session_id] = session
        return session

    def _rename(self, placeholder: str, session_id: str) -> None:
        """Replace the placeholder of a session that has just been opened, and bind it to its key."""
        session = self._sessions.pop(placeholder)
        identity = session.identity
        del self._owners[identity.owner][placeholder]
        self._sessions[session_id] = self._owners[identity.owner][session_id] = session
        session.remove_work = self._work.add(identity, lambda _: self._end(session_id, identity))

    def _touch(self, session_id: str, session: OpenSession) -> None:
        """Note that a request has ended: the session is now its owner's last used."""
        session.last_used = self._clock()
        if self._sessions.get(session_id) is session:
            sessions = self._owners[session.identity.owner]
            sessions[session_id] = sessions.pop(session_id)

    def _make_room(self, owner: str) -> None:
        """End sessions until the owner may open another."""
        if self._is_full(owner):
            self._end_expired()
        if len(self._owners.get(owner, ())) >= self._limits.owner_sessions and not self._end_idle(owner):
            raise self._owner_is_full()
        if len(self._sessions) >= self._limits.sessions:
            by_size = sorted(self._owners, key=lambda name: len(self._owners[name]), reverse=True)
            if not any(self._end_idle(name) for name in by_size):
                raise self._hub_is_full()

    def _is_full(self, owner: str) -> bool:
        """Return whether a session of this owner needs room to be made."""
        return (
            len(self._sessions) >= self._limits.sessions
            or len(self._owners.get(owner, ())) >= self._limits.owner_sessions
        )

    def _end_expired(self) -> None:
        """End the sessions that were unused for too long. The SDK closes them, and does not report it."""
        oldest = self._clock() - self._limits.idle
        for session_id, session in list(self._sessions.items()):
            if not session.requests and session.last_used < oldest:
                self._end_unused(session_id, session)

    def _end_idle(self, owner: str) -> bool:
        """End the owner's session that has been unused for the longest time, if any is unused."""
        for session_id, session in self._owners.get(owner, {}).items():
            if not session.requests:
                self._end_unused(session_id, session)
                return True
        return False

    def _end_unused(self, session_id: str, session: OpenSession) -> None:
        self.remove(session_id)
        self._end(session_id, session.identity)

    def _owner_is_full(self) -> DragomanError:
        return LimitReached(
            f"all {self._limits.owner_sessions} MCP sessions of this owner have requests in progress",
            retry_after=RETRY_SECONDS,
            hint="end sessions with DELETE, or raise `mcp.owner_sessions` in the hub's configuration",
        )

    def _hub_is_full(self) -> DragomanError:
        error = Unavailable(
            f"all {self._limits.sessions} MCP sessions of this hub have requests in progress",
            hint="retry later, use revision 2026-07-28, which needs no session, or raise `mcp.sessions`",
        )
        error.retry_after = RETRY_SECONDS
        return error
