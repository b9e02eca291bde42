"""Operations of a spoke that is connected to one host are found and called at every host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from dragoman.operations import Context, Registry, current
from dragoman.operations import operation as mark
from dragoman.spokes import Spoke
from tests.hosts.conftest import HostCluster, host_id
from tests.serving import Served, usage
from tests.waiting import until

SHARED = {"spokes": {"namespaces": {"*": "*"}}}


class Stock:
    """What a spoke offers."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.aborted = asyncio.Event()
        self.keys: list[str | None] = []

    def registry(self) -> Registry:
        @mark("stock", effect="read")
        async def level(item: str) -> dict[str, Any]:
            """Say how much of an item there is."""
            current().progress({"looking": item})
            current().publish("state", {"looking": item}, in_answer=True)
            self.keys.append(current().idempotency_key)
            return {"item": item, "count": 7}

        @mark("stock", effect="read")
        async def nested(text: str) -> Any:
            """Call an operation of the hub."""
            return await current().call("math.calculate", {"expression": text})

        @mark("stock", effect="once")
        async def order(item: str) -> str:
            """Order an item, and never end."""
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.aborted.set()
            return item

        @mark("stock", effect="read")
        async def price(item: str) -> str:
            """Ask somebody who takes money for it."""
            current().spend(0.03)
            return item

        return Registry(level, nested, order, price)


@asynccontextmanager
async def connected(host: Served, stock: Stock, secret: str = "") -> AsyncIterator[None]:
    """Connect a spoke to a host."""
    async with Spoke(stock.registry(), hub=host.url, key=secret or None, name="warehouse") as spoke:
        await spoke.ready()
        yield


async def names(host: Served, **headers: str) -> set[str]:
    response = await host.http.get("/api/operations?namespace=stock", headers=headers)
    return {each["id"] for each in response.json()["operations"]}


async def call(host: Served, id: str, input: Any) -> Any:
    response = await host.http.post(f"/api/operations/{id}/call", json=input)
    return response.json()


async def listed(host: Served, id: str = "stock.level") -> None:
    await until(lambda: id in {each.id for each in host.hub._services.registry.list()})


async def test_a_spokes_operation_is_called_through_another_host_and_recorded_once(
    hosts: HostCluster,
) -> None:
    first, second = await hosts.open(2)
    stock = Stock()
    async with connected(first, stock):
        await listed(second)
        outcome = await call(second, "stock.level", {"item": "tea"})
        assert outcome["result"] == {"item": "tea", "count": 7}
        parts: list[Any] = []
        context = Context(on_data=lambda name, value: parts.append((name, value)))
        await second.hub._services.calls.call("stock.level", {"item": "rum"}, context=context)
        assert parts == [("state", {"looking": "rum"})], "a data part of an answer comes from any host"
        nested = await call(second, "stock.nested", {"text": "6 * 7"})
        assert "42" in str(nested["result"])
        query = "SELECT operation, status, host, parent_id FROM calls ORDER BY started_at"
        await until(lambda: len(hosts.execute(query)) == 4)  # calls that only read are written a little later
        rows = hosts.execute(query)
        assert [row[:3] for row in rows] == [
            ("stock.level", "done", host_id(second)),
            ("stock.level", "done", host_id(second)),
            ("stock.nested", "done", host_id(second)),
            ("math.calculate", "done", host_id(first)),
        ]
        assert [row[3] for row in rows] == [None, None, None, nested["callId"]]
        found = (await second.http.get("/api/operations/stock.level")).json()
        assert host_id(first) in found["source"]
    await until(lambda: "stock.level" not in {each.id for each in second.hub._services.registry.list()})


async def test_a_call_that_is_aborted_here_ends_at_the_spoke_of_the_other_host(hosts: HostCluster) -> None:
    first, second = await hosts.open(2)
    stock = Stock()
    async with connected(first, stock):
        await listed(second, "stock.order")
        calling = asyncio.create_task(call(second, "stock.order", {"item": "tea"}))
        await until(stock.began.is_set)
        [(id,)] = hosts.execute("SELECT id FROM calls WHERE status = 'running'")
        assert (await second.http.post(f"/api/calls/{id}/abort")).json()["aborted"]
        await until(stock.aborted.is_set)
        assert (await calling)["status"] == "aborted"


async def test_a_once_call_is_uncertain_when_the_host_of_its_spoke_dies(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, spokes={"grace": 0.1})
    stock = Stock()
    async with connected(first, stock):
        await listed(second, "stock.order")
        calling = asyncio.create_task(call(second, "stock.order", {"item": "tea"}))
        await until(stock.began.is_set)
        await hosts.close(first)
        outcome = await calling
        assert outcome["status"] == "uncertain"
    await until(lambda: "stock.order" not in {each.id for each in second.hub._services.registry.list()})


async def test_a_private_operation_stays_its_owners_at_every_host(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, keys=True)
    keys = first.hub.store.keys
    _, spoke_key = await keys.create("ann", scopes=["spoke"])
    _, ann = await keys.create("ann")
    _, bob = await keys.create("bob")
    async with connected(first, Stock(), spoke_key):
        await listed(second)
        assert await names(second, **{"x-api-key": ann}) == {
            f"stock.{name}" for name in ("level", "nested", "order", "price")
        }
        assert await names(second, **{"x-api-key": bob}) == set()
        path = "/api/operations/stock.level/call"
        refused = await second.http.post(path, json={"item": "tea"}, headers={"x-api-key": bob})
        assert refused.json()["error"]["code"] == "not_found"


async def test_an_approval_that_another_host_takes_back_is_gone_here(
    hosts: HostCluster,
) -> None:
    first, second = await hosts.open(2)
    async with connected(first, Stock()):
        await first.http.post("/api/spokes/approve", json={"operations": ["stock.level"]})
        registry = first.hub._services.registry
        await until(lambda: not registry.get("stock.level").private)
        operations = second.hub.external.spoke_server.operations
        await until(operations._approvals.all)
        revoked = await second.http.post("/api/spokes/revoke", json={"operations": ["stock.level"]})
        assert revoked.json() == {"revoked": ["stock.level"]}
        await until(lambda: registry.get("stock.level").private)


async def test_an_operation_is_approved_and_shown_at_a_host_that_its_spoke_is_not_connected_to(
    hosts: HostCluster,
) -> None:
    first, second = await hosts.open(2, keys=True)
    _, ann = await first.hub.store.keys.create("ann", scopes=frozenset({"spoke", "operations"}))
    _, bob = await first.hub.store.keys.create("bob", scopes=frozenset({"operations"}))
    _, chief = await first.hub.store.keys.create("chief", scopes=frozenset({"admin"}))
    admin = {"x-api-key": chief}
    async with connected(first, Stock(), ann):
        await until(lambda: names_include(second, "stock.level", ann))
        shown = (await second.http.get("/api/spokes/operations/stock.level", headers=admin)).json()
        assert (shown["owner"], shown["sharing"]) == ("ann", "private")
        body = {"operations": {"stock.level": shown["hash"]}}
        approved = await second.http.post("/api/spokes/approve", json=body, headers=admin)
        assert approved.json() == {"approved": ["stock.level"]}
        for host in (first, second):
            await until(partial(names_include, host, "stock.level", bob))
            listed = (await host.http.get("/api/spokes/operations", headers=admin)).json()
            sharing = {each["id"]: each["sharing"] for each in listed["operations"]}
            assert sharing.pop("stock.level") == "approved"
            assert set(sharing.values()) == {"private"}
        changed = {"operations": {"stock.nested": "0" * 64}}
        refused = await second.http.post("/api/spokes/approve", json=changed, headers=admin)
        assert refused.status_code == 409
        await second.http.post("/api/spokes/revoke", json={"operations": ["stock.level"]}, headers=admin)
        await until(lambda: lacks(second, bob))


async def names_include(host: Served, id: str, secret: str) -> bool:
    return id in await names(host, **{"x-api-key": secret})


async def lacks(host: Served, secret: str) -> bool:
    return not await names(host, **{"x-api-key": secret})


async def test_the_operations_of_a_lost_host_are_gone_at_the_others(hosts: HostCluster) -> None:
    lost, other = await hosts.open(2, spokes={**SHARED["spokes"], "grace": 0.1})
    async with connected(lost, Stock()):
        await until(lambda: names(other))
        hosts.lose(lost)
        await until(lambda: lacks(other, "none"))


async def test_an_operation_is_unavailable_while_its_host_stops_and_its_spoke_is_away(
    hosts: HostCluster,
) -> None:
    leaving, other = await hosts.open(2, spokes=SHARED["spokes"])
    async with connected(leaving, Stock()):
        await listed(other)
        await leaving.hub.stop()
        others = other.hub.external.spoke_server.operations.other_hosts
        assert others is not None
        others.refresh(None)
        assert await others.poll()
        refused = await call(other, "stock.level", {"item": "tea"})
    assert (refused["error"]["code"], refused["error"]["transient"]) == ("unavailable", True), refused


async def test_a_host_that_starts_has_the_operations_of_others_before_its_first_request(
    hosts: HostCluster,
) -> None:
    [first] = await hosts.open(1, spokes=SHARED["spokes"])
    async with connected(first, Stock()):
        [second] = await hosts.open(1, spokes=SHARED["spokes"])
        assert "stock.level" in {each.id for each in second.hub._services.registry.list("stock")}


async def test_what_a_spoke_of_another_host_spends_is_charged_once_to_the_budget_of_the_run(
    hosts: HostCluster,
) -> None:
    buying = {"name": "hub_call", "input": {"calls": [{"tool": "stock.price", "input": {"item": "tea"}}]}}
    steps: list[Any] = [
        {"tools": [buying], "usage": usage(100, 1_000)},
        {"text": "Dear.", "usage": usage(100, 1_000)},
    ]
    agents = {"buyer": {"max_usd": 0.1}}
    prices = {"*/any": {"input": 1, "output": 10}}
    first, second = await hosts.open(2, steps=steps, agents=agents, prices=prices)
    async with connected(first, Stock()):
        await listed(second, "stock.price")
        frames = await second.chat("go", agent="buyer")
    assert frames[-1]["type"] == "finish"
    query = "SELECT scope, spent, reserved FROM budgets"
    await until(lambda: hosts.execute(query)[0][1:] == (round((2 * 0.0101 + 0.03) * 1e9), 0))
