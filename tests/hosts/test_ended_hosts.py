"""Operations of spokes whose host has ended, until the spokes are back at another host."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.errors import Unavailable
from dragoman.operations import Context, Registry
from dragoman.spokes.hub.host_operations import HostOperations
from tests.hosts.test_garbage import HOST, LIST, answering_host, budgets_of
from tests.operations.watched_registry import never_without

NOW = 1.0


@pytest.mark.parametrize("is_removed", [False, True], ids=["fenced", "removed"])
async def test_an_operation_of_an_ended_host_is_unavailable_until_another_host_has_its_spoke(
    tmp_path: Path, is_removed: bool
) -> None:
    async with answering_host(tmp_path, [LIST, LIST]) as (client, store):
        operations = HostOperations(
            registry := Registry(), client, hosts=store.hosts, own_id="a", shared_budgets=budgets_of(store)
        )
        assert await operations.poll()
        async with never_without(registry, "stock", ["level"]):
            url = (await store.hosts.list())[0].url
            await store.hosts.fence("b", NOW)
            client.forget("b")
            await refused(registry, "before the hosts are read again")
            if is_removed:
                await store.hosts.remove("b")
            assert await operations.poll()
            assert {each.host for each in registry.list()} == {"b"}
            await refused(registry, "after it")
            await store.hosts.add(replace(HOST, id="c", url=url))
            assert await operations.poll()
            assert {each.host for each in registry.list()} == {"c"}


async def refused(registry: Registry, case: str) -> None:
    """Call the operation, and find that its spoke is away."""
    with pytest.raises(Unavailable, match="its spoke has not come back") as refusal:
        await registry.get("stock.level").run({}, Context())
    error = refusal.value.to_json()
    assert (error["code"], refusal.value.transient) == ("unavailable", True), case
    assert "call it again" in str(error["hint"])


async def test_an_operation_of_an_ended_host_is_gone_when_its_spoke_stays_away(tmp_path: Path) -> None:
    async with answering_host(tmp_path, [LIST]) as (client, store):
        operations = HostOperations(
            registry := Registry(),
            client,
            hosts=store.hosts,
            own_id="a",
            shared_budgets=budgets_of(store),
            grace=0.0,
        )
        assert await operations.poll()
        assert [each.id for each in registry.list()] == ["stock.level"]
        await store.hosts.fence("b", NOW)
        assert await operations.poll()
        assert not registry.list()
