"""Teams, skills and lists that agents change at one of several hosts with folders of their own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.identity import Identity
from dragoman.operations.context import Context
from dragoman.teams import generated_files_sync
from dragoman.teams.registry import TeamRegistry
from tests.hosts.conftest import HostCluster
from tests.serving import Served
from tests.teams.test_skill_additions import HASH, SHOWN, write_checkout
from tests.teams.test_team_agents import write, write_team
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_ticks")
ANN = Identity(key_id="k", owner="ann", scopes=frozenset({"chat"}))
ADMIN = Identity(key_id="a", owner="root", scopes=frozenset({"admin"}))
ME = Context(identity=ANN, agent="main", activations=[])
SCRIBE = {
    "name": "scribe",
    "description": "Writes minutes",
    "accepts": ["minutes"],
    "instructions": "Write short sentences.",
}


@pytest.fixture(autouse=True)
def only_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts look when they are told to, and never by the clock."""
    monkeypatch.setattr(generated_files_sync, "FOLLOW_INTERVAL", 3_600.0)


async def open_host(hosts: HostCluster, folder: Path) -> Served:
    """A host with a folder of teams of its own, as it is deployed; it may have more already."""
    write_team(folder / "teams", "main", "allowed_tools: ['skills.*', 'teams.*']")
    skills = {"folders": {"shared": str(folder.parent / "checkout")}}
    [host] = await hosts.open(1, teams=str(folder / "teams"), skills=skills)
    return host


def teams(host: Served) -> TeamRegistry:
    return host.hub._services.teams.registry


async def change(host: Served, operation: str, *, agreed_at: Served, **input: Any) -> Any:
    """Let an agent call an operation at a host, once a person has agreed to it at another one."""
    calls = host.hub._services.calls
    waiting = await calls.call(operation, input, context=ME)
    assert waiting.approval_id is not None, waiting
    await agreed_at.hub.answer_approval(waiting.approval_id, approved=True, by=ADMIN)
    again = msgspec.structs.replace(ME, approval=waiting.approval_id)
    return (await calls.call(operation, input, context=again)).unwrap()


async def call(host: Served, operation: str, **input: Any) -> Any:
    return (await host.hub._services.calls.call(operation, input, context=ME)).unwrap()


def left_of(folder: Path, team: str) -> list[Path]:
    """The generated folders of a team at all hosts."""
    return list(folder.glob(f"*/teams/generated/{team}"))


async def test_what_agents_change_at_one_host_is_so_at_all_and_at_those_that_start_later(
    hosts: HostCluster, tmp_path: Path
) -> None:
    write_checkout(tmp_path / "checkout")
    first = await open_host(hosts, tmp_path / "first")
    second = await open_host(hosts, tmp_path / "second")
    await change(first, "teams.create", agreed_at=second, **SCRIBE)
    await until(lambda: teams(second).find("scribe") is not None)
    [rules] = teams(second).sources("scribe").team_rules
    assert (rules.text, teams(second).get("scribe").parent) == ("Write short sentences.", "main")

    await change(second, "teams.update", agreed_at=first, team="scribe", accepts_add=["letters"])
    await until(lambda: teams(first).get("scribe").accepts == ("minutes", "letters"))

    await change(second, "skills.add", agreed_at=first, source="folder:shared/skills/tidy")
    third = await open_host(hosts, tmp_path / "third")
    assert teams(third).get("scribe").accepts == ("minutes", "letters")
    for host in (first, third):
        await until(lambda host=host: "tidy" in teams(host).skills("main"))  # type: ignore[misc]
        loaded = await call(host, "skills.load", name="tidy")
        assert (loaded["text"], loaded["hash"]) == (SHOWN, HASH)
        assert (await call(host, "skills.read", name="tidy", path="references/list.md"))["text"]

    stale = tmp_path / "stale"
    shutil.copytree(tmp_path / "third", stale)  # a machine that is away while the team is removed
    await change(third, "teams.remove", agreed_at=second, team="scribe")
    for host in (first, second):
        await until(lambda host=host: teams(host).find("scribe") is None)  # type: ignore[misc]
    fourth = await open_host(hosts, stale)
    assert teams(fourth).names() == ["main"]
    assert left_of(tmp_path, "scribe") == []
    assert "tidy" in teams(fourth).skills("main")


async def test_files_from_before_are_stored_and_a_changed_one_is_written_again(
    hosts: HostCluster, tmp_path: Path
) -> None:
    write(tmp_path / "old/teams/generated/scribe/team.yaml", "parent: main\ndescription: Writes")
    write(tmp_path / "old/teams/generated/scribe/workspace/notes.txt", "Not for others.")
    await open_host(hosts, tmp_path / "old")
    other = await open_host(hosts, tmp_path / "other")
    assert teams(other).get("scribe").description == "Writes"
    assert not (tmp_path / "other/teams/generated/scribe/workspace/notes.txt").exists()
    await hosts.close(other)
    write(tmp_path / "other/teams/generated/scribe/team.yaml", "parent: main\ndescription: Mine")
    other = await open_host(hosts, tmp_path / "other")
    assert teams(other).get("scribe").description == "Writes"


async def test_a_host_that_cannot_have_a_team_says_so_and_goes_on(
    hosts: HostCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = await open_host(hosts, tmp_path / "first")
    write_team(tmp_path / "second/teams", "scribe", "description: By a person")
    second = await open_host(hosts, tmp_path / "second")
    write_team(tmp_path / "first/teams", "other", "description: Only here")
    teams(first).reload()
    await first.hub._services.teams.files.create_team("low", content="parent: other", files={})
    await until(lambda: "generated/low are left out" in caplog.text)
    await change(first, "teams.create", agreed_at=second, **SCRIBE)
    await until(lambda: "people wrote a team 'scribe' here" in caplog.text)
    await first.hub._services.teams.files.create_team("last", content="parent: main", files={})
    await until(lambda: teams(second).find("last") is not None)
    assert teams(second).names() == ["last", "main", "scribe"]
    assert teams(second).get("scribe").description == "By a person"
    assert teams(second).problems == ()
