"""`kill -9` of a hub while a team works: the skills that the run has loaded are loaded where it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.databases import BACKENDS
from tests.faults.process import Process, started, write_config
from tests.serving import ask
from tests.teams.test_team_agents import write, write_team
from tests.teams.test_team_skills import LEDGER, LOAD, SUM
from tests.waiting import poll

WORDS = [f"word{number} " for number in range(10)]
SLOW = 5.0  # seconds between words: the hub is killed before there are many


async def statuses(hub: Process, operation: str) -> list[str]:
    """How the calls of an operation went, oldest first."""
    calls = (await hub.http.get("/api/calls?limit=50")).json()["calls"]
    return [each["status"] for each in reversed(calls) if each["name"] == operation]


@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_a_loaded_skill_is_loaded_after_a_kill_of_the_hub(tmp_path: Path) -> None:
    root, data = tmp_path / "teams", tmp_path / "hub"
    write_team(root, "main", "allowed_tools: ['skills.*', math.*]\nneeds_skill: [math.*]")
    write(root / "main/skills/ledger.md", LEDGER)
    adding: dict[str, Any] = {"text": WORDS, **SUM}
    done = {"text": "Done."}
    config = write_config(tmp_path, [SUM, LOAD, {**adding, "delay": SLOW}, done], teams=str(root))
    async with started(config, data) as hub:
        sent = await hub.http.post("/api/chat", json=ask("go", agent="main", background=True))
        assert sent.status_code == 202, sent.text

        async def is_loaded() -> bool:
            return await statuses(hub, "skills.load") == ["done"]

        await poll(is_loaded)
        assert await statuses(hub, "math.calculate") == ["failed"], "no skill was loaded then"
        await hub.kill()
    config = write_config(tmp_path, [SUM, LOAD, adding, done], teams=str(root))
    async with started(config, data) as hub:

        async def is_done() -> bool:
            return bool((await hub.messages("s"))[-1]["parts"][-1].get("text") == "Done.")

        await poll(is_done)
        assert await statuses(hub, "skills.load") == ["done"]
        assert await statuses(hub, "math.calculate") == ["failed", "done"]
