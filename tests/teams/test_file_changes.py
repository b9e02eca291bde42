"""What triggers of files see of a workspace: nothing there stops them, leads them out, or never ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dragoman.teams.triggers import file_changes
from dragoman.teams.triggers.file_changes import scan
from tests.teams.team_hub import team_hub
from tests.teams.test_triggers import history, settled
from tests.tools.odd_trees import odd_tree
from tests.waiting import until


def test_no_tree_stops_the_look_for_changes_or_leads_it_out_of_the_workspace(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    with odd_tree(folder):
        found = scan(folder, "*")
    levels = [path for path in found if path.startswith("deep/")]
    assert sorted(set(found) - set(levels)) == ["new\nline.txt", "sparse.txt"]
    assert [path.count("/") for path in sorted(levels, key=len)] == [100, 200]
    assert found["sparse.txt"][1] == 2**42


def test_a_folder_that_is_gone_or_has_become_a_link_has_no_files(tmp_path: Path) -> None:
    assert scan(tmp_path / "nowhere", "*") == {}


def test_a_look_ends_after_so_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_changes, "MAX_ENTRIES", 10)
    for number in range(20):
        (tmp_path / f"{number:02}").touch()
    assert len(scan(tmp_path, "*")) == 10


async def test_a_trigger_whose_tasks_write_what_it_watches_ends_with_a_reason(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {"steps": [{"text": "Done."}]}}) as hub:
        workspace = tmp_path / "teams" / "press" / "workspace"
        workspace.mkdir(exist_ok=True)
        config = {"path": "*.txt", "max_chain": 3}
        body = {"type": "file", "team": "press", "name": "loop", "task": "Write a file.", "config": config}
        trigger = (await hub.http.post("/api/triggers", json=body)).json()
        path = f"/api/triggers/{trigger['id']}"
        await hub.http.post(f"{path}/enable")
        watcher = hub.hub.triggers.file_changes

        async def shown() -> dict[str, Any]:
            state: dict[str, Any] = (await hub.http.get(path)).json()
            return state

        async def write(number: int) -> dict[str, Any]:
            file = workspace / f"{number}.txt"
            file.write_text("x")
            os.utime(file, (1_000.0, 1_000.0))
            await watcher.scan()
            return await shown()

        async def has_ended() -> bool:
            return bool((await shown())["state"] == "disabled")

        await watcher.scan()
        for number in range(4):  # as its task does: each is found just after the task before it has ended
            assert (await write(number))["state"] == "active"
            await settled(hub, trigger, number + 1)
        await write(4)
        await until(has_ended)  # the hub may have looked just before
        ended = await shown()
        assert (ended["state"], ended["reason"]) == ("disabled", file_changes.CHAIN_ENDED.format(limit=3))
        assert len(await history(hub, trigger)) == 4
        assert (await write(5))["state"] == "disabled"
        assert len(await history(hub, trigger)) == 4


async def test_changes_that_no_task_of_the_trigger_can_have_made_begin_no_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_changes, "CHAIN_SLACK", -1e9)  # as if the tasks had ended long ago
    async with team_hub(tmp_path, {"press": {"steps": [{"text": "Done."}]}}) as hub:
        workspace = tmp_path / "teams" / "press" / "workspace"
        workspace.mkdir(exist_ok=True)
        config = {"path": "*.txt", "max_chain": 1}
        body = {"type": "file", "team": "press", "name": "inbox", "task": "Read it.", "config": config}
        trigger = (await hub.http.post("/api/triggers", json=body)).json()
        await hub.http.post(f"/api/triggers/{trigger['id']}/enable")
        watcher = hub.hub.triggers.file_changes
        await watcher.scan()
        for number in range(4):
            (workspace / f"{number}.txt").write_text("x")
            os.utime(workspace / f"{number}.txt", (1_000.0, 1_000.0))
            await watcher.scan()
            await settled(hub, trigger, number + 1)
        shown = (await hub.http.get(f"/api/triggers/{trigger['id']}")).json()
        assert shown["state"] == "active"
