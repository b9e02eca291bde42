"""Takes over what another host had under way, and executes what the engine has queued.

Everything here may be done twice, by several hosts at once, and be cut off at any point: a run is claimed by
the one host that moves it (`CrashRecovery`), and a host's row stays until it has no more runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

from dragoman.errors import NotFound, RunActive, StoreError, Unavailable
from dragoman.operations.approval import ApprovalRequest
from dragoman.runs.crash_recovery import RETRY_INTERVAL, continuation_turn, find_cut_off_runs
from dragoman.runs.engine import Engine, QueuedTurn
from dragoman.runs.registry import RunRegistry
from dragoman.store.store import Store

log = logging.getLogger(__name__)
SWEEP_INTERVAL = 2.0  # seconds between two looks for runs that no host has
RECOVERY_SWEEPS = 5  # sweeps between two looks for turns that hosts had begun which are gone


class HostTakeover:
    """Takes over from hosts that are lost."""

    def __init__(self, store: Store, engine: Engine, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._engine = engine
        self._clock = clock

    async def run(self) -> None:
        """Look for what no host has, every `SWEEP_INTERVAL` seconds, until cancelled."""
        for number in count():
            with suppress(StoreError, Unavailable):
                if self._store.database.is_up:
                    await self.sweep(with_turns=number % RECOVERY_SWEEPS == RECOVERY_SWEEPS - 1)
            await asyncio.sleep(SWEEP_INTERVAL)

    async def sweep(self, *, with_turns: bool = False) -> None:
        """Queue the runs that no living host has: their host may have ended before it queued them.

        What lost hosts have reserved is given back first, as in `take_over`. `with_turns` queues the turns,
        too, that a lost host had begun. Raises StoreError, Unavailable.
        """
        runs = await find_cut_off_runs(self._store)
        if runs:
            await self._store.budgets.release_lost_hosts()
        for run in runs:
            await self._engine.enqueue(continuation_turn(run))
        if with_turns:
            await self._engine.recover(list_living=self._list_living)

    async def _list_living(self) -> set[str]:
        return {host.id for host in await self._store.hosts.list()}

    async def take_over(self, host_id: str) -> None:
        """Give back what a fenced host has reserved, interrupt its calls, queue its runs, and remove it.

        In this order: a run that continues may need what it had reserved itself. All hosts are told that its
        spokes and the people at it are gone. Raises StoreError or Unavailable; it may be called again.
        """
        self._store.signals.send("spokes", host_id, here=True)
        await self._store.budgets.release_host(host_id)
        await self._store.calls.interrupt_running(self._clock(), host=host_id)
        await self._engine.recover(list_living=self._list_living)
        runs = await self._store.runs.list_running(host=host_id)
        for run in runs:
            await self._engine.enqueue(continuation_turn(run))
        if await self._store.people.remove_absent(host_id):
            self._store.signals.send("presence", None, here=True)
        if not runs:
            await self._store.hosts.remove(host_id)


class QueuedTurns:
    """Queues the continuations of answers that wait for an approval, and executes the turns of the engine."""

    def __init__(
        self,
        store: Store,
        runs: RunRegistry,
        *,
        engine: Engine,
        abandon: Callable[[ApprovalRequest], Awaitable[None]],
    ) -> None:
        """`abandon` ends the suspended call of a request that nobody will resume."""
        self._store = store
        self._runs = runs
        self._engine = engine
        self._abandon = abandon

    async def resume(self, approval: ApprovalRequest) -> bool:
        """Resume the answer that waits for this approval; return False when none waits.

        Of hosts that share a database one resumes it, in its turn. Raises RunActive or Unavailable when a
        later attempt may succeed.
        """
        if self._store.host_id is None:
            return await self._runs.resume(approval)
        row = await self._runs.find_waiting(approval)
        if row is None:
            return False
        id = f"approval:{approval.id}:{approval.status}"  # one that expires is tried once more
        await self._engine.enqueue(
            QueuedTurn(id=id, session_id=row.session_id, kind="approval", subject=approval.id)
        )
        return True

    async def execute(self, turn: QueuedTurn) -> None:
        """Execute a turn; return when its run has ended or waits for a person."""
        match turn.kind:
            case "continue":
                await self._runs.recovery.continue_run(turn.subject)
            case "approval":
                await self._resume_after(turn.subject)
        run = self._runs.get_active(turn.session_id)
        if run is not None:
            await run.done.wait()

    async def _resume_after(self, approval_id: str) -> None:
        while True:
            if await self._try_to_resume(approval_id):
                return
            await asyncio.sleep(RETRY_INTERVAL)

    async def _try_to_resume(self, approval_id: str) -> bool:
        """Return whether nothing is left to do for an approval; False while its session is busy.

        If a lost host has a run of the session, it continues here: its own turn is queued behind this one.
        """
        session_id = None
        try:
            approval = await self._store.approvals.get(approval_id)
            session_id = approval.session_id
            if not await self._runs.resume(approval) and approval.status == "expired":
                await self._abandon(approval)
        except NotFound:
            return True
        except (RunActive, StoreError, Unavailable) as error:
            log.info("the run of approval %s cannot go on yet: %s", approval_id, error.message)
        else:
            return True
        with suppress(StoreError, Unavailable):
            active = await self._store.runs.get_active(session_id or "")
            if active is not None:
                await self._runs.recovery.continue_here(active.id)
        return False
