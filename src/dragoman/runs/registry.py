"""The runs in progress of this process: start, find, resume and stop them. One at a time for each session."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Literal, overload

from msgspec.structs import replace

from dragoman.agent.agent_registry import AgentRegistry
from dragoman.agent.approval_events import stored_answer
from dragoman.errors import DragomanError, Forbidden, RunActive, SessionDeleted, StoreError, Unavailable
from dragoman.identity import Identity
from dragoman.messages import Message
from dragoman.operations.approval import ApprovalRequest
from dragoman.revocable_work import ActiveWork
from dragoman.runs.active_run import ActiveRun, StartedRun
from dragoman.runs.crash_recovery import CrashRecovery, CutOffRun, CutOffRuns
from dragoman.runs.deduplication import StoredAnswer, awaits_client_output
from dragoman.runs.preparation import (
    QUEUE_WAIT,
    StoredSession,
    continuation,
    find_answerer,
    find_requester,
    find_writable_session,
    is_answer_queued,
    is_waiting_for,
)
from dragoman.runs.remote import RemoteRuns
from dragoman.runs.repeated_requests import RepeatedRequests, RetriedStart, StartAttempts, StartingSessions
from dragoman.runs.run import HubRun, OnEnding
from dragoman.runs.run_factory import RunFactory
from dragoman.runs.run_queue import INTERRUPTED, QUEUE_INTERVAL, QueueSettings, RunQueue
from dragoman.session_ids import client_session_id, hub_session_id
from dragoman.store import runs as rows
from dragoman.store.connection import DatabaseJob
from dragoman.store.hosts.queued_runs import QueuedRun
from dragoman.store.sessions.sessions import Session, session_not_found
from dragoman.store.store import Store
from dragoman.wire.ui.client_request import (
    ChatRequest,
    ClientApprovalAnswer,
    ContinueAnswer,
    NewMessage,
    WhenBusy,
)

log = logging.getLogger(__name__)
REPLAY_SECONDS = 60.0
DISCONNECT_WAIT = 0.1


class RunRegistry:
    """All runs of this process."""

    def __init__(
        self, store: Store, factory: RunFactory, *, cut_off: CutOffRuns, queue: QueueSettings
    ) -> None:
        self.factory = factory
        self._repeated = RepeatedRequests(store)
        self._store = store
        self.work = ActiveWork()
        """Where runs are registered, to end when their key does."""
        self._work_removers: dict[str, Callable[[], None]] = {}
        self._active: dict[str, HubRun] = {}
        self._undelivered: set[str] = set()
        self.starting = StartingSessions()
        self._closed = False
        self.subagent_answers = store.subagent_answers
        self.remote: RemoteRuns | None = None
        """The runs of other hosts; None when none shares the database."""
        self.on_stop: Callable[[HubRun], None] = lambda _: None
        """Called at once when a run of this host is stopped, but not when another host continues it."""
        self.on_ending: OnEnding | None = None
        """Called before the end of a run of this host is stored: see `HubRun.on_ending`."""
        self.on_end: list[Callable[[HubRun], None]] = []
        """Called when a run of this host has ended."""
        self.queue = RunQueue(store, self, settings=queue)
        """The messages that wait for the runs of their sessions to end."""
        self.recovery = CrashRecovery(store, self, runs=cut_off)
        """The runs that a crash cut off, and that have not continued yet."""

    @property
    def agents(self) -> AgentRegistry:
        """The agents of the hub, as later runs have them."""
        return self.factory.agents

    def get_active(self, session_id: str) -> HubRun | None:
        """Return the active run of the session."""
        return self._active.get(session_id)

    async def find_active(self, session_id: str) -> ActiveRun | None:
        """Return the active run of the session, wherever it is; one that a crash cut off continues first.

        Raises HostUnreachable or Unavailable when the other host does not answer.
        """
        await self.recovery.settle(session_id)
        run = await self._find_run(session_id)
        if run is None and self.remote is not None:
            deadline = time.monotonic() + QUEUE_WAIT
            store = self._store
            while run is None and time.monotonic() < deadline and await is_answer_queued(store, session_id):
                await asyncio.sleep(QUEUE_INTERVAL)
                run = await self._find_run(session_id)
        return run

    async def find_begun(self, session_id: str) -> ActiveRun | None:
        """As `find_active`; waits for a run that a request is starting here, which is about to be stored."""
        run = await self.find_active(session_id)
        if run is None and await self.starting.wait_started(session_id):
            run = await self.find_active(session_id)
        return run

    async def _find_run(self, session_id: str) -> ActiveRun | None:
        run = self._active.get(session_id)
        return run if run is not None or self.remote is None else await self.remote.find(session_id)

    async def is_running(self, session_id: str) -> bool:
        """Return whether the session has an active run, here or at another host."""
        is_here = session_id in self._active
        return is_here or (self.remote is not None and await self.remote.has_run(session_id))

    async def current_message(self, session_id: str) -> Message | None:
        """Return the message that the session's run is writing; None without one, or if its host is down."""
        await self.recovery.settle(session_id)
        run = self._active.get(session_id)
        if run is None and self.remote is not None:
            return await self.remote.read_message(session_id)
        return None if run is None else run.message()

    def get(self, run_id: str) -> HubRun | None:
        """Return the active run of this id."""
        return next((run for run in self._active.values() if run.row.id == run_id), None)

    async def ended_answer(self, session_id: str) -> StoredAnswer | None:
        """Return the session's last answer if its run ended within a minute, for clients that missed the end.

        One that waits for a client-side tool is returned only if no client has seen its end, and once: its
        replay makes clients run the tool.
        """
        run = await self._store.runs.get_last(session_id)
        if run is None or (run.finished_at or 0.0) < time.time() - REPLAY_SECONDS:
            return None
        message = await self._store.messages.get(session_id, run.message_id)
        if message is None or run.status == "running":
            return None
        if awaits_client_output(message) and not await self._take_undelivered(run):
            return None
        return StoredAnswer(run.id, message, error=run.error)

    async def _take_undelivered(self, run: rows.RunRecord) -> bool:
        """Return whether nobody has seen the end of a session's last run, by asking its host; True once."""
        if self.remote is not None and run.host not in (None, self._store.host_id):
            return await self.remote.take_undelivered(run)
        return self.take_undelivered(run.session_id)

    def take_undelivered(self, session_id: str) -> bool:
        """Return whether nobody has seen the end of the session's last run, one of this host; True once."""
        is_undelivered = session_id in self._undelivered
        self._undelivered.discard(session_id)
        return is_undelivered

    def check_model(self, session: Session) -> None:
        """Raise BadRequest when the session's agent or model is unknown."""
        self.agents.resolve(agent=session.agent, model=session.model, select=False)

    @overload
    async def start_run(self, request: ChatRequest, identity: Identity) -> StartedRun | StoredAnswer: ...

    @overload
    async def start_run(
        self, request: ChatRequest, identity: Identity, *, waits: Literal[False]
    ) -> StartedRun | StoredAnswer | QueuedRun: ...

    async def start_run(
        self, request: ChatRequest, identity: Identity, *, waits: bool = True
    ) -> StartedRun | StoredAnswer | QueuedRun:
        """Start the run of a request. When this returns, it is stored together with the user message.

        A request that was made before starts nothing: the result is its run, or its stored answer. One that
        has to wait for its session is queued; with `waits` this returns when its run has begun.
        Raises RunActive when the session is busy and `when_busy` refuses, LimitReached when too much waits,
        Forbidden, NotFound, Conflict, BadRequest, Unavailable.
        """
        session_id, owner = await self._resolve_session(request, identity)
        identity = await find_answerer(self._store, request.action, session_id=session_id, caller=identity)
        await self.recovery.settle(session_id, client_session_id(session_id))
        await self._check_starting(request, session_id)
        async with StartAttempts(self.starting.of(session_id), request.action) as attempts:
            async for attempt in attempts:
                session = await self._find_session(session_id, owner=owner, caller=identity)
                request = self._with_defaults(request, session, session_id=session_id)
                active = None if session is None else await self._find_run(session.id)
                repeated, existing = await self._repeated.find(request, session, active=active)
                if repeated is not None:
                    return repeated
                queued = await self._queue_if_busy(request, session, active=active, identity=identity)
                if queued is not None:
                    break
                if active is not None and not await self._replace(active, request):
                    attempt.busy = active
                    continue
                self._check_open()
                async with RetriedStart(partial(self._may_retry, request.session_id)):
                    begun = await self.factory.start_anywhere(
                        request, existing, identity=identity, on_end=self._remove_run
                    )
                    return self._register(begun, identity) if isinstance(begun, HubRun) else begun
            else:
                raise AssertionError("there is always another attempt")
        await self._announce_queued(queued, active)
        return await self.queue.wait_begun(queued) if waits else queued

    async def begin_waiting(
        self, request: ChatRequest, identity: Identity, *, claim: DatabaseJob[None]
    ) -> None:
        """Begin the run of a message that has waited, at the host of the session's runner if it has one.

        `claim` takes it out of where it waits. Raises RunActive when the session is busy, Conflict when it
        no longer waits, and what a start raises.
        """
        session_id = request.session_id
        async with self.starting.of(session_id).hold(request.action):
            self._check_open()
            if session_id in self._active:
                raise RunActive(session_id, self._active[session_id].row.id)
            session = await find_writable_session(self._store, session_id, identity=identity)
            begun = await self.factory.start_anywhere(
                request, StoredSession(session), identity=identity, on_end=self._remove_run, claim=claim
            )
            if isinstance(begun, HubRun):
                self._register(begun, identity)

    async def _check_starting(self, request: ChatRequest, session_id: str) -> None:
        """Raise RunActive while another request starts a run of the session, if this one may not wait."""
        if not self.starting.of(session_id).has_others(request.action):
            return  # early, because looking up the agent may read a team's files
        if self._when_busy(request, request.agent) != "refuse":
            return
        for id in (session_id, client_session_id(session_id)):
            row = await self._store.runs.get_active(id)
            if row is not None and session_id in (id, hub_session_id(id, owner=row.owner)):
                raise RunActive(session_id, row.id)
        raise RunActive(session_id, "waiting")

    def _with_defaults(
        self, request: ChatRequest, session: Session | None, *, session_id: str
    ) -> ChatRequest:
        """Return the request with the hub's id of its session, and what its agent does when it is busy."""
        if session is not None:
            session_id = session.id
        agent = request.agent or (None if session is None else session.agent)
        return replace(request, session_id=session_id, when_busy=self._when_busy(request, agent))

    def _when_busy(self, request: ChatRequest, agent: str | None) -> WhenBusy:
        """Return what a request does in a busy session. An answer to the growing message waits by default."""
        is_continuation = isinstance(request.action, ContinueAnswer)
        return request.when_busy or ("queue" if is_continuation else self.agents.when_busy(agent))

    async def _queue_if_busy(
        self, request: ChatRequest, session: Session | None, *, active: ActiveRun | None, identity: Identity
    ) -> QueuedRun | None:
        """Queue the request's message if it has to wait. Raises LimitReached, Conflict, NotFound."""
        action, queue = request.action, self.queue
        if not isinstance(action, NewMessage):
            return None
        waiting = await queue.find(request.session_id, action.message.id)
        may_queue = request.when_busy != "refuse"
        if active is None:
            is_behind = may_queue and await queue.has_to_wait(request, session)
            has_to_wait = is_behind or (request.background and queue.is_full)
        else:
            has_to_wait = may_queue and not active.is_unattended and not active.is_abandoned
        if waiting is None and not has_to_wait:
            return None
        add = partial(queue.add, request, action.message, identity=identity)
        try:
            return await add(session=session)
        except SessionDeleted:
            await self._store.session_deletion.finish(request.session_id)
        if session is not None and session.owner != identity.owner:
            raise session_not_found(request.session_id)
        return await add(session=None)

    async def _find_session(self, session_id: str, *, owner: str, caller: Identity) -> Session | None:
        """Return the session, or None if the caller may create it. NotFound when its owner has deleted it."""
        session = await self._store.sessions.get_own(session_id, owner=owner)
        if session is None and owner != caller.owner:
            raise session_not_found(session_id)
        return session

    async def _announce_queued(self, queued: QueuedRun, active: ActiveRun | None) -> None:
        """Announce a queued message to the active run, at whichever host that is."""
        if isinstance(active, HubRun):
            self.queue.announce(active, queued)
        elif active is not None and self.remote is not None:
            await self.remote.announce_queued(active.row, queued)
        self.queue.dispatch_soon(queued.session_id)  # the run may just have ended

    def count_background(self) -> int:
        """Return the number of active runs in the background."""
        return sum(run.row.background for run in self._active.values())

    async def _resolve_session(self, request: ChatRequest, identity: Identity) -> tuple[str, str]:
        """Return the hub's id of the session of a request, and its owner. Raises Forbidden."""
        shared = await self._store.sessions.get_shared(request.session_id, caller=identity, role="write")
        if shared is not None:
            return shared.id, shared.owner
        return hub_session_id(request.session_id, owner=identity.owner), identity.owner

    @asynccontextmanager
    async def locked(self, session_id: str) -> AsyncIterator[None]:
        """Let no run of the session begin on this host; other hosts are kept off by checks in the store.

        Raises RunActive at once while a request holds the lock to stop or find the session's run.
        """
        lock = self.starting.of(session_id).lock
        active = await self._store.runs.get_active(session_id) if lock.locked() else None
        if active is not None:
            raise RunActive(session_id, active.id)
        async with lock:
            yield

    async def _may_retry(self, session_id: str, error: RunActive | SessionDeleted) -> bool:
        """Return whether a start that failed is to be tried again.

        A session is deleted once: only another deletion would be in the way of the next attempt.
        """
        if isinstance(error, RunActive):
            return self.remote is not None  # another host began a run first; the next attempt finds it
        await self._store.session_deletion.finish(session_id)
        return True

    async def resume(self, approval: ApprovalRequest) -> bool:
        """Resume the answer that waits for this approval; return False when none waits, or it cannot resume.

        Raises RunActive or Unavailable when a later attempt may succeed.
        """
        row = await self.find_waiting(approval)
        if row is None or approval.tool_call_id is None:
            return False
        answer = stored_answer(approval)
        client_answer = ClientApprovalAnswer(answer.id, approval.tool_call_id, answer.approved, answer.text)
        try:
            identity = await find_requester(self._store, row, key_id=approval.key_id, owner=approval.owner)
            await self.start_run(continuation(row, answers=(client_answer,)), identity)
        except (RunActive, Unavailable):
            raise
        except DragomanError as error:
            log.info("session %s cannot resume after its approval: %s", row.session_id, error.message)
            return False
        return True

    async def find_waiting(self, approval: ApprovalRequest) -> rows.RunRecord | None:
        """Return the run whose answer waits for this approval, which is answered; None when none does.

        Raises RunActive or Unavailable when a later attempt may find it.
        """
        await self.recovery.settle(approval.session_id or "")
        row = await self._store.runs.get(approval.run_id or "")
        if row is None or approval.tool_call_id is None or approval.status in ("pending", "used"):
            return None
        if self.factory.runners is not None and await self.factory.runners.take_answer(approval):
            return None
        if await self.is_running(row.session_id):
            raise RunActive(row.session_id, row.id)
        message = await self._store.messages.get(row.session_id, row.message_id)
        return row if message is not None and is_waiting_for(message, approval) else None

    async def continue_after_crash(self, cut_off: CutOffRun) -> HubRun:
        """Continue a run that a crash cut off, from its message.

        Raises Unauthorized, Forbidden or BadRequest when its key, agent or model is gone, Unavailable.
        """
        row = cut_off.row
        identity = await find_requester(self._store, row, key_id=row.key_id, owner=row.owner)
        # Not with several hosts: a request with the lock may be waiting for this run, and the database lets
        # only one host begin it.
        lock = self.starting.of(row.session_id).lock
        async with lock if self.remote is None else nullcontext():
            session = await self._store.sessions.get_accessible(row.session_id, caller=identity, role="write")
            if session is None:
                raise Forbidden(f"The session {row.session_id!r} is no longer shared with {row.owner!r}.")
            self._check_open()
            existing = StoredSession(session)
            run = await self.factory.start(
                continuation(row), existing, identity=identity, on_end=self._remove_run, cut_off=cut_off
            )
            self._register(run, identity)
        await self.queue.announce_all(run)
        return run

    async def stop_run(self, session_id: str, reason: str) -> ActiveRun | None:
        """Stop the session's run and wait until it is closed. Returns None when there is none."""
        run = await self.find_begun(session_id)
        if run is not None:
            await run.stop_and_wait(reason)
        return run

    @property
    def active_count(self) -> int:
        """The number of active runs."""
        return len(self._active)

    def refuse_new(self) -> None:
        """Accept no more runs; the active ones continue."""
        self._closed = True

    async def drain(self, seconds: float) -> None:
        """Accept no more runs, and wait up to `seconds` for the active ones to end."""
        self.refuse_new()
        endings = [asyncio.ensure_future(run.done.wait()) for run in self._active.values()]
        if endings:
            _, pending = await asyncio.wait(endings, timeout=seconds)
            for ending in pending:
                ending.cancel()

    def stop_unwritten(self) -> None:
        """Stop all runs without writing anything of them: other hosts have taken them over."""
        for run in list(self._active.values()):
            run.stop_unwritten()

    async def close(self) -> None:
        """Stop all runs and accept no more. Where hosts share the database, another one continues them."""
        self._closed = True
        await self.recovery.close()
        await self.queue.close()
        if self.remote is not None:
            self.remote.close()
        active = list(self._active.values())
        for run in active:
            if self.factory.runners is not None and await self.factory.runners.leave(run):
                continue
            if self.recovery.may_hand_over(run.row):
                run.release()
            else:
                run.stop("the hub is shutting down")
        for run in active:
            await run.done.wait()
            if run.released is not None:
                with suppress(StoreError, Unavailable):  # the sweep of another host finds it
                    await self.recovery.enqueue(run.released)

    async def _replace(self, run: ActiveRun, request: ChatRequest) -> bool:
        """Stop the active run if it is abandoned or the request interrupts it; False if it is waited for.

        Raises RunActive.
        """
        is_continuation = isinstance(request.action, ContinueAnswer)
        if run.is_unattended or (is_continuation and request.when_busy == "queue"):
            # No follower is expected yet; or the run does what another person approved.
            return False
        is_abandoned = run.is_abandoned
        if request.when_busy == "refuse" and not is_abandoned:
            # A client that stops and sends again may be faster than its own disconnect.
            is_abandoned = await run.wait_abandoned(DISCONNECT_WAIT)
        if is_abandoned:
            await run.stop_and_wait("replaced by a new message")
        elif request.when_busy == "refuse":
            raise RunActive(request.session_id, run.row.id)
        elif request.when_busy == "interrupt":
            await run.stop_and_wait(INTERRUPTED)
        else:
            return False
        return True

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the hub is shutting down", hint="retry the request")

    def _register(self, run: HubRun, identity: Identity) -> StartedRun:
        session_id = run.row.session_id
        self._active[session_id] = run
        run.on_stopping = self.on_stop
        run.on_ending = self.on_ending
        if self.remote is not None:
            self.remote.move_here(run)
        self._work_removers[session_id] = self.work.add(identity, run.stop_with_error)
        self._undelivered.discard(session_id)
        self.queue.run_begun(run)
        return StartedRun(run)

    def _remove_run(self, run: HubRun) -> None:
        key = run.row.session_id
        self._active.pop(key, None)
        self._work_removers.pop(key)()
        self._store.subagent_answers.purge()
        self.queue.run_ended(run)
        for listener in self.on_end:
            listener(run)
        if not run.tail.follower_count:
            self._undelivered.add(key)
            asyncio.get_running_loop().call_later(REPLAY_SECONDS, self._undelivered.discard, key)
