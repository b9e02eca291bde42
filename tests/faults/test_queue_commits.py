"""A hub killed after any commit while messages wait answers each of them once, and in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.program import scripted
from tests.databases import query
from tests.effort import rounds
from tests.faults.commits import Copies
from tests.flows.background import read_run, send_away
from tests.serving import Served, hub_of
from tests.waiting import poll

SLOW = Path(__file__).parents[1] / "flows" / "slow_operations.py"
KILLS = rounds(quick=6, thorough=500)
GATE = {"tools": [{"name": "lab_pass_gate", "input": {}}]}
WAITING = "select message_id from queued_runs where status = 'queued' order by rank, created_at"
STORED = "select id from messages where role = 'user' order by position"


def configure(folder: Path) -> Path:
    path = folder / "dragoman.yaml"
    config = {
        "providers": {"lead": scripted(folder, "lead", [GATE, {"text": "So it is."}])},
        "model": "lead/x",
        "operations": [str(SLOW)],
        "pinned": ["lab.pass_gate"],
    }
    path.write_bytes(msgspec.json.encode(config))
    return path


async def settle(hub: Served) -> list[dict[str, Any]]:
    """The messages, once nothing waits and no run is active."""

    async def look() -> list[dict[str, Any]] | None:
        waiting = (await hub.http.get("/api/runs?state=queued")).json()["runs"]
        active = (await hub.http.get("/api/runs?state=running")).json()["runs"]
        return None if waiting or active else await hub.messages()

    return await poll(look)


@pytest.mark.promise("messages-to-a-busy-session")
async def test_after_a_kill_at_any_commit_each_message_that_waits_is_answered_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, gate = configure(tmp_path), tmp_path / "gate"
    monkeypatch.setenv("GATE", str(gate))
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once="select 1 from runs")
    with copies.after_each_commit(monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            ids = [await send_away(hub)]
            for text, mode in (("later", "queue"), ("rather", "steer"), ("never", "queue")):
                ids.append(await send_away(hub, text, whenBusy=mode))
            assert (await hub.http.post(f"/api/runs/{ids[-1]}/stop")).json()["stopped"] is True
            gate.touch()
            messages = await settle(hub)
            assert [each["id"] for each in messages if each["role"] == "user"] == [
                "u-go",
                "u-rather",
                "u-later",
            ]
            assert [(await read_run(hub, id))["state"] for id in ids] == ["done", "done", "done", "aborted"]
    step = max(1, len(copies.taken) // KILLS)
    for data in copies.taken[::step]:
        expected = [id for (id,) in [*query(data, STORED), *query(data, WAITING)]]
        async with hub_of(config, data) as hub:
            messages = await settle(hub)
        assert [each["id"] for each in messages if each["role"] == "user"] == expected, data
        assert [each["role"] for each in messages] == ["user", "assistant"] * len(expected)
        assert {each["metadata"]["finishReason"] for each in messages[1::2]} <= {"stop", "other"}
        assert messages[-1]["parts"][-1]["text"] == "So it is."
