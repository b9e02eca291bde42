"""The tools of teams in a hub: each team has its own files and commands, and nothing of another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import Forbidden
from dragoman.operations.context import Context
from dragoman.operations.outcome import CallOutcome
from dragoman.server.app import Hub
from dragoman.server.app.services import HubServices
from tests.serving import Frames, serving
from tests.teams.test_team_agents import config_of, write, write_team
from tests.tools.test_shell import processes_with
from tests.waiting import until

TOOLS = "allowed_tools: ['files.*', 'shell.*']\n"


async def call(hub: Hub, name: str, *, agent: str | None = "main", **input: Any) -> CallOutcome:
    return await services(hub).calls.call(name, input, context=Context(agent=agent))


def services(hub: Hub) -> HubServices:
    return hub._services


def message(outcome: CallOutcome) -> str:
    assert outcome.error is not None
    return outcome.error.message


async def test_each_team_reads_and_writes_its_own_folders_and_those_listed(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    for name in ("shop", "docs"):
        write(tmp_path / name / "dragoman.yaml", "teams: x")
    folders = f"folders: {{shop: {tmp_path}/shop, docs: '{tmp_path}/docs:ro'}}"
    write_team(root, "main", TOOLS + folders)
    write(root / "main/rules/team/r.md", "Be kind.")
    write_team(root, "other", TOOLS)
    write(root / "other/workspace/private.txt", "other's")
    async with Hub.open(config_of(root), tmp_path / "data", require_keys=False) as hub:
        top = (await call(hub, "files.list")).unwrap()["entries"]
        assert [each["name"] for each in top] == ["docs", "rules", "shop", "workspace"]
        for path in ("workspace/a.txt", "shop/src/a.txt"):
            assert (await call(hub, "files.write", path=path, text="x")).error is None
        assert (root / "main/workspace/a.txt").read_text() == "x"
        for path in ("rules/team/r.md", "docs/a.txt", "shop/dragoman.yaml"):
            refused = await call(hub, "files.write", path=path, text="x")
            assert refused.error is not None
            assert refused.error.code == "forbidden", path
        assert (await call(hub, "files.read", path="rules/team/r.md")).unwrap()["text"] == "Be kind."
        theirs = await call(hub, "files.list", agent="other", path="workspace")
        assert [each["name"] for each in theirs.unwrap()["entries"]] == ["private.txt"]
        assert "no team" in message(await call(hub, "files.list", agent=None))


async def test_a_folder_of_a_team_cannot_be_listed_by_another(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "other")
    write_team(root, "main", f"{TOOLS}folders: {{theirs: {root}/other}}")
    async with Hub.open(config_of(root), tmp_path / "data", require_keys=False) as hub:
        assert "belongs to a team" in message(await call(hub, "files.list"))


async def test_a_parent_folder_of_the_teams_lets_nobody_write_their_rules(tmp_path: Path) -> None:
    root = tmp_path / "repository" / "teams"
    write_team(root, "main", f"{TOOLS}folders: {{repository: {tmp_path}/repository}}")
    write(root / "main/rules/team/r.md", "Be kind.")
    async with Hub.open(config_of(root), tmp_path / "repository/data", require_keys=False) as hub:
        for path in ("teams/main/rules/team/r.md", "teams/new/team.yaml", "data/x", "team.yaml"):
            outcome = await call(hub, "files.write", path=f"repository/{path}", text="x")
            assert "which" in message(outcome)
        assert (await call(hub, "files.write", path="repository/x", text="x")).error is None
    assert (root / "main/rules/team/r.md").read_text() == "Be kind."


async def test_a_write_guard_refuses_a_text_of_every_team(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", TOOLS)

    async def refuse(text: str, context: Context) -> None:
        if context.agent == "main" and "s3cret" in text:
            raise Forbidden("The text contains a value of the vault.")

    async with Hub.open(config_of(root), tmp_path / "data", require_keys=False) as hub:
        services(hub).teams.write_guards.append(refuse)
        refused = await call(hub, "files.write", path="workspace/a", text="my s3cret")
        assert "vault" in message(refused)
        assert not (root / "main/workspace/a").exists()


async def test_a_hub_without_teams_has_no_commands_and_reads_files_only(tmp_path: Path) -> None:
    config = config_of(tmp_path / "none", files_root=str(tmp_path))
    config = type(config)(**{**{f: getattr(config, f) for f in config.__struct_fields__}, "teams": None})
    async with Hub.open(config, tmp_path / "data", require_keys=False) as hub:
        ids = {operation.id for operation in services(hub).registry.list()}
        assert {id for id in ids if id.startswith(("files.", "shell."))} == {
            "files.info",
            "files.list",
            "files.read",
            "files.search",
        }


@pytest.mark.parametrize("shell", ["sandbox", "unsafe"])
async def test_a_destructive_command_of_a_team_waits_for_a_person(tmp_path: Path, shell: str) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: [shell.run]")
    write(root / "main/workspace/kept.txt", "kept")
    turns: list[dict[str, Any]] = [
        {"tools": [{"name": "shell_run", "input": {"command": "rm -rf kept.txt"}}]},
        {"text": "Waiting."},
    ]
    async with serving(tmp_path, turns, play="turns", teams=str(root), shell=shell) as hub:
        frames: Frames = await hub.chat("clean up", agent="main")
    assert "tool-approval-request" in [frame["type"] for frame in frames]
    assert (root / "main/workspace/kept.txt").read_text() == "kept"


async def test_shell_off_leaves_no_operation_for_commands(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", TOOLS)
    async with Hub.open(config_of(root, shell="off"), tmp_path / "data", require_keys=False) as hub:
        assert not services(hub).registry.list("shell")


async def test_what_ends_with_a_run_is_looked_for_once_there_was_something(tmp_path: Path) -> None:
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: [shell.run]")
    command = {"command": "sleep 1234.5", "in_background": True}
    turns: list[dict[str, Any]] = [
        {"tools": [{"name": "shell_run", "input": command}]},
        {"text": "It runs."},
    ]
    async with serving(tmp_path, turns, play="turns", teams=str(root), shell="unsafe") as hub:
        hooks = services(hub.hub).hooks
        assert [hook.name for hook in hooks] == ["confirm_destructive"]
        await hub.chat("go", agent="main")
        assert [hook.name for hook in hooks] == ["confirm_destructive", "end_browsers", "end_commands"]
        await until(lambda: not processes_with("1234.5"))
