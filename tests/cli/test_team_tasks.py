"""`dragoman teams run|tasks|tail|pause|resume` at a running hub, and over its data folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.program import Hub, finish, read_until, serving, start
from tests.teams.team_hub import call, write_teams

TEAMS: dict[str, Any] = {
    "press": {
        "steps": [{"text": "Let me see.", "tools": [call("time_now")]}, {"text": "The note is written."}],
        "allowed_tools": ["time.now"],
    },
    "bad": {"steps": [{"text": "Half", "error": {"message": "the model fell over"}}]},
    "slow": {"steps": [{"text": ["first ", *(f"word{n} " for n in range(2000))], "delay": 0.02}]},
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("teams")
    config: dict[str, Any] = json.loads(write_teams(folder, TEAMS).read_bytes())
    config.pop("operations")
    with serving(folder / "served", config, "--no-auth") as served:
        yield served


def test_a_task_is_followed_and_stdout_is_its_result_alone(run: Run, hub: Hub) -> None:
    done = run("teams", "run", "press", "Write a note.", "--hub", hub.url)
    assert (done.code, done.out) == (0, "The note is written.\n")
    assert "time.now" in done.err or "time_now" in done.err or "task_" in done.err
    failed = run("teams", "run", "bad", "Try.", "--hub", hub.url)
    assert (failed.code, "is failed: the model fell over" in failed.err) == (1, True), failed
    missing = run("teams", "run", "pres", "Write.", "--hub", hub.url)
    assert (missing.code, "press" in missing.err) == (1, True)
    assert "no message was given" in run("teams", "run", "press", " ", "--hub", hub.url).err


def test_ctrl_c_cancels_the_task(hub: Hub, run: Run) -> None:
    process = start("teams", "run", "slow", "Go.", "--hub", hub.url)
    assert process.stderr is not None
    shown = ""
    while "word1 " not in shown:
        shown += process.stderr.read(1)
    ended = finish(process, signal.SIGINT)
    assert ended.code == 130
    assert "is cancelled: cancelled by its owner" in ended.err
    listed = run("teams", "tasks", "--state", "cancelled", "--json", "--hub", hub.url).json["tasks"]
    assert [each["team"] for each in listed] == ["slow"]


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_tasks_are_listed_shown_and_cancelled_and_a_team_is_held_back(run: Run, hub: Hub, place: str) -> None:
    where = ("--data", str(hub.data)) if place == "folder" else ("--hub", hub.url)
    assert run("teams", "pause", "press", *where).err == "dragoman: press is paused\n"
    started = run("teams", "run", "press", f"Wait here, {place}.", "--detach", "--hub", hub.url)
    id = started.out.strip()
    table = run("teams", "tasks", "--team", "press", "--state", "queued", *where).out
    assert (id in table, f"Wait here, {place}." in table) == (True, True)
    assert run("teams", "tasks", id, *where).out.startswith(f"id             {id}\n")
    assert run("teams", "tasks", id, "--cancel", "--json", *where).json["state"] == "cancelled"
    assert run("teams", "resume", "press", *where).err == "dragoman: press begins tasks again\n"
    again = run("teams", "run", "press", "Write again.", "--json", "--hub", hub.url).json
    assert (again["state"], again["result"]) == ("done", "The note is written.")
    missing = run("teams", "tasks", "task_none", *where)
    assert (missing.code, "there is no task" in missing.err) == (1, True)
    assert "there is no state" in run("teams", "tasks", "--state", "odd", *where).err


def test_the_tail_shows_tasks_and_calls_of_a_team_and_goes_on_behind_an_event(run: Run, hub: Hub) -> None:
    follower = start("teams", "tail", "press", "--hub", hub.url)
    assert follower.stderr is not None
    assert "following" in follower.stderr.readline()
    assert run("teams", "run", "press", "Write a first one.", "--hub", hub.url).code == 0
    seen = read_until(follower, "done\n")
    assert "call time.now done" in seen
    ended = finish(follower, signal.SIGINT)
    assert ended.code == 130
    last = ended.err.partition("--after ")[2].split("`")[0]
    started = run("teams", "run", "press", "Write the last one.", "--detach", "--hub", hub.url).out.strip()
    later = start("teams", "tail", "--json", "--after", last, "--hub", hub.url)
    shown = read_until(later, '"name":"task.ended"')
    assert started in shown
    finish(later, signal.SIGINT)
    assert "there is no team 'pres'" in run("teams", "tail", "pres", "--hub", hub.url).err
