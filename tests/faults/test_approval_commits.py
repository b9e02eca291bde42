"""A hub killed after any commit resumes from it when the approval is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.server.app import background_jobs
from tests.effort import rows
from tests.faults.commits import Copies
from tests.faults.subagent_approvals import BATCH, configure
from tests.serving import Served, ask, hub_of
from tests.waiting import poll


async def approvals(hub: Served, status: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await hub.http.get(f"/api/approvals?status={status}")).json()["approvals"]
    return found


async def play(hub: Served) -> dict[str, Any]:
    """Answer what is asked until nothing is asked or under way any more; the last message."""

    async def look() -> dict[str, Any] | None:
        for each in await approvals(hub, "pending"):
            response = await hub.http.post(f"/api/approvals/{each['id']}", json={"answer": "blue"})
            assert response.status_code == 200, response.text
        await hub.http.get("/api/chat/s/stream")  # until the active run ends
        *_, last = await hub.messages()
        over = last["role"] == "user" or "finishReason" in last.get("metadata", {})
        open = [*await approvals(hub, "pending"), *await approvals(hub, "approved")]
        return last if over and not open and (await hub.runs())[-1].status != "running" else None

    return await poll(look)


@pytest.mark.promise("waiting-goes-on-where-it-was")
async def test_after_a_kill_at_any_commit_the_answer_to_an_approval_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    monkeypatch.setattr(background_jobs, "POLL_INTERVAL", 0.05)
    config = configure(tmp_path, BATCH)
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once="select 1 from approvals")
    with copies.after_each_commit(monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            await hub.post(ask("paint it"))
            assert (await play(hub))["parts"][-1]["text"] == "All done."
    for data in rows(copies.taken, quick=2):
        marks = data / "marks"
        monkeypatch.setenv("MARKS", str(marks))
        async with hub_of(config, data) as hub:
            pending = await approvals(hub, "pending")
            answer = await play(hub)
            assert not pending or answer["parts"][-1].get("text") == "All done."
        made = marks.read_text().split() if marks.exists() else []
        assert made.count("boss") <= 1
