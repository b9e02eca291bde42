"""The operations that connected spokes serve, kept in step with the hub's registry."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import Conflict, DragomanError, NotFound, TooLarge, Unavailable
from dragoman.json_decoding import is_deeper_than
from dragoman.large_json import measure
from dragoman.offload import Slices, offload
from dragoman.operations.context import Context
from dragoman.operations.definitions.diff import definition_diff
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import to_failure
from dragoman.operations.registry import Registry
from dragoman.spokes.hub.bad_frames import MAX_SCHEMA_DEPTH
from dragoman.spokes.hub.balancer import CompiledOffer, SpokeBalancer
from dragoman.spokes.hub.call import runs_for_other_host
from dragoman.spokes.hub.definition_approvals import (
    DefinitionApprovals,
    Sharing,
    SpokeDefinition,
    SpokeDefinitionDetail,
)
from dragoman.spokes.hub.host_operations import HostOperations
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
HUB_OWNER = ""  # the owner of namespaces with operations that are not of spokes
SCHEMA_BYTES = 200_000  # of a whole offer
YIELD_EVERY = 20  # operations that are described before other tasks may run


class SpokeOperations:
    """The load balancers of all operations that spokes serve."""

    def __init__(
        self,
        registry: Registry,
        permissions: NamespacePermissions,
        *,
        claims: NamespaceClaims,
        approvals: DefinitionApprovals | None = None,
    ) -> None:
        self.claims = claims
        self._approvals = approvals or DefinitionApprovals()
        self._registry = registry
        self.permissions = permissions
        self._balancers: dict[str, SpokeBalancer] = {}  # by lower-case id
        self._owners: dict[str, Counter[str]] = {}  # offers of each owner's spokes, by canonical namespace
        self._totals: Counter[str] = Counter()  # operations of an owner's spokes
        self._call_numbers = count(1)
        self.other_hosts: HostOperations | None = None
        """The operations of other hosts; those of this host's spokes take precedence."""

    async def load(self) -> None:
        """Read the owners of namespaces and the approved definitions, once. Raises Unavailable."""
        await self.claims.load()
        await self._approvals.load()

    async def register(self, spoke: RemoteSpoke, frame: RegisterFrame) -> RegisteredFrame:
        """Register the operations that a spoke offers, or refuse them one by one. Raises Unavailable."""
        await self.load()
        if frame.all:
            wanted = {offer.id.lower() for offer in frame.operations}
            await self.unregister(spoke, [id for id in spoke.offers if id not in wanted])
        accepted: list[str] = []
        refused: list[RefusedOperation] = []
        namespaces = map(canonical_namespace, self._registry.namespaces())
        elsewhere = set() if self.other_hosts is None else self.other_hosts.namespaces()
        own = {name for name in namespaces if name not in self._owners and name not in elsewhere}
        slices = Slices()  # compiling the schemas takes time
        for offer in frame.operations:
            try:
                name = canonical_namespace(offer.namespace)
                holder = HUB_OWNER if name in own else self._namespace_owner(name, spoke.owner)
                self.permissions.check(spoke.owner, offer.namespace, current_owner=holder)
                self.claims.check_limit(name, spoke.owner)
                self._add_offer(spoke, await self._compile(spoke, offer))
                self.claims.claim(name, spoke.owner)
                accepted.append(offer.id)
            except DragomanError as error:
                refused.append(
                    RefusedOperation(
                        operation=offer.id[:200], error=SpokeFailure.from_call_failure(to_failure(error))
                    )
                )
            await slices.rest()
        await self.claims.save()
        lost = await self._remove_lost(spoke, accepted)
        accepted = [id for id in accepted if id not in lost]
        refused += [
            RefusedOperation(operation=id[:200], error=SpokeFailure.from_call_failure(to_failure(reason)))
            for id, reason in lost.items()
        ]
        if refused:
            log.warning("spoke %s: %s", spoke.id, "; ".join(each.error.message for each in refused[:5]))
        return RegisteredFrame(id=frame.id, operations=tuple(accepted), refused=tuple(refused))

    async def _remove_lost(self, spoke: RemoteSpoke, ids: Sequence[str]) -> Mapping[str, DragomanError]:
        """Remove operations whose namespace another host gave to another owner at the same time."""
        lost: dict[str, DragomanError] = {}
        for id in ids:
            namespace = id.partition(".")[0]
            holder = self.claims.owner_of(canonical_namespace(namespace))
            if holder == spoke.owner:
                continue
            try:
                self.permissions.check(spoke.owner, namespace, current_owner=holder)
            except DragomanError as error:
                lost[id] = error
        await self.unregister(spoke, list(lost))
        return lost

    async def free_namespace(self, namespace: str) -> None:
        """Remove the owner of a namespace, its operations and their approvals.

        Raises NotFound for a namespace without an owner, StoreError, Unavailable.
        """
        await self.load()
        name = canonical_namespace(namespace)
        if self.claims.owner_of(name) is None:
            raise NotFound(
                f"no owner has the namespace {namespace[:100]!r}",
                hint="GET /api/spokes lists those that have one",
            )
        await self.claims.release(name)
        await self._approvals.revoke(
            [
                (owner, pin.name)
                for owner, pin in self._approvals.all()
                if canonical_namespace(pin.name.partition(".")[0]) == name
            ]
        )
        for id, balancer in list(self._balancers.items()):
            if canonical_namespace(balancer.offer.namespace) == name:
                for spoke in list(balancer.spokes):
                    await self.unregister(spoke, [id])

    async def reload_approvals(self) -> None:
        """Apply approvals that were given or revoked at another host. Raises Unavailable."""
        if await self._approvals.reload():
            self._apply_all_terms(list(self._balancers))

    def set_permissions(self, permissions: NamespacePermissions) -> None:
        """Use other permissions. Who may call an operation, and trusted effects, change at once."""
        self.permissions = permissions
        for balancer in list(self._balancers.values()):
            self._apply_terms(balancer)

    async def definitions(self, namespace: str | None = None) -> Sequence[SpokeDefinition]:
        """Return who may call each operation of spokes, by id; also approved ones that no spoke offers.

        Raises Unavailable.
        """
        await self.load()
        definitions = []
        offers = [(each.owner, self._registered(each)) for each in self._balancers.values()]
        elsewhere = [] if self.other_hosts is None else self.other_hosts.all()
        offers += [(operation.owner or "", operation) for operation in elsewhere]
        for number, (owner, operation) in enumerate(offers, start=1):
            definitions.append(self._describe(owner, operation))
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        offered = {(each.owner, each.id.lower()) for each in definitions}
        definitions += [
            SpokeDefinition(
                id=pin.name,
                owner=owner,
                sharing="approved",
                hash=pin.hash,
                offered=False,
                approved_by=pin.approved_by,
                approved_at=pin.approved_at,
            )
            for owner, pin in self._approvals.all()
            if (owner, pin.name) not in offered
        ]
        wanted = None if namespace is None else canonical_namespace(namespace)
        chosen = [
            each
            for each in definitions
            if wanted is None or canonical_namespace(each.id.partition(".")[0]) == wanted
        ]
        return sorted(chosen, key=lambda each: (each.id, each.owner))

    async def definition(self, id: str) -> SpokeDefinitionDetail:
        """Return the definition that a connected spoke offers. Raises NotFound, Unavailable."""
        await self.load()
        owner, operation = self._find_offer(id)
        pin = self._approvals.find(owner, id)
        old = None if pin is None else msgspec.json.decode(pin.body)
        new = msgspec.json.decode(operation.definition)
        summary = msgspec.structs.asdict(self._describe(owner, operation))
        return SpokeDefinitionDetail(**summary, definition=new, diff=definition_diff(old, new))

    async def approve(self, ids: Sequence[str] | Mapping[str, str], *, by: str) -> Sequence[str]:
        """Open operations to callers of all owners, as they are now defined; return their ids.

        If `ids` maps ids to the hashes of definitions, it raises Conflict for one that has changed. Raises
        NotFound for an operation that no spoke offers, StoreError, Unavailable.
        """
        await self.load()
        chosen = [self._find_offer(id) for id in ids]
        for id, (_, operation) in zip(ids, chosen, strict=True):
            if isinstance(ids, Mapping) and ids[id] != operation.definition_hash:
                raise Conflict(f"{operation.id} changed since it was shown", hint="review it again")
        await self._approvals.approve(chosen, by=by)
        self._apply_all_terms(ids)  # other hosts read the approval from the store
        return [operation.id for _, operation in chosen]

    async def revoke(self, ids: Sequence[str]) -> Sequence[str]:
        """Revoke approvals, also of operations that no spoke offers; return the ids.

        Raises NotFound for an operation without an approval, StoreError, Unavailable.
        """
        await self.load()
        approved: dict[str, list[tuple[str, str]]] = {}
        for owner, pin in self._approvals.all():
            approved.setdefault(pin.name, []).append((owner, pin.name))
        for id in ids:
            if id.lower() not in approved:
                raise NotFound(
                    f"no definition of {id[:200]!r} is approved",
                    hint="`dragoman spokes list` lists those that are",
                )
        await self._approvals.revoke([key for id in ids for key in approved[id.lower()]])
        self._apply_all_terms(ids)
        return [id.lower() for id in ids]

    def _apply_all_terms(self, ids: Iterable[str]) -> None:
        """Apply changed permissions and approvals to operations that are still offered."""
        for id in ids:
            balancer = self._balancers.get(id.lower())
            if balancer is not None:
                self._apply_terms(balancer)

    def _apply_terms(self, balancer: SpokeBalancer) -> None:
        """Put the operation into the registry again if its terms have changed."""
        before = balancer.terms
        operation = self._make_operation(balancer)
        if balancer.terms != before:
            with suppress(NotFound):
                self._registry.remove(operation.id)
            self._registry.add(operation)

    def _find_offer(self, id: str) -> tuple[str, Operation]:
        """Return an operation of a spoke of any host, and the owner of the spoke. Raises NotFound."""
        balancer = self._balancers.get(id.lower())
        if balancer is not None:
            return balancer.owner, self._registered(balancer)
        operation = None if self.other_hosts is None else self.other_hosts.find(id)
        if operation is None:
            raise NotFound(
                f"no spoke offers an operation {id[:200]!r}",
                hint="`dragoman spokes list` lists those that are offered",
            )
        return operation.owner or "", operation

    def _registered(self, balancer: SpokeBalancer) -> Operation:
        """Return the operation as it is in the registry: its schemas are compiled already."""
        with suppress(NotFound):
            return self._registry.get(balancer.offer.id)
        return balancer.operation()

    def _describe(self, owner: str, operation: Operation) -> SpokeDefinition:
        """Return who may call an operation of an owner's spokes, and why."""
        pin, hash = self._approvals.find(owner, operation.id), operation.definition_hash
        sharing: Sharing = "private" if pin is None else "approved" if pin.hash == hash else "changed"
        if self.permissions.shares(owner, operation.namespace):
            sharing = "granted"
        return SpokeDefinition(
            id=operation.id,
            owner=owner,
            sharing=sharing,
            hash=hash,
            approved_by=None if pin is None else pin.approved_by,
            approved_at=None if pin is None else pin.approved_at,
        )

    async def unregister(self, spoke: RemoteSpoke, ids: Iterable[str]) -> None:
        """Remove operations of a spoke; one that no spoke serves leaves the registry.

        An operation that the spoke registers again meanwhile stays.
        """
        slices = Slices()  # removing one from the search index takes time
        removed = [(id.lower(), spoke.offers.get(id.lower())) for id in ids]
        for id, offer in removed:
            if offer is not None and spoke.offers.get(id) is offer:
                self._remove_offer(spoke, id)
            await slices.rest()

    async def remove_spoke(self, spoke: RemoteSpoke) -> None:
        """Remove a spoke that does not come back. Its calls fail at once."""
        spoke.close()
        await self.unregister(spoke, list(spoke.offers))

    def _remove_offer(self, spoke: RemoteSpoke, id: str) -> None:
        offer = spoke.offers.pop(id)
        self._count_owner(offer, spoke.owner, by=-1)
        balancer = self._balancers[id]
        was_first = balancer.spokes[0] is spoke
        balancer.remove_spoke(spoke)
        if not balancer.spokes:
            del self._balancers[id]
        if was_first:
            self._update_registry(balancer)

    async def _compile(self, spoke: RemoteSpoke, offer: OperationOffer) -> CompiledOffer:
        """Return the offer with its schemas compiled. Raises TooLarge, ConfigError."""
        self._check_limits(spoke, offer)
        schemas = (offer.input_schema, offer.output_schema)
        if any(is_deeper_than(schema, MAX_SCHEMA_DEPTH) for schema in schemas):
            raise TooLarge(f"a schema of {offer.id} is nested more than {MAX_SCHEMA_DEPTH} deep")
        size = len(msgspec.json.encode(offer))
        if size > SCHEMA_BYTES:
            raise TooLarge(f"{offer.id} is described in {size} bytes, {SCHEMA_BYTES} are allowed")
        balancer = self._balancers.get(offer.id.lower())
        if balancer is not None and balancer.offer == offer:
            return balancer.compiled
        return await offload(measure(schemas), partial(CompiledOffer, offer))

    def _check_limits(self, spoke: RemoteSpoke, offer: OperationOffer) -> None:
        """Raise TooLarge if a spoke or its owner has too many operations."""
        if offer.id.lower() in spoke.offers:
            return
        if len(spoke.offers) >= spoke.settings.operations:
            raise TooLarge(f"a spoke may register at most {spoke.settings.operations} operations")
        total = spoke.settings.owner_operations
        if self._totals[spoke.owner] >= total:
            raise TooLarge(
                f"the spokes of {spoke.owner!r} have {total} operations together, the limit",
                hint="`spokes.owner_operations` in the configuration is the limit",
            )

    def _add_offer(self, spoke: RemoteSpoke, compiled: CompiledOffer) -> None:
        offer = compiled.offer
        key = offer.id.lower()
        self._check_limits(spoke, offer)
        route = self._balancers.get(key)
        if route is not None and key in spoke.offers:
            self._replace_offer(spoke, compiled, balancer=route)
            self._count_owner(offer, spoke.owner, by=-1)
        elif route is not None:
            require_same_owner(offer, spoke.owner, registered_owner=route.owner)
            require_same_definition(offer, route.offer)
            route.add_spoke(spoke)
        else:
            route = SpokeBalancer(compiled, owner=spoke.owner, call_numbers=self._call_numbers)
            route.add_spoke(spoke)
            if self.other_hosts is not None:
                self.other_hosts.release(key)
            self._registry.add(self._make_operation(route))
            self._balancers[key] = route
        spoke.offers[key] = offer
        self._count_owner(offer, spoke.owner, by=1)

    def _replace_offer(self, spoke: RemoteSpoke, compiled: CompiledOffer, *, balancer: SpokeBalancer) -> None:
        """Replace an offer of an operation that the spoke serves already."""
        offer = compiled.offer
        if spoke.offers[offer.id.lower()] == offer:
            return
        if len(balancer.spokes) > 1:
            require_same_definition(offer, balancer.offer)
            return
        before, balancer.compiled = balancer.offer, compiled
        operation = self._make_operation(balancer)
        self._registry.remove(before.id)
        self._registry.add(operation)

    def _update_registry(self, balancer: SpokeBalancer) -> None:
        """Register an operation again with another spoke as its source, or, after the last one, that of
        another host.
        """
        try:
            self._registry.remove(balancer.offer.id)
        except NotFound:
            log.debug("%s was already removed from the registry", balancer.offer.id)
        if balancer.spokes:
            self._registry.add(self._make_operation(balancer))
        elif self.other_hosts is not None:
            self.other_hosts.restore(balancer.offer.id)

    def _make_operation(self, balancer: SpokeBalancer) -> Operation:
        """Return the operation, for all owners or only for its own."""
        offer, permissions = balancer.offer, self.permissions
        configured = permissions.configured_effect(offer.id)
        balancer.is_shared = permissions.shares(balancer.owner, offer.namespace)
        balancer.effect = configured or offer.effect
        balancer.effect_claimed = configured is None and not permissions.trusts_effects(balancer.owner)
        operation = balancer.operation()
        if not balancer.is_shared and self._approvals.covers(balancer.owner, operation):
            balancer.is_shared = True
            operation = replace(operation, private=False)
        return replace(operation, run=partial(self._run_here_or_elsewhere, operation=operation))

    async def _run_here_or_elsewhere(self, input: Any, context: Context, *, operation: Operation) -> Any:
        """Run an operation at a spoke of this host; if it goes away and the call may be repeated, at another
        host under the same idempotency key. Raises Unavailable, CallUncertain, or the spoke's error.
        """
        try:
            return await operation.run(input, context)
        except Unavailable as error:
            is_repeated = error.transient and operation.effect != "once" and not runs_for_other_host.get()
            others = self.other_hosts if is_repeated else None
            substitute = None if others is None else others.find_substitute(operation)
            if substitute is None:
                raise
            log.info("a call of %s is made at another host: %s", operation.id, error.message)
            with suppress(NotFound):  # it has just lost its spoke, too
                return await substitute.run(input, context)
            raise

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
    """Raise Conflict if another owner's spokes serve the operation: its callers trust that owner."""
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
