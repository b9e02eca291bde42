"""A hub killed after any commit of a task: it has one run and one effect, and its result comes back once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dragoman.server.app import background_jobs
from dragoman.teams.tasks import worker
from tests.databases import query
from tests.effort import rounds
from tests.faults.commits import Copies
from tests.faults.test_run_commits import answer_by_truth, effects
from tests.flows.background import send_away
from tests.serving import Served, hub_of
from tests.teams.team_hub import call, write_teams

LIMIT = 120.0
KILLS = rounds(quick=6, thorough=1_000)
EFFECTS = Path(__file__).with_name("effects.py")

Json = dict[str, Any]


def configure(folder: Path) -> Path:
    ask = call("teams_ask", teams=["desk"], question="And you?")
    delegate = call("teams_delegate", team="press", task="Act.")
    act, put = call("effects_act", word="one"), call("effects_put", word="two")
    teams: dict[str, Json] = {
        "main": {
            "members": ["press", "desk"],
            "allowed_tools": ["teams.ask", "teams.delegate"],
            "steps": [{"tools": [delegate, ask]}, {"text": "Given."}],
        },
        "press": {
            "allowed_tools": ["effects.act", "effects.put"],
            "steps": [{"tools": [act]}, {"tools": [put]}, {"text": "Acted."}],
        },
        "desk": {},
    }
    return write_teams(folder, teams, operations=[str(EFFECTS)])


async def settle(hub: Served, file: Path) -> list[Json]:
    """Wait until no task is active and no result is on its way; return the tasks."""
    async with asyncio.timeout(LIMIT):
        while True:
            await answer_by_truth(hub, file)
            tasks = (await hub.http.get("/api/tasks")).json()["tasks"]
            active = (await hub.http.get("/api/runs?state=running")).json()["runs"]
            waiting = (await hub.http.get("/api/runs?state=queued")).json()["runs"]
            if not active and not waiting and all(task["deliveredAt"] for task in tasks):
                return list(tasks)
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def quick_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_jobs, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(worker, "SWEEP_INTERVAL", 0.05)


@pytest.mark.promise("tasks-run-once")
async def test_after_a_kill_at_any_commit_a_task_has_one_run_one_effect_and_one_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "effects"
    monkeypatch.setenv("EFFECTS", str(done))
    config = configure(tmp_path)
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once="select 1 from team_tasks", beside=done)
    with copies.after_each_commit(monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            await hub.chat("hi", session="w")
            task = {"team": "desk", "task": "Tell.", "session": "w", "wake": True}
            assert (await hub.http.post("/api/tasks", json=task)).status_code == 202
            await send_away(hub, agent="main")
            assert len(await settle(hub, done)) == 3
    assert len(copies.taken) > 10
    step = max(1, len(copies.taken) // KILLS)
    for data in copies.taken[::step]:
        file = data / "effects"
        monkeypatch.setenv("EFFECTS", str(file))
        async with hub_of(config, data) as hub:
            tasks = await settle(hub, file)
            assert {task["state"] for task in tasks} == {"done"}
            woken = await hub.messages("w")
            messages = await hub.messages() if len(tasks) > 1 else []
        assert [each["role"] for each in woken] == ["user", "assistant"] * 2, data
        acts = Counter(word for kind, word, _ in effects(file) if kind == "once")
        teams = Counter(task["team"] for task in tasks)
        assert acts == ({"one": 1} if teams["press"] else {}), data
        assert all(each["attempts"] == 1 for each in tasks)
        results = [part for each in messages for part in each["parts"] if part["type"] == "data-task-result"]
        assert [part["data"]["result"] for part in results] == ["Acted."] * teams["press"], data
        if messages:
            assert teams == {"press": 1, "desk": 2}, data


async def test_each_commit_has_a_task_with_the_call_that_gave_it_and_its_end_with_that_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SWEEP_INTERVAL", LIMIT)  # else the sweep may begin it, too
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once="select 1 from calls")
    config = write_teams(tmp_path, {"desk": {}})
    with copies.after_each_commit(monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            delegated = {"team": "desk", "task": "Tell."}
            await hub.http.post("/api/operations/teams.delegate/call", json=delegated)
            assert [each["state"] for each in await settle(hub, tmp_path / "none")] == ["done"]
    ended = "select 1 from team_tasks join runs on runs.id = run_id where runs.status = 'finished'"
    for data in copies.taken:
        assert query(data, "select 1 from team_tasks"), data
        assert query(data, ended) == query(data, "select 1 from team_tasks where state = 'done'"), data
    assert query(copies.taken[-1], ended)
