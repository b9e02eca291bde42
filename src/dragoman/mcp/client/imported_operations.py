"""Definitions of an MCP server as operations of the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import msgspec

from dragoman.errors import ConfigError
from dragoman.mcp.client.definitions import ToolDefinition
from dragoman.mcp.server_spec import ServerSpec
from dragoman.operations.arguments.validation import make_bounded_parser
from dragoman.operations.call_limiter import CallLimiter
from dragoman.operations.context import Context
from dragoman.operations.operation import Effect, Operation
from dragoman.operations.sanitize import sanitize_schema


class RemoteCall(msgspec.Struct, frozen=True):
    """A call of a definition with an input. `effect` decides whether a lost call may be repeated."""

    definition: ToolDefinition
    effect: Effect
    input: Mapping[str, Any]


MakeRemoteCall: TypeAlias = Callable[[RemoteCall, Context], Awaitable[Any]]


def make_operation(
    definition: ToolDefinition, spec: ServerSpec, *, gate: CallLimiter, call: MakeRemoteCall
) -> Operation:
    """Return the operation that calls the definition. Raises ConfigError for an unusable input schema."""
    effect = effect_of(definition, spec)
    configured = configured_effect(definition, spec)

    async def run(input: Mapping[str, Any], context: Context) -> Any:
        return await call(RemoteCall(definition, effect, input), context)

    return Operation.from_schema(
        run,
        definition.input_schema,
        namespace=spec.name,
        name=definition.name,
        description=definition.description,
        output_schema=output_schema_of(definition),
        effect=effect,
        timeout=spec.timeout,
        gate=gate,
        source=f"mcp:{spec.name}",
        identity_aware=False,
        effect_claimed=configured is None and not spec.trust_effects,
        provider=provider_name(spec),
    )


def output_schema_of(definition: ToolDefinition) -> Mapping[str, Any] | None:
    """Return the output schema, or None if it cannot be used: the operation works without it."""
    if definition.output_schema is None:
        return None
    schema = sanitize_schema(definition.output_schema)
    try:
        make_bounded_parser(schema)
    except ConfigError:
        return None
    return schema


def effect_of(definition: ToolDefinition, spec: ServerSpec) -> Effect:
    """Return the effect: as the spec sets it by name or pattern, else as the server declares it."""
    configured = configured_effect(definition, spec)
    if configured is not None:
        return configured
    hints = definition.annotations or {}
    if definition.method != "tools/call" or hints.get("readOnlyHint") is True:
        return "read"
    return "idempotent" if hints.get("idempotentHint") is True else "once"


def configured_effect(definition: ToolDefinition, spec: ServerSpec) -> Effect | None:
    """Return the effect that the spec sets by name or pattern, if any."""
    if definition.name in spec.effects:
        return spec.effects[definition.name]
    matching = (effect for pattern, effect in spec.effects.items() if fnmatchcase(definition.name, pattern))
    return next(matching, None)


def provider_name(spec: ServerSpec) -> str:
    """Return the id of the server in approvals. Another program or URL under the same name has another id."""
    source = msgspec.json.encode([spec.command, spec.url])
    return f"mcp:{spec.name}:{hashlib.sha256(source).hexdigest()[:16]}"


def select_definitions(definitions: Iterable[ToolDefinition], spec: ServerSpec) -> dict[str, ToolDefinition]:
    """Return the definitions that the spec's patterns select, by name."""
    return {
        each.name: each
        for each in definitions
        if any(fnmatchcase(each.name, pattern) for pattern in spec.tools)
    }
