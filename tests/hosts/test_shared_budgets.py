"""A budget that tasks share with what gave them holds over all hosts, also when one of them is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.runs import crash_recovery, takeover
from dragoman.server.app import background_jobs
from dragoman.teams.tasks import worker
from tests.hosts.conftest import HostCluster, host_id
from tests.serving import ask, usage
from tests.teams import gate
from tests.teams.team_hub import GATE_TOOLS, Json, call, eventually, write_teams
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_ticks", "quick_sweeps")
PRICES = {"*/x": {"input": 1, "output": 10}}
USED = usage(100, 1_000)  # 0.0101 US dollars, a little less than what is reserved for it
LIMIT = 0.125
TASKS = 6


@pytest.fixture
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (takeover, worker):
        monkeypatch.setattr(module, "SWEEP_INTERVAL", 0.05)
    monkeypatch.setattr(crash_recovery, "RETRY_INTERVAL", 0.05)
    monkeypatch.setattr(background_jobs, "POLL_INTERVAL", 0.05)
    gate.doors.clear()
    gate.callers.clear()


def configuration(folder: Path, **budget: float) -> dict[str, Any]:
    """A team that gives six tasks at once, each of which would spend 0.09 of the 0.125 US dollars of all."""
    look: Json = {"tools": [call("gate_look")], "usage": USED}
    hold: Json = {"tools": [call("gate_hold", name="door")], "usage": USED}
    tasks = [call("teams_delegate", team="press", task=f"Work {at}.") for at in range(TASKS)]
    main: Json = {
        "members": ["press"],
        "allowed_tools": ["teams.delegate"],
        "budget": budget or {"usd": LIMIT},
        "steps": [{"tools": tasks, "usage": USED}, {"text": "Given.", "usage": USED}],
    }
    press: Json = {
        "allowed_tools": GATE_TOOLS,
        "concurrency": TASKS,
        "steps": [hold, *([look] * 7), {"text": "."}],
    }
    path = write_teams(folder, {"main": main, "press": press}, prices=PRICES)
    config: dict[str, Any] = json.loads(path.read_text())
    return config


@pytest.mark.promise("shared-budget-over-hosts")
async def test_tasks_at_three_hosts_together_spend_no_more_than_the_budget_of_what_gave_them(
    hosts: HostCluster, tmp_path: Path
) -> None:
    config = configuration(tmp_path)
    first = (await hosts.open(1, **config, limits={"background_runs": 2}))[0]
    await first.chat("go", agent="main")
    await eventually(lambda: len(gate.callers["door"]) == 2)  # it has room for no more
    second = (await hosts.open(1, **config, limits={"background_runs": 2}))[0]
    await eventually(lambda: len(gate.callers["door"]) == 4)
    third = (await hosts.open(1, **config, limits={"background_runs": 4}))[0]
    await eventually(lambda: len(gate.callers["door"]) == 6)
    hosts.lose(second)  # what it has reserved comes back, and the others go on with its two tasks
    await eventually(lambda: len(gate.callers["door"]) == 8)
    gate.doors["door"].set()
    ended = "SELECT count(*) FROM team_tasks WHERE state = 'failed' AND error LIKE '%budget%'"
    await until(lambda: hosts.execute(ended) == [(TASKS,)])
    [(spent,)] = hosts.execute("SELECT sum(cost) FROM usage")
    assert LIMIT / 2 < spent <= LIMIT
    of_hosts = {host for (host,) in hosts.execute("SELECT host FROM runs")}
    assert of_hosts == {host_id(first), host_id(third)}
    rows = hosts.execute("SELECT scope, spent, reserved FROM budgets")
    [(scope, stored, reserved)] = rows
    assert scope.startswith("answer:")
    assert (stored, reserved) == (round(spent * 1e9), 0)


@pytest.mark.promise("shared-budget-over-hosts")
async def test_tasks_at_two_hosts_together_make_no_more_calls_than_what_gave_them_may(
    hosts: HostCluster, tmp_path: Path
) -> None:
    config = configuration(tmp_path, calls=30)
    first = (await hosts.open(1, **config, limits={"background_runs": 3}))[0]
    await first.chat("go", agent="main")
    await eventually(lambda: len(gate.callers["door"]) == 3)
    await hosts.open(1, **config, limits={"background_runs": 3})
    await eventually(lambda: len(gate.callers["door"]) == TASKS)
    gate.doors["door"].set()
    await until(lambda: hosts.execute("SELECT count(*) FROM team_tasks WHERE ended_at IS NULL") == [(0,)])
    done = "SELECT count(*) FROM calls WHERE status = 'done' AND operation NOT LIKE 'hub.%'"
    assert hosts.execute(done) == [(30,)]
    refused = "SELECT count(*) > 0 FROM calls WHERE status = 'failed' AND error LIKE '%budget of 30 calls%'"
    assert hosts.execute(refused) == [(True,)]


async def test_a_run_goes_on_with_what_its_lost_host_had_reserved_for_it(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [{"text": [f"word{at} " for at in range(60)], "delay": 0.05, "usage": usage(100, 600)}]
    limits = {"key": {"usd_total": 0.02}}  # room for one model call of 0.0103 US dollars, not for two
    lost, other = await hosts.open(2, steps=steps, keys=True, limits=limits, prices={"*/any": PRICES["*/x"]})
    _, secret = await lost.hub.store.keys.create("ann")
    budgets = other.hub.store.budgets
    release = budgets._release_host  # of a host that is taken over, and of those that a sweep finds
    begun: list[int] = []

    def count_and_release(connection: Any, *, host_id: str) -> None:
        begun.append(len(hosts.execute("SELECT id FROM runs WHERE epoch > 1")))
        release(connection, host_id=host_id)

    monkeypatch.setattr(budgets, "_release_host", count_and_release)
    body, headers = ask("go", background=True), {"x-api-key": secret}
    sent = await lost.http.post("/api/chat", json=body, headers=headers)
    assert sent.status_code == 202, sent.text
    await until(lambda: hosts.execute("SELECT reserved > 0 FROM budgets") == [(True,)])
    hosts.lose(lost)
    await until(lambda: hosts.execute("SELECT status FROM runs") == [("finished",)])
    assert hosts.execute("SELECT host, epoch FROM runs") == [(host_id(other), 2)]
    assert begun[0] == 0  # when the reservation came back, nothing had gone on yet
