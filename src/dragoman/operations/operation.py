"""Operations: anything callable, with a name, JSON Schemas, an effect and a function."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Required, TypeAlias, TypedDict, Unpack

import msgspec

from dragoman.errors import ConfigError
from dragoman.operations.approval import CallProvider, Question
from dragoman.operations.arguments.validation import InputParser, make_bounded_parser
from dragoman.operations.call_limiter import CallLimiter
from dragoman.operations.context import Context
from dragoman.operations.sanitize import sanitize_schema, sanitize_text

Effect = Literal["read", "idempotent", "once"]
OperationFunction: TypeAlias = Callable[[Any, Context], Awaitable[Any]]

NAMESPACE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,127}")
MAX_DESCRIPTION_LENGTH = 4_000


class OperationDetails(TypedDict, total=False):
    """Optional fields of `Operation.from_schema`."""

    namespace: Required[str]
    name: Required[str]
    description: str
    output_schema: Mapping[str, Any] | None
    effect: Effect
    timeout: float | None
    approval: bool
    retries: int
    gate: CallLimiter | None
    source: str
    resumes: bool
    only_stores: bool
    owner: str | None
    private: bool
    identity_aware: bool
    effect_claimed: bool
    provider: str


class Operation(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Anything that can be called.

    `parse` converts JSON input to the argument of `run`, or raises InvalidInput. `effect` is what a call
    changes: nothing (`read`), nothing more when it is repeated (`idempotent`), or something each time
    (`once`). `timeout` is in seconds. `retries` are further attempts after a transient failure, for `read`
    and `idempotent` operations only. `gate` limits how many calls run at a time and how often; operations may
    share one. `source` is `python`, `mcp:SERVER` or `spoke:NAME`.

    `effect_claimed` is True if only a spoke or an MCP server states the effect: retries rely on it, but the
    policy treats it as `once`. `provider` identifies what runs it in approvals: it differs between two MCP
    servers of the same name.

    `owner` is the owner of the spoke that runs it, None for the hub and its MCP servers; only this owner sees
    and calls it if it is `private`. `identity_aware` is False if the result does not depend on the caller:
    only then may a spoke call it while it serves a call of another owner.

    `host` is the host that the spoke is connected to; None for this one. `narrow` returns the operation for a
    caller, with a schema of the inputs that this caller may use.

    `make_question` converts the input to a question to the user: the call waits for the answer, which is in
    its context. An operation that `resumes` may be suspended while it runs: it raises ApprovalNeeded with a
    state. One that `only_stores` only writes to the hub's database: the record of its start is written
    together with that, not before.
    """

    namespace: str
    name: str
    input_schema: Mapping[str, Any]
    parse: InputParser
    run: OperationFunction
    description: str = ""
    output_schema: Mapping[str, Any] | None = None
    effect: Effect = "once"
    timeout: float | None = None
    approval: bool = False
    retries: int = 0
    gate: CallLimiter | None = None
    source: str = "python"
    make_question: Callable[[Mapping[str, Any]], Question] | None = None
    resumes: bool = False
    only_stores: bool = False
    owner: str | None = None
    private: bool = False
    identity_aware: bool = True
    effect_claimed: bool = False
    provider: str = "hub"
    host: str | None = None
    narrow: Callable[[Operation, Context], Operation] | None = None

    def __post_init__(self) -> None:
        if not NAMESPACE_PATTERN.fullmatch(self.namespace):
            raise ConfigError(
                f"The namespace {self.namespace!r} of {self.name!r} must be 1 to 64 letters, digits, - or _."
            )
        if not NAME_PATTERN.fullmatch(self.name):
            raise ConfigError(
                f"The name {self.name!r} in {self.namespace!r} must be 1 to 128 letters, digits, - _ . or /."
            )
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigError(f"The timeout of {self.id} must be above 0 seconds, got {self.timeout!r}.")
        if self.retries and self.effect == "once":
            raise ConfigError(
                f"{self.id} cannot have retries: its effect is `once`. Use `read` or `idempotent`."
            )

    @property
    def id(self) -> str:
        """`namespace.name`, by which it is called."""
        return f"{self.namespace}.{self.name}"

    def for_caller(self, context: Context) -> Operation:
        """Return the operation as this caller sees and calls it."""
        return self if self.narrow is None else self.narrow(self, context)

    @property
    def definition(self) -> bytes:
        """Everything that callers and approvals rely on, as JSON with sorted keys."""
        shown = {
            "id": self.id,
            "description": self.description,
            "inputSchema": self.input_schema,
            "outputSchema": self.output_schema,
            "effect": self.effect,
            "approval": self.approval,
        }
        return msgspec.json.encode(shown, order="sorted")

    @property
    def definition_hash(self) -> str:
        """The SHA-256 of the definition."""
        return hashlib.sha256(self.definition).hexdigest()

    @property
    def call_provider(self) -> CallProvider:
        """What runs a call of it, with the definition: an approval is valid only for this."""
        return CallProvider(self.provider, self.owner, self.definition_hash)

    @property
    def policy_effect(self) -> Effect:
        """The effect that policy rules and hooks use."""
        return "once" if self.effect_claimed else self.effect

    def is_visible_to(self, owner: str) -> bool:
        """Return whether callers of this owner may see it; the policy may still deny it."""
        return not self.private or self.owner == owner

    @classmethod
    def from_schema(
        cls, run: OperationFunction, input_schema: Mapping[str, Any], **details: Unpack[OperationDetails]
    ) -> Operation:
        """Create an operation whose input is checked against a JSON Schema, not against type hints.

        The description and the texts of the schema come from elsewhere and are sanitized. Raises
        ConfigError if the schema is invalid or refers to other documents.
        """
        schema = sanitize_schema(input_schema)
        details["description"] = sanitize_text(details.get("description", ""), MAX_DESCRIPTION_LENGTH)
        return cls(input_schema=schema, parse=make_bounded_parser(schema), run=run, **details)
