"""Spokes that are connected to several hosts, or move, and hosts whose address or token changes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.http.transport import Timeouts
from dragoman.server.http.listener import bind_listener
from dragoman.spokes import Spoke
from dragoman.spokes.hub import host_operations
from dragoman.spokes.hub.host_operations import HostOperations
from tests.hosts.conftest import HostCluster, host_id
from tests.hosts.dropped_packets import dropping
from tests.hosts.test_dropped_packets import internal_port
from tests.hosts.test_spokes import SHARED, Stock, call, connected, listed
from tests.operations.watched_registry import never_without
from tests.serving import Served, text_of
from tests.spokes import tools
from tests.spokes.processes import lines, process, words
from tests.waiting import until


def others_of(caller: Served) -> HostOperations:
    """The operations of other hosts, as a host has them."""
    others = caller.hub.external.spoke_server.operations.other_hosts
    assert others is not None
    return others


async def preferred(caller: Served, *hosts: Served) -> Served:
    """The host at which a caller's calls run first, once it knows that the spoke is at all these hosts."""
    first = min(hosts, key=host_id)
    lists, registry = others_of(caller)._lists, caller.hub._services.registry

    def is_complete() -> bool:
        found = [each for each in registry.list("stock") if each.id == "stock.level"]
        has_all = all("stock.level" in lists[host_id(each)].operations for each in hosts)
        return has_all and [each.host for each in found] == [host_id(first)]

    await until(lambda: len(lists) == len(hosts) and is_complete())
    return first


async def test_a_spoke_that_is_connected_to_two_hosts_is_reached_while_one_of_them_has_it(
    hosts: HostCluster,
) -> None:
    one, two, caller = await hosts.open(3, spokes=SHARED["spokes"])
    client = caller.hub._services.host_client
    assert client is not None
    stock = Stock()
    connections = {host_id(each): AsyncExitStack() for each in (one, two)}
    async with connections[host_id(one)], connections[host_id(two)]:
        for each in (one, two):
            await connections[host_id(each)].enter_async_context(connected(each, stock))
        first = await preferred(caller, one, two)
        assert (await call(caller, "stock.level", {"item": "tea"}))["result"]["count"] == 7
        client._timeouts = Timeouts(connect=3.0, first_byte=3.0, idle=3.0)
        with dropping(await internal_port(hosts, first)):
            assert (await call(caller, "stock.level", {"item": "rum"}))["result"]["count"] == 7
        client._timeouts = Timeouts(connect=30.0, first_byte=30.0, idle=30.0)
        calling = asyncio.create_task(call(caller, "stock.order", {"item": "tea"}))
        await until(stock.began.is_set)
        await connections[host_id(first)].aclose()
        outcomes = await asyncio.gather(*(call(caller, "stock.level", {"item": "gin"}) for _ in range(5)))
        assert [each["result"]["count"] for each in outcomes] == [7] * 5
        outcome = await calling
        assert outcome["status"] == "failed", "it may have taken effect: it is not made again elsewhere"
        assert "of its own accord" in outcome["error"]["message"]
        assert len(stock.keys) == 7


async def test_an_operation_is_that_of_another_host_as_soon_as_the_spoke_here_leaves(
    hosts: HostCluster,
) -> None:
    here, there = await hosts.open(2, spokes=SHARED["spokes"])
    registry, stock = here.hub._services.registry, Stock()
    connection = AsyncExitStack()
    async with connection, connected(there, stock):
        await connection.enter_async_context(connected(here, stock))
        lists = others_of(here)._lists
        await until(lambda: any("stock.level" in each.operations for each in lists.values()))
        assert registry.get("stock.level").host is None
        async with never_without(registry, "stock", ["level", "nested", "order", "price"]):
            await connection.aclose()
            await until(lambda: registry.get("stock.level").host == host_id(there))
        assert (await call(here, "stock.level", {"item": "tea"}))["result"]["count"] == 7


async def test_a_host_whose_address_changes_is_called_at_the_new_one_at_once(hosts: HostCluster) -> None:
    near, caller = await hosts.open(2, spokes=SHARED["spokes"])
    client = caller.hub._services.host_client
    assert client is not None
    with bind_listener("127.0.0.1", 0) as former:
        port = former.getsockname()[1]
    async with connected(near, Stock()):
        await listed(caller)
        record = await client._find(host_id(near))
        client._records[host_id(near)] = replace(record, url=f"http://127.0.0.1:{port}")
        assert (await call(caller, "stock.level", {"item": "tea"}))["result"]["count"] == 7
        client._records[host_id(near)] = replace(record, token="of an earlier process there")
        assert (await call(caller, "stock.level", {"item": "tea"}))["result"]["count"] == 7


async def test_a_host_with_another_token_than_its_row_is_an_error_of_calls_and_in_the_log(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where two hosts advertise one address: the wrong one answers."""
    monkeypatch.setattr(host_operations, "RETRY_INTERVAL", 0.01)
    near, caller = await hosts.open(2, spokes=SHARED["spokes"])
    row = f"WHERE id = '{host_id(near)}'"
    client = caller.hub._services.host_client
    assert client is not None
    async with connected(near, Stock()):
        await listed(caller)
        [(token,)] = hosts.execute(f"SELECT token FROM hosts {row}")
        hosts.execute(f"UPDATE hosts SET token = 'another' {row}")
        client.forget(host_id(near))
        refused = await call(caller, "stock.level", {"item": "tea"})
        assert refused["error"]["code"] == "host_unreachable", refused
        assert "hosts.url" in refused["error"]["hint"]
        others_of(caller).refresh(None)
        await until(lambda: "changes of its spokes are not seen here" in caplog.text)
        hosts.execute(f"UPDATE hosts SET token = '{token}' {row}")
        assert (await call(caller, "stock.level", {"item": "tea"}))["result"]["count"] == 7
    assert caplog.text.count("changes of its spokes are not seen here") == 1


async def test_a_spoke_that_is_killed_in_calls_and_comes_back_at_another_host_runs_none_twice(
    hosts: HostCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What acts is uncertain; what reads is unavailable, and runs at the new host when it is made again."""
    calls = [
        {"tool": "far.act", "input": {"name": "a"}},
        {"tool": "far.look", "input": {"name": "b"}},
    ]
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "hub_call", "input": {"calls": calls}}]},
        {"text": "Done."},
    ]
    here, there = await hosts.open(2, steps=steps, spokes={**SHARED["spokes"], "grace": 0.1})
    log = tmp_path / "log"
    monkeypatch.setenv("SPOKE_LOG", str(log))
    async with process(here.url, "one", log, key="") as former:
        await listed(there, "far.look")
        answering = asyncio.create_task(here.chat())
        acting = asyncio.create_task(call(there, "far.act", {"name": "c"}))
        looking = asyncio.create_task(call(there, "far.look", {"name": "d"}))
        await until(lambda: all(words(log, f"begin {name}") == 1 for name in "abcd"))
        former.send_signal(signal.SIGKILL)
        frames, *outcomes = await asyncio.gather(answering, acting, looking)
    [output] = [frame["output"] for frame in frames if frame["type"] == "tool-output-available"]
    assert [each["error"]["code"] for each in output] == ["uncertain", "unavailable"]
    assert text_of(frames) == "Done."
    assert [each["status"] for each in outcomes] == ["uncertain", "failed"]
    assert outcomes[1]["error"]["transient"]
    async with Spoke(tools.registry, hub=there.url, id="one") as moved:
        await moved.ready()
        found = here.hub._services.registry.list
        await until(lambda: {each.host for each in found("far") if each.name == "look"} == {host_id(there)})
        for host, name in ((here, "b"), (there, "d")):
            assert (await call(host, "far.look", {"name": name}))["result"] == name
            assert lines(log, f"found {name}") == [os.getpid()]
    assert [words(log, f"begin {name}") for name in "abcd"] == [1, 1, 1, 1]
    rows = hosts.execute("SELECT operation, status, parent_id IS NULL FROM calls ORDER BY started_at")
    assert sorted(rows[:5]) == [
        ("far.act", "uncertain", False),
        ("far.act", "uncertain", True),
        ("far.look", "failed", False),
        ("far.look", "failed", True),
        ("hub.call", "done", True),
    ]
    assert [run.status for run in await here.runs()] == ["finished"]


def has_look(host: Served, other: Served) -> bool:
    """Whether a host knows that a spoke at another one has the operation."""
    found = others_of(host)._lists.get(host_id(other))
    return found is not None and "far.look" in found.operations


def serves_look(host: Served) -> bool:
    """Whether a spoke that is connected to a host itself has the operation."""
    return [each.host for each in host.hub._services.registry.list("far") if each.name == "look"] == [None]


async def test_a_call_at_the_host_of_a_killed_spoke_is_repeated_at_another_host_if_it_may_be(
    hosts: HostCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await hosts.open(2, spokes={**SHARED["spokes"], "grace": 0.1})
    log = tmp_path / "log"
    monkeypatch.setenv("SPOKE_LOG", str(log))
    elsewhere = Spoke(tools.registry, hub=there.url, id="two")
    async with process(here.url, "one", log, key="") as former, elsewhere as other:
        await other.ready()
        await until(lambda: has_look(here, there) and serves_look(here))
        looking = asyncio.create_task(call(here, "far.look", {"name": "a"}))
        acting = asyncio.create_task(call(here, "far.act", {"name": "b"}))
        await until(lambda: all(words(log, f"begin {name}") == 1 for name in "ab"))
        former.send_signal(signal.SIGKILL)
        looked, acted = await asyncio.gather(looking, acting)
    assert (looked["status"], looked.get("result")) == ("done", "a"), looked
    assert lines(log, "found a") == [os.getpid()]
    assert (acted["status"], words(log, "begin b")) == ("uncertain", 1)
    assert hosts.execute("SELECT operation, status FROM calls ORDER BY operation") == [
        ("far.act", "uncertain"),
        ("far.look", "done"),
    ]


async def test_a_call_for_another_host_is_not_handed_on_by_the_one_that_has_lost_its_spoke(
    hosts: HostCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that two hosts whose spokes are gone do not hand a call to each other for ever."""
    here, there = await hosts.open(2, spokes={**SHARED["spokes"], "grace": 0.1})
    log = tmp_path / "log"
    monkeypatch.setenv("SPOKE_LOG", str(log))
    async with process(here.url, "one", log, key="") as one, process(there.url, "two", log, key="") as two:
        await until(lambda: has_look(here, there) and has_look(there, here))
        looking = asyncio.create_task(call(here, "far.look", {"name": "a"}))
        await until(lambda: words(log, "begin a") == 1)
        two.send_signal(signal.SIGKILL)
        one.send_signal(signal.SIGKILL)
        looked = await looking
    assert (looked["status"], looked["error"]["code"]) == ("failed", "unavailable")
