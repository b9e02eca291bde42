"""`dragoman run` and `dragoman runs` at a running hub and over its data folder."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run
from tests.cli.program import Hub, finish, read_until, start


@pytest.fixture
def detached(run: Run, hub: Hub) -> str:
    """The id of a run in the background that is done."""
    id = run("run", "Hello", "--detach", "--hub", hub.url).out.strip()
    assert run("runs", "follow", id, "--hub", hub.url).code == 0
    return id


def test_a_question_is_answered_on_stdout(run: Run, hub: Hub) -> None:
    result = run("run", "Hello", "--agent", "default", "--model", "tools/x", "--hub", hub.url)
    assert (result.code, result.out) == (0, "It is 42.\n")
    assert run("run", "Hello", "--model", "bad/x", "--hub", hub.url).code == 1
    assert "no message was given" in run("run", " ", "--hub", hub.url).err


def test_a_detached_run_is_followed_by_its_id(run: Run, hub: Hub) -> None:
    started = run("run", "Hello", "--detach", "--session", "report", "--hub", hub.url)
    id = started.out.strip()
    assert started.code == 0
    assert f"session report; `dragoman runs follow {id}`" in started.err
    followed = run("runs", "follow", id, "--hub", hub.url)
    assert (followed.code, followed.out) == (0, "Good day.\n")
    assert run("run", "More", "--detach", "--json", "--hub", hub.url).json.keys() == {"runId", "sessionId"}


def test_a_detached_run_that_fails_ends_its_follower_with_1(run: Run, hub: Hub) -> None:
    id = run("run", "Hello", "--detach", "--model", "bad/x", "--hub", hub.url).out.strip()
    followed = run("runs", "follow", id, "--hub", hub.url)
    assert (followed.code, followed.out) == (1, "Half\n")
    assert "the model fell over" in run("runs", "follow", id, "--hub", hub.url).err


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_runs_are_listed_and_shown(run: Run, hub: Hub, detached: str, place: str) -> None:
    where = ("--data", str(hub.data)) if place == "folder" else ("--hub", hub.url)
    assert detached in run("runs", "list", *where).out
    done = run("runs", "list", "--state", "done", "--limit", "1", "--json", *where).json["runs"]
    assert [each["id"] for each in done] == [detached]
    shown = run("runs", "show", detached, *where)
    assert f"id            {detached}\n" in shown.out
    assert "state         done\n" in shown.out
    assert shown.out.endswith("\n\nGood day.\n")
    assert run("runs", "show", detached, "--json", *where).json["message"]["role"] == "assistant"
    assert "there is no state 'odd'" in run("runs", "list", "--state", "odd", *where).err


def test_a_run_is_stopped_and_its_follower_told(run: Run, hub: Hub) -> None:
    id = run("run", "Go", "--detach", "--model", "slow/x", "--session", "long", "--hub", hub.url).out.strip()
    follower = start("runs", "follow", id, "--hub", hub.url)
    read_until(follower, "word1 ")
    queued = run("runs", "list", "--state", "running", "--session", "long", "--hub", hub.url)
    assert id in queued.out
    assert run("runs", "stop", id, "--hub", hub.url).out == f"{id} was stopped\n"
    ended = finish(follower)
    assert ended.code == 130
    assert f"{id} is aborted" in ended.err
    again = run("runs", "stop", id, "--hub", hub.url)
    assert (again.code, again.out) == (1, "")
    assert run("runs", "follow", id, "--hub", hub.url).code == 130


@pytest.mark.parametrize("command", ["show", "follow", "stop"])
def test_a_run_that_is_not_there_is_said_to_be_missing(run: Run, hub: Hub, command: str) -> None:
    result = run("runs", command, "nothing", "--hub", hub.url)
    assert (result.code, result.out) == (1, "")
    assert "there is no run 'nothing'" in result.err
    assert "`dragoman runs list`" in result.err
