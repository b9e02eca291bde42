"""Turns that wait in the queue of the hosts for a session that is busy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.identity import LOCAL
from dragoman.runs import takeover
from dragoman.runs.engine import QueuedTurn
from tests.hosts import gate
from tests.hosts.conftest import HostCluster
from tests.hosts.test_continuations import all_outputs, continuation, script
from tests.hosts.test_remote_runs import OPERATIONS
from tests.serving import Served, ask
from tests.waiting import until

SIGN = [
    {"name": "lab_sign", "input": {"name": "a"}, "id": "c1"},
    {"name": "lab_sign", "input": {"name": "b"}, "id": "c2"},
]
OPTIONS: Any = {"operations": [str(OPERATIONS)], "pinned": ["lab.sign"], "disconnect_grace": "never"}


@pytest.mark.usefixtures("quick_ticks")
async def test_an_approval_that_waits_for_a_run_whose_host_is_lost_lets_it_go_on(
    hosts: HostCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The continuation of that run is queued behind the approval: each would wait for the other."""
    monkeypatch.setattr(takeover, "RETRY_INTERVAL", 0.05)
    gate.MADE.clear()
    gate.opened = asyncio.Event()
    lost, other = await hosts.open(2, steps=script(SIGN), **OPTIONS)
    await lost.http.post("/api/chat", json=ask("go"))
    waiting = await lost.messages()
    [approval_id] = [
        part["approval"]["id"] for part in waiting[-1]["parts"] if part.get("toolCallId") == "c1"
    ]
    body = await continuation(lost, "c2")
    async with asyncio.timeout(60), lost.http.stream("POST", "/api/chat", json=body):
        await until(lambda: gate.MADE == ["sign b"])
        [run] = [each for each in await lost.runs() if each.status == "running"]
        approval = await other.hub.store.approvals.answer(approval_id, approved=True, by=LOCAL)
        turn = QueuedTurn(
            id=f"approval:{approval.id}", session_id=run.session_id, kind="approval", subject=approval.id
        )
        await other.hub.engine.enqueue(turn)  # as a moment before the run began
        hosts.lose(lost)
        await until(lambda: gate.MADE.count("sign b") == 2)
        gate.opened.set()
        assert await all_outputs(other) == ["signed a", "signed b"]


async def test_a_turn_that_never_ends_is_stopped_at_any_host_and_its_session_goes_on(
    hosts: HostCluster,
) -> None:
    gate.MADE.clear()
    gate.opened = asyncio.Event()
    first, second = await hosts.open(2, steps=script(SIGN[:1]), **OPTIONS)
    await first.http.post("/api/chat", json=ask("go"))
    [approval] = (await first.http.get("/api/approvals")).json()["approvals"]
    assert (await second.http.post(f"/api/approvals/{approval['id']}", json={"approved": True})).is_success
    await until(lambda: gate.MADE == ["sign a"])
    assert len(await second.hub.engine.list()) == 1
    assert (await first.http.post("/api/chat/s/stop")).status_code == 200
    assert (await first.chat("more"))[-1]["finishReason"] == "tool-calls"
    assert not await second.hub.engine.list()
    assert [each.status for each in await first.runs()] == ["finished", "stopped", "finished"]


@pytest.mark.parametrize("mode", ["queue", "interrupt"])
async def test_a_message_passes_an_answer_that_waits_for_the_run_to_end(
    hosts: HostCluster, mode: str
) -> None:
    """It is queued at once, and one that interrupts does so."""
    gate.MADE.clear()
    gate.opened = asyncio.Event()
    first, second = await hosts.open(2, steps=[*script(SIGN), {"text": "Now."}], **OPTIONS)
    await first.http.post("/api/chat", json=ask("go"))
    bodies = [await continuation(first, id) for id in ("c1", "c2")]
    async with asyncio.timeout(60):
        running = asyncio.create_task(first.http.post("/api/chat", json=bodies[0]))
        await until(lambda: gate.MADE == ["sign a"])
        waiting = asyncio.create_task(second.http.post("/api/chat", json=bodies[1]))
        await until(lambda: second.hub.runs._starting)
        [run] = [each for each in await first.runs() if each.status == "running"]
        sent = await second.http.post("/api/chat", json=ask("now", whenBusy=mode, background=True))
        assert sent.status_code == 202, sent.text
        if mode == "interrupt":
            await until(
                lambda: hosts.execute(f"SELECT 1 FROM runs WHERE id = '{run.id}' AND status = 'stopped'")
            )
        gate.opened.set()
        await asyncio.gather(running, waiting)
        await until(lambda: has_answered(second))


async def has_answered(host: Served) -> bool:
    """Whether the message has an answer that has ended: the next step of the script, whichever that is."""
    *_, message, last = await host.messages()
    return message["id"] == "u-now" and "finishReason" in last["metadata"]
