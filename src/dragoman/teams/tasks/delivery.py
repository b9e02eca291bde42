"""Delivers the results of tasks to the sessions where the tasks were given, each exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dragoman.errors import (
    Conflict,
    DragomanError,
    Forbidden,
    LimitReached,
    NotFound,
    StoreError,
    Unauthorized,
    Unavailable,
)
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.messages import Message, TextPart
from dragoman.runs.preparation import find_requester, find_writable_session, is_waiting
from dragoman.runs.registry import RunRegistry
from dragoman.store.connection import DatabaseConnection
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.store.teams.task_records import RESULT_PREFIX, TELL_PREFIX, TeamTask
from dragoman.teams.tasks.results import result_message
from dragoman.wire.ui.client_request import ChatRequest, NewMessage

MAX_WAKES = 20
MAX_SESSIONS = 200  # in one sweep
log = logging.getLogger(__name__)


class ResultDelivery:
    """Delivers results: as a message of the session, or as one that its agent answers.

    A session that is busy, or waits for a person, gets its results when it is free.
    """

    def __init__(self, store: Store, runs: RunRegistry, *, max_wakes: int = MAX_WAKES) -> None:
        """`max_wakes` is how often an agent is woken in a row: a person's message begins a new count."""
        self.on_added: Callable[[str], None] = ignore
        """Called with each session that got a result which its agent does not answer."""
        self._store = store
        self._runs = runs
        self._max_wakes = max_wakes
        self._awaited: set[str] = set()
        """Sessions that get a result after their run has ended."""
        self._delivering: dict[str, bool] = {}
        self._last_session = ""

    def is_awaited(self, session_id: str) -> bool:
        """Return whether a result waits for the run of a session to end, as far as this host knows."""
        return session_id in self._awaited

    async def deliver_all(self) -> None:
        """Deliver what is undelivered, to the next MAX_SESSIONS sessions in turn.

        Many may wait for a person. Raises StoreError, Unavailable.
        """
        sessions = await self._store.team_tasks.awaiting_sessions(self._last_session, limit=MAX_SESSIONS)
        self._last_session = sessions[-1] if len(sessions) == MAX_SESSIONS else ""
        for session_id in sessions:
            await self.deliver_to(session_id)

    async def deliver_to(self, session_id: str) -> None:
        """Deliver the results that a session is to have."""
        if session_id in self._delivering:
            self._delivering[session_id] = True
            return
        try:
            self._delivering[session_id] = True
            while self._delivering[session_id]:
                self._delivering[session_id] = False
                await self._deliver_open(session_id)
        except (StoreError, Unavailable) as error:
            log.info("results for session %s cannot be delivered yet: %s", session_id, error.message)
        finally:
            del self._delivering[session_id]

    async def _deliver_open(self, session_id: str) -> None:
        self._awaited.discard(session_id)
        for task in await self._store.team_tasks.open_children(session_id):
            if task.is_active:
                continue
            try:
                await self._deliver(task)
            except Conflict:
                log.debug("the result of task %s was delivered already", task.id)
            except (StoreError, Unavailable):
                raise
            except DragomanError as error:
                log.info("the result of task %s cannot be delivered yet: %s", task.id, error.message)

    async def _deliver(self, task: TeamTask) -> None:
        try:
            identity = await find_requester(self._store, task, key_id=task.key_id, owner=task.owner)
        except (Unauthorized, Forbidden):
            identity = None  # its key is gone since
        session = await self._find_session(task, identity)
        if session is None:
            await self._store.write(self._store.team_tasks.deliver_job(task.id))
        elif not task.wake:
            await self._append(task, session)
        elif identity is None:
            await self._append(task, session, note="It wakes nobody: the key of whoever gave it is gone.")
        elif await self._store.team_tasks.is_giver_over(task.id):
            await self._append(task, session, note="It wakes nobody: the task that gave it has ended.")
        elif await self._may_wake(session.id):
            await self._queue(task, session, identity=identity)
        else:
            note = f"It wakes nobody: that happened {self._max_wakes} times in a row."
            await self._append(task, session, note=note)

    async def _find_session(self, task: TeamTask, identity: Identity | None) -> Session | None:
        """Return where a result goes to: None when that is gone, or not shared with its owner any more."""
        session = await self._store.sessions.get(str(task.source_session))
        if session is None or session.owner == task.owner:
            return session
        if identity is None:
            return None
        try:
            return await find_writable_session(self._store, session.id, identity=identity)
        except (NotFound, Forbidden):
            return None

    async def _queue(self, task: TeamTask, session: Session, *, identity: Identity) -> None:
        """Let the session's agent answer the result, once the session is free."""
        message, giver = result_message(task), await self._store.runs.get_last(session.id)
        request = ChatRequest(
            session_id=session.id,
            action=NewMessage(message),
            agent=None if giver is None else giver.agent,  # a chat may use another agent than its session's
            when_busy="queue",
            background=True,
        )
        await self._runs.queue.add(
            request,
            message,
            session=session,
            identity=identity,
            extra_job=self._store.team_tasks.deliver_job(task.id, wakes=True),
        )
        self._runs.queue.dispatch_soon(session.id)

    async def _append(self, task: TeamTask, session: Session, *, note: str | None = None) -> None:
        """Add the result to the session, unless it is busy or waits for a person; `note` says why it wakes
        nobody.
        """
        store, message = self._store, result_message(task, note=note)
        mark = store.team_tasks.deliver_job(task.id, is_unanswered=task.wake)

        def job(connection: DatabaseConnection) -> None:
            mark(connection)
            store.messages.append_turn(connection, session.id, user=None, assistant=message)

        if await self._waits(session.id) or not await store.runs.write_unless_running(session.id, job):
            self._awaited.add(session.id)
        elif task.wake:
            log.warning("the result of task %s: %s", task.id, note)
            self.on_added(session.id)

    async def _may_wake(self, session_id: str) -> bool:
        """Return whether an agent may be woken: not after too many times since a person wrote."""
        return count_wakes(await self._store.messages.list(session_id)) < self._max_wakes

    async def tell(self, session_id: str, *, text: str, identity: Identity, key: str | None) -> None:
        """Send a message to the agent of a session, once for a `key`. Raises NotFound, LimitReached."""
        session = await self._store.sessions.get_own(session_id, owner=identity.owner)
        if session is None:
            raise NotFound("the session of the team is gone")
        id = new_id("tell") if key is None else f"{TELL_PREFIX}{key[:32]}"
        if await self._store.messages.get(session_id, id) is not None:
            return
        active = self._runs.get_active(session_id)
        if active is None and not await self._may_wake(session_id):
            raise LimitReached(
                f"its agent was woken {self._max_wakes} times in a row",
                hint="a person has to write to it first",
            )
        message = Message(id, "user", (TextPart(text),))
        request = ChatRequest(
            session_id=session.id, action=NewMessage(message), when_busy="steer", background=True
        )
        queued = await self._runs.queue.add(request, message, session=session, identity=identity)
        if active is not None:
            self._runs.queue.announce(active, queued)
        self._runs.queue.dispatch_soon(session.id)

    async def _waits(self, session_id: str) -> bool:
        """Return whether the session's last answer waits for a person."""
        row = await self._store.runs.get_last(session_id)
        message: Message | None = None
        if row is not None and row.status == "finished" and row.finish_reason == "tool-calls":
            message = await self._store.messages.get(session_id, row.message_id)
        return message is not None and is_waiting(message)


def count_wakes(messages: Sequence[Message]) -> int:
    """Return how many messages of the hub woke an agent since the last message of anybody else."""
    count = 0
    for message in reversed(messages):
        if message.role == "user" and not message.id.startswith((RESULT_PREFIX, TELL_PREFIX)):
            break
        count += message.role == "user"
    return count


def ignore(_: str) -> None:
    """Do nothing: the default listener."""
