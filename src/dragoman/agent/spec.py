"""AgentSpec: a configured agent with its model, instructions, operations and limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from dragoman.agent.context.policy import ContextPolicy
from dragoman.agent.stop_conditions import Condition
from dragoman.agent.structured_output import Output
from dragoman.model_request import Tool
from dragoman.operations.context import Context
from dragoman.wire.ui.client_request import WhenBusy

Briefing: TypeAlias = Callable[[Context], Awaitable[str]]
DEFAULT_MAX_STEPS = 10
NO_POLICY = ContextPolicy()


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as a run uses it. `model` is `provider/model`; `operations` are shown to it as plain tools.

    `client_tools` run in the front end: the run ends at such a call and resumes with its output. An answer
    takes at most `timeout` seconds, `max_calls` calls and `max_usd` US dollars; None: no limit. `context`
    shortens conversations too long for the model; `context_sizes` returns the tokens that a model accepts,
    by provider name and model name. An agent with a `description` is also the operation `agents.<name>`.
    `after_crash` says what becomes of its answers that a crash of the hub cut off, `when_busy` what becomes
    of a message that arrives while it answers. `metadata` is added to that of its messages. `briefing` is
    what the model is told before the last message of the user, in each run again; it is not stored.
    """

    name: str = "default"
    model: str
    instructions: str | None = None
    operations: tuple[str, ...] = ()
    client_tools: tuple[Tool, ...] = ()
    max_steps: int = DEFAULT_MAX_STEPS
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    timeout: float | None = None
    max_calls: int | None = None
    max_usd: float | None = None
    context: ContextPolicy = NO_POLICY
    context_sizes: Callable[[str, str], int | None] | None = None
    stop_condition: Condition | None = None
    on_prepare_step: Callable[..., Any] | None = None
    output: Output[Any] | None = None
    description: str | None = None
    after_crash: Literal["resume", "close"] = "resume"
    when_busy: WhenBusy = "refuse"
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)
    briefing: Briefing | None = None

    @property
    def start_metadata(self) -> dict[str, Any]:
        """The metadata with which each of its messages begins."""
        return {"model": self.model, "agent": self.name, **self.metadata}
