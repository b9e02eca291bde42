"""OpenHive's tools by their own names: as tools, through `hub_call`, over HTTP and in `allowed_tools`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman.teams.openhive_aliases import ALIASES
from tests.serving import serving
from tests.teams.team_hub import call, team_hub

TOOLS = ["delegate_task", "query_team", "list_teams", "get_status"]


def hub_call(tool: str, **input: Any) -> Any:
    return call("hub_call", calls=[{"tool": tool, "input": input}])


def outputs(frames: list[dict[str, Any]]) -> list[Any]:
    return [each["output"] for each in frames if each["type"] == "tool-output-available"]


@pytest.mark.parametrize("direct", [True, False], ids=["as a tool", "through hub_call"])
async def test_a_team_asks_and_lists_by_the_names_and_parameters_of_openhive(
    tmp_path: Path, *, direct: bool
) -> None:
    ways = call if direct else hub_call
    steps = [
        {"tools": [ways("query_team", team="press", query="What is new?", timeout_ms=30_000)]},
        {"tools": [ways("list_teams", recursive=True)]},
        {"text": "Done."},
    ]
    teams = {"main": {"steps": steps, "allowed_tools": TOOLS, "members": ["press"]}, "press": {}}
    async with team_hub(tmp_path, teams) as hub:
        answers, listed = outputs(await hub.chat("go", agent="main"))
        if not direct:
            answers, listed = answers[0]["result"], listed[0]["result"]
        assert answers[0]["result"] == "press is done."
        assert [each["team"] for each in listed] == ["press"]
        recorded = {each["name"] for each in (await hub.http.get("/api/calls")).json()["calls"]}
        assert {"teams.ask", "teams.list"} <= recorded
        assert not recorded & ALIASES.keys()


@pytest.mark.parametrize(
    ("allowed", "rules"),
    [(["teams.list"], []), (["delegate_task"], [{"deny": "teams.delegate"}])],
    ids=["not in its list", "denied by the policy"],
)
@pytest.mark.parametrize("ways", [call, hub_call])
async def test_an_alias_opens_nothing(
    tmp_path: Path, allowed: list[str], rules: list[Any], ways: Any
) -> None:
    steps = [{"tools": [ways("delegate_task", team="press", task="Write.")]}, {"text": "Done."}]
    teams = {"main": {"steps": steps, "allowed_tools": allowed, "members": ["press"]}, "press": {}}
    async with team_hub(tmp_path, teams, policy=rules) as hub:
        await hub.chat("go", agent="main")
        assert not await hub.hub.store.team_tasks.list_page({"team": "press"})


async def test_an_alias_is_called_over_http_and_described_as_its_operation(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"main": {}, "press": {}}) as hub:
        response = await hub.http.post("/api/operations/get_status/call", json={"team": "press"})
        assert response.json()["result"][0]["team"] == "press"
        described = (await hub.http.get("/api/operations/delegate_task")).json()
        assert described["id"] == "teams.delegate"


async def test_without_teams_no_alias_is_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        assert (await hub.http.get("/api/operations/delegate_task")).status_code == 404


@pytest.mark.parametrize(
    ("name", "input", "expected"),
    [
        ("delegate_task", {"team": "a", "overlap_policy": "skip"}, {"team": "a", "overlap": "skip"}),
        ("send_message", {"target": "a", "message": "m"}, {"team": "a", "message": "m"}),
        ("query_team", {"team": "a", "query": "q"}, {"teams": ["a"], "question": "q"}),
        (
            "query_teams",
            {"teams": ["a"], "query": "q", "timeout_ms": 500},
            {"teams": ["a"], "question": "q", "seconds": 0.5},
        ),
        ("enqueue_parent_task", {"task": "t", "context": "c", "priority": None}, {"task": "t\n\nc"}),
        ("escalate", {"message": "m", "reason": "r"}, {"message": "m", "reason": "r"}),
        (
            "create_trigger",
            {"name": "n", "overlap_policy": "skip-then-replace", "max_steps": 5},
            {"name": "n", "overlap": "skip_then_replace", "max_steps": 5},
        ),
        (
            "update_trigger",
            {"team": "a", "trigger_name": "n", "task": "t"},
            {"team": "a", "name": "n", "changes": {"task": "t"}},
        ),
        ("enable_trigger", {"trigger_name": "n"}, {"name": "n"}),
        ("vault_get", {"key": "token"}, {"name": "token"}),
        ("memory_save", {"key": "k", "content": "c"}, {"key": "k", "content": "c"}),
        ("list_completed_tasks", {"since": "2000-01-01"}, {"days": 365.0}),
        ("list_completed_tasks", {"since": "yesterday"}, {"since": "yesterday"}),
    ],
)
def test_parameters_become_those_of_the_operation(
    name: str, input: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    assert ALIASES[name].input(input) == expected


def test_what_is_not_an_object_is_passed_on_to_be_refused() -> None:
    assert ALIASES["delegate_task"].input(["x"]) == ["x"]
