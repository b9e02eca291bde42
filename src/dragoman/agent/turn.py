"""A turn: all that one answer needs, and who has a say in it while it is made."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.accounts.payment import Payer
from dragoman.agent.hooks.hooks import LoopHooks
from dragoman.agent.input_messages import parse_conversation
from dragoman.agent.spec import AgentSpec
from dragoman.agent.stop_conditions import Condition, SoFar
from dragoman.agent.structured_output import Output
from dragoman.agent.tool_execution import NestedApprovals
from dragoman.agent.toolbox import Toolbox
from dragoman.errors import BadRequest
from dragoman.fold import Fold
from dragoman.messages import Message, ToolPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.operations.context import Context
from dragoman.providers.model import Model
from dragoman.providers.provider import Provider
from dragoman.providers.retry import RetryPolicy
from dragoman.tracing.interface import NO_TRACING, Tracing

Batch = Sequence[e.Event]


class StepRequest(msgspec.Struct, frozen=True):
    """A step about to be taken: who is asked, and what."""

    provider: Provider
    request: ModelRequest


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """What `on_prepare_step` is told: the number of the step (from 1), what was done, what would be asked."""

    number: int
    so_far: SoFar
    model: str
    messages: Sequence[Message]
    instructions: str | None
    tools: Sequence[Tool]
    options: Mapping[str, Any]


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """What `on_prepare_step` changes, for one step; None leaves it as it is.

    `model` is a Model or `provider/model`. `tools` are the names of those that are shown; no other may be
    called. `options` are laid over those that there are.
    """

    model: Any = None
    tools: Sequence[str] | None = None
    messages: Sequence[Message] | None = None
    instructions: str | None = None
    options: Mapping[str, Any] | None = None


class PrepareStep(Protocol):
    """What has a say before each step."""

    async def __call__(self, step: StepRequest, so_far: SoFar, *, number: int) -> StepRequest:
        """The step as it is to be taken."""
        ...


class ContextWindow(Protocol):
    """What keeps a request within the model's context."""

    async def fit(
        self, request: ModelRequest, context: Context, *, provider: Provider
    ) -> tuple[ModelRequest, Batch]:
        """The request as it fits, and the events that say what was dropped."""
        ...

    async def shrink(
        self, request: ModelRequest, context: Context, *, provider: Provider
    ) -> tuple[ModelRequest, Batch]:
        """The same after a provider refused it as too long; no event: there is nothing to drop."""
        ...

    def take_usage(self) -> e.Usage | None:
        """The tokens that this took since it was last asked, such as for summaries."""
        ...


class ExternalInputSource(Protocol):
    """Where calls wait for what somebody outside says of them."""

    async def receive(self, calls: Sequence[ToolPart]) -> Batch:
        """Outputs and answers for some of these calls, as soon as there are any."""
        ...


Clock: TypeAlias = Callable[[], float]
NO_RETRY = RetryPolicy(retries=0)


class TurnSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that one run needs. `history` is what was said before `fold`, which may hold a message already.

    `input_events` are events that come first: outputs and answers that the front end sent for a continued
    message. `stop_condition` end it after a step, `prepare_step` changes a step, `hooks` hear of all.
    `spending` counts what steps cost, and keeps them within the budget. With a `external_inputs` the run
    waits for calls that run elsewhere or want an approval; without one it ends there. `output` is what the
    answer has to be. `retry_policy` is how often a failed request is made again here: not at all, since a
    provider does that itself. `adds_notices`: the message says in words why it was stopped.
    `nested_approvals` is for a turn that is made within a call.
    """

    agent: AgentSpec
    provider: Provider
    model: str
    history: Sequence[Message]
    fold: Fold
    toolbox: Toolbox
    context: Context
    input_events: Batch = ()
    tracing: Tracing = NO_TRACING
    clock: Clock = time.monotonic
    stop_condition: Condition | None = None
    prepare_step: PrepareStep | None = None
    hooks: LoopHooks | None = None
    context_window: ContextWindow | None = None
    spending: Payer | None = None
    external_inputs: ExternalInputSource | None = None
    output: Output[Any] | None = None
    retry_policy: RetryPolicy = NO_RETRY
    adds_notices: bool = True
    nested_approvals: NestedApprovals | None = None


# ---- Preparing: `on_prepare_step`, which may change what one step asks, and of whom.

OnPrepareStep: TypeAlias = Callable[[StepContext], StepChange | Awaitable[StepChange | None] | None]
FindModel: TypeAlias = Callable[[Model | str], Model]


class StepPreparer:
    """Asks a function before each step; `find` gives the model that it names."""

    def __init__(self, function: OnPrepareStep, find_model: FindModel) -> None:
        self._function = function
        self._find_model = find_model

    async def __call__(self, step: StepRequest, so_far: SoFar, *, number: int) -> StepRequest:
        """The step as the function has it."""
        request = step.request
        told = self._function(
            StepContext(
                number=number,
                so_far=so_far,
                model=request.model,
                messages=request.messages,
                instructions=request.instructions,
                tools=request.tools,
                options=request.options,
            )
        )
        change = await told if inspect.isawaitable(told) else told
        if change is None:
            return step
        if not isinstance(change, StepChange):
            raise BadRequest(f"on_prepare_step gives a StepChange or None, got {type(change).__name__}")
        return self._apply_change(step, change)

    def _apply_change(self, step: StepRequest, change: StepChange) -> StepRequest:
        provider, request = step.provider, step.request
        if change.model is not None:
            model = self._find_model(change.model)
            provider = model.provider
            options = {**request.options, **model.options}
            request = replace(request, model=model.name, options=options)
        if change.tools is not None:
            request = replace(request, tools=select_tools(request, change.tools))
        if change.messages is not None:
            request = replace(request, messages=parse_conversation(change.messages))
        if change.instructions is not None:
            request = replace(request, instructions=change.instructions)
        if change.options is not None:
            request = replace(request, options={**request.options, **change.options})
        return StepRequest(provider, request)


def select_tools(request: ModelRequest, names: Sequence[str]) -> tuple[Tool, ...]:
    """The tools of these names. BadRequest for one that there is not."""
    wanted = {name.replace(".", "_") for name in names}
    found = tuple(tool for tool in request.tools if tool.name in wanted)
    missing = wanted - {tool.name for tool in found}
    if missing:
        there = ", ".join(tool.name for tool in request.tools) or "none"
        raise BadRequest(f"there is no tool {', '.join(sorted(missing))}; there are {there}", field="tools")
    return found
