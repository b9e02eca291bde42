"""Makes runs: resolves the agent, plans the turn, stores the run's row with its messages, starts its loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

from msgspec.structs import replace

from dragoman.accounts.payment import Billing
from dragoman.agent.agent_registry import AgentRegistry, ResolvedAgent
from dragoman.agent.context.policy import summarise_above
from dragoman.agent.hooks.invocation import TURN_HOOKS
from dragoman.agent.loop import Loop
from dragoman.agent.requested_format import requested_output
from dragoman.agent.spec import AgentSpec
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.errors import StoreError, Unavailable
from dragoman.fold import merge_metadata
from dragoman.identity import Identity
from dragoman.messages import Message
from dragoman.model_request import Tool
from dragoman.operations.context import Context
from dragoman.providers.routing import require_model_access
from dragoman.runs.active_run import StartedRun
from dragoman.runs.crash_recovery import CutOffRun
from dragoman.runs.deduplication import StoredAnswer
from dragoman.runs.history_changes import RunPlan, remaining_budget
from dragoman.runs.preparation import (
    StoredSession,
    deadline,
    new_session,
    plan_run,
    store_answers,
    wait_stored,
    with_inputs,
    withdraw_requests,
)
from dragoman.runs.run import HubRun, RunSettings
from dragoman.runs.runners.runner_runs import RunnerRuns
from dragoman.runs.turn_factory import add_briefing, make_turn
from dragoman.store import runs as rows
from dragoman.store.connection import DatabaseJob
from dragoman.store.sessions.run_ends import RunEnding
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.wire.ui.client_request import ChatRequest, ContinueAnswer


class ToolboxFactory(Protocol):
    """Returns the tools of a run: the operations that its agent pins, and the front end's tools.

    A protocol, because the layer of `HubServices.toolbox` is above this one.
    """

    async def __call__(
        self, pinned: Sequence[str], client: Sequence[Tool], *, context: Context
    ) -> Toolbox: ...


ContextBinder: TypeAlias = Callable[[Context], Awaitable[Context]]


class RunFactory:
    """Makes the runs of a hub. `agents` and `billing` may be replaced: later runs use the new ones."""

    def __init__(
        self,
        store: Store,
        agents: AgentRegistry,
        *,
        toolbox: ToolboxFactory,
        billing: Billing,
        settings: RunSettings,
    ) -> None:
        self.agents = agents
        self.billing = billing
        self.toolbox = toolbox
        self.settings = settings
        self.bind_context: ContextBinder | None = None
        """Binds the calls of a run to what it is a part of, such as a task; None without teams."""
        self.runners: RunnerRuns | None = None
        """The runs of sessions that a runner answers; None where the hub takes no runners."""
        self._store = store

    def start(
        self,
        request: ChatRequest,
        existing: StoredSession | None,
        *,
        identity: Identity,
        on_end: Callable[[HubRun], None],
        cut_off: CutOffRun | None = None,
    ) -> Awaitable[HubRun]:
        """Store and start a run, or continue one that a crash `cut_off`.

        `on_end` is called when it has ended. Raises RunActive, NotFound, Conflict, BadRequest, Forbidden.
        """
        if self.runners is None or existing is None or not existing.row.runner:
            return self._start_agent(request, existing, identity=identity, on_end=on_end, cut_off=cut_off)
        return self.runners.start(request, existing.row, identity=identity, on_end=on_end, cut_off=cut_off)

    def start_anywhere(
        self,
        request: ChatRequest,
        existing: StoredSession | None,
        *,
        identity: Identity,
        on_end: Callable[[HubRun], None],
        claim: DatabaseJob[None] | None = None,
    ) -> Awaitable[HubRun | StartedRun | StoredAnswer]:
        """Start a run here, or at the host that the session's runner is connected to. Raises as `start`.

        `claim` is run in the transaction that stores the run.
        """
        if self.runners is None or existing is None or not existing.row.runner:
            return self._start_agent(request, existing, identity=identity, on_end=on_end, claim=claim)
        return self.runners.start_anywhere(
            request, existing.row, identity=identity, on_end=on_end, claim=claim
        )

    async def _start_agent(
        self,
        request: ChatRequest,
        existing: StoredSession | None,
        *,
        identity: Identity,
        on_end: Callable[[HubRun], None],
        cut_off: CutOffRun | None = None,
        claim: DatabaseJob[None] | None = None,
    ) -> HubRun:
        """Start a run that an agent of the hub answers."""
        request = await self._inherit_settings(request, existing)
        session = existing.row if existing else new_session(request, owner=identity.owner, now=time.time())
        billing, settings = self.billing, self.settings
        agent = (resolved := self._resolve_agent(request, session, identity=identity)).agent
        stored = await self._read_history(request, existing)
        run_plan, row = await plan_run(request, stored, agent=agent, identity=identity, cut_off=cut_off)
        context = Context(
            identity=identity,
            run_id=row.id,
            session_id=row.session_id,
            agent=agent.name,
            deadline=deadline(agent, row),
            budget=await remaining_budget(
                agent, run_plan.assistant, row=row, store=self._store, is_new=not stored
            ),
            for_model=True,
            key_scope=row.message_id,
            replayed_calls=None if cut_off is None else cut_off.calls,
        )
        if self.bind_context is not None:
            context = await self.bind_context(context)
        toolbox = await self.toolbox(agent.operations, (*agent.client_tools, *request.tools), context=context)
        run_plan = replace(run_plan, input_events=await store_answers(run_plan, toolbox, by=identity))
        storing = await self._store_begin(row, run_plan, session=session, claim=claim)
        try:
            if run_plan.withdrawn or agent.briefing is not None:
                run_plan = await self._prepare_turn(run_plan, agent, context=context, toolbox=toolbox)
            turn = make_turn(
                resolved, run_plan, context=context, toolbox=toolbox, billing=billing, settings=settings
            )
        except BaseException:
            if cut_off is None:
                await asyncio.shield(self._close_unbegun(row, run_plan, storing=storing))
            raise
        action = request.action if cut_off is None else None
        run = HubRun(row, Loop(turn), action=action, store=self._store, settings=settings, on_end=on_end)
        if storing is not None:
            await self._await_begin(run, storing)
        return run

    async def _prepare_turn(
        self, run_plan: RunPlan, agent: AgentSpec, *, context: Context, toolbox: Toolbox
    ) -> RunPlan:
        """Decline the requests that the run passes over, and add the briefing of its agent."""
        if run_plan.withdrawn:
            await withdraw_requests(run_plan, context, toolbox=toolbox, store=self._store)
        if agent.briefing is not None:
            run_plan = await add_briefing(run_plan, agent.briefing, context=context)
        return run_plan

    async def _close_unbegun(
        self, row: rows.RunRecord, run_plan: RunPlan, *, storing: asyncio.Future[None] | None
    ) -> None:
        """Close a run that is stored and cannot begin; otherwise its session would wait for it for ever."""
        if storing is not None:
            await wait_stored(storing)
        message = with_inputs(run_plan)
        metadata = merge_metadata(message.metadata, {"finishReason": "error"})
        job = self._store.messages.replace_job(row.session_id, replace(message, metadata=metadata))
        ending = RunEnding(
            status="failed", finished_at=time.time(), finish_reason="error", error="the run could not begin"
        )
        with suppress(StoreError, Unavailable):  # it is written once the database is up again
            await self._store.runs.finish(row.id, ending, extra_job=job)

    async def _read_history(self, request: ChatRequest, existing: StoredSession | None) -> Sequence[Message]:
        """Return the messages of a session. One that is known to be empty is not read."""
        if existing is None or (request.is_first and existing.row.updated_at == existing.row.created_at):
            return ()
        if existing.messages is not None:
            return existing.messages
        return await self._store.messages.list(existing.row.id)

    async def _await_begin(self, run: HubRun, storing: asyncio.Future[None]) -> None:
        """Begin the run once it is stored; drop it if it cannot be. Raises as `RunRepository.create`."""
        run.await_begin()
        try:
            await wait_stored(storing)
        except BaseException:
            run.abandon()
            raise
        self._store.runs.note_created()
        run.begin()

    async def _inherit_settings(self, request: ChatRequest, existing: StoredSession | None) -> ChatRequest:
        """Return a request that continues an answer with the settings that the answer was begun with."""
        action = request.action
        if request.background and request.webhook is None:
            return replace(request, webhook=self.settings.webhook)
        if existing is None or not isinstance(action, ContinueAnswer) or request.background:
            return request
        earlier = await self._store.runs.get_last(existing.row.id, message_id=action.message_id)
        if earlier is None:
            return request
        return replace(
            request,
            background=earlier.background,
            webhook=request.webhook or earlier.webhook,
            compact_threshold=request.compact_threshold or earlier.compact_threshold,
        )

    async def _store_begin(
        self,
        row: rows.RunRecord,
        run_plan: RunPlan,
        *,
        session: Session,
        claim: DatabaseJob[None] | None,
    ) -> asyncio.Future[None] | None:
        """Store the run with the messages that its plan adds, changes and drops; or that it continues.

        Return a future of the write if the model may be asked before it is done. Return None after the write
        where it may well fail (another host may be faster), or where other steps come before the answer.
        """
        runs = self._store.runs
        if run_plan.restored is not None:
            await runs.resume(row, run_plan.assistant)
            return None
        storing = runs.submit_create(
            row,
            assistant=with_inputs(run_plan),
            user=run_plan.user,
            session=session,
            drop_from=run_plan.drop_from,
            extra_job=claim,
        )
        is_simple = not run_plan.withdrawn and not run_plan.input_events and claim is None
        has_hooks = self.settings.hooks is not None and self.settings.hooks.has(*TURN_HOOKS)
        if is_simple and self._store.host_id is None and not has_hooks:
            return storing
        await wait_stored(storing)
        runs.note_created()
        return None

    def _resolve_agent(self, request: ChatRequest, session: Session, *, identity: Identity) -> ResolvedAgent:
        """Return the agent of the request. Raises BadRequest for an unknown one, Forbidden for its model."""
        resolved = self.agents.resolve(
            agent=request.agent or session.agent,
            model=request.model or session.model,
            max_steps=session.max_steps,
        )
        require_model_access(identity.models, resolved.agent.model, routing=self.agents.routing)
        if request.compact_threshold is not None:
            context_policy = summarise_above(resolved.agent.context, request.compact_threshold)
            resolved = resolved._replace(agent=replace(resolved.agent, context=context_policy))
        if request.output_format is not None:
            output = requested_output(request.output_format)
            resolved = resolved._replace(agent=replace(resolved.agent, output=output))
        return resolved
