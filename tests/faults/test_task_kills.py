"""`kill -9` of a hub with tasks and triggers: each task and occurrence runs once, each result comes once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.effort import rounds
from tests.faults.process import Process, started
from tests.faults.test_run_commits import effects
from tests.serving import ask
from tests.teams.team_hub import call, write_teams
from tests.waiting import poll

KILLS = rounds(quick=4, thorough=200)
TEAMS = rounds(quick=5, thorough=20)
TASKS = rounds(quick=20, thorough=200)
TRIGGERS = rounds(quick=2, thorough=10)
TICK = rounds(quick=1, thorough=10)  # seconds
EFFECTS = Path(__file__).with_name("effects.py")
LIMIT = rounds(quick=300, thorough=6_000)  # seconds; 200 kills take 24 minutes under a load of 14
pytestmark = pytest.mark.timeout(LIMIT + 600)

Json = dict[str, Any]


def configure(folder: Path) -> Path:
    put = {"tools": [call("effects_put", word="{team}")], "delay": 0.01}
    teams = {
        f"team{number}": {
            "allowed_tools": ["effects.put", "effects.look"],
            "concurrency": 2,
            "steps": [put, {"text": ["It ", "is ", "done."], "delay": 0.01}],
        }
        for number in range(TEAMS)
    }
    return write_teams(folder, teams, operations=[str(EFFECTS)])


async def give(hub: Process, number: int) -> None:
    """Give a task until the hub has it, over as many connections as it takes."""
    body = {
        "team": f"team{number % TEAMS}",
        "task": f"Task {number}.",
        "dedupKey": f"k{number}",
        "session": f"s{number % 3}",
    }
    response = await hub.http.post("/api/tasks", json=body)
    assert response.status_code in (202, 503), response.text


async def add_triggers(hub: Process) -> list[str]:
    """Windows that never close, each with a tick for a team; their results go to a session."""
    ids: list[str] = []
    for number in range(TRIGGERS):
        body = {
            "team": f"team{number % TEAMS}",
            "name": f"t{number}",
            "type": "window",
            "config": {"during": "* * * * *", "tick": f"{TICK}s"},
            "task": f"Tick of {number}.",
            "overlap": "queue",
            "failure_threshold": 100,
            "session": f"s{number % 3}",
        }
        created = await hub.http.post("/api/triggers", json=body)
        assert created.status_code == 201, created.text
        ids.append(created.json()["id"])
        assert (await hub.http.post(f"/api/triggers/{ids[-1]}/enable")).status_code == 200
    return ids


async def end_triggers(hub: Process, ids: list[str]) -> list[Json]:
    """Disable triggers; what they fired, once all of it has ended."""
    for id in ids:
        assert (await hub.http.post(f"/api/triggers/{id}/disable")).status_code == 200
    while True:
        fired: list[Json] = []
        for id in ids:
            page = await hub.http.get(f"/api/triggers/{id}/history", params={"limit": 500})
            fired += page.json()["occurrences"]
        if all(each["state"] in ("done", "failed", "skipped", "cancelled") for each in fired):
            return fired
        await asyncio.sleep(0.05)


async def read_tasks(hub: Process) -> list[Json]:
    tasks: list[Json] = []
    before: Json = {}
    while True:
        page = (await hub.http.get("/api/tasks", params={"limit": 200, **before})).json()
        tasks += page["tasks"]
        if page["next"] is None:
            return tasks
        before = {"before": page["next"]}


async def work(hub: Process, numbers: set[int]) -> bool:
    """Give what is missing; return whether all tasks have ended and their results are delivered."""
    for number in range(TASKS):
        if number not in numbers:
            await give(hub, number)
            numbers.add(number)
    while True:
        tasks = [task for task in await read_tasks(hub) if task["source"] == "api"]
        if len(tasks) == TASKS and all(task["deliveredAt"] for task in tasks):
            return True
        await asyncio.sleep(0.05)


async def live(hub: Process, numbers: set[int], *, seconds: float | None) -> bool:
    """Work with a hub, for so long at most; return whether all is done."""
    with suppress(TimeoutError, httpx2.TransportError):
        async with asyncio.timeout(seconds):
            return await work(hub, numbers)
    return False


@pytest.mark.promise("tasks-run-once")
@pytest.mark.promise("trigger-once")
async def test_after_random_kills_each_task_and_occurrence_has_run_once_and_its_result_came_back_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "effects"
    monkeypatch.setenv("EFFECTS", str(file))
    config, data, source = configure(tmp_path), tmp_path / "hub", random.Random(7)
    handed_in: set[int] = set()
    async with started(config, data) as hub:
        for number in range(3):
            response = await hub.http.post("/api/chat", json=ask("hi", session=f"s{number}"))
            assert response.status_code == 200
        triggers = await add_triggers(hub)
    kills = 0
    async with asyncio.timeout(LIMIT):
        while kills < KILLS:
            async with started(config, data) as hub:
                # After the last kill nothing is new; before, tasks are given over all lives of the hub.
                missing = set(range((kills + 1) * TASKS // KILLS, TASKS))
                await live(hub, handed_in | missing, seconds=source.uniform(0.05, 0.8))
                handed_in |= set(range(TASKS)) - missing
                kills += 1
        async with started(config, data) as hub:
            assert await live(hub, set(), seconds=None)
            fired = await end_triggers(hub, triggers)
            await delivered_all(hub)
            tasks = await read_tasks(hub)
            sessions = [await hub.messages(f"s{number}") for number in range(3)]
            runs = [await runs_of(hub, task["sessionId"]) for task in tasks]
    done = [task for task in tasks if task["state"] == "done"]
    # A run that three crashes in a row have cut off is given up, and so is its task.
    assert all("not tried again" in task["error"] for task in tasks if task not in done)
    assert {task["result"] for task in done} == {"It is done."}
    assert {task["attempts"] for task in tasks} == {1}
    assert set(runs) == {1}
    keys = Counter(key for _, _, key in effects(file))
    # A call that was cut off is repeated under its own key.
    assert len(done) <= len(keys) <= len(tasks)
    by_trigger = {task["id"] for task in tasks if task["source"] == "trigger"}
    assert len(tasks) - len(by_trigger) == TASKS
    assert Counter(each["task"] for each in fired if "task" in each) == Counter(by_trigger)
    assert {each["trigger"] for each in fired} == set(triggers)
    given_up = [task["id"] for task in tasks if task not in done]
    print(f"{kills} kills, {len(tasks)} tasks, {len(fired)} occurrences, {len(given_up)} tasks given up")
    parts = [part for messages in sessions for each in messages for part in each["parts"]]
    delivered = Counter(part["data"]["taskId"] for part in parts if part["type"] == "data-task-result")
    assert delivered == {task["id"]: 1 for task in tasks}


async def delivered_all(hub: Process) -> None:
    """Wait until all results are where they belong."""

    async def look() -> bool:
        return all(task["deliveredAt"] for task in await read_tasks(hub))

    await poll(look)


async def runs_of(hub: Process, session: str) -> int:
    """How many runs a session has."""
    return len((await hub.http.get("/api/runs", params={"session": session})).json()["runs"])
