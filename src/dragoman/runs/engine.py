"""The engine: executes turns that had to wait. It knows which run to continue, not what the run does.

A run that a request begins starts at once, in the host that received the request, without the engine.
Turns are queued for what waits: runs that a crash cut off or that a stopping host hands over, and answers to
approvals. Those of one session are executed one at a time, in order. An engine may execute a turn twice, if
the first host was lost, so a handler first reads the state in the database.

With SQLite the queue is in memory (`MemoryEngine`); on Postgres it is shared by all hosts (`dbos_engine.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

log = logging.getLogger(__name__)

TurnKind: TypeAlias = Literal["continue", "approval"]
ListHosts: TypeAlias = Callable[[], Awaitable[Collection[str]]]
"""Returns the ids of the hosts that are not fenced."""


class QueuedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that waits. `subject` is the id of the run to continue, or of the approval that was answered.

    Two turns with the same id are the same turn.
    """

    id: str
    session_id: str
    kind: TurnKind
    subject: str


TurnHandler: TypeAlias = Callable[[QueuedTurn], Awaitable[None]]
"""Executes a turn; returns when it has ended, or waits for a person."""


class Engine(Protocol):
    """Executes queued turns: those of a session one at a time, in order."""

    def start(self, handler: TurnHandler) -> None:
        """Begin to execute turns with this handler."""

    async def enqueue(self, turn: QueuedTurn) -> None:
        """Queue a turn; one with the same id is queued once. Raises Unavailable, StoreError."""

    async def cancel(self, id: str) -> None:
        """Take back a turn that has not begun."""

    async def list(self) -> Sequence[QueuedTurn]:
        """Return the turns that wait or are executed, oldest first."""

    async def recover(self, *, list_living: ListHosts) -> None:
        """Queue again what hosts had begun that are not among the living ones."""

    async def drain(self, seconds: float) -> None:
        """Begin no more turns, and wait up to `seconds` for those that are executed."""

    async def close(self) -> None:
        """Stop. Turns that have not ended are found again by whoever queued them."""


class MemoryEngine:
    """A queue in memory, for a hub that shares its database with no other."""

    def __init__(self, *, at_once: int) -> None:
        """At most `at_once` turns are executed at a time."""
        self._handler: TurnHandler | None = None
        self._queues: dict[str, deque[QueuedTurn]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(at_once)
        self._is_draining = False

    def start(self, handler: TurnHandler) -> None:
        """Begin to execute turns with this handler."""
        self._handler = handler
        for session_id in self._queues:
            self._work_on(session_id)

    async def enqueue(self, turn: QueuedTurn) -> None:
        """Queue a turn, unless one with its id waits or is executed."""
        queue = self._queues.setdefault(turn.session_id, deque())
        if all(each.id != turn.id for each in queue):
            queue.append(turn)
        self._work_on(turn.session_id)

    async def cancel(self, id: str) -> None:
        """Take back a turn that has not begun."""
        for session_id, queue in self._queues.items():
            begun = 1 if session_id in self._workers else 0
            waiting = [each for each in queue if each.id == id]
            for turn in waiting:
                if queue.index(turn) >= begun:
                    queue.remove(turn)

    async def list(self) -> Sequence[QueuedTurn]:
        """Return the turns that wait or are executed, by session."""
        return [turn for queue in self._queues.values() for turn in queue]

    async def recover(self, *, list_living: ListHosts) -> None:
        """Do nothing: a lost host took its queue with it, and its runs are found in the database."""

    async def drain(self, seconds: float) -> None:
        """Begin no more turns, and wait up to `seconds` for those that are executed."""
        self._is_draining = True
        if self._workers:
            await asyncio.wait(self._workers.values(), timeout=seconds)

    async def close(self) -> None:
        """Stop; what waits is found again by whoever queued it."""
        self._is_draining = True
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def _work_on(self, session_id: str) -> None:
        if self._handler is None or self._is_draining or session_id in self._workers:
            return
        self._workers[session_id] = asyncio.create_task(self._work(session_id, self._handler))

    async def _work(self, session_id: str, handler: TurnHandler) -> None:
        queue = self._queues[session_id]
        try:
            while queue:
                if not await self._execute(queue[0], handler):
                    return
                queue.popleft()
            del self._queues[session_id]
        finally:
            del self._workers[session_id]

    async def _execute(self, turn: QueuedTurn, handler: TurnHandler) -> bool:
        """Execute a turn; return whether it has begun."""
        async with self._slots:
            if self._is_draining:
                return False
            try:
                await handler(turn)
            except Exception:
                log.exception("the turn %s failed", turn.id)
            return True
