"""Offers: which spoke serves which operation, kept in step with the hub's registry."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from itertools import count

import msgspec

from dragoman.errors import Conflict, DragomanError, NotFound, TooLarge
from dragoman.operations.outcome import failure_of
from dragoman.operations.registry import Registry
from dragoman.spokes.hub.permits import Permits
from dragoman.spokes.hub.remote import Remote
from dragoman.spokes.hub.route import Route
from dragoman.spokes.protocol import Failure, Offer, Refusal, Register, Registered

log = logging.getLogger(__name__)
HUB = ""  # the holder of namespaces with operations that no spoke brought
SCHEMA_BYTES = 200_000
BREATH = 20  # operations taken in before others get the event loop


class Offers:
    """The routes of one hub."""

    def __init__(self, registry: Registry, permits: Permits) -> None:
        self._registry = registry
        self.permits = permits
        self._routes: dict[str, Route] = {}  # by small-letter id
        self._owners: dict[str, Counter[str]] = {}  # whose spokes serve how much, by small-letter namespace
        self._turns = count(1)

    async def take(self, remote: Remote, asked: Register) -> Registered:
        """Take in what a spoke offers; each operation for itself."""
        if asked.all:
            wanted = {offer.id.lower() for offer in asked.operations}
            self.drop(remote, [id for id in remote.offers if id not in wanted])
        taken: list[str] = []
        refused: list[Refusal] = []
        own = {name for each in self._registry.namespaces() if (name := each.lower()) not in self._owners}
        for number, offer in enumerate(asked.operations, start=1):
            try:
                holder = HUB if offer.namespace.lower() in own else self._holder(offer, remote.owner)
                self.permits.check(remote.owner, offer.namespace, holder=holder)
                self._add(remote, offer)
                taken.append(offer.id)
            except DragomanError as error:
                refused.append(Refusal(operation=offer.id[:200], error=Failure.of(failure_of(error))))
            if number % BREATH == 0:
                await asyncio.sleep(0)
        if refused:
            log.warning("spoke %s: %s", remote.id, "; ".join(each.error.message for each in refused[:5]))
        return Registered(id=asked.id, operations=tuple(taken), refused=tuple(refused))

    def drop(self, remote: Remote, ids: Iterable[str]) -> None:
        """The spoke serves these no more; an operation that nobody serves goes."""
        for id in [id.lower() for id in ids]:
            offer = remote.offers.pop(id, None)
            if offer is None:
                continue
            self._count(offer, remote.owner, by=-1)
            route = self._routes[id]
            was_first = route.remotes[0] is remote
            route.part(remote)
            if not route.remotes:
                del self._routes[id]
            if was_first:
                self._list(route)

    def retire(self, remote: Remote) -> None:
        """The spoke will not come back."""
        self.drop(remote, list(remote.offers))
        remote.retire()

    def _add(self, remote: Remote, offer: Offer) -> None:
        key = offer.id.lower()
        if len(remote.offers) >= remote.settings.operations and key not in remote.offers:
            raise TooLarge(f"a spoke may have {remote.settings.operations} operations, and has them")
        size = len(msgspec.json.encode(offer))
        if size > SCHEMA_BYTES:
            raise TooLarge(f"{offer.id} is described in {size} bytes, {SCHEMA_BYTES} are allowed")
        route = self._routes.get(key)
        if route is not None and key in remote.offers:
            self._change(remote, offer, route=route)
            self._count(offer, remote.owner, by=-1)
        elif route is not None:
            require_same(offer, route.offer)
            route.join(remote)
        else:
            route = Route(offer, turns=self._turns)
            route.join(remote)
            self._registry.add(route.operation())
            self._routes[key] = route
        remote.offers[key] = offer
        self._count(offer, remote.owner, by=1)

    def _change(self, remote: Remote, offer: Offer, *, route: Route) -> None:
        """A spoke offers anew what it serves already."""
        if remote.offers[offer.id.lower()] == offer:
            return
        if len(route.remotes) > 1:
            require_same(offer, route.offer)
            return
        before, route.offer = route.offer, offer
        try:
            made = route.operation()
        except DragomanError:
            route.offer = before
            raise
        self._registry.remove(before.id)
        self._registry.add(made)

    def _list(self, route: Route) -> None:
        """The registry's operation says who serves it, or goes with the last."""
        try:
            self._registry.remove(route.offer.id)
        except NotFound:
            log.debug("%s was taken out of the registry by others", route.offer.id)
        if route.remotes:
            self._registry.add(route.operation())

    def _count(self, offer: Offer, owner: str, *, by: int) -> None:
        name = offer.namespace.lower()
        owners = self._owners.setdefault(name, Counter())
        owners[owner] += by
        if owners[owner] <= 0:
            del owners[owner]
        if not owners:
            del self._owners[name]

    def _holder(self, offer: Offer, owner: str) -> str | None:
        """Whose operations are in its namespace: another owner's, if there is one."""
        owners = self._owners.get(offer.namespace.lower(), Counter())
        return next((each for each in owners if each != owner), owner if owners else None)


def require_same(offer: Offer, held: Offer) -> None:
    """Conflict when the same name does not mean the same operation."""
    names = ("id", "input_schema", "output_schema", "effect", "approval")
    differing = [name for name in names if getattr(offer, name) != getattr(held, name)]
    if differing:
        raise Conflict(
            f"another spoke serves {held.id} with another {' and '.join(differing).replace('_', ' ')}",
            hint="spokes share the calls of an operation when they describe it the same way; or rename it",
        )
