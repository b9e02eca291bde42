"""Settings of an agent that most do without, and the limits of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from dragoman.accounts.prices import PriceOverride
from dragoman.agent.context import ContextPolicy
from dragoman.agent.hooks import Hooks
from dragoman.agent.preparing import OnPrepareStep
from dragoman.agent.stops import Stop
from dragoman.errors import ConfigError
from dragoman.operations.approval import Approvals
from dragoman.operations.context import Context
from dragoman.operations.identity import LOCAL, Identity
from dragoman.operations.ledger import Ledger
from dragoman.operations.policy import Policy
from dragoman.providers.tracing import OFF, Tracing
from dragoman.request import Tool

LIBRARY_STEPS = 50


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one run may take: model calls, US dollars, tool calls, seconds. None: as much as it likes."""

    max_steps: int = LIBRARY_STEPS
    max_budget_usd: float | None = None
    max_calls: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ConfigError(f"max_steps is at least 1, got {self.max_steps!r}")
        for name in ("max_budget_usd", "max_calls", "timeout"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} is not below 0, got {value!r}")


USUAL_LIMITS = RunLimits()


class AgentOptions(TypedDict, total=False):
    """What may be said of an agent besides; see `Settings` for what each means."""

    name: str
    hooks: Hooks | None
    stop_when: Stop | Sequence[Stop] | None
    on_prepare_step: OnPrepareStep | None
    output: Any
    context: ContextPolicy | None
    retries: int
    options: Mapping[str, Any]
    client_tools: Sequence[Tool]
    manual: bool
    meta_tools: bool | None
    prices: Mapping[str, PriceOverride]
    policy: Policy | None
    approvals: Approvals | None
    ledger: Ledger | None
    identity: Identity
    tracing: Tracing


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What may be said of an agent besides its model, instructions, operations, servers and limits.

    `hooks` are asked before and after what it does. `stop_when` ends a run after a step, `on_prepare_step`
    changes a step. `output` is the type of the answer. `context` keeps the conversation within the model's
    limit. `retries` is how often a transient failure of a model request is tried again; 0, since whoever runs
    the agent often does that already. `options` go along with each request. `client_tools` are run outside,
    with `manual` all tools are. `meta_tools` shows the four meta-tools instead of all tools; None: when there
    are many. `prices` are by pattern of `provider/model`. `policy`, `approvals` and `ledger` are those of
    calls, `identity` is whom they are for.
    """

    name: str = "agent"
    hooks: Hooks | None = None
    stop_when: Any = None
    on_prepare_step: OnPrepareStep | None = None
    output: Any = None
    context: ContextPolicy | None = None
    retries: int = 0
    options: Mapping[str, Any] = {}
    client_tools: Sequence[Tool] = ()
    manual: bool = False
    meta_tools: bool | None = None
    prices: Mapping[str, PriceOverride] = {}
    policy: Policy | None = None
    approvals: Approvals | None = None
    ledger: Ledger | None = None
    identity: Identity = LOCAL
    tracing: Tracing = OFF


class SpawnOptions(TypedDict, total=False):
    """What may be said of one run besides; see `Details`."""

    session_id: str
    context: Context
    limits: RunLimits
    manual: bool
    client_tools: Sequence[Tool]


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What may be said of one run besides its messages, instructions and tools.

    `session_id` names the conversation. `context` is that of a call which this run is a part of: it spends
    from its budget, and ends by its deadline. `limits`, `manual` and `client_tools` take the place
    of the agent's own.
    """

    session_id: str | None = None
    context: Context | None = None
    limits: RunLimits | None = None
    manual: bool | None = None
    client_tools: Sequence[Tool] | None = None
