"""The runners that are connected to this host, and the sessions that they serve."""

from __future__ import annotations

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
    """What the server needs of the runs: a session's turn, as the database has it, must be open here."""

    async def claim(self, session: Session, *, key_id: str | None) -> None:
        """Note that the session's runner is here now, and no longer at another host. Raises Conflict."""
        ...

    async def bring_here(self, session: Session) -> None:
        """Let the session's active run continue at this host, and open its turn if it waits for an answer."""
        ...


class RunnerServer:
    """Connects runners with the sessions that they serve."""

    def __init__(self, store: Store, settings: RunnerLimits) -> None:
        self.settings = settings
        self.runs: RunnerRunHost | None = None
        self.on_turn_over: Callable[[str], None] = lambda _: None
        """See `RunnerSession`."""
        self._store = store
        self._sessions: dict[str, RunnerSession] = {}
        self._connections: set[RunnerSocket] = set()
        self._is_closed = False

    def session(self, session_id: str) -> RunnerSession:
        """Return a session as this host knows it."""
        session = self._sessions.get(session_id)
        if session is None:
            session = RunnerSession(session_id, session_id, settings=self.settings)
            session.on_turn_over = self.on_turn_over
            self._sessions[session_id] = session
        return session

    def find(self, session_id: str) -> RunnerSession | None:
        """Return a session if this host knows it."""
        return self._sessions.get(session_id)

    def is_connected(self, session_id: str) -> bool:
        """Return whether the session's runner is connected to this host."""
        session = self._sessions.get(session_id)
        return session is not None and session.link is not None

    def waiting_sessions(self) -> Sequence[str]:
        """Return the sessions whose turn waits for an answer."""
        found = self._sessions.items()
        return [id for id, session in found if session.turn is not None and session.turn.is_paused]

    def discard(self, session_id: str) -> None:
        """Forget a session that has neither a runner here nor an open turn."""
        session = self._sessions.get(session_id)
        if session is not None and session.link is None and session.turn is None:
            del self._sessions[session_id]

    async def serve(self, socket: Socket, hello: RunnerHello, *, identity: Identity) -> None:
        """Serve a runner that has sent its hello until it disconnects. Raises what it is refused for."""
        if self._is_closed:
            raise Unavailable("the hub is shutting down; reconnect in a moment")
        owner, settings = identity.owner, self.settings
        if sum(each.owner == owner for each in self._connections) >= settings.owner_connections:
            raise RateLimited(f"this owner has {settings.owner_connections} runners connected, the maximum")
        line = RunnerSocket(socket, settings, key_id=identity.key_id, owner=owner)
        self._connections.add(line)
        try:
            refusal = await self._join(line, hello.sessions, turns=hello.turns)
            if refusal is not None and not line.sessions:
                raise refusal
            log.info("a runner of %s is connected: %d sessions", owner, len(line.sessions))
            await line.run(lambda frame: self._control(line, frame))
        finally:
            line.closed.set()  # also of one that was refused: whoever closes the server waits for it
            self._connections.discard(line)
            sessions, line.sessions = line.sessions, {}
            for session in sessions.values():
                session.detach(line)
                await self._note_gone(session)

    async def _control(self, line: RunnerSocket, frame: RunnerJoin | RunnerLeave) -> None:
        if isinstance(frame, RunnerJoin):
            await self._join(line, frame.sessions, turns=None)
            return
        for name in frame.sessions:
            session = line.sessions.pop(name, None)
            if session is not None:
                session.detach(line)
                await self._note_gone(session)

    async def _join(
        self, line: RunnerSocket, names: Sequence[str], *, turns: Sequence[str] | None
    ) -> DragomanError | None:
        """Let a connection serve sessions, and welcome it to them; return the last refusal.

        Raises FrameRefused for too many names.
        """
        if len(names) > self.settings.sessions:
            message = f"{len(names)} names in one frame; a connection serves at most {self.settings.sessions}"
            raise FrameRefused(f"{message} sessions", code=RateLimited.code)
        found: dict[str, Session] = {}
        errors: dict[str, DragomanError] = {}
        for name in dict.fromkeys(names):
            try:
                if name not in line.sessions and len(line.sessions) + len(found) >= self.settings.sessions:
                    raise RateLimited(f"a connection serves at most {self.settings.sessions} sessions")
                found[name] = await self._prepare(line, name)
            except DragomanError as error:
                errors[name] = error
        # From here on nothing is awaited: the welcome has each session as it is, and no prompt precedes it.
        joined: list[RunnerSession] = []
        for name, stored in found.items():
            try:
                joined.append(self._attach(line, name, stored=stored, turns=turns))
            except DragomanError as error:
                errors[name] = error
        line.send(self._welcome(joined, errors))
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

    async def _prepare(self, line: RunnerSocket, name: str) -> Session:
        """Return a session that a connection may serve, with its turn at this host.

        Raises NotFound, Conflict, Unavailable.
        """
        stored = await self._store.sessions.get_own(name, owner=line.owner)
        if stored is None:
            raise session_not_found(name)
        if not stored.runner:
            message = f"the session {name!r} is answered by the hub, not by a runner"
            raise Conflict(message, hint='create it with {"runner": true}')
        self._check_key(line, name, session=self._sessions.get(stored.id))
        if self.runs is not None:
            await self.runs.claim(stored, key_id=line.key_id)
            await self.runs.bring_here(stored)
        return stored

    def _check_key(self, line: RunnerSocket, name: str, *, session: RunnerSession | None) -> None:
        """Raise Conflict if another key's runner serves a session."""
        if session is None or session.link in (None, line):
            return
        if session.key_id != line.key_id:
            raise Conflict(f"another key's runner serves the session {name!r}")

    def _attach(
        self, line: RunnerSocket, name: str, *, stored: Session, turns: Sequence[str] | None
    ) -> RunnerSession:
        """Let a connection serve a session that is prepared. Raises Conflict."""
        session = self.session(stored.id)  # it may have been discarded and made anew since it was prepared
        self._check_key(line, name, session=session)
        link = session.link
        if isinstance(link, RunnerSocket) and link is not line:
            self._replace(link, session)
        line.sessions[name] = session
        session.attach(line, name, key_id=line.key_id)
        turn = session.turn
        if turns is not None and turn is not None and turn.turn_id not in turns and turn.accepted:
            session.drop_turn()
        return session

    def _replace(self, line: RunnerSocket, session: RunnerSession) -> None:
        """Take a session from an older connection, which is closed if it serves no other."""
        line.sessions = {name: each for name, each in line.sessions.items() if each is not session}
        if not line.sessions:
            message = "the runner connected anew"
            line.close(REPLACED, RunnerBye(code="replaced", message=message, again=False))

    async def _note_gone(self, session: RunnerSession) -> None:
        if session.link is not None:
            return
        if self._store.host_id is not None:
            with suppress(StoreError, Unavailable):
                await self._store.sessions.clear_runner_host(session.session_id, self._store.host_id)
                await self._bring_back(session.session_id, self._store.host_id)
        self.discard(session.session_id)

    async def _bring_back(self, session_id: str, host_id: str) -> None:
        """Note that a session's runner is here if it has connected again while that was taken back."""
        session = self._sessions.get(session_id)
        if session is None or session.link is None or self.runs is None:
            return
        await self._store.sessions.restore_runner_host(session_id, host_id)
        stored = await self._store.sessions.get(session_id)
        if stored is not None and stored.runner_host == host_id:
            await self.runs.bring_here(stored)

    def leave(self, session_id: str, *, key_id: str | None) -> None:
        """Disconnect the runner of a session: it is at another host now. Conflict for another key."""
        session = self._sessions.get(session_id)
        line = session.link if session is not None else None
        if session is None or not isinstance(line, RunnerSocket):
            return
        if session.key_id != key_id:
            raise Conflict(f"another key's runner serves the session {session.name!r}")
        session.detach(line)
        self._replace(line, session)

    def status(self) -> list[dict[str, Any]]:
        """Return the connected runners as JSON values."""
        return [
            {"owner": line.owner, "keyId": line.key_id, "sessions": sorted(line.sessions)}
            for line in self._connections
        ]

    def disconnect(self, socket: Socket, message: str) -> None:
        """Close a connection whose key is no longer valid."""
        for line in self._connections:
            if line.socket is socket:
                line.close(UNAUTHORIZED, RunnerBye(code="unauthorized", message=message, again=False))

    async def close(self) -> None:
        """Tell all runners that the hub shuts down, and to come back."""
        self._is_closed = True
        lines = list(self._connections)
        for line in lines:
            line.close(HUB_RESTART, RunnerBye(code="restart", message="the hub shuts down"))
        for line in lines:
            await line.closed.wait()
