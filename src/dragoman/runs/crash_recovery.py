"""Runs that a crash cut off: each continues from its message, or is closed with what the ledger knows.

This happens in the background, so that the hub starts at once; a session that a request needs comes first.
Of several hosts that share a database, one claims the run before it continues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.agent.agent_registry import AgentRegistry
from dragoman.agent.restoration import RestoredAnswer, restore_answer
from dragoman.errors import DragomanError, StoreError, Unavailable
from dragoman.events import Usage
from dragoman.fold import merge_metadata
from dragoman.messages import Message
from dragoman.operations.execution import META_PREFIX
from dragoman.operations.ledger import LedgerEntry
from dragoman.operations.replayed_calls import ReplayedCalls, is_cut_off
from dragoman.runs.engine import Engine, QueuedTurn
from dragoman.runs.interrupted_message import close_message, restore_approvals
from dragoman.runs.run import HubRun
from dragoman.store import runs as rows
from dragoman.store.sessions.run_ends import FinalStatus, RunEnding
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord

log = logging.getLogger(__name__)
MAX_CRASHES = 3
RETRY_INTERVAL = 5.0  # seconds until a run is tried again after an error of the database
RUNNER_AGENT = "runner"  # the agent in the rows of runs that a runner answers
FAILED = "the hub stopped during the run, which could not go on after that: an internal error of the hub"
CLOSED = "the hub stopped during the run"
TOO_MANY_CRASHES = f"the hub stopped {MAX_CRASHES} times while this answer was made, so it is not tried again"
OWN_TOOLS = "the hub stopped during the run, and its model had run tools itself, which must not run twice"
LATER_VERSION = "the hub was updated after it had stopped during the run"


class CutOffRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to continue after a crash: its new row, its answer so far, and the calls that it had made."""

    row: rows.RunRecord
    answer: RestoredAnswer
    calls: ReplayedCalls


RestoreRunner: TypeAlias = Callable[[rows.RunRecord, Message], Awaitable[CutOffRun | None]]
"""Restores a runner's run from its row and its stored message; returns None if the run continues at the host
that the runner is connected to.
"""


class RunStarter(Protocol):
    """Starts runs: see `RunRegistry`."""

    @property
    def agents(self) -> AgentRegistry: ...

    async def continue_after_crash(self, cut_off: CutOffRun) -> HubRun: ...


class StoredRun(msgspec.Struct, frozen=True):
    """A run as the database has it: its message with its approvals, its calls, and its usage.

    `was_released`: its host handed it over when it shut down, and did not crash.
    """

    row: rows.RunRecord
    message: Message
    calls: Sequence[LedgerEntry]
    usage: Sequence[UsageRecord]
    was_released: bool = False

    def cut_off_operations(self) -> Sequence[str]:
        """Return the operations whose calls were cut off, without the meta-tools."""
        names = {call.record.operation for call in self.calls if is_cut_off(call)}
        return sorted(name for name in names if not name.startswith(META_PREFIX))


WaitForOperations: TypeAlias = Callable[[Sequence[str]], Awaitable[None]]
"""Waits some seconds until operations are registered: after a restart spokes have to reconnect first."""


class CutOffRuns(NamedTuple):
    """The runs that were under way when the hub stopped, and the engine by which they continue.

    `arrival` waits for operations that they called.
    """

    engine: Engine
    rows: Sequence[rows.RunRecord]
    arrival: WaitForOperations


class CrashRecovery:
    """The runs that were under way when their host stopped.

    The engine continues them in the background. One that was cut off before without progress continues
    alone, since it may be the run that crashes the process.
    """

    def __init__(
        self,
        store: Store,
        starter: RunStarter,
        *,
        runs: CutOffRuns,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._starter = starter
        self._engine = runs.engine
        self._clock = clock
        self._arrival = runs.arrival
        self._waiting = {run.session_id: run for run in runs.rows}
        self._begun: dict[str, asyncio.Task[HubRun | None]] = {}
        self._alone = asyncio.Lock()
        self._closing = asyncio.Event()
        self.restore_runner: RestoreRunner | None = None
        """Restores the runs of runners; None where the hub accepts no runners."""

    async def run(self) -> None:
        """Queue all runs that wait to continue."""
        for run in list(self._waiting.values()):
            await self.enqueue(run)

    async def enqueue(self, run: rows.RunRecord) -> None:
        """Queue a run that no host has. Raises StoreError, Unavailable."""
        await self._engine.enqueue(continuation_turn(run))

    async def close(self) -> None:
        """Continue no more runs. Wait until each that has begun to either has continued or is given back."""
        self._closing.set()
        if self._begun:
            await asyncio.wait(list(self._begun.values()))

    def may_hand_over(self, run: rows.RunRecord) -> bool:
        """Return whether a run may continue when this host stops: at another host, or after a restart."""
        agent = self._starter.agents.agents.get(run.agent or "default")
        is_expected = self._store.host_id is not None or run.background
        return is_expected and (agent is None or agent.after_crash == "resume")

    async def settle(self, *session_ids: str) -> None:
        """Continue or close the runs of these sessions now, and wait until that is done."""
        for session_id in session_ids:
            if session_id in self._waiting:
                await self._begin(session_id)

    async def continue_run(self, run_id: str) -> None:
        """Continue a run, unless a living host has it, and wait for its end."""
        while True:
            if await self._try_to_continue(run_id):
                return
            await asyncio.sleep(RETRY_INTERVAL)

    async def continue_here(self, run_id: str) -> None:
        """Continue a run that no living host has, without waiting for its end."""
        run = await self._find(run_id)
        if run is not None:
            self._waiting.setdefault(run.session_id, run)
            await self._begin(run.session_id)

    async def _try_to_continue(self, run_id: str) -> bool:
        """Return whether nothing is left to do; False if an error of the database is in the way."""
        try:
            run = await self._find(run_id)
        except (StoreError, Unavailable) as error:
            log.warning("run %s cannot go on yet: %s", run_id, error.message)
            return False
        if run is None:
            return True
        session_id = run.session_id
        self._waiting.setdefault(session_id, run)
        async with self._alone if run.crashes else nullcontext():
            resumed = await self._begin(session_id) if session_id in self._waiting else None
            if resumed is not None:
                await resumed.done.wait()
        return session_id not in self._waiting

    async def _find(self, run_id: str) -> rows.RunRecord | None:
        """Return the run if it waits here or no living host has it; otherwise None."""
        for run in self._waiting.values():
            if run.id == run_id:
                return run
        if self._store.host_id is None:
            return None
        row = await self._store.runs.get(run_id)
        if row is None or row.status != "running":
            return None
        living = {host.id for host in await self._store.hosts.list()}
        return None if row.host in living else row

    async def _begin(self, session_id: str) -> HubRun | None:
        """Continue the session's run, once however often it is called; return it, or None if it cannot."""
        task = self._begun.get(session_id)
        if task is None and self._closing.is_set():
            return None
        if task is None:
            task = asyncio.create_task(self._resume(self._waiting[session_id]))
            self._begun[session_id] = task
            task.add_done_callback(lambda _: self._begun.pop(session_id, None))
        return await asyncio.shield(task)

    async def _resume(self, run: rows.RunRecord) -> HubRun | None:
        try:
            claimed = await self._claim(run)
            stored = None if claimed is None else await self._load(claimed, run.host)
            resumed = None if stored is None else await self._resume_or_close(stored)
            if claimed is not None and stored is None:
                await self._store.runs.finish(run.id, self._ending("interrupted", CLOSED))
        except (StoreError, Unavailable) as error:
            log.warning("run %s cannot go on yet: %s", run.id, error.message)
            await self._give_back(run)
            return None
        except Exception:  # without an end the run would keep its session busy for ever
            log.exception("run %s cannot go on", run.id)
            resumed = None
            if not await self._give_up(run):
                return None
        self._waiting.pop(run.session_id, None)
        return resumed

    async def _give_back(self, run: rows.RunRecord) -> None:
        """Release a run that this host has claimed from a host that had released it.

        This host may be shutting down, too. If the row kept its name, that would count as a crash of the run.
        """
        claimed = self._waiting.get(run.session_id, run)
        if run.host is not None or claimed.host is None:
            return
        with suppress(StoreError, Unavailable):  # other hosts find the run once this one is gone
            released = await self._store.runs.move(claimed, to=None)
            if released is not None:
                self._waiting[run.session_id] = released
                await self.enqueue(released)

    async def _give_up(self, run: rows.RunRecord) -> bool:
        """Close a run that cannot continue, with its message if that can be read; False if it has to wait."""
        run, job = self._waiting.get(run.session_id, run), None
        try:
            stored = await load_run(self._store, run)
            if stored is not None:
                closed = close_message(stored.message, stored.calls, finish_reason="error")
                job = self._store.messages.replace_job(run.session_id, closed)
        except (StoreError, Unavailable):
            return False
        except Exception:
            log.exception("the message of run %s cannot be read", run.id)
        with suppress(StoreError, Unavailable):
            await self._store.runs.finish(
                run.id, self._ending("failed", FAILED), extra_job=job, epoch=run.epoch or 1
            )
            return True
        return False

    async def _load(self, run: rows.RunRecord, earlier_host: str | None) -> StoredRun | None:
        """Return a claimed run as the database has it; None if its message is gone."""
        stored = await load_run(self._store, run)
        was_released = self._store.host_id is not None and earlier_host is None
        return None if stored is None else replace(stored, was_released=was_released)

    async def _claim(self, run: rows.RunRecord) -> rows.RunRecord | None:
        """Take over a run from the host that had it; None when another host has it, or it has ended."""
        host_id = self._store.host_id
        if host_id is None:
            return run
        if run.host != host_id:
            taken = await self._store.runs.move(run, to=host_id)
            if taken is None:
                return None
            self._waiting[run.session_id] = run = taken
        await self._store.calls.interrupt_running(self._clock(), run_id=run.id)
        return run

    async def _resume_or_close(self, stored: StoredRun) -> HubRun | None:
        run = stored.row
        if self.restore_runner is not None and run.agent == RUNNER_AGENT:
            cut_off = await self.restore_runner(run, stored.message)
            return None if cut_off is None else await self._starter.continue_after_crash(cut_off)
        roots = [call for call in stored.calls if call.record.parent_id is None]
        answer = restore_answer(stored.message, roots, settled=run.settled_parts or 0, run_id=run.id)
        has_progress = answer.settled > (run.settled_parts or 0)
        crashes = (0 if has_progress else run.crashes or 0) + (0 if stored.was_released else 1)
        reason = self._reason_to_close(run, answer)
        if reason is None and crashes < MAX_CRASHES:
            await self._wait_for_operations(stored.cut_off_operations())
            row = replace(run, crashes=crashes, settled_parts=answer.settled)
            answer = with_usage(answer, stored)
            try:
                return await self._starter.continue_after_crash(
                    CutOffRun(row=row, answer=answer, calls=ReplayedCalls(stored.calls))
                )
            except (StoreError, Unavailable):
                raise
            except DragomanError as error:
                reason = error.message
        await self._close(stored, reason)
        return None

    async def _wait_for_operations(self, names: Sequence[str]) -> None:
        """Wait for operations to be registered, but not while this host stops."""
        arrival = asyncio.ensure_future(self._arrival(names))
        closing = asyncio.ensure_future(self._closing.wait())
        await asyncio.wait([arrival, closing], return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        arrival.cancel()
        with suppress(asyncio.CancelledError):
            await arrival

    def _reason_to_close(self, run: rows.RunRecord, answer: RestoredAnswer) -> str | None:
        agent = self._starter.agents.agents.get(run.agent or "default")
        if run.crashes is None:
            return LATER_VERSION
        if agent is not None and agent.after_crash == "close":
            return CLOSED
        return None if answer.can_repeat else OWN_TOOLS

    async def _close(self, stored: StoredRun, reason: str | None) -> None:
        """Close the run: interrupted for this reason; without one failed, after too many crashes."""
        run, has_failed = stored.row, reason is None
        text = reason or TOO_MANY_CRASHES
        log.warning("run %s is closed: %s", run.id, text)
        closed = close_message(
            stored.message, stored.calls, finish_reason="error" if has_failed else "interrupted"
        )
        job = self._store.messages.replace_job(run.session_id, closed)
        ending = self._ending("failed" if has_failed else "interrupted", text)
        await self._store.runs.finish(run.id, ending, extra_job=job)

    def _ending(self, status: FinalStatus, error: str) -> RunEnding:
        return RunEnding(status=status, finished_at=self._clock(), error=error)


def continuation_turn(run: rows.RunRecord) -> QueuedTurn:
    """Return the turn in which a run continues. Its id is new each time that the run changes hosts."""
    id = f"run:{run.id}:{run.epoch or 1}"
    return QueuedTurn(id=id, session_id=run.session_id, kind="continue", subject=run.id)


async def find_cut_off_runs(
    store: Store, *, clock: Callable[[], float] = time.time
) -> Sequence[rows.RunRecord]:
    """Return the runs that were under way when the hub stopped, oldest first, and end all its calls.

    Calls of no run end too. Of hosts that share a database, others may execute runs: these are not returned,
    and the calls of a lost host end when it is taken over.
    """
    unfinished = await store.runs.list_running()
    if store.host_id is not None:
        living = {host.id for host in await store.hosts.list()}
        return [run for run in unfinished if run.host not in living]
    await store.calls.interrupt_running(clock())
    return unfinished


async def load_run(store: Store, run: rows.RunRecord) -> StoredRun | None:
    """Return what the database has of a run; None if its message is gone.

    The calls and the usage are those of all runs that have answered with the message.
    """
    message = await store.messages.get(run.session_id, run.message_id)
    if message is None:
        return None
    ids = [each.id for each in await store.runs.list(run.session_id) if each.message_id == run.message_id]
    calls = [call for id in ids for call in await store.calls.list_for_run(id)]
    usage = [record for id in ids for record in await store.usage.list(filters={"run_id": id})]
    approvals = [each for id in ids for each in await store.approvals.list_for_run(run.session_id, id)]
    return StoredRun(run, restore_approvals(message, approvals, calls=calls), calls, usage)


def with_usage(answer: RestoredAnswer, stored: StoredRun) -> RestoredAnswer:
    """Return the answer with the usage of its steps so far.

    Of a lost step whose usage is recorded nothing is to be estimated: it had been answered to its end, or the
    host that handed the run over recorded it.
    """
    own = [record for record in stored.usage if record.call_id is None]
    steps = sum(part.type == "step-start" for part in answer.message.parts)
    is_counted = any(
        record.run_id == stored.row.id
        and record.step == steps + 1
        and (stored.was_released or not record.tokens.estimated)
        for record in own
    )
    if is_counted:
        answer = replace(answer, lost=())
    if not own:
        return answer
    tokens = sum((record.tokens for record in own), Usage())
    costs = [record.cost for record in own if record.cost is not None]
    so_far = {"usage": msgspec.to_builtins(tokens), **({"cost": round(sum(costs), 9)} if costs else {})}
    metadata = merge_metadata(answer.message.metadata or {}, so_far)
    return replace(answer, message=replace(answer.message, metadata=metadata))
