"""Pins: which of a server's definitions are approved, which changed since, and how they differ."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from dragoman.mcp.client.listing import Definition
from dragoman.mcp.spec import Trust
from dragoman.store.mcp_servers import Pin

DIFF_LIMIT = 20_000


class Pins(Protocol):
    """Where pinned definitions are kept."""

    async def list(self, server: str) -> Sequence[Pin]: ...

    async def put(self, pins: Sequence[Pin]) -> None: ...

    async def forget(self, server: str) -> int: ...


class MemoryPins:
    """Pins that last as long as the process."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Pin] = {}

    async def list(self, server: str) -> Sequence[Pin]:
        return sorted((pin for pin in self._kept.values() if pin.server == server), key=lambda pin: pin.name)

    async def put(self, pins: Sequence[Pin]) -> None:
        self._kept.update({(pin.server, pin.name): pin for pin in pins})

    async def forget(self, server: str) -> int:
        names = [key for key in self._kept if key[0] == server]
        for key in names:
            del self._kept[key]
        return len(names)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A definition that waits for approval: `new` to this hub, or `changed` since it was approved.

    `diff` shows old against new in lines; characters that cannot be seen are spelled out in it. `hash` names
    the very definition that is shown.
    """

    server: str
    name: str
    kind: Literal["new", "changed"]
    hash: str
    new: Mapping[str, Any]
    old: Mapping[str, Any] | None
    diff: str


class Verdict(msgspec.Struct, frozen=True):
    """What may be used, what waits, and what is to be pinned as approved by the rule itself."""

    approved: tuple[Definition, ...]
    waiting: tuple[Definition, ...]
    pinned: tuple[Definition, ...]


def judge(found: Sequence[Definition], pins: Mapping[str, Pin], *, trust: Trust) -> Verdict:
    """Hold what a server offers against what was approved.

    `always` takes everything; `first` takes all of a server of which nothing is pinned yet, and afterwards
    only what is pinned and unchanged; `ask` only the latter.
    """
    strange = tuple(each for each in found if not is_pinned(each, pins))
    if trust == "always" or (trust == "first" and not pins):
        return Verdict(tuple(found), (), strange)
    return Verdict(tuple(each for each in found if is_pinned(each, pins)), strange, ())


def is_pinned(definition: Definition, pins: Mapping[str, Pin]) -> bool:
    pin = pins.get(definition.name)
    return pin is not None and pin.hash == definition.hash


def definitions_in(pins: Iterable[Pin]) -> Sequence[Definition]:
    """The definitions as they were pinned; one that is damaged is left out, and so waits for approval."""
    found = []
    for pin in pins:
        try:
            found.append(msgspec.json.decode(pin.body, type=Definition))
        except msgspec.DecodeError:
            continue
    return found


def change_of(definition: Definition, pin: Pin | None, *, server: str) -> Change:
    """What is to be shown to whoever approves."""
    old = json.loads(pin.body) if pin is not None else None
    new = json.loads(definition.body)
    return Change(
        server=server,
        name=definition.name,
        kind="new" if pin is None else "changed",
        hash=definition.hash,
        new=new,
        old=old,
        diff=diff(old, new),
    )


def diff(old: Any, new: Any) -> str:
    """The lines that differ, three of their neighbours about them."""
    before = [] if old is None else lines_of(old)
    told = "\n".join(difflib.unified_diff(before, lines_of(new), "approved", "offered", lineterm=""))
    return told if len(told) <= DIFF_LIMIT else told[:DIFF_LIMIT] + "\n… (cut)"


def lines_of(value: Any) -> list[str]:
    """As indented JSON; a text of several lines becomes as many."""
    return json.dumps(value, indent=2, sort_keys=True).replace("\\n", "\\n\n    ").splitlines()
