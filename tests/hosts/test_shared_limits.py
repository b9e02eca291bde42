"""Limits and draining hold over all hosts, each of which hears only of its own requests."""

from __future__ import annotations

import pytest

from tests.hosts.conftest import HostCluster, host_id
from tests.serving import Served
from tests.waiting import until

LIMITS = {"key": {"requests_per_minute": 6}}


async def ask(host: Served, secret: str) -> int:
    """Send a model request; return the status of the response."""
    body = {"model": "sim/any", "messages": [{"role": "user", "content": "hi"}]}
    response = await host.http.post("/v1/chat/completions", json=body, headers={"x-api-key": secret})
    return response.status_code


async def test_two_hosts_together_let_in_as_many_requests_of_a_key_as_one(hosts: HostCluster) -> None:
    opened = await hosts.open(2, play="turns", keys=True, limits=LIMITS)
    _, secret = await opened[0].hub.store.keys.create("ann")
    statuses = [await ask(opened[number % 2], secret) for number in range(12)]
    assert statuses.count(200) == 6
    assert statuses.count(429) == 6
    await until(lambda: hosts.execute("SELECT count(*) FROM usage WHERE status = 'finished'") == [(6,)])


@pytest.mark.usefixtures("quick_ticks")
async def test_a_host_is_drained_through_another_one(hosts: HostCluster) -> None:
    first, second = await hosts.open(2)
    listed = (await first.http.get("/api/hosts")).json()["hosts"]
    assert {each["id"]: each["self"] for each in listed} == {host_id(first): True, host_id(second): False}
    response = await first.http.post(f"/api/hosts/{host_id(second)}/drain")
    assert response.json()["draining"]
    await until(lambda: second.hub.host.is_draining)
    assert (await second.http.get("/readyz")).json()["status"] == "draining"
    assert (await first.http.get("/readyz")).status_code == 200
