"""The tools that one server offers: those in the registry, those that wait for approval, those left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from dragoman.errors import ConfigError, Conflict, NotFound, StoreError, Unavailable
from dragoman.large_json import measure
from dragoman.mcp.client.definition_pins import (
    DefinitionChange,
    PinDecision,
    check_pins,
    definition_change,
    is_pinned,
    pinned_definitions,
)
from dragoman.mcp.client.definitions import DefinitionList, ToolDefinition
from dragoman.mcp.client.imported_operations import MakeRemoteCall, make_operation, select_definitions
from dragoman.mcp.server_spec import ServerSpec, Trust
from dragoman.offload import Slices, offload
from dragoman.operations.call_limiter import CallLimiter, Rate
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from dragoman.store.mcp_servers import DefinitionPin, PinStore

USUAL_BYTES = 1_000  # bytes of a definition


def size_of(pins: Iterable[DefinitionPin]) -> int:
    return sum(len(pin.body) for pin in pins)


def schema_size(definition: ToolDefinition) -> int:
    """Return about how large the schemas of a definition are."""
    return measure((definition.input_schema, definition.output_schema))


def make_pins(
    definitions: Sequence[ToolDefinition], *, server: str, by: str, at: float
) -> Sequence[DefinitionPin]:
    """Return the pins of definitions that are approved now."""
    return [
        DefinitionPin(
            server=server, name=each.name, hash=each.hash, body=each.body, approved_at=at, approved_by=by
        )
        for each in definitions
    ]


class OfferedTools:
    """One server's definitions, checked against the pins, and their operations."""

    def __init__(
        self,
        spec: ServerSpec,
        registry: Registry,
        *,
        pin_store: PinStore,
        clock: Callable[[], float],
        make_call: MakeRemoteCall,
    ) -> None:
        self.problems: tuple[str, ...] = ()
        self._spec = spec
        self._registry = registry
        self._pin_store = pin_store
        self._clock = clock
        self._make_call = make_call
        rate = None if spec.rate is None else Rate.parse(spec.rate)
        self._gate = CallLimiter(concurrency=spec.concurrency, rate=rate)
        self._pins: dict[str, DefinitionPin] = {}
        self._pending: dict[str, ToolDefinition] = {}
        self._operations: dict[str, tuple[str, Operation]] = {}  # by name: the definition's hash
        self._lock = asyncio.Lock()

    @property
    def operation_count(self) -> int:
        return len(self._operations)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def has_pins(self) -> bool:
        """Whether anything of the server is pinned."""
        return bool(self._pins)

    def is_current(self, definition: ToolDefinition) -> bool:
        """Return whether this definition may be called now."""
        entry = self._operations.get(definition.name)
        return entry is not None and entry[0] == definition.hash

    async def restore_pinned(self) -> None:
        """Register the operations that were approved before, without a request to the server."""
        async with self._lock:
            self._pins = await self._list_pins()
            pins = list(self._pins.values())
            definitions = await offload(size_of(pins), partial(pinned_definitions, pins))
            await self._sync_registry(definitions, ())

    async def update(self, definition_list: DefinitionList) -> None:
        """Replace what the server offered before."""
        offered = list(definition_list.definitions)
        problems = definition_list.problems
        del definition_list
        async with self._lock:
            await self._refresh_pins()
            verdict = await self._check_pins(offered, trust=self._spec.trust)
            if self._spec.trust == "first" and verdict.newly_pinned:
                pins = await self._make_pins(verdict.newly_pinned, by="trust: first")
                await self._pin_store.put_first(self._spec.name, pins)
                self._pins = await self._list_pins()
                verdict = await self._check_pins(offered, trust="ask")
            await self._pin(verdict.newly_pinned, by=f"trust: {self._spec.trust}")
            self._pending = {each.name: each for each in verdict.pending}
            await self._sync_registry(verdict.approved, problems)
            del verdict
        await Slices().release(offered)  # those that are registered already

    async def approve(self, names: Sequence[str] | Mapping[str, str] | None, *, by: str) -> tuple[str, ...]:
        """Approve pending definitions: these names, or all. With hashes, only those that were shown.

        Raises NotFound if no definition of that name is pending, and Conflict if it has another hash.
        """
        async with self._lock:
            chosen = [
                self._pending_definition(name, names) for name in (self._pending if names is None else names)
            ]
            await self._pin(chosen, by=by)
            for each in chosen:
                del self._pending[each.name]
            shown = [self._pinned_definition(name) for name in self._operations]
            await self._sync_registry([*shown, *chosen], self.problems)
        return tuple(each.name for each in chosen)

    async def reload_pins(self) -> None:
        """Apply the approvals that were given at another host to the definitions that wait here."""
        async with self._lock:
            await self._refresh_pins()
            approved = [each for each in self._pending.values() if is_pinned(each, self._pins)]
            for each in approved:
                del self._pending[each.name]
            if approved:
                shown = [self._pinned_definition(name) for name in self._operations]
                current = {each.name: each for each in (*shown, *approved)}
                await self._sync_registry(list(current.values()), self.problems)

    def changes(self) -> Iterable[DefinitionChange]:
        """Yield the pending definitions beside the approved ones."""
        for name, definition in sorted(self._pending.items()):
            yield definition_change(definition, self._pins.get(name), server=self._spec.name)

    async def clear(self) -> None:
        """Remove all operations from the registry."""
        async with self._lock:
            await self._sync_registry((), ())

    def _pending_definition(
        self, name: str, names: Sequence[str] | Mapping[str, str] | None
    ) -> ToolDefinition:
        definition = self._pending.get(name)
        if definition is None:
            raise NotFound(
                f"nothing of MCP server {self._spec.name!r} named {name[:100]!r} waits for approval"
            )
        if isinstance(names, Mapping) and names[name] != definition.hash:
            raise Conflict(
                f"{self._spec.name}.{name} changed again since it was shown", hint="review it again"
            )
        return definition

    def _pinned_definition(self, name: str) -> ToolDefinition:
        (definition,) = pinned_definitions([self._pins[name]])
        return definition

    async def _refresh_pins(self) -> None:
        """Read what other hosts have pinned; while the database does not answer, keep what is known."""
        with suppress(StoreError, Unavailable):
            self._pins = await self._list_pins()

    async def _list_pins(self) -> dict[str, DefinitionPin]:
        return {pin.name: pin for pin in await self._pin_store.list(self._spec.name)}

    async def _check_pins(self, definitions: Sequence[ToolDefinition], *, trust: Trust) -> PinDecision:
        size = len(definitions) * USUAL_BYTES
        return await offload(size, partial(check_pins, definitions, self._pins, trust=trust))

    async def _make_pins(self, definitions: Sequence[ToolDefinition], *, by: str) -> Sequence[DefinitionPin]:
        now, server = self._clock(), self._spec.name
        size = len(definitions) * USUAL_BYTES
        return await offload(size, partial(make_pins, definitions, server=server, by=by, at=now))

    async def _pin(self, definitions: Sequence[ToolDefinition], *, by: str) -> None:
        pins = await self._make_pins(definitions, by=by)
        if pins:
            await self._pin_store.put(pins)
            self._pins |= {pin.name: pin for pin in pins}

    async def _sync_registry(self, definitions: Sequence[ToolDefinition], problems: Sequence[str]) -> None:
        """Make the registry hold exactly these definitions. `problems` gets those that it refuses, too.

        Operations that are no longer offered are removed first; then each changed one is replaced.
        """
        size = len(definitions) * USUAL_BYTES
        wanted = await offload(size, partial(select_definitions, definitions, self._spec))
        slices = Slices()  # the schemas of operations are compiled
        for name in list(self._operations):  # not the operations: each is freed when it is removed
            await slices.rest()
            if name not in wanted:
                self._remove_operation(name)
        messages = list(problems)
        for each in wanted.values():
            await slices.rest()
            messages += await self._add_operation(each)
        self.problems = tuple(dict.fromkeys(messages))

    async def _add_operation(self, definition: ToolDefinition) -> Sequence[str]:
        entry = self._operations.get(definition.name)
        if entry is not None and entry[0] == definition.hash:
            return ()
        del entry  # its operation is freed when it is removed
        make = partial(make_operation, definition, self._spec, gate=self._gate, call=self._make_call)
        try:
            try:
                operation = await offload(schema_size(definition), make)
            finally:
                if definition.name in self._operations:
                    self._remove_operation(definition.name)
            self._registry.add(operation)
        except (ConfigError, Conflict) as error:
            return (f"tool {definition.name!r} is left out: {error.message}",)
        self._operations[definition.name] = (definition.hash, operation)
        return ()

    def _remove_operation(self, name: str) -> None:
        _, operation = self._operations.pop(name)
        try:
            if self._registry.get(operation.id) is operation:
                self._registry.remove(operation.id)
        except NotFound:
            return
