"""The turns of runners that wait for an answer: no run drives them, and the database says where they are.

The answer may begin a run at another host, and any host may delete the session. So a host checks the turn
that it remembers whenever another host signals its end, and whenever a runner joins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from dragoman.agent.approval_events import decline_requests
from dragoman.errors import StoreError, Unavailable
from dragoman.identity import Identity
from dragoman.runners.hub.approval_requests import TURN_OVER, decline_all
from dragoman.runners.hub.server import RunnerServer
from dragoman.runners.hub.session import OpenTurn, RunnerSession
from dragoman.runners.hub.turn import stored_seq
from dragoman.runs.preparation import is_waiting
from dragoman.store.store import Store

log = logging.getLogger(__name__)
TurnEnd: TypeAlias = Literal["the session was deleted", "the turn no longer waits for an answer"]
"""Why a waiting turn is over."""


class WaitingTurns:
    """Opens the waiting turns of this host's runners, and ends those that are over."""

    def __init__(self, store: Store, server: RunnerServer) -> None:
        self._store = store
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        store.signals.subscribe("runner-turns", self._check_soon)
        server.on_turn_over = self._withdraw_soon

    async def open(self, session_id: str) -> None:
        """Open the turn of a session if it waits for an answer, as the database has it; else end it."""
        waiting = await self._read(session_id)
        if waiting == "continues":
            return
        session = self._server.session(session_id)
        leave_turn(session, waiting)
        if session.turn is None and isinstance(waiting, OpenTurn):
            session.open_turn(waiting.turn_id, seq=waiting.stored)
            session.pause_turn()

    async def end(self, session_id: str) -> None:
        """End the turn of a session here and at the other hosts. Call it once the database says so."""
        self._store.signals.send("runner-turns", session_id)
        await self._check_if_up(session_id)

    async def _read(self, session_id: str) -> OpenTurn | TurnEnd | Literal["continues"]:
        """Return the waiting turn of a session as the database has it, or why none waits.

        `"continues"`: a run has started that continues the turn, or a new one began meanwhile.
        """
        row = await self._store.runs.get_last(session_id)
        if row is None:
            return "the session was deleted"
        message = await self._store.messages.get(session_id, row.message_id)
        latest = await self._store.runs.get_last(session_id)
        if latest is not None and (latest.status == "running" or latest.id != row.id):
            return "continues"  # an answer has started a run, which takes over the waiting turn
        if row.finish_reason != "tool-calls" or message is None or not is_waiting(message):
            return "the turn no longer waits for an answer"
        return OpenTurn(message.id, seq=stored_seq(message))

    async def _check(self, session_id: str) -> None:
        """End the turn that waits at this host if it no longer waits in the database."""
        session = self._server.find(session_id)
        if session is None or session.turn is None or not session.turn.is_paused:
            return
        waiting = await self._read(session_id)
        if waiting != "continues":
            leave_turn(session, waiting)
            self._server.discard(session_id)

    def _check_soon(self, session_id: str | None) -> None:
        """Check the turn of a session that another host has ended; with None, every waiting turn."""
        for id in self._server.waiting_sessions() if session_id is None else (session_id,):
            self._spawn(self._check_if_up(id))

    def _withdraw_soon(self, session_id: str) -> None:
        """Decline the requests of a waiting turn that its runner has ended."""
        self._spawn(self._withdraw(session_id))

    async def _withdraw(self, session_id: str) -> None:
        with suppress(StoreError, Unavailable):  # it waits until it expires
            row = await self._store.runs.get_last(session_id)
            if row is None or row.status == "running":
                return
            message = await self._store.messages.get(session_id, row.message_id)
            _, requests = ((), []) if message is None else decline_requests(message, TURN_OVER)
            await decline_all(self._store, requests, by=Identity(row.owner))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check_if_up(self, session_id: str) -> None:
        with suppress(StoreError, Unavailable):  # checked again when its runner joins
            await self._check(session_id)


def leave_turn(session: RunnerSession, waiting: OpenTurn | TurnEnd) -> None:
    """End the waiting turn of this host if the database has no such turn, and notify its runner.

    A turn that has continued at another host and waits again is forgotten: this host lacks frames of it.
    """
    turn = session.turn
    if turn is None or not turn.is_paused:
        return
    if isinstance(waiting, str) or waiting.turn_id != turn.turn_id:
        session.abort(waiting if isinstance(waiting, str) else "another message was sent")
        session.close_turn()
    elif waiting.stored > turn.stored:
        session.forget_turn()
