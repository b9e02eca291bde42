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

    `definition_diff` shows old against new in lines; characters that cannot be seen are spelled out in it.
    `hash` names the very definition that is shown.
    """

    server: str
    name: str
    kind: Literal["new", "changed"]
    hash: str
    new: Mapping[str, Any]
    old: Mapping[str, Any] | None
    diff: str


class PinDecision(msgspec.Struct, frozen=True):
    """Which definitions may be used, which wait for approval, and which the trust rule pins at once."""

    approved: tuple[ToolDefinition, ...]
    pending: tuple[ToolDefinition, ...]
    newly_pinned: tuple[ToolDefinition, ...]


def check_pins(
    definitions: Sequence[ToolDefinition], pins: Mapping[str, DefinitionPin], *, trust: Trust
) -> PinDecision:
    """Compare what a server offers with what was approved.

    `always` takes everything; `first` takes all of a server of which nothing is pinned yet, and afterwards
    only what is pinned and unchanged; `ask` only the latter.
    """
    strange = tuple(each for each in definitions if not is_pinned(each, pins))
    if trust == "always" or (trust == "first" and not pins):
        return PinDecision(tuple(definitions), (), strange)
    return PinDecision(tuple(each for each in definitions if is_pinned(each, pins)), strange, ())


def is_pinned(definition: ToolDefinition, pins: Mapping[str, DefinitionPin]) -> bool:
    pin = pins.get(definition.name)
    return pin is not None and pin.hash == definition.hash


def pinned_definitions(pins: Iterable[DefinitionPin]) -> Sequence[ToolDefinition]:
    """Return the pinned definitions. A damaged one is left out, and so waits for approval."""
    found = []
    for pin in pins:
        try:
            definition = msgspec.json.decode(pin.body, type=ToolDefinition)
        except DECODE_ERRORS:
            continue
        _ = definition.hash  # made here, which may be in a thread
        found.append(definition)
    return found


def definition_change(
    definition: ToolDefinition, pin: DefinitionPin | None, *, server: str
) -> DefinitionChange:
    """Return the change that is shown to whoever approves it."""
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
