"""Begins waiting tasks, writes their ends, and delivers their results.

A host does so at once for tasks that it knows of, and every `SWEEP_INTERVAL` for tasks that another host has
left, because it was killed or has no room. The database decides what happens: a task is claimed in the
transaction that begins its run, its end is written once, and its result is delivered in the transaction that
records the delivery.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from dragoman.agent.answer_snapshot import read_message
from dragoman.errors import Conflict, DragomanError, RunActive, StoreError, Unavailable
from dragoman.ids import new_id
from dragoman.messages import Message, TextPart
from dragoman.runs.preparation import find_requester, is_waiting
from dragoman.runs.registry import RunRegistry
from dragoman.runs.run import HubRun
from dragoman.store.connection import DatabaseConnection, DatabaseJob
from dragoman.store.runs import RunRecord
from dragoman.store.settled_clock import RemainingTimes, SettledClock
from dragoman.store.store import Store
from dragoman.store.teams.task_records import TaskEnd, TeamTask
from dragoman.teams.registry import TeamRegistry
from dragoman.teams.tasks.call_contexts import TaskContexts
from dragoman.teams.tasks.delivery import MAX_WAKES, ResultDelivery
from dragoman.teams.tasks.new_task import is_task_session
from dragoman.teams.tasks.results import STOPPED, read_end
from dragoman.wire.ui.client_request import ChatRequest, NewMessage

log = logging.getLogger(__name__)
SWEEP_INTERVAL = 2.0  # seconds between two searches for tasks that other hosts have left
MAX_SETTLED = 1_000  # waiting tasks that are checked when a host starts
MAX_WAITING = 5  # waiting tasks that are checked at each later sweep
MAX_BEGUN = 50  # tasks of a team that are read at once
ABOVE_STOPPED = "what gave the task was stopped"
LATE = "its deadline is over"
CLOSE_TIMEOUT = 1.0  # seconds


class JoinedEnd:
    """The end of a task, written in the transaction that ends its run; `ended` is the task after that."""

    def __init__(self, job: DatabaseJob[TeamTask | None]) -> None:
        self._job = job
        self.ended: TeamTask | None = None

    def write(self, connection: DatabaseConnection) -> None:
        """Write it. May be called again, after a rollback."""
        self.ended = self._job(connection)


class TaskWorker:
    """Runs tasks on this host."""

    def __init__(
        self,
        store: Store,
        teams: TeamRegistry,
        *,
        runs: RunRegistry,
        contexts: TaskContexts,
        max_wakes: int = MAX_WAKES,
    ) -> None:
        self.on_end: list[Callable[[TeamTask], None]] = []
        """Called with each task that this host has ended."""
        self._store = store
        self._teams = teams
        self._runs = runs
        self._contexts = contexts
        self.delivery = ResultDelivery(store, runs, max_wakes=max_wakes)
        self.delivery.on_added = self._result_added
        self._dispatching: dict[str, bool] = {}
        self._only_ready: dict[str, TeamTask] = {}
        """Teams in whose queue only this task waits: it was stored just now, and is not read again."""
        self._held_back: set[str] = set()
        """Teams with tasks that may begin when another one has ended, as far as this host knows."""
        self._ordered: set[str] = set()
        """Teams that had tasks which wait for others of the same topic or text."""
        self._settling: dict[str, bool] = {}
        self._joined: dict[str, JoinedEnd] = {}
        """The ends of tasks that are being written with the ends of their runs, by session."""
        self._stopped_above: set[str] = set()
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._has_swept = False
        self._clock = SettledClock(ahead=store.clock_ahead)
        self._remaining = RemainingTimes(self._clock)
        self._last_waiting: TeamTask | None = None

    # Notifications from other services.

    def hold_back(self, task: TeamTask) -> None:
        """Check the task's queue when another one has ended: the task may have to wait for it."""
        if task.overlap == "queue" or task.topic is not None:
            self._ordered.add(task.team)

    def wake(self, team: str, *, only: TeamTask | None = None) -> None:
        """Begin a team's waiting tasks in the background: `only` this one, if no other waits."""
        if only is None:
            self._only_ready.pop(team, None)
        else:
            self._only_ready[team] = only
        self._spawn(self._dispatch(team))

    def run_ended(self, run: HubRun) -> None:
        """Write the end of an ended run's task; begin tasks and deliver results that waited for the run."""
        session_id = run.row.session_id
        joined = self._joined.pop(session_id, None)
        if joined is not None and joined.ended is not None and run.is_end_stored:
            self._spawn(self._follow_joined(joined.ended))
        elif is_task_session(session_id):
            self._spawn(self._settle(session_id, run))
        if self.delivery.is_awaited(session_id):
            self._spawn(self.delivery.deliver_to(session_id))
        if run.row.background and not is_task_session(session_id):
            self._spawn(self._dispatch_all())

    def _result_added(self, session_id: str) -> None:
        """Settle the task of a session if the result was the last one that it waited for."""
        if is_task_session(session_id):
            self._spawn(self._settle(session_id))

    def run_stopped(self, run: HubRun) -> None:
        """Stop, at once, all below a run that is being stopped: here in memory, then in the database."""
        session_id, message_id = run.row.session_id, run.row.message_id
        self._stop_below(session_id, message_id)
        self._spawn(self._cancel_below(session_id, message_id))

    def _stop_below(self, session_id: str, message_id: str | None) -> None:
        for task in list(self._contexts.sessions.values()):
            is_below = task.source_session == session_id and message_id in (None, task.source_message)
            if is_below and not task.detached and task.id not in self._stopped_above:
                self._stopped_above.add(task.id)
                self.stop(task, ABOVE_STOPPED)

    def stop(self, task: TeamTask, reason: str) -> None:
        """Stop the run of a task, wherever it is, and all below it."""
        run = self._runs.get_active(task.session_id)
        if run is not None:
            run.stop(reason)  # which stops what is below it
        elif self._runs.remote is not None:
            self._spawn(self._stop_elsewhere(task.session_id, reason))

    def withdraw(self, tasks: Sequence[TeamTask]) -> None:
        """Cancel tasks whose caller no longer waits for their answers; not while this host stops."""
        for task in tasks:
            self._stopped_above.add(task.id)
            self._spawn(self._withdraw(task))

    async def _withdraw(self, task: TeamTask) -> None:
        with suppress(StoreError, Unavailable):
            await self.end(task, TaskEnd(state="cancelled", error=ABOVE_STOPPED))

    async def _stop_elsewhere(self, session_id: str, reason: str) -> None:
        with suppress(DragomanError):  # the sweep tries again
            await self._runs.stop_run(session_id, reason)

    async def wait_for_end(self, id: str, *, seconds: float) -> None:
        """Wait until this host has ended a task, for at most `seconds`."""
        event = self._ends.setdefault(id, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:  # also when the caller is cancelled: the task may end at another host
            if self._ends.get(id) is event:
                del self._ends[id]

    # Beginning.

    async def _dispatch_all(self) -> None:
        with suppress(StoreError, Unavailable):
            for team in await self._store.team_tasks.ready_teams():
                await self._dispatch(team)

    async def _dispatch(self, team: str) -> None:
        """Begin as many of a team's waiting tasks as may run."""
        if team in self._dispatching:
            self._dispatching[team] = True  # look again: what it has read may be outdated
            return
        try:
            self._dispatching[team] = True
            while self._dispatching[team] and not self._closed:
                self._dispatching[team] = False
                await self._begin_ready(team)
        except (StoreError, Unavailable) as error:
            log.info("the tasks of team %s cannot begin yet: %s", team, error.message)
        finally:
            del self._dispatching[team]

    async def _begin_ready(self, team: str) -> None:
        spec = self._teams.find(team)
        self._held_back.discard(team)
        only = self._only_ready.pop(team, None)
        ready = [only] if only else await self._store.team_tasks.list_ready(team, limit=MAX_BEGUN)
        is_full = False
        for task in ready:
            if spec is None:
                await self.end(task, TaskEnd(state="failed", error=f"there is no team {team!r} any more"))
            elif task.read_only or not (is_full or self._runs.queue.is_full):
                is_full |= not await self._begin(task, concurrency=spec.concurrency)
        if is_full or self._runs.queue.is_full or len(ready) == MAX_BEGUN:
            self._held_back.add(team)

    async def _begin(self, task: TeamTask, *, concurrency: int) -> bool:
        """Begin the run of a task; return whether the next one may begin as well."""
        run_id = new_id("run")
        message = Message(f"msg_{task.id}", "user", (TextPart(task.text),))
        request = ChatRequest(
            session_id=task.session_id,
            action=NewMessage(message),
            agent=task.agent,
            background=True,
            webhook=task.webhook,
            queued_id=run_id,
            is_first=task.topic is None and not task.attempts,
        )
        claim = self._store.team_tasks.claim_job(task, run_id=run_id, concurrency=concurrency)
        self._contexts.begin(task)
        try:
            identity = await find_requester(self._store, task, key_id=task.key_id, owner=task.owner)
            await self._runs.begin_waiting(request, identity, claim=claim)
            return True
        except (RunActive, Conflict) as error:
            self._contexts.not_begun(task)
            return task.read_only or isinstance(error, RunActive)
        except (StoreError, Unavailable):
            raise
        except DragomanError as error:
            log.info("task %s cannot begin: %s", task.id, error.message)
            await self.end(task, TaskEnd(state="failed", error=error.message))
            return True

    # Ending.

    async def join_end(self, run: HubRun, row: RunRecord) -> DatabaseJob[None] | None:
        """Return a job that ends the task of a run together with the run, if the task surely ends with it.

        Otherwise `run_ended` decides about the task.
        """
        task = self._contexts.find_childless(row.session_id)
        if task is None or row.status != "finished" or task.id in self._stopped_above:
            return None
        try:
            message = await read_message(run.fold)
            if is_waiting(message):
                return None
            ending = await read_end(task, row, message=message, stop_reason=STOPPED, store=self._store)
        except (StoreError, Unavailable, OSError) as error:
            log.info("the end of task %s is written after that of its run: %s", task.id, error)
            return None
        joined = self._joined[row.session_id] = JoinedEnd(self._store.team_tasks.end_job(task, ending))
        return joined.write

    async def _settle(self, session_id: str, run: HubRun | None = None) -> None:
        """Write the end of the task of a session whose run has ended: this run, if it was at this host."""
        if session_id in self._settling:
            self._settling[session_id] = True
            return
        try:
            self._settling[session_id] = True
            while self._settling[session_id]:
                self._settling[session_id] = False
                await self._settle_once(session_id, run)
                run = None  # another one may have ended meanwhile
        except (StoreError, Unavailable) as error:
            log.info("the end of the task in %s is not written yet: %s", session_id, error.message)
        finally:
            del self._settling[session_id]

    async def _settle_once(self, session_id: str, run: HubRun | None) -> None:
        task = self._contexts.find_childless(session_id)
        is_awaiting = False
        if task is None:
            task = await self._store.team_tasks.find_of_session(session_id)
            if task is None or task.state not in ("running", "waiting"):
                return
            # Results first: one that is delivered between these checks is then found by a later check.
            is_awaiting = await self._awaits_results(task)
        if await self._runs.queue.has_waiting(session_id) or await self._runs.is_running(session_id):
            return
        row, message = await self._last_answer(session_id, run)
        if row is None or row.status == "running":
            return
        is_over = row.status != "finished"
        if not is_over and (is_awaiting or (message is not None and is_waiting(message))):
            if await self._store.team_tasks.move(task.id, "waiting", run_id=row.id):
                self.wake(task.team)
            return
        reason = ABOVE_STOPPED if task.id in self._stopped_above else STOPPED
        ending = await read_end(task, row, message=message, stop_reason=reason, store=self._store)
        await self.end(task, ending)

    async def _last_answer(
        self, session_id: str, run: HubRun | None
    ) -> tuple[RunRecord | None, Message | None]:
        """Return the last run of a session and its answer; one that has just ended here is not read."""
        is_only = self._contexts.find_childless(session_id) is not None
        if is_only and run is not None and run.ended is not None:
            return run.ended, await read_message(run.fold)
        row = await self._store.runs.get_last(session_id)
        message = None if row is None else await self._store.messages.get(session_id, row.message_id)
        return row, message

    async def _awaits_results(self, task: TeamTask) -> bool:
        """Return whether the agent of a task continues when tasks that it gave have ended."""
        children = await self._store.team_tasks.open_children(task.session_id)
        return any(child.wake and child.deliver == "session" for child in children)

    async def end(self, task: TeamTask, ending: TaskEnd) -> TeamTask | None:
        """End a task and what is below it, and deliver its result; None when it had ended before."""
        is_silent = task.id in self._stopped_above
        ended = await self._store.team_tasks.end(task, ending, is_silent=is_silent)
        self._forget(task)
        if ended is not None:
            await self.after_end(ended)
        return ended

    async def _follow_joined(self, ended: TeamTask) -> None:
        """Continue after the end of a task that was written together with the end of its run."""
        self._forget(ended)
        await self.after_end(ended)

    def _forget(self, task: TeamTask) -> None:
        self._stopped_above.discard(task.id)
        self._contexts.forget(task)

    async def after_end(self, ended: TeamTask) -> None:
        """End what is below a task whose end is written, deliver its result, and begin what waited for it."""
        for listener in self.on_end:
            listener(ended)
        self._ends.pop(ended.id, asyncio.Event()).set()
        if ended.state != "done":
            self.stop(ended, ended.error or ended.state)
            self._stop_below(ended.session_id, None)
            await self._cancel_below(ended.session_id, None)
        if ended.delivered_at is None:
            self._spawn(self.delivery.deliver_to(str(ended.source_session)))
        if ended.team in self._held_back or ended.team in self._ordered:
            self.wake(ended.team)

    async def _cancel_below(self, session_id: str, message_id: str | None) -> None:
        """End the tasks given in a session, or in one answer, that are not detached."""
        with suppress(StoreError, Unavailable):  # the sweep finds them
            for task in await self._store.team_tasks.open_children(session_id):
                is_below = message_id in (None, task.source_message) and not task.detached
                if is_below and task.is_active:
                    self._stopped_above.add(task.id)
                    await self.end(task, TaskEnd(state="cancelled", error=ABOVE_STOPPED))

    # Tasks that other hosts have left.

    async def run(self) -> None:
        """Sweep every SWEEP_INTERVAL seconds, until cancelled."""
        while True:
            try:
                if self._store.database.is_up:
                    await self.sweep()
            except (StoreError, Unavailable) as error:
                log.info("tasks that other hosts have left are handled later: %s", error.message)
            await asyncio.sleep(SWEEP_INTERVAL)

    async def sweep(self) -> None:
        """Handle everything that is due and that no host has handled. Raises StoreError, Unavailable."""
        tasks = self._store.team_tasks
        back, is_settled = self._clock.seconds_back(), self._clock.is_settled()
        if not await tasks.has_unsettled():
            return
        for task in await self._find_late(back=back, is_settled=is_settled):
            await self.end(task, TaskEnd(state="failed", error=LATE))
        for task in await tasks.list_orphans():
            self._stopped_above.add(task.id)
            await self.end(task, TaskEnd(state="cancelled", error=ABOVE_STOPPED))
        for task in await tasks.list_still_running():
            self.stop(task, task.error or "cancelled")
        idle = await tasks.list_idle()
        for task in [*idle, *await self._next_waiting()]:
            await self._settle(task.session_id)
        await self.delivery.deliver_all()
        for team in await tasks.ready_teams():
            await self._dispatch(team)

    async def _find_late(self, *, back: float, is_settled: bool) -> Sequence[TeamTask]:
        """Return tasks whose deadline is over, also by the time before the clock was set back."""
        tasks, now = self._store.team_tasks, self._store.sessions.now()
        for task in await tasks.list_with_deadline() if back else ():
            self._remaining.add(task.id, left=(task.deadline or 0.0) - (now + back))
        found = {task.id: task for task in await tasks.list_late()} if is_settled else {}
        for id in self._remaining.over():
            current = await tasks.get(id)
            if current is not None and current.is_active:
                found[id] = current
            self._remaining.remove(id)
        return list(found.values())

    async def _next_waiting(self) -> Sequence[TeamTask]:
        """Return waiting tasks, a few at a time: what they wait for may be over since a host was killed."""
        limit = MAX_WAITING if self._has_swept else MAX_SETTLED
        found = await self._store.team_tasks.list_page(
            {"state": "waiting"}, before=self._last_waiting, limit=limit
        )
        self._last_waiting = found[-1] if len(found) == limit else None
        self._has_swept = True
        return found

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a step of the tasks of teams failed", exc_info=error)

    async def close(self) -> None:
        """Begin no more; what waits stays in the database."""
        self._closed = True
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)
            for task in pending:
                task.cancel()
