"""Rights of teams: sub-agents have the same, chains the strictest policy; depth and budget are bounded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dragoman.operations.context import Context, ParentAgent
from dragoman.server.app import Hub
from dragoman.teams.allowed_tools import AllowedTools
from tests.serving import serving, text_of
from tests.teams.test_team_agents import config_of, write, write_team
from tests.teams.test_team_prompts import played

CLOCK = "---\ndescription: Tells the time\n---\nYou tell the time."


def call(id: str, **input: Any) -> dict[str, Any]:
    return {"tools": [{"name": "hub_call", "input": {"calls": [{"tool": id, "input": input}]}}]}


def ask(agent: str) -> dict[str, Any]:
    return call(f"agents.{agent}", prompt="Go")


@pytest.mark.parametrize(
    ("rules", "chain", "ran"),
    [
        ([], ["lead", "worker"], True),  # a member has its own operations, whatever its caller has
        ([{"deny": "math.*", "agent": "lead"}], ["lead", "worker"], False),
        ([{"deny": "math.*", "agent": "worker"}], ["lead", "worker"], False),
        ([{"deny": "math.*", "agent": "lead"}], ["worker"], True),
        ([{"allow": "math.*"}], ["lead"], False),  # a rule of the hub does not widen a team's list
        ([], ["lead", "helper"], False),  # an agent of the hub has no more than the team that calls it
        ([], ["lead", "worker", "helper"], True),  # the nearest team counts
    ],
)
async def test_a_call_of_a_chain_needs_the_policy_of_all_and_the_list_of_its_own_team(
    tmp_path: Path, rules: list[Any], chain: list[str], *, ran: bool
) -> None:
    root = tmp_path / "teams"
    write_team(root, "lead", "allowed_tools: [agents.*]")
    write_team(root, "worker", "parent: lead\nallowed_tools: [agents.*, math.*]")
    delegations = [ask(agent) for agent in chain[1:]]
    steps = [*delegations, call("math.calculate", expression="6*7"), *({"text": "Done."} for _ in chain)]
    agents = {"helper": {"description": "Helps"}}
    async with serving(tmp_path, steps, teams=str(root), policy=rules, agents=agents) as served:
        frames = await served.chat("Go", agent=chain[0])
        assert text_of(frames) == "Done."
        calls = (await served.http.get("/api/calls?limit=50")).json()["calls"]
        done = [each for each in calls if each["name"] == "math.calculate"]
        assert [each["status"] for each in done if each["status"] == "done"] == ["done"] * ran


async def test_what_a_subagent_does_is_in_the_call_tree_of_its_team_and_shown_while_it_works(
    tmp_path: Path,
) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: [time.now, main.*]")
    write(root / "main/subagents/clock.md", CLOCK)
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "main_clock", "input": {"prompt": "What time is it?"}}]},
        {"tools": [{"name": "time_now", "input": {}}]},
        {"text": "It is noon."},
        {"text": "Noon."},
    ]
    async with serving(tmp_path, steps, teams=str(root)) as served:
        frames = await served.chat("The time?", agent="main")
        shown = [each for each in frames if each["type"] == "tool-output-available"]
        assert any(each.get("preliminary") for each in shown)
        assert shown[-1]["output"] == "It is noon."
        calls = (await served.http.get("/api/calls")).json()["calls"]
        ids = {each["name"]: each["id"] for each in calls}
        inner = (await served.http.get(f"/api/calls/{ids['time.now']}")).json()
        assert inner["parentId"] == ids["main.clock"]
        assert inner["agent"] == "main/clock"
        assert [each.instructions for each in played(served.hub)][1] != played(served.hub)[0].instructions


async def test_subagents_that_call_each_other_are_nested_five_deep_at_most(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: [main.*]")
    write(root / "main/subagents/echo.md", "---\ndescription: Calls itself\n---\nYou call main.echo.")
    deeper = {"tools": [{"name": "main_echo", "input": {"prompt": "Deeper"}}]}
    steps: list[dict[str, Any]] = [*[deeper] * 6, *[{"text": "Up."}] * 6]
    async with serving(tmp_path, steps, teams=str(root)) as served:
        assert text_of(await served.chat("Go", agent="main")) == "Up."
        calls = (await served.http.get("/api/calls?limit=50")).json()["calls"]
        nested = [each for each in calls if each["name"] == "main.echo"]
        failed = [each["error"]["message"] for each in nested if each["status"] == "failed"]
        assert len(nested) - len(failed) == 5
        assert len(failed) == 1
        assert "nested 5 deep at most: main > main/echo" in failed[0]


async def test_a_budget_of_a_team_bounds_it_with_its_subagents(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: [time.now, main.*]\nbudget: {calls: 2}")
    write(root / "main/subagents/clock.md", CLOCK)
    clock = {"tools": [{"name": "time_now", "input": {}}]}
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "main_clock", "input": {"prompt": "Now?"}}]},
        clock,
        clock,
    ]
    async with serving(tmp_path, steps, teams=str(root)) as served:
        await served.chat("Go", agent="main")
        calls = (await served.http.get("/api/calls?limit=50")).json()["calls"]
        ended = [each["status"] for each in calls if each["name"] == "time.now"]
        assert ended.count("done") == 1


async def test_a_rule_of_the_policy_may_name_a_team_and_a_misspelt_one_is_told(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main")
    rules = [{"deny": "math.*", "agent": "main"}, {"deny": "math.*", "agent": "mian"}]
    config = config_of(root, policy=rules)
    async with Hub.open(config, tmp_path / "data", require_keys=False) as hub:
        found = await hub.unknown_policy_names(config)
        assert found == ["policy[1].agent: there is no agent 'mian'; did you mean 'main'?"]


async def test_everything_may_be_allowed_and_the_policy_still_denies(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: ['*']")
    config = config_of(root, policy=[{"deny": "math.*"}])
    async with Hub.open(config, tmp_path / "data", require_keys=False) as hub:
        meta = hub._services.meta
        shown = {each.namespace for each in meta.visible_operations(Context(agent="main"))}
        assert {"time", "history"} <= shown
        assert "math" not in shown


async def outcome_of(hub: Hub, agent: str) -> bool:
    """Whether an agent may read its files."""
    outcome = await hub._services.calls.call("files.list", {"path": "."}, context=Context(agent=agent))
    return outcome.error is None


async def test_the_agent_of_a_team_that_was_removed_may_call_nothing(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: ['files.*']")
    write_team(root, "other")
    config = config_of(root, files_root=str(tmp_path))
    async with Hub.open(config, tmp_path / "data", require_keys=False) as hub:
        above = (ParentAgent("main", hub._services.calls),)
        shutil.rmtree(root / "main")
        shutil.rmtree(root / "other")
        assert hub._services.teams.registry.reload()
        for each in (Context(agent="main"), Context(agent="helper", parent_agents=above)):
            outcome = await hub._services.calls.call("files.list", {"path": "."}, context=each)
            assert outcome.error is not None
            assert outcome.error.code == "call_denied"
        write_team(root, "other", "allowed_tools: ['files.*']")
        assert hub._services.teams.registry.reload()
        assert await outcome_of(hub, "other")


@pytest.mark.parametrize("change", ["narrowed", "removed"])
async def test_what_a_team_may_no_longer_call_is_denied_to_runs_in_progress_too(
    tmp_path: Path, change: str
) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: ['files.*']")
    async with Hub.open(config_of(root), tmp_path / "data", require_keys=False) as hub:
        [restriction] = [
            each for each in hub._services.calls.access_control.restrictions if isinstance(each, AllowedTools)
        ]
        now = 0.0
        restriction.clock = lambda: now
        assert await outcome_of(hub, "main")
        if change == "narrowed":
            write_team(root, "main", "allowed_tools: ['time.now']")
        else:
            shutil.rmtree(root / "main")
        now = 1.0
        assert not await outcome_of(hub, "main")
