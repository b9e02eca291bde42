"""The registry: the operations that a hub holds, by namespace and name."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from dragoman.errors import ConfigError, Conflict, NotFound
from dragoman.operations.function import find_operations, operation_of
from dragoman.operations.operation import Operation

RESERVED = "hub"  # the meta-tools' namespace
SUGGESTIONS = 3
COMPARED = 500  # names weighed for suggestions: comparing all of 10,000 would hold the event loop up
Addable: TypeAlias = Operation | ModuleType | Callable[..., Any]


class Watcher(Protocol):
    """Who wants to know of operations that come and go."""

    def add(self, operation: Operation) -> None: ...

    def remove(self, operation: Operation) -> None: ...


class Registry:
    """Operations by id; ids differ in more than letter case."""

    def __init__(self, *things: Addable) -> None:
        self._operations: dict[str, Operation] = {}  # by small-letter id
        self._spellings: dict[str, set[str]] = {}  # `ns_name` -> small-letter ids
        self._counts: Counter[str] = Counter()
        self._watchers: list[Watcher] = []
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
        operation = self.get(id)
        key = operation.id.lower()
        del self._operations[key]
        spelled = self._spellings[underscored(key)]
        spelled.discard(key)
        if not spelled:
            del self._spellings[underscored(key)]
        self._counts -= Counter([operation.namespace])
        for watcher in self._watchers:
            watcher.remove(operation)
        return operation

    def get(self, id: str) -> Operation:
        """The operation of this id, `ns.name`; `ns_name` will do when it can mean one only.

        NotFound suggests what may have been meant.
        """
        found = self._operations.get(id.lower())
        if found is not None:
            return found
        spelled = self._spellings.get(underscored(id.lower()), set())
        if len(spelled) == 1:
            return self._operations[next(iter(spelled))]
        meant: Sequence[str] = sorted(self._operations[key].id for key in spelled) or self._suggest(
            id.lower()
        )
        hint = f"did you mean {' or '.join(meant)}?" if meant else None
        raise NotFound(f"no operation {id[:200]!r}", hint=hint)

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
        self._watchers.append(watcher)

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
        self._spellings.setdefault(underscored(key), set()).add(key)
        self._counts[operation.namespace] += 1
        for watcher in self._watchers:
            watcher.add(operation)

    def _suggest(self, id: str) -> Sequence[str]:
        """The ids that look most like this one, among those of its namespace or its name."""
        namespace, _, name = id.rpartition(".")
        near = set(difflib.get_close_matches(namespace, list(islice(self._counts, COMPARED)), n=SUGGESTIONS))
        likely = (
            each.id
            for each in self._operations.values()
            if each.namespace in near or each.name.lower() == name or len(self._operations) <= COMPARED
        )
        return difflib.get_close_matches(id, list(islice(likely, COMPARED)), n=SUGGESTIONS)


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
