"""A skill that a run has loaded is loaded at the host that takes it over: its operations can be called."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.runs import crash_recovery, takeover
from dragoman.server.app import background_jobs
from tests.hosts.conftest import HostCluster, host_id
from tests.serving import ask
from tests.teams import gate
from tests.teams.team_hub import call
from tests.teams.test_team_agents import write, write_team
from tests.teams.test_team_skills import LEDGER, LOAD, SUM
from tests.waiting import until

HOLD = {"tools": [call("gate_hold", name="door")]}


@pytest.mark.usefixtures("quick_ticks")
async def test_a_run_that_is_taken_over_has_the_skills_that_it_had_loaded(
    hosts: HostCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "SWEEP_INTERVAL", 0.05)
    monkeypatch.setattr(crash_recovery, "RETRY_INTERVAL", 0.05)
    monkeypatch.setattr(background_jobs, "POLL_INTERVAL", 0.05)
    gate.doors.clear()
    gate.callers.clear()
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: ['skills.*', math.*, gate.hold]\nneeds_skill: [math.*]")
    write(root / "main/skills/ledger.md", LEDGER)
    steps = [SUM, LOAD, HOLD, SUM, {"text": "Done."}]
    opened = await hosts.open(3, steps=steps, teams=str(root), operations=["tests.teams.gate"])
    sent = await opened[0].http.post("/api/chat", json=ask("go", agent="main", background=True))
    assert sent.status_code == 202, sent.text
    for times in (1, 2):
        await until(lambda times=times: len(gate.callers["door"]) == times)  # type: ignore[misc]
        [(owner,)] = hosts.execute("SELECT host FROM runs")
        hosts.lose(next(host for host in opened if host_id(host) == owner))
    await until(lambda: len(gate.callers["door"]) == 3)
    gate.doors["door"].set()
    await until(lambda: hosts.execute("SELECT status FROM runs") == [("finished",)])
    ended = "SELECT operation, status FROM calls WHERE operation IN ('math.calculate', 'skills.load')"
    assert hosts.execute(f"{ended} ORDER BY started_at") == [
        ("math.calculate", "failed"),
        ("skills.load", "done"),
        ("math.calculate", "done"),
    ]
