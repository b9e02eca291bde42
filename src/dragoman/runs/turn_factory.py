"""The turn of a run, and of a sub-agent: what the agent loop needs, made from the parts of a hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from dragoman.accounts.payment import Billing, Payment
from dragoman.agent.agent_registry import ResolvedAgent
from dragoman.agent.context.policy import ContextFitter, ContextSizes
from dragoman.agent.context.summary import Summariser
from dragoman.agent.spec import Briefing
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.agent.turn_spec import StepPreparer, TurnSpec
from dragoman.errors import BadRequest, Forbidden, NotFound, ProviderError
from dragoman.fold import Fold
from dragoman.identity import Identity
from dragoman.messages import TextPart
from dragoman.operations.context import Context
from dragoman.providers.model import Model
from dragoman.providers.provider import Provider
from dragoman.providers.routing import ModelRoutes, require_model_access
from dragoman.runs.history_changes import RunPlan
from dragoman.runs.run import RunSettings

RECALL_OPERATION = "history.search"


def make_turn(
    resolved: ResolvedAgent,
    run_plan: RunPlan,
    *,
    context: Context,
    toolbox: Toolbox,
    billing: Billing,
    settings: RunSettings,
) -> TurnSpec:
    """Return the turn that answers a run's plan. Its model calls are paid for by the caller of `context`."""
    agent, payment = resolved.agent, billing.payment(context)

    def recall() -> str | None:
        """Return the tool that finds dropped messages, if there is one."""
        return toolbox.callable_name(RECALL_OPERATION, context=context) if run_plan.is_stored else None

    return TurnSpec(
        agent=agent,
        routes=resolved.routes,
        history=run_plan.history,
        fold=Fold(run_plan.assistant),
        toolbox=toolbox,
        context=context,
        input_events=run_plan.input_events,
        tracing=settings.tracing,
        hooks=settings.hooks,
        context_window=context_fitter(resolved, payment, recall=recall),
        stop_condition=agent.stop_condition,
        prepare_step=step_preparer(resolved, context.identity),
        payment=payment,
        output=agent.output,
        restored=run_plan.restored,
    )


async def add_briefing(run_plan: RunPlan, briefing: Briefing, *, context: Context) -> RunPlan:
    """Return the plan with an agent's briefing before the text of the last message of the user.

    It stands there and not in the instructions, so that those are the same bytes in each run and a
    provider's prompt cache holds for them.
    """
    text = await briefing(context)
    history = list(run_plan.history)
    at = next((at for at in reversed(range(len(history))) if history[at].role == "user"), None)
    if not text or at is None:
        return run_plan
    history[at] = replace(history[at], parts=(TextPart(text), *history[at].parts))
    return replace(run_plan, history=history)


def context_fitter(
    resolved: ResolvedAgent, payment: Payment, *, recall: Callable[[], str | None]
) -> ContextFitter | None:
    """Return the fitter that shortens the conversation. Its summaries are paid for like answers of the run.

    `recall` returns the tool that finds dropped messages, if there is one.
    """
    if resolved.agent.context.kind == "off":
        return None
    policy = replace(resolved.agent.context, recall=recall())
    if policy.kind == "summarise" and policy.summarise is None:
        route = resolved.routes.first
        summariser = Summariser(route.provider, route.model).paid_by(payment, resolved.routes)
        policy = replace(policy, summarise=summariser)
    sizes = resolved.agent.context_sizes

    async def provider_sizes(provider: Provider) -> ContextSizes | None:
        """Return the context sizes of this provider: a step may use another one."""
        return None if sizes is None else partial(sizes, provider.name)

    return ContextFitter(policy, sizes=provider_sizes)


def step_preparer(resolved: ResolvedAgent, identity: Identity) -> StepPreparer | None:
    """Return the preparer that changes each step of the agent; None without `on_prepare_step`."""
    agent, agents = resolved.agent, resolved.registry
    if agent.on_prepare_step is None:
        return None

    def find(model: Model | str) -> tuple[ModelRoutes, Mapping[str, Any]]:
        """Return the routes of a model that `on_prepare_step` names, if the caller may ask it."""
        if not isinstance(model, str):
            raise refused_step("in a hub a step names its model, as provider/model or an alias")
        try:
            other = agents.resolve(agent=agent.name, model=model)
            require_model_access(identity.models, model, routing=agents.routing)
        except (BadRequest, Forbidden, NotFound) as error:
            raise refused_step(error.message) from None
        return other.routes, {}

    return StepPreparer(agent.on_prepare_step, find)


def refused_step(reason: str) -> ProviderError:
    return ProviderError(f"on_prepare_step: {reason}", category="bad_request")
