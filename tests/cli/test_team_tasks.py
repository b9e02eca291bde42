"""`dragoman teams run|tasks|tail|pause|resume` at a running hub, and over its data folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.program import Hub, finish, read_until, scripted, serving, start
from tests.teams.team_hub import call, write_teams

LAYOUT = Path(__file__).parents[1] / "teams/openhive"
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


@pytest.mark.promise("openhive-layout")
def test_a_folder_in_openhives_layout_is_imported_and_its_teams_do_a_task(run: Run, tmp_path: Path) -> None:
    """The folder is written by us, after the description of OpenHive alone."""
    imported = run("teams", "import", LAYOUT, "--teams", tmp_path / "teams")
    assert (imported.code, "imported main, ops-team" in imported.out) == (0, True), imported
    ask = call("query_team", team="ops-team", query="Are the servers up?", timeout_ms=60_000)
    models: dict[str, list[Any]] = {
        "anthropic": [{"tools": [ask]}, {"text": "Ops says: all servers are up."}],
        "openai": [{"tools": [call("read", path="workspace/status.txt")]}, {"text": "All servers are up."}],
    }
    providers = {name: scripted(tmp_path, name, steps, play="turns") for name, steps in models.items()}
    config = {"providers": providers, "model": "anthropic/x", "teams": str(tmp_path / "teams")}
    (tmp_path / "teams/ops-team/workspace/status.txt").write_text("up")
    with serving(tmp_path / "served", config, "--no-auth") as hub:
        done = run("teams", "run", "main", "Look after the servers.", "--hub", hub.url)
        assert (done.code, done.out) == (0, "Ops says: all servers are up.\n"), done
        tasks = run("teams", "tasks", "--json", "--hub", hub.url).json["tasks"]
        assert [(each["team"], each["state"], each["result"]) for each in tasks] == [
            ("ops-team", "done", "All servers are up."),
            ("main", "done", "Ops says: all servers are up."),
        ]
        calls = run("calls", "list", "--json", "--hub", hub.url).json["calls"]
        statuses = {each["name"]: each["status"] for each in calls}
        assert (statuses["teams.ask"], statuses["files.read"]) == ("done", "done")
