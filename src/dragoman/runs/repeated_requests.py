"""Requests to a session: those that were made before (see `deduplication.py`), and those that start a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Self
from weakref import WeakValueDictionary

import msgspec

from dragoman.errors import RunActive, SessionDeleted
from dragoman.messages import Message, messages_size
from dragoman.offload import offload
from dragoman.runs.active_run import ActiveRun, StartedRun, hash_action
from dragoman.runs.deduplication import (
    StoredAnswer,
    has_failed_early,
    has_same_content,
    is_same_action,
    missed_position,
    repeated_message,
)
from dragoman.runs.history_changes import is_repeat, make_plan
from dragoman.runs.preparation import StoredSession, continued_position
from dragoman.runs.run import HubRun
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.unfold import START_POSITION, FoldPosition
from dragoman.wire.ui.client_request import ChatAction, ChatRequest, ContinueAnswer, NewMessage


class RepeatedRequests:
    """Finds what an earlier request of the same content began."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(
        self, request: ChatRequest, session: Session | None, *, active: ActiveRun | None
    ) -> tuple[StartedRun | StoredAnswer | None, StoredSession | None]:
        """Return the run or the answer of a repeated request, None for a new one; and the session.

        The session has its messages unless `active`, its run, is writing one. Raises RunActive for an old
        tab's continuation, Conflict, NotFound.
        """
        if session is None:
            return None, None
        session_id, action = request.session_id, request.action
        earlier = self._earlier_answer(action, session_id)
        stored, answered = await asyncio.gather(self._store.messages.list(session_id), earlier)
        found = await self._find(request, active, stored=stored, answered=answered)
        return found, StoredSession(session, stored if active is None else None)

    async def _find(
        self,
        request: ChatRequest,
        active: ActiveRun | None,
        *,
        stored: Sequence[Message],
        answered: Message | None,
    ) -> StartedRun | StoredAnswer | None:
        session_id, action = request.session_id, request.action
        # It ended while the messages were read, so they lack its last parts.
        if isinstance(active, HubRun) and active.done.is_set():
            active, stored = None, await self._store.messages.list(session_id)
        if isinstance(action, ContinueAnswer):
            if active is not None:
                return find_running_continuation(action, stored, active=active)
            return await self._find_stored_continuation(action, stored, session_id=session_id)
        answer = await offload(messages_size(stored), partial(repeated_message, action, stored))
        if answer is None:
            return None if answered is None else await self._stored_answer(session_id, answered)
        if active is not None and active.row.message_id == answer.id:
            return StartedRun(active, replay="message")
        return await self._stored_answer(session_id, answer)

    async def _earlier_answer(self, action: ChatAction, session_id: str) -> Message | None:
        """Return the answer of a message that an earlier branch has with the same content; None without one.

        A client that asks for an edit wants another answer.
        """
        if not isinstance(action, NewMessage):
            return None
        for id, answer_id in await self._store.branches.versions(session_id, action.message.id):
            question = await self._store.messages.get(session_id, id)
            if question is not None and has_same_content(question, action.message):
                answer = await self._store.messages.get(session_id, answer_id)
                if answer is not None and answer.role == "assistant" and not has_failed_early(answer):
                    return answer
        return None

    async def _find_stored_continuation(
        self, action: ContinueAnswer, stored: Sequence[Message], *, session_id: str
    ) -> StoredAnswer | None:
        if not stored or stored[-1].id != action.message_id or not is_repeat(action, stored[-1]):
            return None
        position = missed_position(action, stored[-1])
        if position is None:
            return None
        return await self._stored_answer(session_id, stored[-1], position=position)

    async def _stored_answer(
        self, session_id: str, message: Message, *, position: FoldPosition = START_POSITION
    ) -> StoredAnswer:
        """Return the answer of the message's last run; of a fork, or an imported session, without a run."""
        run = await self._store.runs.get_last(session_id, message_id=message.id)
        return StoredAnswer(run.id if run else "", message, position, run.error if run else None)


def find_running_continuation(
    action: ContinueAnswer, stored: Sequence[Message], *, active: ActiveRun
) -> StartedRun | None:
    """Return the active run if this continuation began it. Raises RunActive for one of an old tab."""
    if active.action_hash == hash_action(action):
        return StartedRun(active, replay="run")
    position = continued_position(action, active)
    if position is not None:
        return StartedRun(active, replay=position)
    earlier = [message for message in stored if message.id != active.row.message_id]
    plan = make_plan(action, [*earlier, active.message()], new_id="")
    if not plan.input_events:  # an old tab must not stop the run
        raise RunActive(active.row.session_id, active.row.id)
    return None


class StartAttempt(msgspec.Struct):
    """An attempt to start a run, made with the lock of the session."""

    busy: ActiveRun | None = None
    """The run whose end the next attempt has to wait for; None if it may be made at once."""


class StartingRequests:
    """The requests of a session that start a run or wait for one to end.

    A request waits without the lock: its run may take days, and whoever interrupts that run, rewinds the
    session or switches its branch needs an answer meanwhile.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        """Whoever has it may start a run of the session, or change its branch."""
        self.line = asyncio.Lock()
        self.actions: list[ChatAction] = []

    def has_others(self, action: ChatAction) -> bool:
        """Return whether requests start a run or wait for one, of which none is a repetition of this one."""
        return bool(self.actions) and not any(is_same_action(each, action) for each in self.actions)

    @asynccontextmanager
    async def hold(self, action: ChatAction) -> AsyncIterator[None]:
        """Let no other request start a run."""
        self.actions.append(action)
        try:
            async with self.lock:
                yield
        finally:
            self.actions.remove(action)


class StartingSessions(WeakValueDictionary[str, StartingRequests]):
    """The sessions in which requests start runs."""

    def of(self, session_id: str) -> StartingRequests:
        """Return the requests of a session that start a run."""
        return self.setdefault(session_id, StartingRequests())

    async def wait_started(self, session_id: str) -> bool:
        """Wait for the request that is starting a run of the session; return whether there is one."""
        starting = self.get(session_id)
        if starting is None or not starting.lock.locked():
            return False
        async with starting.lock:
            return True


class StartAttempts:
    """The attempts of one request, without end, each with the lock; iterate over it as a context manager.

    The first ones follow at once. After one that found a run, the next waits for its end, and requests that
    wait go on in the order in which they came. A class, because the event loop keeps a set of generators.
    """

    def __init__(self, starting: StartingRequests, action: ChatAction) -> None:
        self._starting = starting
        self._action = action
        self._attempt: StartAttempt | None = None  # the one that has the lock
        self._is_in_line = False

    async def __aenter__(self) -> Self:
        self._starting.actions.append(self._action)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end_attempt()
        if self._is_in_line:
            self._starting.line.release()
        self._starting.actions.remove(self._action)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StartAttempt:
        starting, last = self._starting, self._end_attempt()
        if last is not None and last.busy is not None:
            if not self._is_in_line:
                await starting.line.acquire()
                self._is_in_line = True
            await last.busy.wait_ended()
        await starting.lock.acquire()
        self._attempt = StartAttempt()
        return self._attempt

    def _end_attempt(self) -> StartAttempt | None:
        """Release the lock; return the attempt that had it, if any."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._starting.lock.release()
        return attempt


class RetriedStart:
    """Suppresses the error of a start if `may_retry` says so; used as a context manager around the start."""

    def __init__(self, may_retry: Callable[[RunActive | SessionDeleted], Awaitable[bool]]) -> None:
        self._may_retry = may_retry

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return isinstance(error, RunActive | SessionDeleted) and await self._may_retry(error)
