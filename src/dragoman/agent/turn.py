"""A turn: all that one answer needs, and who has a say in it while it is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.agent.callings import Task
from dragoman.agent.hooks import LoopHooks
from dragoman.agent.profile import Profile
from dragoman.agent.spending import Payer
from dragoman.agent.stops import Condition, SoFar
from dragoman.agent.structured import Output
from dragoman.agent.toolbox import Toolbox
from dragoman.fold import Fold
from dragoman.messages import Message, ToolPart
from dragoman.operations.context import Context
from dragoman.providers.provider import Provider
from dragoman.providers.retry import RetryPolicy
from dragoman.providers.tracing import OFF, Tracing
from dragoman.request import ModelRequest, Tool

Batch = Sequence[e.Event]


class Asking(msgspec.Struct, frozen=True):
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


class Prepare(Protocol):
    """What has a say before each step."""

    async def __call__(self, asking: Asking, so_far: SoFar, *, number: int) -> Asking:
        """The step as it is to be taken."""
        ...


class Window(Protocol):
    """What keeps a request within the model's context."""

    async def fit(
        self, request: ModelRequest, context: Context, *, provider: Provider
    ) -> tuple[ModelRequest, Batch]:
        """The request as it fits, and the events that say what was dropped."""
        ...

    async def refit(
        self, request: ModelRequest, context: Context, *, provider: Provider
    ) -> tuple[ModelRequest, Batch]:
        """The same after a provider refused it as too long; no event: there is nothing to drop."""
        ...

    def used(self) -> e.Usage | None:
        """The tokens that this took since it was last asked, such as for summaries."""
        ...


class Desk(Protocol):
    """Where calls wait for what somebody outside says of them."""

    async def take(self, calls: Sequence[ToolPart]) -> Batch:
        """Outputs and answers for some of these calls, as soon as there are any."""
        ...


Clock: TypeAlias = Callable[[], float]
ONCE = RetryPolicy(retries=0)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """All that one run needs. `history` is what was said before `fold`, which may hold a message already.

    `given` are events that come first: outputs and answers that the front end sent for a continued message.
    `stops` end it after a step, `prepare` changes a step, `hooks` hear of all. `spending` counts what steps
    cost, and keeps them within the budget. With a `desk` the run waits for calls that run elsewhere or want
    an approval; without one it ends there. `output` is what the answer has to be. `retry` is how often a
    failed request is made again here: not at all, since a provider does that itself. `notices`: the message
    says in words why it was stopped. `task` is for a turn that is made within a call.
    """

    agent: Profile
    provider: Provider
    model: str
    history: Sequence[Message]
    fold: Fold
    toolbox: Toolbox
    context: Context
    given: Batch = ()
    tracing: Tracing = OFF
    clock: Clock = time.monotonic
    stops: Condition | None = None
    prepare: Prepare | None = None
    hooks: LoopHooks | None = None
    window: Window | None = None
    spending: Payer | None = None
    desk: Desk | None = None
    output: Output[Any] | None = None
    retry: RetryPolicy = ONCE
    notices: bool = True
    task: Task | None = None
