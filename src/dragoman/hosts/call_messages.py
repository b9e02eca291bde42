"""JSON messages between hosts: the operations of their spokes, and calls of these operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.identity import Identity
from dragoman.operations.operation import Effect, Operation
from dragoman.operations.outcome import CallFailure
from dragoman.store.accounts.budgets import ChargedBudget

OPERATIONS_PATH = "/operations"
CALLS_PATH = "/operations/calls"


class SharedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of a spoke that is connected to another host, as registered at that host."""

    namespace: str
    name: str
    input_schema: dict[str, Any]
    description: str
    output_schema: dict[str, Any] | None
    effect: Effect
    effect_claimed: bool
    timeout: float | None
    approval: bool
    source: str
    owner: str | None
    private: bool

    @classmethod
    def of(cls, operation: Operation) -> SharedOperation:
        """Return the fields of an operation that other hosts need."""
        fields: dict[str, Any] = {name: getattr(operation, name) for name in cls.__struct_fields__}
        return cls(**fields)

    @property
    def id(self) -> str:
        """The operation's id."""
        return f"{self.namespace}.{self.name}"


class SharedOperations(msgspec.Struct, frozen=True):
    """The operations of a host's spokes; None if the caller already has this version."""

    version: str
    operations: Sequence[SharedOperation] | None = None


class SharedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the host of the caller has allowed and recorded; the host of the spoke only runs it.

    `definition` is the hash of the definition that was allowed. `remaining` is in seconds, `budget` in US
    dollars, within those that it shares with the caller; `spokes` serve the calls above this one.
    """

    operation: str
    definition: str
    input: Any
    identity: Identity
    call_id: str
    idempotency_key: str | None = None
    intermediaries: Sequence[tuple[Identity, str | None]] = ()
    parent_agents: Sequence[str | None] = ()
    run_id: str | None = None
    session_id: str | None = None
    tool_call_id: str | None = None
    agent: str | None = None
    step: int | None = None
    remaining: float | None = None
    budget: float | None = None
    calls: int | None = None
    shared_budgets: Sequence[ChargedBudget] = ()
    spokes: Sequence[str] = ()


class CallTicket(msgspec.Struct, frozen=True):
    """The id of a call that another host has accepted and not yet begun."""

    id: str


class SharedCallEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended; its own cost, and that of the calls below it, in US dollars.

    `is_charged`: its host has already charged the shared budgets with them.
    """

    result: Any = None
    failure: CallFailure | None = None
    cost: float = 0.0
    cost_below: float = 0.0
    calls_below: int = 0
    is_charged: bool = False


class SharedCallFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the response to a call: progress, data parts of the answer that makes it, or its end.

    An empty line keeps the connection alive.
    """

    progress: Any = msgspec.UNSET
    end: SharedCallEnd | None = None
    data: Mapping[str, Any] = {}
