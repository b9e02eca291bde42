"""The registry of operations by namespace and name."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, islice
from types import ModuleType
from typing import Any, Protocol, TypeAlias, get_args

from dragoman.errors import ConfigError, Conflict, NotFound
from dragoman.operations.call_aliases import CallAlias
from dragoman.operations.definitions.decorator import find_operations, marked_operation
from dragoman.operations.operation import Effect, Operation
from dragoman.suggestions import find_similar_names

RESERVED_NAMESPACE = "hub"  # the meta-tools' namespace
# The namespaces of the hub's own operations, whether or not these are enabled.
HUB_NAMESPACES = frozenset(
    {"agents", "artifacts", "browser", "files", "history", "hub", "math", "memory"}
    | {"plugins", "shell", "skills", "teams", "time", "triggers", "user", "vault", "web"}
)
MAX_SUGGESTIONS = 3
MAX_ID_LENGTH = 200  # characters of an id
MAX_COMPARED = 500  # names compared for suggestions: all of 10,000 would block the event loop
MAX_ASKED = 2_000  # operations whose policy is evaluated for suggestions
OperationSource: TypeAlias = Operation | ModuleType | Callable[..., Any]
OperationFilter: TypeAlias = Callable[[Operation], bool]


class RegistryListener(Protocol):
    """Is notified of operations that are added and removed."""

    def add(self, operation: Operation) -> None: ...

    def remove(self, operation: Operation) -> None: ...


class Arrivals:
    """A listener that sets `complete` once the operations of these ids are registered."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._missing = {id.lower() for id in ids}
        self.complete = asyncio.Event()
        self._check()

    def add(self, operation: Operation) -> None:
        """Record that an operation is registered."""
        self._missing.discard(operation.id.lower())
        self._check()

    def remove(self, operation: Operation) -> None:
        """Do nothing: only registrations are awaited."""

    def _check(self) -> None:
        if not self._missing:
            self.complete.set()


class OperationSupplier(Protocol):
    """Registers the operations of a namespace, perhaps later; for example, an MCP server."""

    async def wait_until_ready(self) -> None:
        """Wait while the operations are being registered."""

    def unavailable_reason(self) -> str | None:
        """Return why the operations are missing; None if they are registered."""


class Registry:
    """Operations by id. Ids are case-insensitive."""

    def __init__(self, *sources: OperationSource) -> None:
        self._operations: dict[str, Operation] = {}  # by lower-case id
        self._in_order: tuple[Operation, ...] | None = None  # by id; None after a change
        self._ids_by_underscored: dict[str, tuple[str, ...]] = {}  # `ns_name` -> lower-case ids
        self._by_namespace: dict[str, dict[str, Operation]] = {}  # by lower-case id
        self._listeners: tuple[RegistryListener, ...] = ()
        self._suppliers: dict[str, OperationSupplier] = {}  # by lower-case namespace
        self.aliases: Mapping[str, CallAlias] = {}
        """Other names of operations, in lower case, without a dot. Operations with such an id win."""
        for source in sources:
            self.add(source)

    def add(self, source: OperationSource) -> tuple[Operation, ...]:
        """Add an operation, an `@operation` function, or all operations of a module; return them.

        Raises Conflict if an id exists, ConfigError if the source has no operation; then none is added.
        """
        added = tuple(operations_in(source))
        ids = Counter(operation.id.lower() for operation in added)
        for operation in added:
            self._check_new(operation, duplicate=ids[operation.id.lower()] > 1)
        for operation in added:
            self._insert(operation)
        return added

    def remove(self, id: str) -> Operation:
        """Remove an operation and return it. Raises NotFound."""
        key = id.lower()
        operation = self._operations.pop(key, None)
        if operation is None:
            raise NotFound(f"There is no operation {id[:MAX_ID_LENGTH]!r}.")
        spelling = to_underscores(key)
        self._ids_by_underscored[spelling] = tuple(
            other for other in self._ids_by_underscored[spelling] if other != key
        )
        if not self._ids_by_underscored[spelling]:
            del self._ids_by_underscored[spelling]
        self._in_order = None
        del self._by_namespace[operation.namespace][key]
        if not self._by_namespace[operation.namespace]:
            del self._by_namespace[operation.namespace]
        for listener in self._listeners:
            listener.remove(operation)
        return operation

    def get(self, id: str, *, allow: OperationFilter | None = None, owner: str | None = None) -> Operation:
        """Return the operation of this id, `ns.name`, or `ns_name` if that is unambiguous.

        Raises NotFound. An operation that `allow` refuses, or a private one of another owner than `owner`, is
        treated as unknown: the error suggests only accepted ids, and says why an operation is unavailable
        only to those who may call it. While the namespace of an id is unavailable, the id does not resolve
        to another namespace.
        """

        def accepts(candidate: Operation) -> bool:
            return (owner is None or candidate.is_visible_to(owner)) and (allow is None or allow(candidate))

        operation = self._operations.get(id.lower())
        if operation is not None and accepts(operation):
            return operation
        if (alias := self.find_alias(id)) is not None:
            return self.get(alias.target, allow=allow, owner=owner)
        candidates = [each for each in self._find_underscored(id.lower()) if accepts(each)]
        if len(candidates) == 1 and not self._is_other_unavailable(id, candidates[0].namespace):
            return candidates[0]
        similar = candidates or self._suggest(id.lower(), allow=allow, owner=owner)
        ids = [candidate.id for candidate in similar]
        reasons = self._unavailable_reasons(id.lower(), accepts)
        suggestions = [f"did you mean {' or '.join(ids)}?"] if ids else []
        raise NotFound(
            f"There is no operation {id[:MAX_ID_LENGTH]!r}.", hint="; ".join([*reasons, *suggestions]) or None
        )

    def find_alias(self, name: str) -> CallAlias | None:
        """Return the alias of this name, unless an operation may be meant; None for any other name."""
        alias = self.aliases.get(name.lower())
        if alias is None:
            return None
        return (
            alias if all(each.id == alias.target for each in self._find_underscored(name.lower())) else None
        )

    def list(self, namespace: str | None = None, *, after: str = "") -> tuple[Operation, ...]:
        """Return the operations of a namespace, or all, by id; with `after` those that follow this id."""
        if self._in_order is None:
            self._in_order = tuple(sorted(self._operations.values(), key=lambda operation: operation.id))
        start = bisect_right(self._in_order, after, key=lambda operation: operation.id)
        operations = self._in_order[start:]
        if namespace is None:
            return operations
        return tuple(operation for operation in operations if operation.namespace == namespace)

    def namespaces(self) -> dict[str, int]:
        """Return how many operations each namespace has, by name."""
        return {name: len(operations) for name, operations in sorted(self._by_namespace.items())}

    def add_listener(self, listener: RegistryListener) -> None:
        """Notify the listener of the present operations, and of each that is added or removed."""
        for operation in self._operations.values():
            listener.add(operation)
        self._listeners = (*self._listeners, listener)

    def add_supplier(self, namespace: str, supplier: OperationSupplier) -> None:
        """Register a supplier of this namespace: calls of its missing operations wait for it."""
        self._suppliers[namespace.lower()] = supplier

    def remove_supplier(self, namespace: str, supplier: OperationSupplier) -> None:
        """Remove this supplier; another one of the namespace stays."""
        if self._suppliers.get(namespace.lower()) is supplier:
            del self._suppliers[namespace.lower()]

    async def wait_for(
        self, ids: Iterable[str], *, deadline: float | None = None, allow: OperationFilter | None = None
    ) -> None:
        """Wait, up to the deadline, for missing operations that a supplier is registering.

        With `allow`, only for those that the caller may call, whatever their effect will be: otherwise the
        response time would reveal hidden operations.
        """
        if not self._suppliers:
            return
        missing = [id.lower() for id in ids if id.lower() not in self._operations]
        suppliers = {
            id(supplier): supplier
            for name in missing
            for namespace, supplier in self._named_suppliers_of(name)
            if allow is None or any(map(allow, possible_operations(namespace, name)))
        }
        if not suppliers:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(supplier.wait_until_ready() for supplier in suppliers.values()))

    async def wait_until_registered(self, ids: Iterable[str], *, seconds: float) -> None:
        """Wait up to `seconds` until these operations are registered, also by a spoke."""
        arrivals = Arrivals(ids)
        self.add_listener(arrivals)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await arrivals.complete.wait()
        finally:
            self._listeners = tuple(listener for listener in self._listeners if listener is not arrivals)

    def _find_underscored(self, id: str) -> Sequence[Operation]:
        """Return the operations whose id has this other spelling; a dot determines the namespace."""
        keys = sorted(self._ids_by_underscored.get(to_underscores(id), ()))
        namespace, dot, _ = id.partition(".")
        return [self._operations[key] for key in keys if not dot or key.startswith(f"{namespace}.")]

    def _is_other_unavailable(self, id: str, namespace: str) -> bool:
        """Return whether the id may mean another namespace, which is unavailable."""
        own_supplier = self._suppliers.get(namespace.lower())
        return any(
            supplier is not own_supplier and supplier.unavailable_reason()
            for supplier in self._suppliers_of(id)
        )

    def _suppliers_of(self, id: str) -> Sequence[OperationSupplier]:
        """Return the suppliers that may supply this operation, in either spelling of its id."""
        return [supplier for _, supplier in self._named_suppliers_of(id)]

    def _named_suppliers_of(self, id: str) -> Sequence[tuple[str, OperationSupplier]]:
        """Return the suppliers that may supply this operation, with their lower-case namespaces."""
        spelling = to_underscores(id.lower())
        return [
            each for each in self._suppliers.items() if spelling.startswith(to_underscores(each[0]) + "_")
        ]

    def _check_new(self, operation: Operation, *, duplicate: bool) -> None:
        if operation.namespace.lower() == RESERVED_NAMESPACE:
            raise Conflict(
                f"{operation.id}: the namespace {RESERVED_NAMESPACE!r} is reserved; choose another."
            )
        if duplicate or operation.id.lower() in self._operations:
            raise Conflict(
                f"An operation {operation.id!r} already exists; remove it first, or choose another name."
            )

    def _insert(self, operation: Operation) -> None:
        key = operation.id.lower()
        self._operations[key] = operation
        spelling = to_underscores(key)
        self._ids_by_underscored[spelling] = (*self._ids_by_underscored.get(spelling, ()), key)
        self._in_order = None
        self._by_namespace.setdefault(operation.namespace, {})[key] = operation
        for listener in self._listeners:
            listener.add(operation)

    def _unavailable_reasons(self, id: str, accepts: OperationFilter) -> Sequence[str]:
        """Return why the suppliers of this operation are unavailable, if the caller may call it."""
        reasons = [(name, supplier.unavailable_reason()) for name, supplier in self._named_suppliers_of(id)]
        return [
            reason for name, reason in reasons if reason and any(map(accepts, possible_operations(name, id)))
        ]

    def _suggest(self, id: str, *, allow: OperationFilter | None, owner: str | None) -> Sequence[Operation]:
        """Return the allowed operations with the most similar ids, of similar namespaces or the same name.

        Operations that the caller may not call have no influence, as long as MAX_ASKED is not reached.
        """
        numbers = count()

        def accepts(candidate: Operation) -> bool:
            if owner is not None and not candidate.is_visible_to(owner):
                return False
            return allow is None or (next(numbers) < MAX_ASKED and allow(candidate))

        accepted = list(islice(filter(accepts, self._operations.values()), MAX_COMPARED + 1))
        if len(accepted) > MAX_COMPARED:
            accepted = list(islice(filter(accepts, self._find_near(id, accepts)), MAX_COMPARED))
        similar = find_similar_names(id, [each.id for each in accepted], limit=MAX_SUGGESTIONS)
        return [self._operations[each.lower()] for each in similar]

    def _find_near(self, id: str, accepts: OperationFilter) -> Iterator[Operation]:
        """Yield the operations of namespaces with a similar name, and those of the same name."""
        namespace, _, name = id.rpartition(".")
        by_namespace = self._by_namespace
        accepted = (name for name in sorted(by_namespace) if any(map(accepts, by_namespace[name].values())))
        compared = list(islice(accepted, MAX_COMPARED))
        namespaces = set(find_similar_names(namespace, compared, limit=MAX_SUGGESTIONS))
        for candidate in self._operations.values():
            if candidate.namespace in namespaces or candidate.name.lower() == name:
                yield candidate


def possible_operations(namespace: str, id: str) -> Iterator[Operation]:
    """Yield the operations of this namespace that a lower-case id, in either spelling, may mean.

    They differ in their effect; there are none for an invalid name.
    """
    for effect in get_args(Effect):
        with suppress(ConfigError):
            yield Operation(
                namespace=namespace,
                name=id[len(namespace) + 1 :],
                input_schema={},
                parse=dict,
                run=run_nothing,
                effect=effect,
            )


async def run_nothing(_: Any, __: Any) -> None:
    """The function of an operation that is only compared with policy rules."""


def operations_in(source: OperationSource) -> Sequence[Operation]:
    """Return the operations of a source. Raises ConfigError if it has none."""
    if isinstance(source, Operation):
        return [source]
    operations = list(find_operations(source)) if isinstance(source, ModuleType) else []
    single = marked_operation(source)
    if single is not None:
        return [single]
    if not operations:
        name = getattr(source, "__name__", repr(source))
        raise ConfigError(f"{name} has no operations; decorate a function with @operation(namespace).")
    return operations


def to_underscores(id: str) -> str:
    """Return the spelling of an id in protocols that allow no dots."""
    return id.replace(".", "_").replace("/", "_").replace("-", "_")
