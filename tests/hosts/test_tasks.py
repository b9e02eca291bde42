"""Tasks of teams where several hosts share the database: each begins once, and outlives its host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.runs import crash_recovery, takeover
from dragoman.server.app import background_jobs
from dragoman.teams.tasks import worker
from tests.hosts.conftest import HostCluster, host_id
from tests.serving import Served
from tests.teams import gate
from tests.teams.team_hub import GATE_TOOLS, eventually
from tests.waiting import poll

pytestmark = pytest.mark.usefixtures("quick_ticks", "quick_sweeps")
HOLD = {"tools": [{"name": "gate_hold", "input": {"name": "door"}}]}


@pytest.fixture
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "SWEEP_INTERVAL", 0.05)
    monkeypatch.setattr(crash_recovery, "RETRY_INTERVAL", 0.05)
    monkeypatch.setattr(background_jobs, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(worker, "SWEEP_INTERVAL", 0.05)
    gate.doors.clear()
    gate.callers.clear()
    gate.stopped.clear()


async def open_hosts(hosts: HostCluster, folder: Path, *steps: Any, concurrency: int = 1) -> Sequence[Served]:
    """Two hosts with one folder of teams."""
    place = folder / "teams" / "press"
    place.mkdir(parents=True)
    (place / "team.yaml").write_text(f"allowed_tools: {GATE_TOOLS}\nconcurrency: {concurrency}")
    operations = ["tests.teams.gate"]
    return await hosts.open(2, steps=steps, teams=str(folder / "teams"), operations=operations)


async def give(host: Served, text: str) -> str:
    response = await host.http.post("/api/tasks", json={"team": "press", "task": text})
    assert response.status_code == 202, response.text
    id: str = response.json()["id"]
    return id


async def until_state(host: Served, id: str, state: str) -> Any:
    async def look() -> Any:
        task = (await host.http.get(f"/api/tasks/{id}")).json()
        return task if task["state"] == state else None

    return await poll(look)


async def test_a_task_queued_at_a_host_that_is_lost_is_run_by_another_one(
    hosts: HostCluster, tmp_path: Path
) -> None:
    one, two = await open_hosts(hosts, tmp_path, HOLD, {"text": ["Through."]})
    first, second = await give(one, "a"), await give(one, "b")
    await eventually(lambda: gate.callers["door"])
    [(running,)] = hosts.execute("SELECT host FROM runs")  # either host may have begun the first one
    lost, other = (one, two) if running == host_id(one) else (two, one)
    hosts.lose(lost)
    await eventually(lambda: len(gate.callers["door"]) == 2)  # the other host goes on with the first one
    gate.doors["door"].set()
    for id in (first, second):
        task = await until_state(other, id, "done")
        assert (task["result"], task["attempts"]) == ("Through.", 1)
    runs = hosts.execute("SELECT session_id, host FROM runs")
    assert len(runs) == 2
    assert {host for _, host in runs} == {host_id(other)}


async def test_each_of_many_tasks_at_two_hosts_begins_once_within_the_limit_of_the_team(
    hosts: HostCluster, tmp_path: Path
) -> None:
    both = await open_hosts(hosts, tmp_path, {"text": ["Done."]}, concurrency=2)
    ids = [await give(both[at % 2], f"task {at}") for at in range(8)]
    for id in ids:
        assert (await until_state(both[0], id, "done"))["attempts"] == 1
    assert hosts.execute("SELECT count(*) FROM runs") == [(8,)]


async def test_a_task_is_cancelled_at_another_host_than_its_own(hosts: HostCluster, tmp_path: Path) -> None:
    one, other = await open_hosts(hosts, tmp_path, HOLD, {"text": ["Through."]})
    id = await give(one, "a")
    await eventually(lambda: gate.callers["door"])
    assert (await other.http.post(f"/api/tasks/{id}/cancel")).json()["state"] == "cancelled"
    await eventually(lambda: gate.stopped == ["door"])
    await poll(lambda: stopped(hosts))


async def stopped(hosts: HostCluster) -> bool:
    return hosts.execute("SELECT status FROM runs") == [("stopped",)]
