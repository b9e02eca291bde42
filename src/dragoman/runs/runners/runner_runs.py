"""Runs that a runner answers: begun like those of the hub's own agents, and driven by its frames."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote

from msgspec.structs import replace

from dragoman.agent.approval_events import stored_answer
from dragoman.agent.restoration import RestoredAnswer
from dragoman.agent.spec import AgentSpec
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.errors import Conflict, DragomanError, NotFound, Unavailable
from dragoman.fold import Fold
from dragoman.hub_events.domain_events import SessionEvents
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.messages import Message, messages_size
from dragoman.offload import offload
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.context import Context
from dragoman.operations.replayed_calls import ReplayedCalls
from dragoman.part_builders import ToolCallBuilder
from dragoman.runners.hub.frame_log import LoggedMessage, StoredLog, read_log
from dragoman.runners.hub.server import RunnerServer
from dragoman.runners.hub.turn import RunnerTurnSpec, TurnSource
from dragoman.runs.active_run import ActiveRun, StartedRun
from dragoman.runs.crash_recovery import RUNNER_AGENT, CrashRecovery, CutOffRun
from dragoman.runs.deduplication import StoredAnswer
from dragoman.runs.history_changes import RunPlan, make_plan, plan_after_crash
from dragoman.runs.preparation import new_row, store_answers, wait_stored, with_inputs, withdraw_requests
from dragoman.runs.run import HubRun, RunSettings
from dragoman.runs.runners.runner_hosts import RunnerHosts
from dragoman.runs.runners.waiting_turns import WaitingTurns
from dragoman.store import runs as rows
from dragoman.store.connection import DatabaseConnection, DatabaseJob
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.unfold import FoldPosition, current_position
from dragoman.wire.ui.client_request import ChatRequest

log = logging.getLogger(__name__)
FindRun: TypeAlias = Callable[[str], Awaitable[ActiveRun | None]]
RUNNER_SPEC = AgentSpec(name=RUNNER_AGENT, model="runner")
"""What stands for the runner's own agent in the rows of its runs."""


class RunnerRuns:
    """Makes the runs of sessions that a runner answers."""

    def __init__(
        self, store: Store, server: RunnerServer, *, toolbox: Callable[..., Any], settings: RunSettings
    ) -> None:
        self.server = server
        self._store = store
        self._toolbox = toolbox
        self._settings = settings
        self.recovery: CrashRecovery | None = None
        """Continues runs that no host has."""
        self.find_run: FindRun | None = None
        """Finds the active run of a session, wherever it is."""
        self.hosts = RunnerHosts(store, server)
        """Where the runners of sessions are connected."""
        self.waiting_turns = WaitingTurns(store, server)
        """The turns that wait for an answer."""
        self.session_events: SessionEvents | None = None
        """Takes the domain events of runners."""
        self._turns: dict[str, TurnSource] = {}
        self._passed_on: set[str] = set()

    async def start(
        self,
        request: ChatRequest,
        session: Session,
        *,
        identity: Identity,
        on_end: Callable[[HubRun], None],
        cut_off: CutOffRun | None = None,
        claim: DatabaseJob[None] | None = None,
    ) -> HubRun:
        """Store and start a run, or continue one that a crash `cut_off`. Raises as `RunFactory.start`."""
        frames = StoredLog() if cut_off is None else await read_log(self._store, cut_off.row.id)
        row, plan, context = await self._begin(
            request, session, identity=identity, cut_off=cut_off, claim=claim
        )
        return self._run(request, row, plan=plan, context=context, log=frames, on_end=on_end)

    async def start_anywhere(
        self,
        request: ChatRequest,
        session: Session,
        *,
        identity: Identity,
        on_end: Callable[[HubRun], None],
        claim: DatabaseJob[None] | None = None,
    ) -> HubRun | StartedRun | StoredAnswer:
        """Start a run at the host that the runner is connected to; here if it is connected to none."""
        elsewhere = await self.start_elsewhere(request, session, identity=identity, claim=claim)
        return elsewhere or await self.start(request, session, identity=identity, on_end=on_end, claim=claim)

    async def start_elsewhere(
        self,
        request: ChatRequest,
        session: Session,
        *,
        identity: Identity,
        claim: DatabaseJob[None] | None = None,
    ) -> StartedRun | StoredAnswer | None:
        """Start a run at the host that the session's runner is connected to; None if that is this one."""
        host = await self.hosts.find_other(session) if session.runner else None
        if host is None or self.find_run is None:
            return None
        row, plan, _ = await self._begin(
            request, session, identity=identity, cut_off=None, claim=claim, is_here=False
        )
        position = position_before(plan)
        await self._send_to(row, host=host)
        run = await self.find_run(row.session_id)
        if run is not None and run.row.id == row.id:
            return StartedRun(run, replay=position)
        message = await self._store.messages.get(row.session_id, row.message_id)
        ended = await self._store.runs.get(row.id)
        if message is None or ended is None:
            raise NotFound("the session was deleted")
        return StoredAnswer(row.id, message, position, ended.error)

    async def _pass_on(self, row: rows.RunRecord, *, host: str) -> None:
        """Pass a run on to another host; if that does not answer, any host may continue it."""
        self._passed_on.add(row.id)
        try:
            released = await self._store.runs.move(row, to=None)
            if released is not None:
                await self._send_to(released, host=host)
        finally:
            self._passed_on.discard(row.id)

    async def continue_here(self, run_id: str) -> None:
        """Continue a run here that no host has, because another host says that its runner is here.

        Raises Conflict while this host passes the run on: the other host may be waiting for this one.
        """
        if run_id in self._passed_on:
            raise Conflict(f"this host passes the run {run_id!r} on to another one")
        if self.recovery is not None:
            await self.recovery.continue_here(run_id)

    async def _send_to(self, released: rows.RunRecord, *, host: str) -> None:
        """Let a host continue a run that no host has. If that fails, a sweep finds the run."""
        if self.hosts.client is None or self.recovery is None:
            return
        try:
            await self.hosts.client.post(host, f"/runs/{released.id}/continue", body={})
        except Conflict as error:  # the runner has just moved: the host that continues the run looks again
            log.info("run %s is not passed on: %s", released.id, error.message)
            await self.recovery.enqueue(released)
        except DragomanError as error:
            log.info("the host of the runner of run %s cannot take it: %s", released.id, error.message)
            await self._store.sessions.clear_runner_host(released.session_id, host)
            await self.recovery.enqueue(released)

    async def _begin(
        self,
        request: ChatRequest,
        session: Session,
        *,
        identity: Identity,
        cut_off: CutOffRun | None,
        claim: DatabaseJob[None] | None = None,
        is_here: bool = True,
    ) -> tuple[rows.RunRecord, RunPlan, Context]:
        """Store that a run begins, or continues; with no host where it is not to begin here."""
        stored = await self._store.messages.list(session.id)
        if cut_off is None:
            planning = partial(make_plan, request.action, stored, new_id=new_id("msg"))
            plan = await offload(messages_size(stored), planning)
            row = new_row(request, plan, agent=RUNNER_SPEC, identity=identity, now=time.time())
        else:
            plan, row = plan_after_crash(cut_off.answer, stored), cut_off.row
        context = Context(
            identity=identity,
            run_id=row.id,
            session_id=row.session_id,
            agent=RUNNER_AGENT,
            key_scope=row.message_id,
        )
        toolbox: Toolbox = await self._toolbox((), (), context=context)
        plan = replace(plan, input_events=await store_answers(plan, toolbox, by=identity))
        if not is_here:
            claim = both(claim, self._store.runs.release_job(row))
        await self._store_begin(row, plan, session=session, claim=claim)
        if plan.withdrawn:
            withdrawing = withdraw_requests(plan, context, toolbox=toolbox, store=self._store)
            await wait_stored(asyncio.ensure_future(withdrawing))
        if not is_here:
            row = replace(row, host=None, epoch=(row.epoch or 1) + 1)
        return row, plan, context

    def _run(
        self,
        request: ChatRequest,
        row: rows.RunRecord,
        *,
        plan: RunPlan,
        context: Context,
        log: StoredLog,
        on_end: Callable[[HubRun], None],
    ) -> HubRun:
        spec = RunnerTurnSpec(
            fold=Fold(plan.assistant),
            context=context,
            history=plan.history,
            input_events=plan.input_events,
            hooks=self._settings.hooks,
            restored=plan.restored,
            log=log,
            session_events=self.session_events,
        )
        session = self.server.session(row.session_id)
        turn = TurnSource(spec, session, store=self._store, settings=self.server.settings)
        self._turns[row.id] = turn

        def ended(run: HubRun) -> None:
            del self._turns[row.id]
            turn.end(is_over=run.fold.phase == "finished" and not run.is_elsewhere)
            self.server.discard(row.session_id)
            if run.fold.phase == "finished":
                self._store.runner_frames.delete(row.id)
            on_end(run)

        run = HubRun(
            row,
            turn,
            action=request.action if plan.restored is None else None,
            store=self._store,
            settings=self._settings,
            on_end=ended,
        )
        run.on_stop = turn.stop
        run.is_replayed = True
        return run

    async def _store_begin(
        self,
        row: rows.RunRecord,
        plan: RunPlan,
        *,
        session: Session,
        claim: DatabaseJob[None] | None,
    ) -> None:
        """Store the run with the messages that its plan adds, changes and drops; or that it continues."""
        if plan.restored is not None:
            await self._store.runs.resume(row, plan.assistant)
            return
        storing = self._store.runs.submit_create(
            row,
            assistant=with_inputs(plan),
            user=plan.user,
            session=session,
            drop_from=plan.drop_from,
            extra_job=claim,
        )
        await wait_stored(storing)
        self._store.runs.note_created()

    async def take_answer(self, approval: ApprovalRequest) -> bool:
        """Pass an answer to a running turn that waits for it; False when none does."""
        turn = self._turns.get(approval.run_id or "")
        return turn is not None and await turn.take_answer(stored_answer(approval))

    async def leave(self, run: HubRun) -> bool:
        """Leave a run as it is, because this host stops; False for one that no runner answers."""
        turn = self._turns.get(run.row.id)
        if turn is None:
            return False
        await turn.leave()
        run.stop_unwritten()
        return True

    async def release(self, run: HubRun) -> None:
        """Release a run for the host that its runner has connected to."""
        turn = self._turns.get(run.row.id)
        if turn is not None:
            await turn.leave()
            run.release()
            await run.done.wait()
            turn.forget()
            self.server.discard(run.row.session_id)

    async def restore(self, row: rows.RunRecord, message: Message) -> CutOffRun | None:
        """Return a run to continue with after a crash: its message as it was when the run began.

        None if it continues at the host that the session's runner is connected to.
        """
        session = await self._store.sessions.get(row.session_id)
        host = None if session is None else await self.hosts.find_other(session)
        if host is not None:
            await self._pass_on(row, host=host)
            return None
        frames = await read_log(self._store, row.id)
        base = next((entry.message() for entry in frames.entries if isinstance(entry, LoggedMessage)), None)
        if base is None:
            base = replace(message, parts=message.parts[: row.settled_parts or 0])
        settled = len(base.parts)
        answer = RestoredAnswer(message=base, unfinished=frozenset(), settled=settled)
        return CutOffRun(
            row=replace(row, crashes=0, settled_parts=settled), answer=answer, calls=ReplayedCalls(())
        )

    async def claim(self, session: Session, *, key_id: str | None) -> None:
        """See `RunnerRunHost`."""
        own, other = self._store.host_id, session.runner_host
        if own is None or other == own:
            return
        if other is not None and self.hosts.client is not None:
            path = f"/sessions/{quote(session.id, safe='')}/runner/leave"
            with suppress(Unavailable, NotFound):
                await self.hosts.client.post(other, path, body={"keyId": key_id})
        await self._store.sessions.set_runner_host(session.id, own)

    async def bring_here(self, session: Session) -> None:
        """See `RunnerRunHost`."""
        if self.recovery is not None:
            await self.recovery.settle(session.id)
        row = await self._store.runs.get_active(session.id)
        if row is not None and row.host != self._store.host_id:
            await self._take_over(row)
        await self.waiting_turns.open(session.id)

    async def _take_over(self, row: rows.RunRecord) -> None:
        """Continue a run here that another host has, or none."""
        if self.hosts.client is None or self.recovery is None:
            return
        if row.host is not None:
            with suppress(Unavailable, NotFound):
                await self.hosts.client.post(row.host, f"/runs/{row.id}/release", body={})
        await self.recovery.continue_here(row.id)


def both(first: DatabaseJob[None] | None, second: DatabaseJob[None]) -> DatabaseJob[None]:
    """Return a job that runs both jobs in one transaction."""

    def job(connection: DatabaseConnection) -> None:
        if first is not None:
            first(connection)
        second(connection)

    return job


def position_before(plan: RunPlan) -> FoldPosition:
    """Return the position of the client that sent the run's request: it has its own inputs already."""
    fold = Fold(plan.assistant)
    position = current_position(fold)
    unfinished = dict(position.unfinished)
    pairs = zip(fold.builders, plan.assistant.parts, with_inputs(plan).parts, strict=False)
    for index, (builder, before, after) in enumerate(pairs):
        if before != after:
            stage = builder.progress()[0] if isinstance(builder, ToolCallBuilder) else -1
            unfinished[index] = (stage, -1)
    return position._replace(unfinished=tuple(unfinished.items()), started=False, is_retold=False)
