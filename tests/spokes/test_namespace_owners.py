"""A namespace stays with the owner who first registered in it, until an administrator frees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import StoreError, Unavailable
from dragoman.operations import Registry
from dragoman.spokes.hub.definition_approvals import DefinitionApprovals
from dragoman.spokes.hub.namespace_claims import NamespaceClaims, NamespaceStore
from dragoman.spokes.hub.operations import SpokeOperations
from dragoman.spokes.hub.permissions import NamespacePermissions
from dragoman.spokes.hub.remote_spoke import RemoteSpoke
from dragoman.spokes.hub.settings import SpokeSettings
from dragoman.spokes.protocol import OperationOffer, RegisterFrame
from dragoman.store.mcp_servers import PinStore
from dragoman.store.store import Store
from tests.serving import serving
from tests.spokes.test_rights import key_of


class Hub:
    """The operations of the spokes of a hub, which begins anew with the same store."""

    def __init__(
        self,
        store: NamespaceStore | None,
        *,
        limit: int = 200,
        pins: PinStore | None = None,
        **granted: str,
    ) -> None:
        claims = NamespaceClaims(store, limit=limit)
        permissions = NamespacePermissions(granted)
        self.registry = Registry()
        self.operations = SpokeOperations(
            self.registry, permissions, claims=claims, approvals=DefinitionApprovals(pins)
        )

    async def offer(self, owner: str, *namespaces: str, stay: bool = False) -> list[str]:
        """Register an operation in each namespace, and go or `stay`; the codes of those that are refused."""
        spoke = RemoteSpoke(f"of-{owner}", owner, settings=SpokeSettings())
        offers = [
            OperationOffer(namespace=each, name="work", input_schema={"type": "object"})
            for each in namespaces
        ]
        frame = RegisterFrame(id="r", operations=tuple(offers))
        reply = await self.operations.register(spoke, frame)
        if not stay:
            await self.operations.remove_spoke(spoke)
        return [each.error.code for each in reply.refused]


class FailingStore:
    """A store that does not answer for a while."""

    def __init__(self) -> None:
        self.is_down = True
        self.is_unreadable = False
        self.owners: dict[str, str] = {}

    def check(self) -> None:
        if self.is_down:
            raise StoreError("the disk is full")

    async def list(self) -> Mapping[str, str]:
        if self.is_unreadable:
            raise StoreError("the disk is full")
        return self.owners

    async def claim(self, owners: Mapping[str, str]) -> Mapping[str, str]:
        self.check()
        self.owners = {**owners, **self.owners}
        return {namespace: self.owners[namespace] for namespace in owners}

    async def release(self, namespace: str) -> None:
        self.check()
        del self.owners[namespace]


async def test_a_namespace_stays_with_its_first_owner_after_it_left_and_after_a_restart(
    tmp_path: Path,
) -> None:
    for spelling in ("shop-floor", "Shop-Floor", "shop_floor", "SHOP_FLOOR"):
        async with await Store.open(tmp_path) as store:
            hub = Hub(store.spoke_namespaces)
            assert await hub.offer("ann", "shop-floor") == []
            assert await hub.offer("eve", spelling) == ["forbidden"]
            assert hub.registry.list() == ()
            assert await hub.offer("ann", spelling) == []


async def test_a_namespace_that_two_hosts_give_away_at_once_goes_to_the_owner_who_was_stored_first(
    tmp_path: Path,
) -> None:
    async with await Store.open(tmp_path) as store:
        first, second = Hub(store.spoke_namespaces), Hub(store.spoke_namespaces)
        refused = await asyncio.gather(
            first.offer("ann", "shop", "own", stay=True), second.offer("eve", "shop", "other", stay=True)
        )
        is_anns = (await store.spoke_namespaces.list())["shop"] == "ann"
        assert refused[is_anns] == ["forbidden"]
        assert refused[not is_anns] == []
        namespaces = [list(hub.registry.namespaces()) for hub in (first, second)]
        assert namespaces[is_anns] == [["own"], ["other"]][is_anns]
        await first.operations.free_namespace("shop")
        assert await second.offer("zoe", "shop") == []


async def test_a_grant_of_the_operator_opens_a_namespace_of_another_owner() -> None:
    hub = Hub(None, bob="shop")
    hub.operations.claims.claim("shop", "ann")
    assert await hub.offer("bob", "shop") == []
    assert hub.operations.claims.owner_of("shop") == "ann"


async def test_what_is_refused_takes_no_namespace() -> None:
    hub = Hub(None)
    assert await hub.offer("eve", "hub", "web", "not a name", "\uff53hop") != []
    assert hub.operations.claims.by_namespace() == {}


async def test_an_owner_cannot_take_more_namespaces_than_the_limit() -> None:
    hub = Hub(None, limit=2)
    assert await hub.offer("eve", "a", "b", "c") == ["too_large"]
    assert await hub.offer("eve", "b") == []
    assert await hub.offer("ann", "c") == []


async def test_a_claim_that_could_not_be_stored_holds_and_is_stored_later() -> None:
    store = FailingStore()
    hub = Hub(store)
    assert await hub.offer("ann", "shop") == []
    assert await hub.offer("eve", "shop") == ["forbidden"]
    assert store.owners == {}
    store.is_down = False
    await hub.offer("bob", "other")
    assert store.owners == {"shop": "ann", "other": "bob"}


async def test_no_namespace_is_given_away_while_the_owners_cannot_be_read() -> None:
    store = FailingStore()
    store.is_unreadable, store.owners = True, {"shop": "ann"}
    hub = Hub(store)
    with pytest.raises(Unavailable):
        await hub.offer("eve", "shop")
    store.is_unreadable = False
    assert await hub.offer("eve", "shop") == ["forbidden"]


async def test_an_administrator_frees_a_namespace(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        await hub.hub.store.spoke_namespaces.claim({"shop": "eve"})
    async with serving(tmp_path, keys=True) as hub:
        root, ann = await key_of(hub, "root", "admin"), await key_of(hub, "ann")
        path = "/api/spokes/namespaces/Shop"
        assert (await hub.http.delete(path, headers=ann)).status_code == 403
        listed: dict[str, Any] = (await hub.http.get("/api/spokes", headers=root)).json()
        assert listed == {"spokes": [], "namespaces": [{"name": "shop", "owner": "eve"}]}
        assert (await hub.http.delete(path, headers=root)).status_code == 204
        assert (await hub.http.delete(path, headers=root)).status_code == 404
        assert await hub.hub.store.spoke_namespaces.list() == {}


async def test_freeing_a_namespace_removes_what_is_registered_in_it() -> None:
    hub = Hub(None)
    spoke = RemoteSpoke("of-eve", "eve", settings=SpokeSettings())
    offer = OperationOffer(namespace="shop", name="work", input_schema={"type": "object"})
    await hub.operations.register(spoke, RegisterFrame(id="r", operations=(offer,)))
    await hub.operations.free_namespace("SHOP")
    assert (hub.registry.list(), spoke.offers) == ((), {})
    assert await hub.offer("ann", "shop") == []
