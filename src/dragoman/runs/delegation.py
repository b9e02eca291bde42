"""Delegation: the turns of agents that work for other agents, or that somebody calls as an operation."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from dragoman.agent.profile import Profile
from dragoman.agent.subagent import Assignment, Subagent
from dragoman.agent.turn import Turn
from dragoman.fold import Fold
from dragoman.ids import new_id
from dragoman.messages import Message
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.providers.routing import permit
from dragoman.runs.board import Board, window
from dragoman.runs.plan import preparing


class Delegation:
    """Makes operations of a hub's agents. What they take is paid for by whom the call is for."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def operation(self, agent: Profile) -> Operation:
        """The agent as an operation; it is looked up again when it is called."""

        async def begin(assignment: Assignment) -> Turn:
            return await self._turn(agent.name, assignment)

        return Subagent(agent.name, begin).operation(agent.description or "", timeout=agent.timeout)

    async def _turn(self, name: str, assignment: Assignment) -> Turn:
        board, inside = self._board, assignment.context
        pick = board.roster.pick(agent=name)
        permit(inside.identity.models, pick.agent.model, routing=board.roster.routing)
        context = bounded(inside, pick.agent)
        provider = board.till.charge(pick.provider, pick.model, asked=pick.agent.model, context=context)
        return Turn(
            agent=pick.agent,
            provider=provider,
            model=pick.model,
            history=(assignment.prompt,),
            fold=Fold(assignment.answer or Message(new_id("msg"), "assistant")),
            toolbox=await board.toolbox(pick.agent.operations, (), context=context),
            context=context,
            given=assignment.given,
            tracing=board.settings.tracing,
            hooks=board.settings.hooks,
            window=window(pick, provider),
            stops=pick.agent.stops,
            prepare=preparing(pick.agent, board.roster, metered=provider, identity=inside.identity),
            spending=provider.bill,
            output=pick.agent.output,
            notices=False,
            task=assignment.task,
        )


def bounded(context: Context, agent: Profile) -> Context:
    """The context with the agent's own limits within those that there are."""
    budget, deadline = context.budget, context.deadline
    if agent.max_usd is not None or agent.max_calls is not None:
        budget = Budget(usd=agent.max_usd, calls=agent.max_calls, above=budget)
    if agent.timeout is not None:
        own = asyncio.get_running_loop().time() + agent.timeout
        deadline = own if deadline is None else min(own, deadline)
    return replace(context, budget=budget, deadline=deadline)
