"""The agents of a hub as operations, which other agents and clients can call."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from dragoman.agent.spec import AgentSpec
from dragoman.agent.subagent import Assignment, Subagent
from dragoman.agent.turn_spec import TurnSpec
from dragoman.errors import CallUncertain
from dragoman.ids import new_id
from dragoman.messages import Message
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.providers.routing import require_model_access
from dragoman.runs.history_changes import RunPlan
from dragoman.runs.registry import RunRegistry
from dragoman.runs.turn_factory import add_briefing, make_turn


class AgentOperations:
    """Makes operations of a hub's agents. The owner of a call pays for its model calls."""

    def __init__(self, runs: RunRegistry) -> None:
        self._runs = runs

    def operation(self, name: str, *, description: str, timeout: float | None = None) -> Operation:
        """Return an agent as an operation; its configuration is looked up at each call."""

        async def begin(assignment: Assignment) -> TurnSpec:
            return await self._make_turn(name, assignment)

        subagent = Subagent(name, begin, journal=self._runs.subagent_answers)
        return subagent.operation(description, timeout=timeout)

    async def _make_turn(self, name: str, assignment: Assignment) -> TurnSpec:
        runs, outer = self._runs, assignment.context
        resolved = runs.agents.resolve(agent=name)
        require_model_access(outer.identity.models, resolved.agent.model, routing=runs.agents.routing)
        if assignment.restored is not None and resolved.agent.after_crash == "close":
            raise CallUncertain(f"{name} was interrupted by a crash of the hub and cannot continue")
        context = bounded_context(outer, resolved.agent)
        if assignment.restored is not None and context.budget is not None:
            await runs.factory.billing.meter.shared_budgets.rejoin(context.budget)
        run_plan = RunPlan(
            history=(assignment.prompt,),
            assistant=assignment.answer or Message(new_id("msg"), "assistant"),
            input_events=assignment.input_events,
            is_stored=False,
            restored=assignment.restored,
        )
        if resolved.agent.briefing is not None:
            run_plan = await add_briefing(run_plan, resolved.agent.briefing, context=context)
        turn = make_turn(
            resolved,
            run_plan,
            context=context,
            toolbox=await runs.factory.toolbox(resolved.agent.operations, (), context=context),
            billing=runs.factory.billing,
            settings=runs.factory.settings,
        )
        return replace(turn, adds_notices=False, nested_approvals=assignment.nested_approvals)


def bounded_context(context: Context, agent: AgentSpec) -> Context:
    """Return the context narrowed to the agent's own limits."""
    budget, deadline = context.budget, context.deadline
    if agent.max_usd is not None or agent.max_calls is not None:
        name = None if context.call_id is None else f"call:{context.call_id}"
        budget = Budget(usd=agent.max_usd, calls=agent.max_calls, parent=budget, name=name)
    if agent.timeout is not None:
        own = asyncio.get_running_loop().time() + agent.timeout
        deadline = own if deadline is None else min(own, deadline)
    return replace(context, budget=budget, deadline=deadline)
