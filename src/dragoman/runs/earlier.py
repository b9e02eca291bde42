"""Earlier runs: what an answer took before it had to wait, which its limits count too."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.agent.profile import Profile
from dragoman.messages import Message
from dragoman.operations.budget import Budget
from dragoman.operations.execution import is_meta
from dragoman.store.store import Store


async def budget_of(agent: Profile, answer: Message, *, session_id: str, store: Store) -> Budget | None:
    """What an answer may take, less what it took in earlier runs; None when it has no limit.

    Model calls count by the usage that was written down, or by the message where that says more.
    """
    if agent.max_usd is None and agent.max_calls is None:
        return None
    budget = Budget(usd=agent.max_usd, calls=agent.max_calls)
    if not answer.parts:
        return budget
    for run in await store.runs.list(session_id):
        if run.message_id == answer.id:
            budget.spent += (await store.usage.totals(run_id=run.id)).cost or 0.0
            made = [call for call in await store.calls.for_run(run.id) if not is_meta(call.record)]
            budget.made += sum(call.status != "pending" for call in made)
    told = answer.metadata.get("cost") if isinstance(answer.metadata, Mapping) else None
    if isinstance(told, int | float):
        budget.spent = max(budget.spent, float(told))
    return budget
