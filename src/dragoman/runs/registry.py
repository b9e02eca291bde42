"""The board: all runs of this process; begins them, finds them, stops them. One at a time a session."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from dragoman.agent.agent_registry import AgentRegistry, ResolvedAgent
from dragoman.agent.approvals import (
    ApprovalAnswer,
    pending_questions,
    question_answer,
    response_event,
    stored_answer,
)
from dragoman.agent.context.policy import ContextFitter, ContextSizes
from dragoman.agent.context.summary import Summariser
from dragoman.agent.loop import Loop
from dragoman.agent.spec import AgentSpec
from dragoman.agent.toolbox import Toolbox
from dragoman.agent.turn import TurnSpec
from dragoman.errors import DragomanError, Forbidden, RunActive, Unauthorized, Unavailable
from dragoman.events import Event, ToolApprovalResponse
from dragoman.fold import Fold
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.messages import Message, ToolPart
from dragoman.model_request import Tool
from dragoman.operations.access import require_owner
from dragoman.operations.approval import ApprovalRequest
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context
from dragoman.providers.provider import Provider
from dragoman.providers.routing import require_model_access
from dragoman.runs.metered import Till
from dragoman.runs.plan import RunPlan, make_plan, preparing, remaining_budget
from dragoman.runs.run import HubRun, RunSettings
from dragoman.store import runs as rows
from dragoman.store.sessions import Session
from dragoman.store.store import Store
from dragoman.wire.ui.client_request import ChatRequest, ClientApprovalAnswer, ContinueAnswer

log = logging.getLogger(__name__)

UNDELIVERED_SECONDS = 60.0
DISCONNECT_WAIT = 0.1
RECALL_OPERATION = "history.search"


class ToolboxFactory(Protocol):
    """Gives what a model can call: what its agent pins, and the front end's tools."""

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
        till: Till,
        settings: RunSettings,
    ) -> None:
        self.agents = agents
        """May be replaced: runs that begin from then on go by the new one."""
        self.till = till
        self._store = store
        self.toolbox = toolbox
        self.settings = settings
        self._active: dict[str, HubRun] = {}
        self._undelivered: dict[str, HubRun] = {}
        self._session_locks: dict[str, asyncio.Lock] = {}
        self._closed = False

    def get_active(self, session_id: str) -> HubRun | None:
        """The run that the session is busy with."""
        return self._active.get(session_id)

    def get(self, run_id: str) -> HubRun | None:
        """The run of this id, while it is under way."""
        return next((run for run in self._active.values() if run.row.id == run_id), None)

    def get_resumable(self, session_id: str) -> HubRun | None:
        """The run to follow again: the active one or, once, one that ended with nobody there a minute ago."""
        return self._active.get(session_id) or self._undelivered.pop(session_id, None)

    def check_model(self, session: Session) -> None:
        """BadRequest when the session's agent or model is none that the hub has."""
        self.agents.resolve(agent=session.agent, model=session.model)

    async def start_run(self, request: ChatRequest, identity: Identity) -> HubRun:
        """Begin the run that a request asks for. It is on disk, with the user's message, when this returns.

        Raises RunActive when the session is busy (unless the request queues), Forbidden, NotFound, Conflict,
        BadRequest, Unavailable.
        """
        gate = self._session_locks.setdefault(request.session_id, asyncio.Lock())
        if request.when_busy == "refuse" and gate.locked():
            self._raise_busy(request.session_id)
        try:
            async with gate:
                session = await self._stored_session(request, identity)
                await self._wait_until_free(request)
                return await self._prepare_run(request, session, identity=identity)
        finally:
            if not gate.locked():
                self._session_locks.pop(request.session_id, None)

    async def resume(self, approval: ApprovalRequest) -> bool:
        """Go on with the answer that waited for this approval; False when it does not wait, or cannot.

        RunActive or Unavailable when it cannot now.
        """
        row = await self._store.runs.get(approval.run_id or "")
        if row is None or approval.tool_call_id is None or approval.status in ("pending", "used"):
            return False
        busy = self._active.get(row.session_id)
        if busy is not None:
            raise RunActive(row.session_id, busy.row.id)
        message = await self._store.messages.get(row.session_id, row.message_id)
        if message is None or not _is_waiting_for(message, approval):
            return False
        word = stored_answer(approval)
        said = ClientApprovalAnswer(word.id, approval.tool_call_id, word.approved, word.text)
        request = ChatRequest(
            session_id=row.session_id,
            action=ContinueAnswer(row.message_id, answers=(said,)),
            model=row.model,
            agent=row.agent,
        )
        try:
            await self.start_run(request, await self._requester(approval))
        except (RunActive, Unavailable):
            raise
        except DragomanError as error:
            log.info("session %s does not go on after its approval: %s", row.session_id, error.message)
            return False
        return True

    async def _requester(self, approval: ApprovalRequest) -> Identity:
        """Who asked for it, with the key of then and all that holds for that. Unauthorized, Forbidden."""
        if approval.key_id is None:
            return Identity(owner=approval.owner)
        key = await self._store.keys.get(approval.key_id)
        if key is None or not key.is_valid(time.time()):
            raise Unauthorized(f"the key {approval.key_id!r}, with which it was asked for, is good no more")
        if not key.identity.may("chat"):
            raise Forbidden(f"the key {approval.key_id!r}, with which it was asked for, is for chats no more")
        return key.identity

    async def stop_run(self, session_id: str, reason: str) -> HubRun | None:
        """Stop the session's run and wait until it is closed; None when there was none."""
        run = self._active.get(session_id)
        if run is not None:
            run.stop(reason)
            await run.done.wait()
        return run

    @property
    def active_count(self) -> int:
        """How many runs are under way."""
        return len(self._active)

    async def drain(self, seconds: float) -> None:
        """Begin no more runs; those under way get so many seconds to end by themselves."""
        self._closed = True
        endings = [asyncio.ensure_future(run.done.wait()) for run in self._active.values()]
        if endings:
            _, left = await asyncio.wait(endings, timeout=seconds)
            for ending in left:
                ending.cancel()

    async def close(self) -> None:
        """Stop all runs; no new ones begin."""
        self._closed = True
        for run in list(self._active.values()):
            run.stop("the hub is shutting down")
        for run in list(self._active.values()):
            await run.done.wait()

    def _raise_busy(self, session_id: str) -> None:
        run = self._active.get(session_id)
        raise RunActive(session_id, run.row.id if run else "waiting")

    async def _stored_session(self, request: ChatRequest, identity: Identity) -> Session | None:
        """The session as it is stored; Forbidden when it is another's."""
        known = await self._store.sessions.get(request.session_id)
        if known is not None:
            require_owner(identity.owner, known.owner, resource=f"session {request.session_id!r}")
        return known

    async def _wait_until_free(self, request: ChatRequest) -> None:
        """Wait for the active run, stop it if nobody follows it any more, or refuse."""
        run = self._active.get(request.session_id)
        if run is None:
            return
        if request.when_busy == "refuse" and not run.is_abandoned:
            with suppress(
                TimeoutError
            ):  # a client that stopped and sends again may be faster than its own hang-up
                await asyncio.wait_for(run.no_followers.wait(), DISCONNECT_WAIT)
        if run.is_abandoned:
            run.stop("a new message took its place")
        elif request.when_busy == "refuse":
            self._raise_busy(request.session_id)
        await run.done.wait()

    async def _prepare_run(
        self, request: ChatRequest, existing: Session | None, *, identity: Identity
    ) -> HubRun:
        if self._closed:
            raise Unavailable("the hub is shutting down", hint="try again in a moment")
        now = time.time()
        session = existing or Session(
            id=request.session_id, owner=identity.owner, created_at=now, updated_at=now
        )
        pick = self.agents.resolve(
            agent=request.agent or session.agent,
            model=request.model or session.model,
            max_steps=session.max_steps,
        )
        require_model_access(identity.models, pick.agent.model, routing=self.agents.routing)
        client = (*pick.agent.client_tools, *request.tools)
        asking = Context(identity=identity, agent=pick.agent.name)
        toolbox = await self.toolbox(pick.agent.operations, client, context=asking)
        stored = await self._store.messages.list(session.id) if existing else ()
        begun = make_plan(request.action, stored, new_id=new_id("msg"))
        begun = replace(
            begun,
            input_events=[
                await _record_answer(each, begun, toolbox=toolbox, by=identity) for each in begun.input_events
            ],
        )
        budget = await remaining_budget(pick.agent, begun.assistant, session_id=session.id, store=self._store)
        row = rows.RunRecord(
            id=new_id("run"),
            session_id=session.id,
            message_id=begun.assistant.id,
            owner=identity.owner,
            started_at=now,
            agent=pick.agent.name,
            model=pick.agent.model,
        )
        await self._store.runs.create(
            row, assistant=begun.assistant, user=begun.user, session=session, drop_from=begun.drop_from
        )
        context = _run_context(row, pick.agent, identity=identity, budget=budget)
        return self._add_run(row, self._make_loop(pick, run_plan=begun, toolbox=toolbox, context=context))

    def _make_loop(
        self, resolved: ResolvedAgent, *, run_plan: RunPlan, toolbox: Toolbox, context: Context
    ) -> Loop:
        """The loop of a run, its model paid for by whom the run is for."""
        provider = self.till.charge(
            resolved.provider, resolved.model, asked=resolved.agent.model, context=context
        )
        return Loop(
            TurnSpec(
                agent=resolved.agent,
                provider=provider,
                model=resolved.model,
                history=run_plan.history,
                fold=Fold(run_plan.assistant),
                toolbox=toolbox,
                context=context,
                input_events=run_plan.input_events,
                tracing=self.settings.tracing,
                hooks=self.settings.hooks,
                context_window=context_fitter(
                    resolved,
                    provider,
                    recall=partial(toolbox.callable_name, RECALL_OPERATION, context=context),
                ),
                stop_condition=resolved.agent.stop_condition,
                prepare_step=preparing(
                    resolved.agent, self.agents, metered=provider, identity=context.identity
                ),
                spending=provider.bill,
                output=resolved.agent.output,
            )
        )

    def _add_run(self, row: rows.RunRecord, loop: Loop) -> HubRun:
        deadline = loop.turn.context.deadline
        run = HubRun(row, loop, store=self._store, settings=self.settings, on_end=self._remove_run)
        if deadline is not None:
            run.stop_at(deadline)
        self._active[row.session_id] = run
        self._undelivered.pop(row.session_id, None)
        return run

    def _remove_run(self, run: HubRun) -> None:
        key = run.row.session_id
        self._active.pop(key, None)
        if run.tail.follower_count:
            return
        self._undelivered[key] = run

        def forget() -> None:
            if self._undelivered.get(key) is run:
                del self._undelivered[key]

        asyncio.get_running_loop().call_later(UNDELIVERED_SECONDS, forget)


def context_fitter(
    resolved: ResolvedAgent, provider: Provider, *, recall: Callable[[], str | None] = lambda: None
) -> ContextFitter | None:
    """What shortens the conversation; a summary is made, and paid for, like any answer of the run.

    `recall` gives the tool that finds what was left out, if there is one.
    """
    if resolved.agent.context.kind == "off":
        return None
    policy = replace(resolved.agent.context, recall=recall())
    if policy.kind == "summarise" and policy.summarise is None:
        policy = replace(policy, summarise=Summariser(provider, resolved.model))
    sizes = resolved.agent.context_sizes

    async def known(asked: Provider) -> ContextSizes | None:
        """The sizes of the models of whoever is asked: a step may ask another provider."""
        return None if sizes is None else partial(sizes, asked.name)

    return ContextFitter(policy, sizes=known)


def _is_waiting_for(message: Message, approval: ApprovalRequest) -> bool:
    """Whether a call of the message has this request for approval, and no answer."""
    if any(part.id == approval.id for part in pending_questions(message.parts).values()):
        return True
    calls = [part for part in message.parts if isinstance(part, ToolPart)]
    waiting = [call.approval for call in calls if call.state == "approval-requested"]
    return any(asked is not None and asked.id == approval.id for asked in waiting)


def _run_context(
    row: rows.RunRecord, agent: AgentSpec, *, identity: Identity, budget: Budget | None
) -> Context:
    """What all calls of a run stand under."""
    now = asyncio.get_running_loop().time()
    return Context(
        identity=identity,
        run_id=row.id,
        session_id=row.session_id,
        agent=agent.name,
        deadline=None if agent.timeout is None else now + agent.timeout,
        budget=budget,
        for_model=True,
    )


async def _record_answer(event: Event, run_plan: RunPlan, *, toolbox: Toolbox, by: Identity) -> Event:
    """What was said of a call, as it is kept: who was faster, or may not answer, does not change it."""
    said = question_answer(event)
    if said is not None:
        word = said[1]
    elif isinstance(event, ToolApprovalResponse):
        word = ApprovalAnswer(event.approval_id, event.approved, event.reason)
    else:
        return event
    kept = await toolbox.answer_approval(word.id, approved=word.approved, by=by, reason=word.text)
    return response_event(stored_answer(kept), run_plan.assistant.parts)
