"""Delegation: the turns of agents that work for other agents, or that somebody calls as an operation."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from dragoman.agent.spec import AgentSpec
from dragoman.agent.subagent import Assignment, Subagent
from dragoman.agent.turn import TurnSpec
from dragoman.fold import Fold
from dragoman.ids import new_id
from dragoman.messages import Message
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.providers.routing import require_model_access
from dragoman.runs.plan import preparing
from dragoman.runs.registry import RunRegistry, context_fitter


class AgentOperations:
    """Makes operations of a hub's agents. What they take is paid for by whom the call is for."""

    def __init__(self, runs: RunRegistry) -> None:
        self._runs = runs

    def operation(self, agent: AgentSpec) -> Operation:
        """The agent as an operation; it is looked up again when it is called."""

        async def begin(assignment: Assignment) -> TurnSpec:
            return await self._make_turn(agent.name, assignment)

        return Subagent(agent.name, begin).operation(agent.description or "", timeout=agent.timeout)

    async def _make_turn(self, name: str, assignment: Assignment) -> TurnSpec:
        board, inside = self._runs, assignment.context
        pick = board.agents.resolve(agent=name)
        require_model_access(inside.identity.models, pick.agent.model, routing=board.agents.routing)
        context = bounded_context(inside, pick.agent)
        provider = board.till.charge(pick.provider, pick.model, asked=pick.agent.model, context=context)
        return TurnSpec(
            agent=pick.agent,
            provider=provider,
            model=pick.model,
            history=(assignment.prompt,),
            fold=Fold(assignment.answer or Message(new_id("msg"), "assistant")),
            toolbox=await board.toolbox(pick.agent.operations, (), context=context),
            context=context,
            input_events=assignment.input_events,
            tracing=board.settings.tracing,
            hooks=board.settings.hooks,
            context_window=context_fitter(pick, provider),
            stop_condition=pick.agent.stop_condition,
            prepare_step=preparing(pick.agent, board.agents, metered=provider, identity=inside.identity),
            spending=provider.bill,
            output=pick.agent.output,
            adds_notices=False,
            nested_approvals=assignment.nested_approvals,
        )


def bounded_context(context: Context, agent: AgentSpec) -> Context:
    """The context with the agent's own limits within those that there are."""
    budget, deadline = context.budget, context.deadline
    if agent.max_usd is not None or agent.max_calls is not None:
        budget = Budget(usd=agent.max_usd, calls=agent.max_calls, parent=budget)
    if agent.timeout is not None:
        own = asyncio.get_running_loop().time() + agent.timeout
        deadline = own if deadline is None else min(own, deadline)
    return replace(context, budget=budget, deadline=deadline)
