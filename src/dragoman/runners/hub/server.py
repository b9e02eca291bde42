"""The runners that are connected to this host, and the sessions that they serve."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from dragoman.errors import Conflict, DragomanError, RateLimited, StoreError, Unavailable
from dragoman.http.asgi_websocket import Socket
from dragoman.identity import Identity
from dragoman.runners.hub.connection import RunnerSocket
from dragoman.runners.hub.session import RunnerSession
from dragoman.runners.hub.settings import RunnerLimits
from dragoman.spokes.protocol import HUB_RESTART, REPLACED, UNAUTHORIZED
from dragoman.store.sessions.sessions import Session, session_not_found
from dragoman.store.store import Store
from dragoman.wire.runner.frames import (
    FrameError,
    FrameRefused,
    RunnerBye,
    RunnerHello,
    RunnerJoin,
    RunnerLeave,
    RunnerWelcome,
    SessionRefusal,
)

log = logging.getLogger(__name__)


class RunnerRunHost(Protocol):
    """What the server needs of the runs: to have the turn of a session, as it is stored, opened here."""

    async def claim(self, session: Session, *, key_id: str | None) -> None:
        """Record that the session's runner is at this host now, no longer at another. Raises Conflict."""
        ...

    async def bring_here(self, session: Session) -> None:
        """Move the session's active run to this host, and open its turn if it waits for an answer."""
        ...


class RunnerServer:
    """Connects runners with the sessions that they serve."""

    def __init__(self, store: Store, settings: RunnerLimits) -> None:
        self.settings = settings
        self.runs: RunnerRunHost | None = None
        self.on_turn_over: Callable[[str], None] = lambda _: None
        """See `RunnerSession.on_turn_over`."""
        self._store = store
        self._sessions: dict[str, RunnerSession] = {}
        self._connections: set[RunnerSocket] = set()
        self._joins = itertools.count(1)
        self._is_closed = False

    def session(self, session_id: str) -> RunnerSession:
        """Return the state of a session at this host, created if there is none."""
        session = self._sessions.get(session_id)
        if session is None:
            session = RunnerSession(session_id, session_id, settings=self.settings)
            session.on_turn_over = self.on_turn_over
            self._sessions[session_id] = session
        return session

    def find(self, session_id: str) -> RunnerSession | None:
        """Return the state of a session at this host, or None."""
        return self._sessions.get(session_id)

    def is_connected(self, session_id: str) -> bool:
        """Return whether the session's runner is connected to this host."""
        session = self._sessions.get(session_id)
        return session is not None and session.link is not None

    def waiting_sessions(self) -> Sequence[str]:
        """Return the sessions whose turn waits for an answer."""
        return [
            id
            for id, session in self._sessions.items()
            if session.turn is not None and session.turn.is_paused
        ]

    def discard(self, session_id: str) -> None:
        """Forget a session that has neither a runner here nor an open turn."""
        session = self._sessions.get(session_id)
        if session is not None and session.link is None and session.turn is None:
            del self._sessions[session_id]

    async def serve(self, socket: Socket, hello: RunnerHello, *, identity: Identity) -> None:
        """Serve a runner that has sent its hello until it disconnects. Raises the reason of a refusal."""
        if self._is_closed:
            raise Unavailable("the hub is shutting down; reconnect in a moment")
        owner, settings = identity.owner, self.settings
        if sum(other.owner == owner for other in self._connections) >= settings.owner_connections:
            raise RateLimited(f"this owner has {settings.owner_connections} runners connected, the maximum")
        connection = RunnerSocket(socket, settings, key_id=identity.key_id, owner=owner)
        self._connections.add(connection)
        try:
            refusal = await self._join(connection, hello.sessions, turns=hello.turns)
            if refusal is not None and not connection.sessions:
                raise refusal
            log.info("a runner of %s is connected: %d sessions", owner, len(connection.sessions))
            await connection.run(lambda frame: self._control(connection, frame))
        finally:
            connection.closed.set()  # also after a refusal, because `close` waits for it
            self._connections.discard(connection)
            sessions, connection.sessions = connection.sessions, {}
            for session in sessions.values():
                session.detach(connection)
                await self._note_gone(session)

    async def _control(self, connection: RunnerSocket, frame: RunnerJoin | RunnerLeave) -> None:
        if isinstance(frame, RunnerJoin):
            await self._join(connection, frame.sessions, turns=None)
            return
        for name in frame.sessions:
            session = connection.sessions.pop(name, None)
            if session is not None:
                session.detach(connection)
                await self._note_gone(session)

    async def _join(
        self, connection: RunnerSocket, names: Sequence[str], *, turns: Sequence[str] | None
    ) -> DragomanError | None:
        """Let a connection serve sessions, and welcome it to them; return the last refusal.

        Raises FrameRefused for too many names.
        """
        if len(names) > self.settings.sessions:
            message = f"{len(names)} names in one frame; a connection serves at most {self.settings.sessions}"
            raise FrameRefused(f"{message} sessions", code=RateLimited.code)
        number, prepared = next(self._joins), dict[str, Session]()
        errors: dict[str, DragomanError] = {}
        for name in dict.fromkeys(names):
            try:
                if (
                    name not in connection.sessions
                    and len(connection.sessions) + len(prepared) >= self.settings.sessions
                ):
                    raise RateLimited(f"a connection serves at most {self.settings.sessions} sessions")
                prepared[name] = await self._prepare(connection, name)
            except DragomanError as error:
                errors[name] = error
        # No await from here on: the welcome has the current state of each session, and no prompt precedes it.
        joined: list[RunnerSession] = []
        for name, stored in prepared.items():
            try:
                joined.append(self._attach(connection, name, stored=stored, turns=turns, number=number))
            except DragomanError as error:
                errors[name] = error
        connection.send(self._welcome(joined, errors))
        for session in joined:
            session.repeat_requests()
        return list(errors.values())[-1] if errors else None

    def _welcome(self, joined: Sequence[RunnerSession], errors: Mapping[str, DragomanError]) -> RunnerWelcome:
        refused = [
            SessionRefusal(session_id=name, error=FrameError(code=error.code, message=error.message))
            for name, error in errors.items()
        ]
        return RunnerWelcome(
            sessions=tuple(session.state() for session in joined),
            refused=tuple(refused),
            frame=self.settings.frame,
            window=self.settings.window,
        )

    async def _prepare(self, connection: RunnerSocket, name: str) -> Session:
        """Return a session that a connection may serve, with its turn at this host.

        Raises NotFound, Conflict, Unavailable.
        """
        stored = await self._store.sessions.get_own(name, owner=connection.owner)
        if stored is None:
            raise session_not_found(name)
        if not stored.runner:
            message = f"the session {name!r} is answered by the hub, not by a runner"
            raise Conflict(message, hint='create it with {"runner": true}')
        self._check_key(connection, name, session=self._sessions.get(stored.id))
        if self.runs is not None:
            await self.runs.claim(stored, key_id=connection.key_id)
            await self.runs.bring_here(stored)
        return stored

    def _check_key(self, connection: RunnerSocket, name: str, *, session: RunnerSession | None) -> None:
        """Raise Conflict if another key's runner serves a session."""
        if session is None or session.link in (None, connection):
            return
        if session.key_id != connection.key_id:
            raise Conflict(f"another key's runner serves the session {name!r}")

    def _attach(
        self,
        connection: RunnerSocket,
        name: str,
        *,
        stored: Session,
        turns: Sequence[str] | None,
        number: int,
    ) -> RunnerSession:
        """Let a connection serve a session that is prepared.

        Raises Conflict, also where the runner has connected again after it asked for this, the join `number`.
        """
        session = self.session(stored.id)  # it may have been discarded and created again since `_prepare`
        self._check_key(connection, name, session=session)
        link = session.link
        if isinstance(link, RunnerSocket) and link is not connection:
            if session.join > number:
                raise Conflict(f"the runner of the session {name!r} has connected again meanwhile")
            self._replace(link, session)
        connection.sessions[name] = session
        session.attach(connection, name, key_id=connection.key_id)
        session.join = number
        turn = session.turn
        if turns is not None and turn is not None and turn.turn_id not in turns and turn.accepted:
            session.drop_turn()
        return session

    def _replace(self, connection: RunnerSocket, session: RunnerSession) -> None:
        """Take a session from an older connection, which is closed if it serves no other."""
        connection.sessions = {
            name: served for name, served in connection.sessions.items() if served is not session
        }
        if not connection.sessions:
            message = "the runner has connected again"
            connection.close(REPLACED, RunnerBye(code="replaced", message=message, again=False))

    async def _note_gone(self, session: RunnerSession) -> None:
        if session.link is not None:
            return
        if self._store.host_id is not None:
            with suppress(StoreError, Unavailable):
                await self._store.sessions.clear_runner_host(session.session_id, self._store.host_id)
                await self._bring_back(session.session_id, self._store.host_id)
        self.discard(session.session_id)

    async def _bring_back(self, session_id: str, host_id: str) -> None:
        """Record again that a session's runner is here, if it reconnected while that was being cleared."""
        session = self._sessions.get(session_id)
        if session is None or session.link is None or self.runs is None:
            return
        await self._store.sessions.restore_runner_host(session_id, host_id)
        stored = await self._store.sessions.get(session_id)
        if stored is not None and stored.runner_host == host_id:
            await self.runs.bring_here(stored)

    def leave(self, session_id: str, *, key_id: str | None) -> None:
        """Disconnect a session's runner, which is at another host now. Raises Conflict for another key."""
        session = self._sessions.get(session_id)
        connection = session.link if session is not None else None
        if session is None or not isinstance(connection, RunnerSocket):
            return
        if session.key_id != key_id:
            raise Conflict(f"another key's runner serves the session {session.name!r}")
        session.detach(connection)
        self._replace(connection, session)

    def status(self) -> list[dict[str, Any]]:
        """Return the connected runners as JSON values."""
        return [
            {"owner": connection.owner, "keyId": connection.key_id, "sessions": sorted(connection.sessions)}
            for connection in self._connections
        ]

    def disconnect(self, socket: Socket, message: str) -> None:
        """Close a connection whose key is no longer valid."""
        for connection in self._connections:
            if connection.socket is socket:
                connection.close(UNAUTHORIZED, RunnerBye(code="unauthorized", message=message, again=False))

    async def close(self) -> None:
        """Disconnect all runners with a message to reconnect later."""
        self._is_closed = True
        connections = list(self._connections)
        for connection in connections:
            connection.close(HUB_RESTART, RunnerBye(code="restart", message="the hub shuts down"))
        for connection in connections:
            await connection.closed.wait()
