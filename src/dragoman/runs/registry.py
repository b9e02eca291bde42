"""The runs in progress of this process: start, find, resume and stop them. One at a time for each session."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Protocol
from weakref import WeakValueDictionary

from msgspec.structs import replace

from dragoman.accounts.payment import Billing
from dragoman.active_work import ActiveWork
from dragoman.agent.agent_registry import AgentRegistry, ResolvedAgent
from dragoman.agent.approvals import stored_answer
from dragoman.agent.loop import Loop
from dragoman.agent.toolbox import Toolbox
from dragoman.errors import (
    DragomanError,
    RunActive,
    StoreError,
    Unavailable,
)
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.messages import Message
from dragoman.model_request import Tool
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.context import Context
from dragoman.providers.routing import require_model_access
from dragoman.runs.active_run import ActiveRun, StartedRun, hash_action
from dragoman.runs.crash_recovery import CrashRecovery, CutOffRun, CutOffRuns
from dragoman.runs.plan import RunPlan, is_repeat, make_plan, plan_after_crash, remaining_budget
from dragoman.runs.preparation import (
    continuation,
    continued_position,
    deadline,
    find_requester,
    is_waiting_for,
    new_row,
    new_session,
    store_answers,
    with_inputs,
    withdraw_requests,
)
from dragoman.runs.remote import RemoteRuns
from dragoman.runs.repeats import (
    StoredAnswer,
    awaits_client_output,
    is_same_action,
    missed_position,
    repeated_message,
)
from dragoman.runs.run import HubRun, RunSettings
from dragoman.runs.turns import make_turn
from dragoman.session_ids import client_session_id, hub_session_id
from dragoman.store import runs as rows
from dragoman.store.sessions import Session
from dragoman.store.store import Store
from dragoman.unfold import START_POSITION, FoldPosition
from dragoman.wire.ui.client_request import (
    ChatAction,
    ChatRequest,
    ClientApprovalAnswer,
    ContinueAnswer,
)

log = logging.getLogger(__name__)
REPLAY_SECONDS = 60.0
DISCONNECT_WAIT = 0.1


class ToolboxFactory(Protocol):
    """Returns the tools of a run: the operations that its agent pins, and the front end's tools.

    A protocol, because the layer of `HubServices.toolbox` is above this one.
    """

    async def __call__(
        self, pinned: Sequence[str], client: Sequence[Tool], *, context: Context
    ) -> Toolbox: ...


class RunRegistry:
    """All runs of this process."""

    def __init__(
        self,
        store: Store,
        agents: AgentRegistry,
        *,
        toolbox: ToolboxFactory,
        billing: Billing,
        settings: RunSettings,
        cut_off: CutOffRuns,
    ) -> None:
        self.agents = agents
        """May be replaced: later runs use the new one."""
        self.billing = billing
        self._store = store
        self.work = ActiveWork()
        """Where runs are registered, to end when their key does."""
        self._work_removers: dict[str, Callable[[], None]] = {}
        self.toolbox = toolbox
        self.settings = settings
        self._active: dict[str, HubRun] = {}
        self._undelivered: set[str] = set()
        self._starting: dict[str, ChatAction] = {}
        self._session_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closed = False
        self.subagent_answers = store.subagent_answers
        self.remote: RemoteRuns | None = None
        """The runs of other hosts; None when none shares the database."""
        self.recovery = CrashRecovery(store, self, runs=cut_off)
        """The runs that a crash cut off, and that have not gone on yet."""

    def get_active(self, session_id: str) -> HubRun | None:
        """Return the active run of the session."""
        return self._active.get(session_id)

    async def find_active(self, session_id: str) -> ActiveRun | None:
        """Return the active run of the session, wherever it is; one that a crash cut off goes on first.

        Raises HostUnreachable or Unavailable when the other host does not answer.
        """
        await self.recovery.settle(session_id)
        return await self._find_run(session_id)

    async def _find_run(self, session_id: str) -> ActiveRun | None:
        run = self._active.get(session_id)
        return run if run is not None or self.remote is None else await self.remote.find(session_id)

    async def is_running(self, session_id: str) -> bool:
        """Return whether the session has an active run, here or at another host."""
        is_here = session_id in self._active
        return is_here or (self.remote is not None and await self.remote.has_run(session_id))

    async def current_message(self, session_id: str) -> Message | None:
        """Return the message that the session's run is writing; None without one, or if its host is mute."""
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
        """Return, once, whether nobody has seen the end of a session's last run: its host knows."""
        if self.remote is not None and run.host not in (None, self._store.host_id):
            return await self.remote.take_undelivered(run)
        return self.take_undelivered(run.session_id)

    def take_undelivered(self, session_id: str) -> bool:
        """Return, once, whether nobody has seen the end of the session's last run, one of this host."""
        is_undelivered = session_id in self._undelivered
        self._undelivered.discard(session_id)
        return is_undelivered

    def check_model(self, session: Session) -> None:
        """Raise BadRequest when the session's agent or model is unknown."""
        self.agents.resolve(agent=session.agent, model=session.model, select=False)

    async def start_run(self, request: ChatRequest, identity: Identity) -> StartedRun | StoredAnswer:
        """Start the run of a request. When this returns, it is stored together with the user message.

        A request that was made before starts nothing: the result is its run, or its stored answer.
        Raises RunActive when the session is busy (unless the request queues), Forbidden, NotFound, Conflict,
        BadRequest, Unavailable.
        """
        session_id = hub_session_id(request.session_id, owner=identity.owner)
        lock = self._session_locks.get(session_id)
        await self.recovery.settle(session_id, client_session_id(session_id))
        is_repeat = is_same_action(self._starting.get(session_id), request.action)
        if request.when_busy == "refuse" and lock is not None and lock.locked() and not is_repeat:
            self._raise_busy(session_id)
        async with self._locked(session_id, request.action):
            while True:
                session = await self._store.sessions.get_own(session_id, owner=identity.owner)
                request = replace(request, session_id=session.id if session is not None else session_id)
                active = None if session is None else await self._find_run(session.id)
                repeated = None if session is None else await self._find_repeated(request, active)
                if repeated is not None:
                    return repeated
                await self._wait_until_free(request, active)
                with suppress(*self._retried):
                    return StartedRun(await self._prepare_run(request, session, identity=identity))

    @asynccontextmanager
    async def _locked(self, session_id: str, action: ChatAction) -> AsyncIterator[None]:
        """Let one request at a time start a run of the session."""
        async with self._session_locks.setdefault(session_id, asyncio.Lock()):
            self._starting[session_id] = action
            try:
                yield
            finally:
                del self._starting[session_id]

    @property
    def _retried(self) -> Sequence[type[RunActive]]:
        """The error of a start that is tried again: another host was faster and has the session's run."""
        return () if self.remote is None else (RunActive,)

    async def _find_repeated(
        self, request: ChatRequest, active: ActiveRun | None
    ) -> StartedRun | StoredAnswer | None:
        """Return the run or the answer of a request that was made before. Raises Conflict, NotFound."""
        session_id, action = request.session_id, request.action
        stored = await self._store.messages.list(session_id)
        # It ended meanwhile: its last parts are not in these.
        if isinstance(active, HubRun) and self._active.get(session_id) is not active:
            active, stored = None, await self._store.messages.list(session_id)
        if isinstance(action, ContinueAnswer):
            if active is not None:
                return self._find_running_continuation(action, stored, active=active)
            return await self._find_stored_continuation(action, stored, session_id=session_id)
        answer = repeated_message(action, stored)
        if answer is None:
            return None
        if active is not None and active.row.message_id == answer.id:
            return StartedRun(active, replay="message")
        return await self._stored_answer(session_id, answer)

    def _find_running_continuation(
        self, action: ContinueAnswer, stored: Sequence[Message], *, active: ActiveRun
    ) -> StartedRun | None:
        if active.action_hash == hash_action(action):
            return StartedRun(active, replay="run")
        position = continued_position(action, active)
        if position is not None:
            return StartedRun(active, replay=position)
        earlier = [message for message in stored if message.id != active.row.message_id]
        plan = make_plan(action, [*earlier, active.message()], new_id="")
        if not plan.input_events:  # an old tab must not stop the run
            self._raise_busy(active.row.session_id, active)
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
    ) -> StoredAnswer | None:
        """Return the answer of the message's last run."""
        run = await self._store.runs.get_last(session_id, message_id=message.id)
        return None if run is None else StoredAnswer(run.id, message, position, run.error)

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
        if await self.is_running(row.session_id):
            raise RunActive(row.session_id, row.id)
        message = await self._store.messages.get(row.session_id, row.message_id)
        return row if message is not None and is_waiting_for(message, approval) else None

    async def go_on_after_crash(self, cut_off: CutOffRun) -> HubRun:
        """Let a run that a crash cut off go on from its message.

        Raises Unauthorized, Forbidden or BadRequest when its key, agent or model is gone, Unavailable.
        """
        row = cut_off.row
        identity = await find_requester(self._store, row, key_id=row.key_id, owner=row.owner)
        # A request that has the lock may wait for this run. Of hosts the database lets one begin a run.
        lock = self._session_locks.setdefault(row.session_id, asyncio.Lock())
        async with lock if self.remote is None else nullcontext():
            session = await self._store.sessions.get_own(row.session_id, owner=row.owner)
            return await self._prepare_run(continuation(row), session, identity=identity, cut_off=cut_off)

    async def stop_run(self, session_id: str, reason: str) -> ActiveRun | None:
        """Stop the session's run and wait until it is closed. Returns None when there is none."""
        run = await self.find_active(session_id)
        if run is not None:
            await run.stop_and_wait(reason)
        return run

    @property
    def active_count(self) -> int:
        """The number of active runs."""
        return len(self._active)

    def refuse_new(self) -> None:
        """Accept no more runs; the active ones go on."""
        self._closed = True

    async def drain(self, seconds: float) -> None:
        """Accept no more runs, and wait up to `seconds` for the active ones to end."""
        self._closed = True
        endings = [asyncio.ensure_future(run.done.wait()) for run in self._active.values()]
        if endings:
            _, pending = await asyncio.wait(endings, timeout=seconds)
            for ending in pending:
                ending.cancel()

    def stop_unwritten(self) -> None:
        """Stop all runs without writing anything of them: other hosts have them."""
        for run in list(self._active.values()):
            run.stop_unwritten()

    async def close(self) -> None:
        """Stop all runs and accept no more. Where hosts share the database, another one goes on with them."""
        self._closed = True
        if self.remote is not None:
            self.remote.close()
        active = list(self._active.values())
        for run in active:
            if self.recovery.may_hand_over(run.row):
                run.release()
            else:
                run.stop("the hub is shutting down")
        for run in active:
            await run.done.wait()
            if run.released is not None:
                with suppress(StoreError, Unavailable):  # the hosts look for such runs from time to time
                    await self.recovery.enqueue(run.released)

    def _raise_busy(self, session_id: str, active: ActiveRun | None = None) -> None:
        run = active or self._active.get(session_id) or self._active.get(client_session_id(session_id))
        row = None if run is None else run.row
        if row is None or session_id not in (row.session_id, hub_session_id(row.session_id, owner=row.owner)):
            raise RunActive(session_id, "waiting")
        raise RunActive(session_id, row.id)

    async def _wait_until_free(self, request: ChatRequest, run: ActiveRun | None) -> None:
        """Wait for the active run to end; stop it if it is abandoned; or raise RunActive."""
        if run is None:
            return
        if run.is_unattended:  # nobody could know of it
            await run.wait_ended()
            return
        is_abandoned = run.is_abandoned
        if request.when_busy == "refuse" and not is_abandoned:
            # A client that stops and sends again may be faster than its own disconnect.
            is_abandoned = await run.wait_abandoned(DISCONNECT_WAIT)
        if is_abandoned:
            await run.stop_and_wait("replaced by a new message")
        elif request.when_busy == "refuse":
            self._raise_busy(request.session_id, run)
        else:
            await run.wait_ended()

    async def _prepare_run(
        self,
        request: ChatRequest,
        existing: Session | None,
        *,
        identity: Identity,
        cut_off: CutOffRun | None = None,
    ) -> HubRun:
        """Start a run, or let one go on that a crash `cut_off`."""
        self._check_open()
        now, action = time.time(), request.action
        session = existing or new_session(request, owner=identity.owner, now=now)
        resolved = self._resolve_agent(request, session, identity=identity)
        agent = resolved.agent
        stored = await self._store.messages.list(session.id) if existing else ()
        if cut_off is None:
            run_plan = make_plan(action, stored, new_id=new_id("msg"))
            row = new_row(request, run_plan, agent=agent, identity=identity, now=now)
        else:
            run_plan, row = plan_after_crash(cut_off.answer, stored), cut_off.row
        context = Context(
            identity=identity,
            run_id=row.id,
            session_id=row.session_id,
            agent=agent.name,
            deadline=deadline(agent, row),
            budget=await remaining_budget(
                agent, run_plan.assistant, session_id=row.session_id, store=self._store, is_new=not stored
            ),
            for_model=True,
            key_scope=row.message_id,
            earlier_calls=None if cut_off is None else cut_off.calls,
        )
        tools = (*agent.client_tools, *request.tools)
        toolbox = await self.toolbox(agent.operations, tools, context=context)
        run_plan = replace(run_plan, input_events=await store_answers(run_plan, toolbox, by=identity))
        await self._store_begin(row, run_plan, session=session, toolbox=toolbox, identity=identity)
        turn = make_turn(
            resolved, run_plan, context=context, toolbox=toolbox, billing=self.billing, settings=self.settings
        )
        run = HubRun(
            row,
            Loop(turn),
            action=action if cut_off is None else None,
            store=self._store,
            settings=self.settings,
            on_end=self._remove_run,
        )
        self._register(run, identity)
        return run

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the hub is shutting down", hint="retry the request")

    async def _store_begin(
        self,
        row: rows.RunRecord,
        run_plan: RunPlan,
        *,
        session: Session,
        toolbox: Toolbox,
        identity: Identity,
    ) -> None:
        """Store the run with the messages that its plan adds, changes and drops; or that it goes on."""
        if run_plan.restored is not None:
            await self._store.runs.resume(row, run_plan.assistant)
            return
        await self._store.runs.create(
            row,
            assistant=with_inputs(run_plan),
            user=run_plan.user,
            session=session,
            drop_from=run_plan.drop_from,
        )
        if run_plan.withdrawn:
            await withdraw_requests(
                run_plan, session.id, toolbox=toolbox, identity=identity, store=self._store
            )

    def _resolve_agent(self, request: ChatRequest, session: Session, *, identity: Identity) -> ResolvedAgent:
        """Return the agent of the request. Raises BadRequest for an unknown one, Forbidden for its model."""
        resolved = self.agents.resolve(
            agent=request.agent or session.agent,
            model=request.model or session.model,
            max_steps=session.max_steps,
        )
        require_model_access(identity.models, resolved.agent.model, routing=self.agents.routing)
        return resolved

    def _register(self, run: HubRun, identity: Identity) -> None:
        session_id = run.row.session_id
        self._active[session_id] = run
        if self.remote is not None:
            self.remote.move_here(run)
        self._work_removers[session_id] = self.work.add(identity, run.stop_with_error)
        self._undelivered.discard(session_id)

    def _remove_run(self, run: HubRun) -> None:
        key = run.row.session_id
        self._active.pop(key, None)
        self._work_removers.pop(key)()
        self._store.subagent_answers.purge()
        if not run.tail.follower_count:
            self._undelivered.add(key)
            asyncio.get_running_loop().call_later(REPLAY_SECONDS, self._undelivered.discard, key)
