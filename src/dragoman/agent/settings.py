"""Optional settings of an agent and the limits of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from dragoman.accounts.price_lookup import PriceOverride
from dragoman.agent.context.policy import ContextPolicy
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.mcp_server_specs import McpServer
from dragoman.agent.stop_conditions import StopCondition
from dragoman.agent.turn_spec import OnPrepareStep
from dragoman.errors import ConfigError
from dragoman.identity import LOCAL, Identity
from dragoman.model_request import Tool
from dragoman.operations.approval import ApprovalStore
from dragoman.operations.context import Context
from dragoman.operations.ledger import Ledger
from dragoman.operations.permission.policy import Policy
from dragoman.operations.registry import OperationSource
from dragoman.providers.retry import RetryPolicy
from dragoman.tracing.interface import NO_TRACING, Tracing

DEFAULT_MAX_STEPS = 50


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one run: model calls, US dollars, tool calls, seconds. None means unlimited."""

    max_steps: int = DEFAULT_MAX_STEPS
    max_budget_usd: float | None = None
    max_calls: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, not {self.max_steps!r}")
        for name in ("max_budget_usd", "max_calls", "timeout"):
            value = getattr(self, name)
            if value is not None and not value >= 0:  # NaN would be no limit at all
                raise ConfigError(f"{name} must be a number of at least 0, not {value!r}")


DEFAULT_LIMITS = RunLimits()


class AgentOptions(TypedDict, total=False):
    """The keyword options of an agent; see `Agent` for each."""

    name: str
    hooks: Hooks | None
    stop_when: StopCondition | Sequence[StopCondition] | None
    on_prepare_step: OnPrepareStep | None
    context: ContextPolicy | None
    retries: int | RetryPolicy
    options: Mapping[str, Any]
    client_tools: Sequence[Tool]
    manual: bool
    meta_tools: bool | None
    prices: Mapping[str, PriceOverride]
    policy: Policy | None
    approvals: ApprovalStore | None
    ledger: Ledger | None
    identity: Identity
    tracing: Tracing


class AgentArguments(AgentOptions, total=False):
    """All keyword arguments of an agent except its model and output, for type checkers."""

    instructions: str | None
    operations: Sequence[OperationSource]
    mcp: Sequence[McpServer]
    limits: RunLimits


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an agent with their defaults. See `Agent` for each."""

    name: str = "agent"
    hooks: Hooks | None = None
    stop_when: Any = None
    on_prepare_step: OnPrepareStep | None = None
    context: ContextPolicy | None = None
    retries: int | RetryPolicy = 0
    options: Mapping[str, Any] = {}
    client_tools: Sequence[Tool] = ()
    manual: bool = False
    meta_tools: bool | None = None
    prices: Mapping[str, PriceOverride] = {}
    policy: Policy | None = None
    approvals: ApprovalStore | None = None
    ledger: Ledger | None = None
    identity: Identity = LOCAL
    tracing: Tracing = NO_TRACING


DEFAULT_SETTINGS = AgentSettings()


class SpawnOptions(TypedDict, total=False):
    """The keyword options of one run; see `SpawnSettings`."""

    session_id: str
    context: Context
    limits: RunLimits
    manual: bool
    client_tools: Sequence[Tool]
    detached: bool


class SpawnSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run with their defaults.

    `session_id` names the conversation. `context` is that of the call which this run is a part of: the run
    spends from its budget and ends at its deadline. `limits`, `manual` and `client_tools` replace those of
    the agent. A `detached` run continues when whoever waits for it is cancelled.
    """

    session_id: str | None = None
    context: Context | None = None
    limits: RunLimits | None = None
    manual: bool | None = None
    client_tools: Sequence[Tool] | None = None
    detached: bool = False
