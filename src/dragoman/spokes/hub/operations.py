"""The operations that connected spokes serve, kept in step with the hub's registry."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import count

import msgspec

from dragoman.errors import Conflict, DragomanError, NotFound, TooLarge
from dragoman.json_text import is_deeper_than
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import to_failure
from dragoman.operations.registry import Registry
from dragoman.spokes.hub.bad_frames import MAX_SCHEMA_DEPTH
from dragoman.spokes.hub.balancer import SpokeBalancer
from dragoman.spokes.hub.namespace_claims import NamespaceClaims
from dragoman.spokes.hub.permissions import NamespacePermissions, canonical_namespace
from dragoman.spokes.hub.remote_spoke import RemoteSpoke
from dragoman.spokes.protocol import (
    OperationOffer,
    RefusedOperation,
    RegisteredFrame,
    RegisterFrame,
    SpokeFailure,
)

log = logging.getLogger(__name__)
HUB_OWNER = ""  # the holder of namespaces with operations that no spoke brought
SCHEMA_BYTES = 200_000
YIELD_EVERY = 20  # operations taken in before others get the event loop


class SpokeOperations:
    """The load balancers of all operations that spokes serve."""

    def __init__(
        self, registry: Registry, permissions: NamespacePermissions, *, claims: NamespaceClaims
    ) -> None:
        self.claims = claims
        self._registry = registry
        self.permissions = permissions
        self._balancers: dict[str, SpokeBalancer] = {}  # by small-letter id
        self._owners: dict[str, Counter[str]] = {}  # whose spokes serve how much, by canonical namespace
        self._totals: Counter[str] = Counter()  # operations of an owner's spokes
        self._call_numbers = count(1)

    async def register(self, spoke: RemoteSpoke, frame: RegisterFrame) -> RegisteredFrame:
        """Register what a spoke offers, each operation on its own. Raises Unavailable."""
        await self.claims.load()
        if frame.all:
            wanted = {offer.id.lower() for offer in frame.operations}
            self.unregister(spoke, [id for id in spoke.offers if id not in wanted])
        taken: list[str] = []
        refused: list[RefusedOperation] = []
        namespaces = map(canonical_namespace, self._registry.namespaces())
        own = {name for name in namespaces if name not in self._owners}
        for number, offer in enumerate(frame.operations, start=1):
            try:
                name = canonical_namespace(offer.namespace)
                holder = HUB_OWNER if name in own else self._namespace_owner(name, spoke.owner)
                self.permissions.check(spoke.owner, offer.namespace, current_owner=holder)
                self.claims.check_limit(name, spoke.owner)
                self._add_offer(spoke, offer)
                self.claims.claim(name, spoke.owner)
                taken.append(offer.id)
            except DragomanError as error:
                refused.append(
                    RefusedOperation(
                        operation=offer.id[:200], error=SpokeFailure.from_call_failure(to_failure(error))
                    )
                )
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        await self.claims.save()
        if refused:
            log.warning("spoke %s: %s", spoke.id, "; ".join(each.error.message for each in refused[:5]))
        return RegisteredFrame(id=frame.id, operations=tuple(taken), refused=tuple(refused))

    async def free_namespace(self, namespace: str) -> None:
        """Make a namespace nobody's, and remove its operations. Raises NotFound, Unavailable."""
        await self.claims.load()
        name = canonical_namespace(namespace)
        if self.claims.owner_of(name) is None:
            raise NotFound(
                f"no owner has the namespace {namespace[:100]!r}",
                hint="GET /api/spokes lists those that have one",
            )
        await self.claims.release(name)
        for id, balancer in list(self._balancers.items()):
            if canonical_namespace(balancer.offer.namespace) == name:
                for spoke in list(balancer.spokes):
                    self.unregister(spoke, [id])

    def set_permissions(self, permissions: NamespacePermissions) -> None:
        """Use other permissions; what they share, and which effects they trust, changes at once."""
        self.permissions = permissions
        for balancer in list(self._balancers.values()):
            before = balancer.terms
            operation = self._make_operation(balancer)
            if balancer.terms != before:
                with suppress(NotFound):
                    self._registry.remove(operation.id)
                self._registry.add(operation)

    def unregister(self, spoke: RemoteSpoke, ids: Iterable[str]) -> None:
        """Remove operations of a spoke; one that no spoke serves leaves the registry."""
        for id in [id.lower() for id in ids]:
            offer = spoke.offers.pop(id, None)
            if offer is None:
                continue
            self._count_owner(offer, spoke.owner, by=-1)
            route = self._balancers[id]
            was_first = route.spokes[0] is spoke
            route.remove_spoke(spoke)
            if not route.spokes:
                del self._balancers[id]
            if was_first:
                self._update_registry(route)

    def remove_spoke(self, spoke: RemoteSpoke) -> None:
        """Remove a spoke that does not come back."""
        self.unregister(spoke, list(spoke.offers))
        spoke.close()

    def _add_offer(self, spoke: RemoteSpoke, offer: OperationOffer) -> None:
        key = offer.id.lower()
        if len(spoke.offers) >= spoke.settings.operations and key not in spoke.offers:
            raise TooLarge(f"a spoke may register at most {spoke.settings.operations} operations")
        if any(
            is_deeper_than(schema, MAX_SCHEMA_DEPTH) for schema in (offer.input_schema, offer.output_schema)
        ):
            raise TooLarge(f"a schema of {offer.id} is nested more than {MAX_SCHEMA_DEPTH} deep")
        total = spoke.settings.owner_operations
        if self._totals[spoke.owner] >= total and key not in spoke.offers:
            raise TooLarge(
                f"the spokes of {spoke.owner!r} have {total} operations together, the limit",
                hint="`spokes.owner_operations` in the configuration is the limit",
            )
        size = len(msgspec.json.encode(offer))
        if size > SCHEMA_BYTES:
            raise TooLarge(f"{offer.id} is described in {size} bytes, {SCHEMA_BYTES} are allowed")
        route = self._balancers.get(key)
        if route is not None and key in spoke.offers:
            self._replace_offer(spoke, offer, balancer=route)
            self._count_owner(offer, spoke.owner, by=-1)
        elif route is not None:
            require_same_owner(offer, spoke.owner, registered_owner=route.owner)
            require_same_definition(offer, route.offer)
            route.add_spoke(spoke)
        else:
            route = SpokeBalancer(offer, owner=spoke.owner, call_numbers=self._call_numbers)
            route.add_spoke(spoke)
            self._registry.add(self._make_operation(route))
            self._balancers[key] = route
        spoke.offers[key] = offer
        self._count_owner(offer, spoke.owner, by=1)

    def _replace_offer(self, spoke: RemoteSpoke, offer: OperationOffer, *, balancer: SpokeBalancer) -> None:
        """Replace an offer of an operation that the spoke serves already."""
        if spoke.offers[offer.id.lower()] == offer:
            return
        if len(balancer.spokes) > 1:
            require_same_definition(offer, balancer.offer)
            return
        before, balancer.offer = balancer.offer, offer
        try:
            made = self._make_operation(balancer)
        except DragomanError:
            balancer.offer = before
            raise
        self._registry.remove(before.id)
        self._registry.add(made)

    def _update_registry(self, balancer: SpokeBalancer) -> None:
        """Name the remaining spokes as the operation's source, or remove it with the last."""
        try:
            self._registry.remove(balancer.offer.id)
        except NotFound:
            log.debug("%s was taken out of the registry by others", balancer.offer.id)
        if balancer.spokes:
            self._registry.add(self._make_operation(balancer))

    def _make_operation(self, balancer: SpokeBalancer) -> Operation:
        """Return the operation, for all owners or only for its own. Raises ConfigError."""
        offer, permissions = balancer.offer, self.permissions
        configured = permissions.configured_effect(offer.id)
        balancer.is_shared = permissions.shares(balancer.owner, offer.namespace)
        balancer.effect = configured or offer.effect
        balancer.effect_claimed = configured is None and not permissions.trusts_effects(balancer.owner)
        return balancer.operation()

    def _count_owner(self, offer: OperationOffer, owner: str, *, by: int) -> None:
        self._totals[owner] += by
        name = canonical_namespace(offer.namespace)
        owners = self._owners.setdefault(name, Counter())
        owners[owner] += by
        if owners[owner] <= 0:
            del owners[owner]
        if not owners:
            del self._owners[name]

    def _namespace_owner(self, name: str, owner: str) -> str | None:
        """Return the first owner of the namespace, else another one with operations in it, else None."""
        first = self.claims.owner_of(name)
        if first is not None:
            return first
        owners = self._owners.get(name, Counter())
        return next((each for each in owners if each != owner), owner if owners else None)


def require_same_owner(offer: OperationOffer, owner: str, *, registered_owner: str) -> None:
    """Raise Conflict if another owner's spokes serve the operation: whoever calls it chose its owner."""
    if owner != registered_owner:
        raise Conflict(f"a spoke of another owner serves {offer.id}; choose another name")


def require_same_definition(offer: OperationOffer, registered: OperationOffer) -> None:
    """Raise Conflict if two offers with the same name define different operations."""
    names = ("id", "input_schema", "output_schema", "effect", "approval")
    differing = [name for name in names if getattr(offer, name) != getattr(registered, name)]
    if differing:
        raise Conflict(
            f"another spoke serves {registered.id} with another {' and '.join(differing).replace('_', ' ')}",
            hint="spokes share the calls of an operation when they describe it the same way; or rename it",
        )
