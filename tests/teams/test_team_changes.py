"""Teams that agents create, change and remove: nothing happens until a person has agreed to just that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.identity import LOCAL
from dragoman.store.encryption import MasterKey
from dragoman.store.teams.vault import VaultEntry
from tests.serving import Served
from tests.teams.team_hub import GATE_TOOLS, Json, call, eventually, give, read, team_hub, until_state

CHANGES = ["teams.create", "teams.update", "teams.remove", "teams.delegate"]
CREATE = call(
    "teams_create",
    name="scribe",
    description="Writes minutes",
    accepts=["minutes"],
    allowed_tools=["gate.look"],
    instructions="Write short sentences.",
)
SPAWN = call("spawn_team", name="scribe", description="Writes minutes", scope_accepts=["minutes"])


def main(*steps: Json, **fields: Any) -> Json:
    return {"allowed_tools": CHANGES, "steps": [*steps, {"text": "That is all."}], **fields}


async def waiting(hub: Served) -> list[Json]:
    found: list[Json] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
    return found


async def answer(hub: Served, *, approved: bool = True) -> Json:
    """Answer the only approval that waits, and follow the session to the end of its answer."""
    [approval] = await waiting(hub)
    await hub.http.post(f"/api/approvals/{approval['id']}", json={"approved": approved})

    async def over() -> bool:
        parts = [part for each in await hub.messages() for part in each["parts"]]
        return any(part.get("text") == "That is all." for part in parts) or bool(await waiting(hub))

    await eventually(over)
    shown: Json = approval["items"][0]
    return shown


async def results(hub: Served) -> list[Any]:
    parts = [part for each in await hub.messages() for part in each["parts"]]
    return [part.get("output", part.get("errorText")) for part in parts if "toolCallId" in part]


async def names(hub: Served) -> list[str]:
    return [each["name"] for each in (await hub.http.get("/api/teams")).json()["teams"]]


@pytest.mark.promise("team-changes")
@pytest.mark.parametrize("wanted", [CREATE, SPAWN], ids=["by its name", "by OpenHive's name"])
@pytest.mark.parametrize("approved", [True, False])
async def test_a_team_that_an_agent_creates_is_there_once_a_person_has_agreed(
    tmp_path: Path, wanted: Json, *, approved: bool
) -> None:
    async with team_hub(tmp_path, {"main": main({"tools": [wanted]})}) as hub:
        await hub.chat("go", agent="main")
        assert await names(hub) == ["main"]
        assert not (tmp_path / "teams/generated").exists()
        refused = await hub.http.post("/api/tasks", json={"team": "scribe", "task": "Write."})
        assert refused.status_code == 404
        shown = await answer(hub, approved=approved)
        assert "Writes minutes" in shown["input"]["team.yaml"]
        assert await names(hub) == (["main", "scribe"] if approved else ["main"])
        if not approved:
            assert "did not agree" in str(await results(hub))
            return
        team = (await hub.http.get("/api/teams/scribe")).json()
        assert (team["parent"], team["accepts"], team["generated"]) == ("main", ["minutes"], True)
        assert team["allowedTools"] == (["gate.look"] if wanted is CREATE else [])
        task = await give(hub, "scribe")
        assert (await until_state(hub, task.id, "done")).result == "Hello."


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": "main"}, "already"),
        ({"name": "../x"}, "not a valid name"),
        ({"name": "memory"}, "the hub uses that name"),
        ({"name": "a", "allowed_tools": [".."]}, "allowed_tools"),
        ({"name": "a", "parent": "other"}, "not below"),
        ({"name": "a", "secrets": ["pin"]}, "no secret 'pin'"),
        ({"name": "a", "budgett": 1}, "budgett"),
    ],
)
async def test_a_team_that_cannot_be_is_refused_and_nobody_is_asked(
    tmp_path: Path, fields: Json, error: str
) -> None:
    wrong = call("teams_create", **{"description": "x", **fields})
    async with team_hub(tmp_path, {"main": main({"tools": [wrong]}), "other": {}}) as hub:
        await hub.chat("go", agent="main")
        assert error in str(await results(hub))
        assert await waiting(hub) == []
        assert await names(hub) == ["main", "other"]


async def test_what_was_shown_to_a_person_is_what_is_written_and_no_more(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"main": main({"tools": [CREATE]})}) as hub:
        await hub.chat("go", agent="main")
        other = tmp_path / "teams/scribe"
        other.mkdir()
        (other / "team.yaml").write_text("description: By a person")
        await answer(hub)
        assert "already" in str(await results(hub))
        assert (await hub.http.get("/api/teams/scribe")).json()["description"] == "By a person"


async def test_a_team_created_again_gets_neither_secrets_nor_rules(tmp_path: Path) -> None:
    more = call("teams_create", **{**CREATE["input"], "instructions": "Obey me.", "secrets": ["pin"]})
    steps = [{"tools": [CREATE]}, {"tools": [more]}]
    async with team_hub(tmp_path, {"main": main(*steps)}) as hub:
        vault = hub.hub.store.vault
        vault.master_key = MasterKey.generate()
        await vault.put(VaultEntry(team="main", owner=LOCAL.owner, name="pin"), "a-secret-pin")
        await hub.chat("go", agent="main")
        await answer(hub)
        assert await waiting(hub) == []
        assert "already" in str((await results(hub))[-1])
        assert await vault.list("scribe", LOCAL.owner) == []


async def test_a_person_is_shown_the_secrets_that_a_team_gets_by_its_name(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"main": main({"tools": [CREATE]})}) as hub:
        vault = hub.hub.store.vault
        vault.master_key = MasterKey.generate()
        await vault.put(VaultEntry(team="scribe", owner=LOCAL.owner, name="pin"), "a-secret-pin")
        await hub.chat("go", agent="main")
        assert (await answer(hub))["input"]["keeps_secrets"] == ["pin"]
        assert await names(hub) == ["main", "scribe"]


@pytest.mark.parametrize("tool", ["teams_update", "update_team"])
async def test_what_a_team_accepts_changes_once_a_person_has_agreed_and_its_file_stays(
    tmp_path: Path, tool: str
) -> None:
    prefix = "accepts" if tool == "teams_update" else "scope"
    change = call(tool, team="desk", **{f"{prefix}_add": ["calls"], f"{prefix}_remove": ["mail"]})
    teams = {"main": main({"tools": [change]}), "desk": {"parent": "main", "accepts": ["mail", "chat"]}}
    async with team_hub(tmp_path, teams) as hub:
        written = (tmp_path / "teams/desk/team.yaml").read_bytes()
        await hub.chat("go", agent="main")
        assert (await hub.http.get("/api/teams/desk")).json()["accepts"] == ["mail", "chat"]
        assert (await answer(hub))["input"]["accepts"] == ["chat", "calls"]
        assert (await hub.http.get("/api/teams/desk")).json()["accepts"] == ["chat", "calls"]
        assert (tmp_path / "teams/desk/team.yaml").read_bytes() == written


async def test_a_team_changes_those_below_it_and_no_others(tmp_path: Path) -> None:
    calls = [call("teams_update", team="main", accepts_add=["x"]), call("teams_remove", team="other")]
    teams = {"main": {}, "desk": main({"tools": calls}, parent="main"), "other": {"parent": "main"}}
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="desk")
        assert await waiting(hub) == []
        assert len(await results(hub)) == 2
        assert await names(hub) == ["desk", "main", "other"]


async def test_a_team_with_tasks_or_teams_below_it_is_removed_with_them_only(tmp_path: Path) -> None:
    remove = call("shutdown_team", name="scribe")
    steps = [
        {"tools": [CREATE]},
        {"tools": [remove]},
        {"tools": [call("teams_remove", team="scribe", cascade=True)]},
    ]
    async with team_hub(tmp_path, {"main": main(*steps)}) as hub:
        await hub.chat("go", agent="main")
        await answer(hub)  # it is created; then to remove it waits for a person, too
        await hub.http.post("/api/teams/scribe/pause")
        task = await give(hub, "scribe")
        await answer(hub)
        assert "1 tasks" in str(await results(hub))
        shown = await answer(hub)
        assert shown["input"]["removes"] == ["scribe"]
        assert await names(hub) == ["main"]
        assert not (tmp_path / "teams/generated/scribe").exists()
        assert (await read(hub, task.id)).error == "its team is removed"


async def test_the_triggers_of_a_removed_team_fire_no_more(tmp_path: Path) -> None:
    remove = call("teams_remove", team="scribe")
    async with team_hub(tmp_path, {"main": main({"tools": [CREATE]}, {"tools": [remove]})}) as hub:
        await hub.chat("go", agent="main")
        await answer(hub)
        body = {
            "team": "scribe",
            "name": "n",
            "type": "schedule",
            "config": {"cron": "0 0 1 1 *"},
            "task": "t",
        }
        trigger = (await hub.http.post("/api/triggers", json=body)).json()
        await hub.http.post(f"/api/triggers/{trigger['id']}/enable")
        await answer(hub)
        found = (await hub.http.get(f"/api/triggers/{trigger['id']}")).json()
        assert (found["state"], found["reason"]) == ("disabled", "its team was removed")


async def test_a_team_that_people_wrote_is_theirs_to_remove(tmp_path: Path) -> None:
    teams = {"main": main({"tools": [call("teams_remove", team="desk")]}), "desk": {"parent": "main"}}
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="main")
        assert "written by people" in str(await results(hub))
        assert await waiting(hub) == []


async def test_a_list_that_denies_keeps_a_team_from_creating_others(tmp_path: Path) -> None:
    teams = {"main": main({"tools": [CREATE, SPAWN]}, allowed_tools=["teams.list", *GATE_TOOLS])}
    async with team_hub(tmp_path, teams) as hub:
        await hub.chat("go", agent="main")
        assert await waiting(hub) == []
        assert await names(hub) == ["main"]
