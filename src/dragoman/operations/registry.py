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
from dragoman.operations.decorator import find_operations, marked_operation
from dragoman.operations.operation import Operation

RESERVED_NAMESPACE = "hub"  # the meta-tools' namespace
MAX_SUGGESTIONS = 3
MAX_ID_LENGTH = 200  # characters of an id
MAX_COMPARED = 500  # names weighed for suggestions: comparing all of 10,000 would hold the event loop up
OperationSource: TypeAlias = Operation | ModuleType | Callable[..., Any]
OperationFilter: TypeAlias = Callable[[Operation], bool]


class RegistryListener(Protocol):
    """Who wants to know of operations that come and go."""

    def add(self, operation: Operation) -> None: ...

    def remove(self, operation: Operation) -> None: ...


class OperationSupplier(Protocol):
    """Who brings the operations of a namespace, sooner or later: an MCP server, say."""

    async def wait_until_ready(self) -> None:
        """Wait while they are on their way."""

    def unavailable_reason(self) -> str | None:
        """Why they are not here; None when they are."""


class Registry:
    """Operations by id; ids differ in more than letter case."""

    def __init__(self, *sources: OperationSource) -> None:
        self._operations: dict[str, Operation] = {}  # by small-letter id
        self._ids_by_underscored: dict[str, tuple[str, ...]] = {}  # `ns_name` -> small-letter ids
        self._counts: Counter[str] = Counter()
        self._listeners: tuple[RegistryListener, ...] = ()
        self._suppliers: dict[str, OperationSupplier] = {}  # by small-letter namespace
        for thing in sources:
            self.add(thing)

    def add(self, source: OperationSource) -> tuple[Operation, ...]:
        """Take in an operation, an `@operation` function, or all that a module has; on an error nothing.

        Raises Conflict when an id is taken, ConfigError when there is no operation in it.
        """
        added = tuple(operations_in(source))
        ids = Counter(operation.id.lower() for operation in added)
        for operation in added:
            self._check_new(operation, duplicate=ids[operation.id.lower()] > 1)
        for operation in added:
            self._insert(operation)
        return added

    def remove(self, id: str) -> Operation:
        """Take an operation out, and give it back. NotFound when there is none."""
        key = id.lower()
        operation = self._operations.pop(key, None)
        if operation is None:
            raise NotFound(f"no operation {id[:MAX_ID_LENGTH]!r}")
        spelled = to_underscores(key)
        self._ids_by_underscored[spelled] = tuple(
            each for each in self._ids_by_underscored[spelled] if each != key
        )
        if not self._ids_by_underscored[spelled]:
            del self._ids_by_underscored[spelled]
        self._counts[operation.namespace] -= 1
        if not self._counts[operation.namespace]:
            del self._counts[operation.namespace]
        for watcher in self._listeners:
            watcher.remove(operation)
        return operation

    def get(self, id: str, *, allow: OperationFilter | None = None) -> Operation:
        """The operation of this id, `ns.name`; `ns_name` will do when it can mean one only.

        Neither ever means one of another namespace, which somebody brought while the one that is meant is not
        here. NotFound suggests what may have been meant, of what `allow` lets through.
        """
        found = self._operations.get(id.lower())
        if found is not None:
            return found
        spelled = self._find_underscored(id.lower())
        if len(spelled) == 1 and not self._is_other_unavailable(id, spelled[0].namespace):
            return spelled[0]
        near = spelled or self._suggest(id.lower())
        meant = [each.id for each in near if allow is None or allow(each)]
        reasons = [reason for each in self._suppliers_of(id) if (reason := each.unavailable_reason())]
        suggestions = [f"did you mean {' or '.join(meant)}?"] if meant else []
        raise NotFound(
            f"no operation {id[:MAX_ID_LENGTH]!r}", hint="; ".join([*reasons, *suggestions]) or None
        )

    def list(self, namespace: str | None = None) -> tuple[Operation, ...]:
        """The operations of a namespace, or all; by id."""
        held = self._operations.values()
        kept = held if namespace is None else [each for each in held if each.namespace == namespace]
        return tuple(sorted(kept, key=lambda each: each.id))

    def namespaces(self) -> dict[str, int]:
        """How many operations each namespace has; by name."""
        return dict(sorted(self._counts.items()))

    def add_listener(self, listener: RegistryListener) -> None:
        """Tell the watcher of every operation: those that are here now, and each that comes or goes."""
        for operation in self._operations.values():
            listener.add(operation)
        self._listeners = (*self._listeners, listener)

    def add_supplier(self, namespace: str, supplier: OperationSupplier) -> None:
        """Operations of this namespace may come later: who wants one that is not here waits for them."""
        self._suppliers[namespace.lower()] = supplier

    def remove_supplier(self, namespace: str, supplier: OperationSupplier) -> None:
        """This one brings no operations of this namespace any more; another one may."""
        if self._suppliers.get(namespace.lower()) is supplier:
            del self._suppliers[namespace.lower()]

    async def wait_for(self, ids: Iterable[str], *, deadline: float | None = None) -> None:
        """Wait, by this deadline, for those of these operations that are not here but on their way."""
        if not self._suppliers:
            return
        absent = [id for id in ids if id.lower() not in self._operations]
        bringers = {id(each): each for name in absent for each in self._suppliers_of(name)}
        if not bringers:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(each.wait_until_ready() for each in bringers.values()))

    def _find_underscored(self, id: str) -> Sequence[Operation]:
        """The operations that this can be another spelling of; one with a dot says the namespace."""
        keys = sorted(self._ids_by_underscored.get(to_underscores(id), ()))
        space, dot, _ = id.partition(".")
        return [self._operations[key] for key in keys if not dot or key.startswith(f"{space}.")]

    def _is_other_unavailable(self, id: str, namespace: str) -> bool:
        """Whether it may be meant for another namespace, whose operations are not here now."""
        here = self._suppliers.get(namespace.lower())
        return any(each is not here and each.unavailable_reason() for each in self._suppliers_of(id))

    def _suppliers_of(self, id: str) -> Sequence[OperationSupplier]:
        """Who may bring this operation, in either spelling of its id."""
        spelled = to_underscores(id.lower())
        named = self._suppliers.items()
        return [each for name, each in named if spelled.startswith(to_underscores(name) + "_")]

    def _check_new(self, operation: Operation, *, duplicate: bool) -> None:
        if operation.namespace.lower() == RESERVED_NAMESPACE:
            raise Conflict(
                f"{operation.id}: the namespace {RESERVED_NAMESPACE!r} is the hub's own; choose another"
            )
        if duplicate or operation.id.lower() in self._operations:
            raise Conflict(
                f"there is an operation {operation.id!r} already; remove it first, or choose another name"
            )

    def _insert(self, operation: Operation) -> None:
        key = operation.id.lower()
        self._operations[key] = operation
        spelled = to_underscores(key)
        self._ids_by_underscored[spelled] = (*self._ids_by_underscored.get(spelled, ()), key)
        self._counts[operation.namespace] += 1
        for watcher in self._listeners:
            watcher.add(operation)

    def _suggest(self, id: str) -> Sequence[Operation]:
        """The operations whose ids look most like this one, among those of its namespace or its name."""
        if len(id) > MAX_ID_LENGTH:
            return ()
        namespace, _, name = id.rpartition(".")
        near = set(
            difflib.get_close_matches(namespace, list(islice(self._counts, MAX_COMPARED)), n=MAX_SUGGESTIONS)
        )
        likely = (
            each.id
            for each in self._operations.values()
            if each.namespace in near or each.name.lower() == name or len(self._operations) <= MAX_COMPARED
        )
        meant = difflib.get_close_matches(id, list(islice(likely, MAX_COMPARED)), n=MAX_SUGGESTIONS)
        return [self._operations[each.lower()] for each in meant]


def operations_in(source: OperationSource) -> Sequence[Operation]:
    """The operations that a thing is or holds. ConfigError when it is none and holds none."""
    if isinstance(source, Operation):
        return [source]
    found = list(find_operations(source)) if isinstance(source, ModuleType) else []
    single = marked_operation(source)
    if single is not None:
        return [single]
    if not found:
        name = getattr(source, "__name__", repr(source))
        raise ConfigError(
            f"{name} is no operation and holds none; put @operation(namespace) on a function of it"
        )
    return found


def to_underscores(id: str) -> str:
    """The id as wires without dots spell it."""
    return id.replace(".", "_").replace("/", "_").replace("-", "_")
