"""Offers: what of a server is in the registry, what waits for approval, and what was left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from dragoman.errors import ConfigError, Conflict, NotFound
from dragoman.mcp.client.imported import Call, is_taken, operation_of
from dragoman.mcp.client.listing import Definition, Listing
from dragoman.mcp.client.pins import Change, Pins, change_of, definitions_in, judge
from dragoman.mcp.spec import ServerSpec
from dragoman.operations.gate import Gate, Rate
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from dragoman.store.mcp_servers import Pin

SLICE = 25  # operations that are made at a time: their schemas are compiled, and other calls must go on


class Offers:
    """One server's definitions, held against the pins, and the operations that they become."""

    def __init__(
        self, spec: ServerSpec, registry: Registry, *, pins: Pins, clock: Callable[[], float], call: Call
    ) -> None:
        self.problems: tuple[str, ...] = ()
        self._spec = spec
        self._registry = registry
        self._store = pins
        self._clock = clock
        self._call = call
        rate = None if spec.rate is None else Rate.parse(spec.rate)
        self._gate = Gate(concurrency=spec.concurrency, rate=rate)
        self._pins: dict[str, Pin] = {}
        self._waiting: dict[str, Definition] = {}
        self._operations: dict[str, tuple[str, Operation]] = {}  # by name: the definition's hash
        self._turn = asyncio.Lock()

    @property
    def count(self) -> int:
        return len(self._operations)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def known(self) -> bool:
        """Whether anything of the server is pinned."""
        return bool(self._pins)

    def holds(self, definition: Definition) -> bool:
        """Whether this very definition may be called now."""
        kept = self._operations.get(definition.name)
        return kept is not None and kept[0] == definition.hash

    async def recall(self) -> None:
        """Put those into the registry that were approved before, without asking the server."""
        async with self._turn:
            self._pins = {pin.name: pin for pin in await self._store.list(self._spec.name)}
            await self._show(definitions_in(self._pins.values()), ())

    async def take(self, listing: Listing) -> None:
        """What the server offers now takes the place of what it offered before."""
        async with self._turn:
            verdict = judge(listing.definitions, self._pins, trust=self._spec.trust)
            await self._pin(verdict.pinned, by=f"trust: {self._spec.trust}")
            self._waiting = {each.name: each for each in verdict.waiting}
            await self._show(verdict.approved, listing.problems)

    async def approve(self, names: Sequence[str] | Mapping[str, str] | None, *, by: str) -> tuple[str, ...]:
        """Approve of what waits: those names, or all. With hashes, only of what was shown under them.

        NotFound when nothing of such a name waits, Conflict when it changed since it was shown.
        """
        async with self._turn:
            chosen = [self._chosen(name, names) for name in (self._waiting if names is None else names)]
            await self._pin(chosen, by=by)
            for each in chosen:
                del self._waiting[each.name]
            shown = [self._definition(name) for name in self._operations]
            await self._show([*shown, *chosen], self.problems)
        return tuple(each.name for each in chosen)

    def changes(self) -> Iterable[Change]:
        """What waits, beside what was approved."""
        for name, definition in sorted(self._waiting.items()):
            yield change_of(definition, self._pins.get(name), server=self._spec.name)

    def clear(self) -> None:
        """Take all operations out of the registry."""
        for name in list(self._operations):
            self._remove(name)

    def _chosen(self, name: str, names: Sequence[str] | Mapping[str, str] | None) -> Definition:
        definition = self._waiting.get(name)
        if definition is None:
            raise NotFound(
                f"nothing of MCP server {self._spec.name!r} named {name[:100]!r} waits for approval"
            )
        if isinstance(names, Mapping) and names[name] != definition.hash:
            raise Conflict(
                f"{self._spec.name}.{name} changed again since it was shown", hint="look at it again"
            )
        return definition

    def _definition(self, name: str) -> Definition:
        (found,) = definitions_in([self._pins[name]])
        return found

    async def _pin(self, definitions: Iterable[Definition], *, by: str) -> None:
        now = self._clock()
        pins = [
            Pin(
                server=self._spec.name,
                name=each.name,
                hash=each.hash,
                body=each.body,
                approved_at=now,
                approved_by=by,
            )
            for each in definitions
        ]
        if pins:
            await self._store.put(pins)
            self._pins |= {pin.name: pin for pin in pins}

    async def _show(self, definitions: Sequence[Definition], problems: Sequence[str]) -> None:
        """Have exactly these in the registry, and say of which that failed. What must go goes first."""
        wanted = {each.name: each for each in definitions if is_taken(each, self._spec)}
        for name, (hash, _) in list(self._operations.items()):
            if name not in wanted or wanted[name].hash != hash:
                self._remove(name)
        told = list(problems)
        for index, each in enumerate(wanted.values()):
            if index % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            told += self._add(each)
        self.problems = tuple(dict.fromkeys(told))

    def _add(self, definition: Definition) -> Sequence[str]:
        if definition.name in self._operations:
            return ()
        try:
            made = operation_of(definition, self._spec, gate=self._gate, call=self._call)
            self._registry.add(made)
        except (ConfigError, Conflict) as error:
            return (f"tool {definition.name!r} is left out: {error.message}",)
        self._operations[definition.name] = (definition.hash, made)
        return ()

    def _remove(self, name: str) -> None:
        _, operation = self._operations.pop(name)
        try:
            if self._registry.get(operation.id) is operation:
                self._registry.remove(operation.id)
        except NotFound:
            return
