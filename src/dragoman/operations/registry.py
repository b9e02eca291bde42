"""The registry: the operations that a hub holds, by namespace and name."""

from __future__ import annotations

import asyncio
import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from dragoman.errors import ConfigError, Conflict, NotFound
from dragoman.operations.function import find_operations, operation_of
from dragoman.operations.operation import Operation

RESERVED = "hub"  # the meta-tools' namespace
SUGGESTIONS = 3
LONGEST = 200  # characters of an id
COMPARED = 500  # names weighed for suggestions: comparing all of 10,000 would hold the event loop up
Addable: TypeAlias = Operation | ModuleType | Callable[..., Any]
Allow: TypeAlias = Callable[[Operation], bool]


class Watcher(Protocol):
    """Who wants to know of operations that come and go."""

    def add(self, operation: Operation) -> None: ...

    def remove(self, operation: Operation) -> None: ...


class Bringer(Protocol):
    """Who brings the operations of a namespace, sooner or later: an MCP server, say."""

    async def arrive(self) -> None:
        """Wait while they are on their way."""

    def absence(self) -> str | None:
        """Why they are not here; None when they are."""


class Registry:
    """Operations by id; ids differ in more than letter case."""

    def __init__(self, *things: Addable) -> None:
        self._operations: dict[str, Operation] = {}  # by small-letter id
        self._spellings: dict[str, tuple[str, ...]] = {}  # `ns_name` -> small-letter ids
        self._counts: Counter[str] = Counter()
        self._watchers: tuple[Watcher, ...] = ()
        self._bringers: dict[str, Bringer] = {}  # by small-letter namespace
        for thing in things:
            self.add(thing)

    def add(self, thing: Addable) -> tuple[Operation, ...]:
        """Take in an operation, an `@operation` function, or all that a module has; on an error nothing.

        Raises Conflict when an id is taken, ConfigError when there is no operation in it.
        """
        added = tuple(operations_in(thing))
        ids = Counter(operation.id.lower() for operation in added)
        for operation in added:
            self._admit(operation, twice=ids[operation.id.lower()] > 1)
        for operation in added:
            self._put(operation)
        return added

    def remove(self, id: str) -> Operation:
        """Take an operation out, and give it back. NotFound when there is none."""
        key = id.lower()
        operation = self._operations.pop(key, None)
        if operation is None:
            raise NotFound(f"no operation {id[:LONGEST]!r}")
        spelled = underscored(key)
        self._spellings[spelled] = tuple(each for each in self._spellings[spelled] if each != key)
        if not self._spellings[spelled]:
            del self._spellings[spelled]
        self._counts[operation.namespace] -= 1
        if not self._counts[operation.namespace]:
            del self._counts[operation.namespace]
        for watcher in self._watchers:
            watcher.remove(operation)
        return operation

    def get(self, id: str, *, allow: Allow | None = None) -> Operation:
        """The operation of this id, `ns.name`; `ns_name` will do when it can mean one only.

        Neither ever means one of another namespace, which somebody brought while the one that is meant is not
        here. NotFound suggests what may have been meant, of what `allow` lets through.
        """
        found = self._operations.get(id.lower())
        if found is not None:
            return found
        spelled = self._spelled(id.lower())
        if len(spelled) == 1 and not self._is_absent(id, spelled[0].namespace):
            return spelled[0]
        near = spelled or self._suggest(id.lower())
        meant = [each.id for each in near if allow is None or allow(each)]
        reasons = [reason for each in self._awaited(id) if (reason := each.absence())]
        suggestions = [f"did you mean {' or '.join(meant)}?"] if meant else []
        raise NotFound(f"no operation {id[:LONGEST]!r}", hint="; ".join([*reasons, *suggestions]) or None)

    def list(self, namespace: str | None = None) -> tuple[Operation, ...]:
        """The operations of a namespace, or all; by id."""
        held = self._operations.values()
        kept = held if namespace is None else [each for each in held if each.namespace == namespace]
        return tuple(sorted(kept, key=lambda each: each.id))

    def namespaces(self) -> dict[str, int]:
        """How many operations each namespace has; by name."""
        return dict(sorted(self._counts.items()))

    def watch(self, watcher: Watcher) -> None:
        """Tell the watcher of every operation: those that are here now, and each that comes or goes."""
        for operation in self._operations.values():
            watcher.add(operation)
        self._watchers = (*self._watchers, watcher)

    def expect(self, namespace: str, bringer: Bringer) -> None:
        """Operations of this namespace may come later: who wants one that is not here waits for them."""
        self._bringers[namespace.lower()] = bringer

    def forgo(self, namespace: str, bringer: Bringer) -> None:
        """This one brings no operations of this namespace any more; another one may."""
        if self._bringers.get(namespace.lower()) is bringer:
            del self._bringers[namespace.lower()]

    async def arrived(self, ids: Iterable[str], *, by: float | None = None) -> None:
        """Wait, by this deadline, for those of these operations that are not here but on their way."""
        if not self._bringers:
            return
        absent = [id for id in ids if id.lower() not in self._operations]
        bringers = {id(each): each for name in absent for each in self._awaited(name)}
        if not bringers:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(by):
                await asyncio.gather(*(each.arrive() for each in bringers.values()))

    def _spelled(self, id: str) -> Sequence[Operation]:
        """The operations that this can be another spelling of; one with a dot says the namespace."""
        keys = sorted(self._spellings.get(underscored(id), ()))
        space, dot, _ = id.partition(".")
        return [self._operations[key] for key in keys if not dot or key.startswith(f"{space}.")]

    def _is_absent(self, id: str, namespace: str) -> bool:
        """Whether it may be meant for another namespace, whose operations are not here now."""
        here = self._bringers.get(namespace.lower())
        return any(each is not here and each.absence() for each in self._awaited(id))

    def _awaited(self, id: str) -> Sequence[Bringer]:
        """Who may bring this operation, in either spelling of its id."""
        spelled = underscored(id.lower())
        named = self._bringers.items()
        return [each for name, each in named if spelled.startswith(underscored(name) + "_")]

    def _admit(self, operation: Operation, *, twice: bool) -> None:
        if operation.namespace.lower() == RESERVED:
            raise Conflict(f"{operation.id}: the namespace {RESERVED!r} is the hub's own; choose another")
        if twice or operation.id.lower() in self._operations:
            raise Conflict(
                f"there is an operation {operation.id!r} already; remove it first, or choose another name"
            )

    def _put(self, operation: Operation) -> None:
        key = operation.id.lower()
        self._operations[key] = operation
        spelled = underscored(key)
        self._spellings[spelled] = (*self._spellings.get(spelled, ()), key)
        self._counts[operation.namespace] += 1
        for watcher in self._watchers:
            watcher.add(operation)

    def _suggest(self, id: str) -> Sequence[Operation]:
        """The operations whose ids look most like this one, among those of its namespace or its name."""
        if len(id) > LONGEST:
            return ()
        namespace, _, name = id.rpartition(".")
        near = set(difflib.get_close_matches(namespace, list(islice(self._counts, COMPARED)), n=SUGGESTIONS))
        likely = (
            each.id
            for each in self._operations.values()
            if each.namespace in near or each.name.lower() == name or len(self._operations) <= COMPARED
        )
        meant = difflib.get_close_matches(id, list(islice(likely, COMPARED)), n=SUGGESTIONS)
        return [self._operations[each.lower()] for each in meant]


def operations_in(thing: Addable) -> Sequence[Operation]:
    """The operations that a thing is or holds. ConfigError when it is none and holds none."""
    if isinstance(thing, Operation):
        return [thing]
    found = list(find_operations(thing)) if isinstance(thing, ModuleType) else []
    single = operation_of(thing)
    if single is not None:
        return [single]
    if not found:
        name = getattr(thing, "__name__", repr(thing))
        raise ConfigError(
            f"{name} is no operation and holds none; put @operation(namespace) on a function of it"
        )
    return found


def underscored(id: str) -> str:
    """The id as wires without dots spell it."""
    return id.replace(".", "_").replace("/", "_").replace("-", "_")
