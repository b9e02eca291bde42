"""Hosts between which packets are dropped in one direction: nothing is refused, and nothing arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dragoman.http.transport import Timeouts
from dragoman.runs import remote
from dragoman.server.internal import listener, runs, spoke_operations
from tests.flows.test_approvals import DANGER, answer
from tests.hosts.conftest import HostCluster, host_id
from tests.hosts.dropped_packets import dropping, port_of
from tests.hosts.test_continuations import APPROVALS, all_outputs, script
from tests.hosts.test_remote_runs import STEPS, gate, reading
from tests.hosts.test_spokes import SHARED, Stock, call, connected, listed
from tests.serving import Served, ask, types
from tests.waiting import until

__all__ = ["gate"]
PATIENCE = 2.5  # seconds; with defaults of 15


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "UNACKNOWLEDGED", PATIENCE)
    monkeypatch.setattr(spoke_operations, "KEEP_ALIVE", 0.1)
    monkeypatch.setattr(runs, "KEEP_ALIVE", 0.1)
    monkeypatch.setattr(remote, "REQUEST_TIMEOUT", PATIENCE)


async def open_impatient(hosts: HostCluster, **config: Any) -> Sequence[Served]:
    opened = await hosts.open(2, **config)
    for host in opened:
        client = host.hub._services.host_client
        assert client is not None
        client._timeouts = Timeouts(connect=PATIENCE, first_byte=PATIENCE, idle=PATIENCE)
    return opened


async def internal_port(hosts: HostCluster, host: Served) -> int:
    """The port at which other hosts reach this one."""
    query = f"SELECT url FROM hosts WHERE id = '{host_id(host)}' AND url IS NOT NULL"
    await until(lambda: hosts.execute(query))
    return port_of(hosts.execute(query)[0][0])


@pytest.mark.parametrize("is_answer", [False, True], ids=["requests", "answers"])
async def test_a_call_of_a_spoke_elsewhere_ends_at_both_hosts_when_packets_are_dropped(
    hosts: HostCluster, is_answer: bool
) -> None:
    near, caller = await open_impatient(hosts, spokes=SHARED["spokes"])
    stock = Stock()
    async with connected(near, stock), asyncio.timeout(120):
        await listed(caller, "stock.order")
        port = await internal_port(hosts, near)
        await call(caller, "stock.level", {"item": "tea"})
        tasks = len(asyncio.all_tasks())
        calling = asyncio.create_task(call(caller, "stock.order", {"item": "tea"}))
        await until(stock.began.is_set)
        with dropping(port, is_peer=is_answer):
            outcome = await calling
            assert outcome["status"] == "uncertain"
            await until(stock.aborted.is_set)
            if not is_answer:
                refused = await call(caller, "stock.level", {"item": "tea"})
                assert refused["error"]["code"] == "host_unreachable", refused
                assert "hosts.url" in refused["error"]["hint"]
            assert (await call(near, "stock.level", {"item": "rum"}))["result"]["count"] == 7
            assert (await caller.chat("hi"))[-1]["type"] == "finish"
        assert (await call(caller, "stock.level", {"item": "rum"}))["result"]["count"] == 7
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


@pytest.mark.usefixtures("gate")
async def test_a_stop_that_does_not_arrive_is_an_error_and_the_run_goes_on(hosts: HostCluster) -> None:
    first, second = await open_impatient(hosts, steps=STEPS)
    port = await internal_port(hosts, first)
    async with reading(first, "POST", "/api/chat", json=ask("go")) as origin, asyncio.timeout(120):
        await origin.until("three ")
        with dropping(port):
            stopped = await second.http.post("/api/chat/s/stop")
            assert stopped.status_code == 503, stopped.text
            assert "hosts.url" in stopped.json()["error"]["hint"]
            assert len(await second.messages()) == 2
            assert (await second.http.get("/api/sessions/s")).json()["running"]
        stopped = await second.http.post("/api/chat/s/stop")
        assert stopped.status_code == 200, stopped.text
        assert "abort" in types(await origin.frames())


@pytest.mark.usefixtures("gate")
async def test_a_run_does_not_count_as_followed_by_viewers_at_a_host_that_is_cut_off(
    hosts: HostCluster,
) -> None:
    first, second = await open_impatient(hosts, steps=STEPS, disconnect_grace="never")
    port = await internal_port(hosts, first)
    async with reading(first, "POST", "/api/chat", json=ask("go")) as origin, asyncio.timeout(120):
        await origin.until("three ")
        run = first.active_run()
        assert run is not None
    async with reading(second, "GET", "/api/chat/s/stream") as viewer, asyncio.timeout(120):
        await viewer.until("three ")
        await until(lambda: run.tail.follower_count == 1)
        with dropping(port):
            await until(lambda: run.tail.follower_count == 0)
        await until(lambda: run.tail.follower_count == 1)
        assert (await first.http.post("/api/chat/s/stop")).status_code == 200
        assert "abort" in types(await viewer.frames())


async def test_an_approval_takes_effect_while_its_host_cannot_reach_that_of_the_run(
    hosts: HostCluster,
) -> None:
    options: Any = {"operations": [str(DANGER)], "pinned": ["danger.wipe"]}
    first, second = await open_impatient(hosts, steps=script(APPROVALS[:1]), **options)
    port = await internal_port(hosts, first)
    await first.http.post("/api/chat", json=ask("go"))
    [approval] = (await second.http.get("/api/approvals")).json()["approvals"]
    with dropping(port):
        assert await answer(second, approval["id"]) == 200
        assert await all_outputs(second) == ["wiped a"]
