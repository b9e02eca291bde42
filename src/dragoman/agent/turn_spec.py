"""TurnSpec: everything that one run of the loop needs, and the objects that act on each step.

The hub, sub-agents and the library each build a TurnSpec; the loop knows nothing else of where it runs.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.accounts.model_call import NO_RETRY
from dragoman.accounts.payment import Payment
from dragoman.agent.context.policy import ContextFitter
from dragoman.agent.external_inputs import ExternalInputs
from dragoman.agent.hooks.invocation import TurnHooks
from dragoman.agent.input_messages import parse_conversation
from dragoman.agent.restoration import RestoredAnswer
from dragoman.agent.spec import AgentSpec
from dragoman.agent.stop_conditions import Condition, SoFar
from dragoman.agent.structured_output import Output
from dragoman.agent.tool_names import describe_tools, matches_id
from dragoman.agent.tools.tool_execution import NestedApprovals
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.errors import BadRequest
from dragoman.fold import Fold
from dragoman.messages import Message
from dragoman.model_request import ModelRequest, Tool
from dragoman.operations.context import Context
from dragoman.providers.model import Model
from dragoman.providers.provider import Provider
from dragoman.providers.retry import RetryPolicy
from dragoman.providers.routing import ModelRoutes
from dragoman.tracing.interface import NO_TRACING, Tracing

Batch = Sequence[e.Event]


class StepRequest(msgspec.Struct, frozen=True):
    """The next model call: the routes of its model, and the request."""

    routes: ModelRoutes
    request: ModelRequest

    @property
    def provider(self) -> Provider:
        """The provider that is asked first."""
        return self.routes.first.provider


class StepContext(msgspec.Struct, frozen=True, kw_only=True):
    """The argument of `on_prepare_step`: the step number (from 1), the progress, and the planned request."""

    number: int
    so_far: SoFar
    model: str
    messages: Sequence[Message]
    instructions: str | None
    tools: Sequence[Tool]
    options: Mapping[str, Any]


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of `on_prepare_step` to one step; None keeps a field as it is.

    `model` is a Model or `provider/model`. `tools` are names or patterns of the tools to show, as in
    `allowed_tools`; no other may be called, and one that matches none is an error. `options`
    are merged over those of the request.
    """

    model: Any = None
    tools: Sequence[str] | None = None
    messages: Sequence[Message] | None = None
    instructions: str | None = None
    options: Mapping[str, Any] | None = None


Clock: TypeAlias = Callable[[], float]


class TurnSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one run needs. `history` precedes the message in `fold`, which may have parts already.

    `payment` pays for the model calls.

    `input_events` come first: outputs and answers from the front end for a continued message. With
    `external_inputs` the run waits for client tools and approvals; without, it ends there. `retry_policy` is
    for failed model requests: by default none here, since a provider retries by itself. With `adds_notices`
    the message says why it was stopped. `nested_approvals` is for a turn inside a call. `restored` is the
    message as it continues after a crash.
    """

    agent: AgentSpec
    routes: ModelRoutes
    history: Sequence[Message]
    fold: Fold
    toolbox: Toolbox
    context: Context
    input_events: Batch = ()
    tracing: Tracing = NO_TRACING
    clock: Clock = time.monotonic
    stop_condition: Condition | None = None
    prepare_step: StepPreparer | None = None
    hooks: TurnHooks | None = None
    context_window: ContextFitter | None = None
    payment: Payment = msgspec.field(default_factory=Payment)
    external_inputs: ExternalInputs | None = None
    output: Output[Any] | None = None
    retry_policy: RetryPolicy = NO_RETRY
    adds_notices: bool = True
    nested_approvals: NestedApprovals | None = None
    restored: RestoredAnswer | None = None


OnPrepareStep: TypeAlias = Callable[[StepContext], StepChange | Awaitable[StepChange | None] | None]
FindModel: TypeAlias = Callable[[Model | str], tuple[ModelRoutes, Mapping[str, Any]]]
"""Finds the routes of a model, and the options that go along with each request to it."""


class StepPreparer:
    """Calls `on_prepare_step` before each step and applies its change."""

    def __init__(self, function: OnPrepareStep, find_model: FindModel) -> None:
        self._function = function
        self._find_model = find_model

    async def __call__(
        self, step: StepRequest, so_far: SoFar, *, number: int, tool_ids: Mapping[str, str]
    ) -> StepRequest:
        """Return the step with the change applied. `tool_ids` are the ids of operations by tool name."""
        request = step.request
        result = self._function(
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
        change = await result if inspect.isawaitable(result) else result
        if change is None:
            return step
        if not isinstance(change, StepChange):
            raise BadRequest(f"on_prepare_step must return a StepChange or None, not {type(change).__name__}")
        return self._apply_change(step, change, tool_ids=tool_ids)

    def _apply_change(
        self, step: StepRequest, change: StepChange, *, tool_ids: Mapping[str, str]
    ) -> StepRequest:
        routes, request = step.routes, step.request
        if change.model is not None:
            routes, options = self._find_model(change.model)
            request = replace(request, model=routes.first.model, options={**request.options, **options})
        if change.tools is not None:
            request = replace(request, tools=select_tools(request, change.tools, ids=tool_ids))
        if change.messages is not None:
            request = replace(request, messages=parse_conversation(change.messages))
        if change.instructions is not None:
            request = replace(request, instructions=change.instructions)
        if change.options is not None:
            request = replace(request, options={**request.options, **change.options})
        return StepRequest(routes, request)


def select_tools(request: ModelRequest, names: Sequence[str], *, ids: Mapping[str, str]) -> tuple[Tool, ...]:
    """Return the tools that names or patterns match. Raises BadRequest for one that matches none."""
    tool_ids = {tool.name: ids.get(tool.name, tool.name) for tool in request.tools}
    for name in names:
        if not any(matches_name(name, tool, id=id) for tool, id in tool_ids.items()):
            available = describe_tools(name, list(tool_ids.values()))
            raise BadRequest(f"StepChange(tools=): there is no tool {name!r}; {available}", field="tools")
    wanted = {tool for tool, id in tool_ids.items() if any(matches_name(name, tool, id=id) for name in names)}
    return tuple(tool for tool in request.tools if tool.name in wanted)


def matches_name(name: str, tool: str, *, id: str) -> bool:
    """Return whether a name or pattern matches a tool by its name or the id of its operation."""
    return fnmatchcase(tool, name) or matches_id(name, id)
