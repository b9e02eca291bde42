"""Background jobs of a hub: runs whose approvals were answered elsewhere, retention, and leftovers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeAlias

from dragoman.accounts.spool import Spool
from dragoman.accounts.usage_ledger import UsageLedger
from dragoman.errors import RunActive, StoreError, Unavailable
from dragoman.operations.approval import ApprovalRequest, ApprovalStatus
from dragoman.operations.permission.access_control import ApprovalFlow
from dragoman.operations.permission.standing_rules import StandingRules
from dragoman.store.hosts.host_folder import USAGE_SPOOL, find_leftovers, has_leftovers
from dragoman.store.hosts.signals import Wakeup
from dragoman.store.retention import Retention, RetentionPeriods
from dragoman.store.settled_clock import RemainingTimes, SettledClock
from dragoman.store.sqlite import lock_folder
from dragoman.store.store import Store

log = logging.getLogger(__name__)
PURGE_INTERVAL = 3_600.0  # seconds
RESTART_INTERVAL = 5.0  # seconds until a job that failed is restarted
POLL_INTERVAL = 2.0  # seconds between two polls for answers
ANSWER_WINDOW = 60.0  # seconds by which answers overlap between polls: a clock may lag, a commit be late
RULES_INTERVAL = 5.0  # seconds between two reads of the standing rules, which other processes change
MAX_ENDS = 10_000  # requests of each state that are tracked after the clock was set back
LEFTOVERS_INTERVAL = 60.0  # seconds between two searches for files of processes that have ended
RELEASE_INTERVAL = 60.0  # seconds between two searches for reservations of hosts that are gone


BackgroundJob: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


@contextmanager
def run_in_background(job: BackgroundJob) -> Iterator[None]:
    """Run the job while the block runs; cancel it at the end. A job that fails is logged and restarted."""
    task = asyncio.ensure_future(run_again(job))
    try:
        yield
    finally:
        task.cancel()


async def run_again(job: BackgroundJob) -> None:
    """Run a job, and restart it after an unexpected error: without it the hub would miss a function."""
    while True:
        try:
            await job()
        except Exception:
            log.exception("a background job of the hub failed; it restarts in %g s", RESTART_INTERVAL)
            await asyncio.sleep(RESTART_INTERVAL)
        else:
            return


async def release_lost_reservations(store: Store) -> None:
    """Release the reservations of hosts that have ended, every RELEASE_INTERVAL seconds until cancelled.

    Those of a host that is taken over are released at once; this is for hosts that nobody took over.
    """
    while store.host_id is not None:
        await asyncio.sleep(RELEASE_INTERVAL)
        with suppress(StoreError, Unavailable):
            await store.budgets.release_lost_hosts()


async def follow_standing_rules(store: Store, standing: StandingRules) -> None:
    """Load the stored standing rules every RULES_INTERVAL seconds and after each signal, until cancelled.

    Before the first read, and without the database, no standing rule applies, so every call is asked about.
    """
    wakeup = Wakeup()
    store.signals.subscribe("policy", wakeup.wake)
    while True:
        with suppress(StoreError, Unavailable):
            standing.replace(await store.policy_rules.list())
        await wakeup.wait(RULES_INTERVAL)


class RetentionPurge:
    """Deletes expired rows when the hub starts, and every `PURGE_INTERVAL` after that.

    `periods` may be replaced; the next round uses it. `count` is called with each table and its deleted rows.
    For a day after the clock was set ahead, nothing is deleted.
    """

    def __init__(
        self,
        retention: Retention,
        periods: RetentionPeriods,
        *,
        count: Callable[[str, int], None],
        clock: SettledClock | None = None,
    ) -> None:
        self.periods = periods
        self._clock = clock or SettledClock()
        self._retention = retention
        self._count = count

    @classmethod
    def of(cls, store: Store, periods: RetentionPeriods, *, count: Callable[[str, int], None]) -> Self:
        """Return the purge of a hub's store."""
        return cls(store.retention, periods, count=count, clock=SettledClock(ahead=store.clock_ahead))

    async def run(self) -> None:
        """Purge until cancelled. A round is skipped while the database is down."""
        while True:
            with suppress(StoreError, Unavailable):
                await self.purge()
            await asyncio.sleep(PURGE_INTERVAL)

    async def purge(self) -> None:
        """Delete expired rows once, and log how many. StoreError, Unavailable."""
        if not self._clock.is_settled():
            log.warning("retention: nothing is deleted, since the clock was set ahead; check it")
            return
        counts = await self._retention.purge(self.periods)
        for name, rows in counts.items():
            self._count(name, rows)
        if deleted := [f"{rows} {name}" for name, rows in counts.items() if rows]:
            log.info("retention: deleted %s", ", ".join(deleted))


class AnswerReplayer:
    """Writes spooled answers to the database each time it is up again. `wake` begins a round."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Begin a round."""
        self._woken.set()

    async def run(self) -> None:
        """Wait for `wake`, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            with suppress(StoreError, Unavailable, OSError):
                await self._store.flush()  # writes that wait in memory go first
                if count := await self._store.answers.replay(at_start=False):
                    log.warning("%d spooled answers are in the database", count)


class LeftoverReplay:
    """Writes answers and usage that ended processes left in the data folder to the database.

    A process that starts does so for its own subfolder, but there may be fewer processes than before.
    """

    def __init__(self, store: Store, ledger: UsageLedger) -> None:
        self._store = store
        self._ledger = ledger
        self._unreadable: set[Path] = set()

    async def run(self) -> None:
        """Replay at the start of the hub, and every `LEFTOVERS_INTERVAL` seconds, until cancelled."""
        while True:
            with suppress(StoreError, Unavailable, OSError):
                if self._store.database.is_up:
                    await self.replay()
            await asyncio.sleep(LEFTOVERS_INTERVAL)

    async def replay(self) -> None:
        """Write what is there now. Raises StoreError, Unavailable, OSError."""
        found = await asyncio.to_thread(find_leftovers, self._store.folder, self._store.host_folder)
        for folder in found:
            if folder in self._unreadable:
                continue
            with ExitStack() as stack:
                try:
                    stack.enter_context(lock_folder(folder))
                except StoreError:  # its process is alive
                    continue
                await self._replay_folder(folder)

    async def _replay_folder(self, folder: Path) -> None:
        answers = await self._store.replay_leftover_answers(folder)
        records = await self._ledger.replay_leftover(Spool(folder / USAGE_SPOOL))
        log.warning(
            "%d answers and %d usage records that were left in %s are written", answers, records, folder
        )
        if has_leftovers(folder):
            self._unreadable.add(folder)


class ApprovalResumer:
    """Resumes chats whose approval was answered in another process, or expired.

    That includes answers from the time before the hub started. Approvals that no run can use are closed.
    For a day after the clock was set ahead, none expires. When it was set back, open ones expire
    after the time that they had left.
    """

    def __init__(
        self,
        store: Store,
        resume_run: Callable[[ApprovalRequest], Awaitable[bool]],
        *,
        approval_flow: ApprovalFlow,
        now: Callable[[], float] = time.time,
        clock: SettledClock | None = None,
    ) -> None:
        self._store = store
        self._now = now
        self._clock = clock or SettledClock(ahead=store.clock_ahead)
        self._remaining = RemainingTimes(self._clock)
        self._resume_run = resume_run
        self._approval_flow = approval_flow
        self._since = 0.0
        self._busy: dict[str, ApprovalRequest] = {}  # approvals whose run could not be resumed yet
        self._reported: set[str] = set()  # ids of those that are in the log
        self._done: set[tuple[str, ApprovalStatus]] = set()  # handled ones within the window

    async def run(self) -> None:
        """Poll every `POLL_INTERVAL` seconds until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            with suppress(StoreError, Unavailable):
                if self._store.database.is_up:
                    await self.poll()

    async def poll(self) -> None:
        """Resume what is due. Raises StoreError, Unavailable."""
        await self._end_passed()
        is_settled, now = self._clock.is_settled(), self._now()
        for approval in (await self._find_due(now, is_settled=is_settled)).values():
            self._busy[approval.id] = approval
            try:
                await self._resume(approval, expired=approval.expires_at <= now)
            except RunActive:
                continue
            except (StoreError, Unavailable) as error:
                if not self._store.database.is_up:
                    raise
                self._report(approval.id, error)  # the next ones may have nothing to do with this error
                continue
            except Exception:
                log.exception("the run of approval %s was not resumed", approval.id)
            del self._busy[approval.id]
            self._reported.discard(approval.id)
            self._done.add((approval.id, approval.status))
        if is_settled:
            self._since = now - ANSWER_WINDOW

    def _report(self, id: str, error: StoreError | Unavailable) -> None:
        if id not in self._reported:
            log.warning("the run of approval %s is not resumed yet: %s", id, error.message)
        self._reported.add(id)

    async def _find_due(self, now: float, *, is_settled: bool) -> dict[str, ApprovalRequest]:
        if now < self._since:  # the clock was ahead until now
            self._since = 0.0
        found = await self._store.approvals.list_settled(self._since)
        self._done &= {(each.id, each.status) for each in found}
        new = [each for each in found if (each.id, each.status) not in self._done]
        return self._busy | {each.id: each for each in new if is_settled or each.status != "expired"}

    async def _end_passed(self) -> None:
        """End requests whose time has passed although the clock, which was set back, says otherwise."""
        back = self._clock.seconds_back()
        statuses: Sequence[ApprovalStatus] = ("pending", "approved") if back else ()
        for status in statuses:
            for each in await self._store.approvals.list(status=status, limit=MAX_ENDS):
                self._remaining.add(each.id, left=each.expires_at - (self._now() + back))
        for id in self._remaining.over():
            await self._store.approvals.end(id)
            self._remaining.remove(id)

    async def _resume(self, approval: ApprovalRequest, *, expired: bool) -> None:
        current = await self._approval_flow.expire_if_due(approval.id) if expired else approval
        if not await self._resume_run(current) and expired:
            await self._approval_flow.abandon(current)
