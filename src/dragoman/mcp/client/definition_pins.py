"""Pinned tool definitions: which are approved, which have changed since, and how they differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from dragoman.json_decoding import DECODE_ERRORS
from dragoman.mcp.client.definitions import ToolDefinition
from dragoman.mcp.server_spec import Trust
from dragoman.operations.definitions.diff import definition_diff
from dragoman.store.mcp_servers import DefinitionPin


class DefinitionChange(msgspec.Struct, frozen=True, kw_only=True):
    """A definition that waits for approval: `new` to this hub, or `changed` since it was approved.

    `diff` compares the lines of `old` and `new`, with invisible characters spelled out. `hash` is that of
    the definition shown, for approving exactly this one.
    """

    server: str
    name: str
    kind: Literal["new", "changed"]
    hash: str
    new: Mapping[str, Any]
    old: Mapping[str, Any] | None
    diff: str


class PinDecision(msgspec.Struct, frozen=True):
    """Definitions that may be used, those that wait for approval, and those that `trust` pins at once."""

    approved: tuple[ToolDefinition, ...]
    pending: tuple[ToolDefinition, ...]
    newly_pinned: tuple[ToolDefinition, ...]


def check_pins(
    definitions: Sequence[ToolDefinition], pins: Mapping[str, DefinitionPin], *, trust: Trust
) -> PinDecision:
    """Compare what a server offers with what was approved.

    `always` approves everything; `first` approves everything while nothing of the server is pinned, and
    afterwards, like `ask`, only what is pinned and unchanged.
    """
    unpinned = tuple(each for each in definitions if not is_pinned(each, pins))
    if trust == "always" or (trust == "first" and not pins):
        return PinDecision(tuple(definitions), (), unpinned)
    return PinDecision(tuple(each for each in definitions if is_pinned(each, pins)), unpinned, ())


def is_pinned(definition: ToolDefinition, pins: Mapping[str, DefinitionPin]) -> bool:
    pin = pins.get(definition.name)
    return pin is not None and pin.hash == definition.hash


def pinned_definitions(pins: Iterable[DefinitionPin]) -> Sequence[ToolDefinition]:
    """Return the pinned definitions. One that cannot be decoded is left out, and so waits for approval."""
    definitions = []
    for pin in pins:
        try:
            definition = msgspec.json.decode(pin.body, type=ToolDefinition)
        except DECODE_ERRORS:
            continue
        _ = definition.hash  # computed here, which may be in a thread
        definitions.append(definition)
    return definitions


def definition_change(
    definition: ToolDefinition, pin: DefinitionPin | None, *, server: str
) -> DefinitionChange:
    """Return the change between a pin, if there is one, and a definition, to be reviewed."""
    old = json.loads(pin.body) if pin is not None else None
    new = json.loads(definition.body)
    return DefinitionChange(
        server=server,
        name=definition.name,
        kind="new" if pin is None else "changed",
        hash=definition.hash,
        new=new,
        old=old,
        diff=definition_diff(old, new),
    )
