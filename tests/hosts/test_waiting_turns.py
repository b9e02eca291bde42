"""Turns that wait in the queue of the hosts for a session that is busy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.identity import LOCAL
from dragoman.runs import takeover
from dragoman.runs.engine import QueuedTurn
from tests.hosts import gate
from tests.hosts.conftest import HostCluster
from tests.hosts.test_continuations import all_outputs, continuation, script
from tests.hosts.test_remote_runs import OPERATIONS
from tests.serving import Served, ask, serving
from tests.waiting import LIMIT, until

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
    async with asyncio.timeout(LIMIT), lost.http.stream("POST", "/api/chat", json=body):
        await until(lambda: gate.MADE == ["sign b"])
        [run] = [each for each in await lost.runs() if each.status == "running"]
        approval = await other.hub.store.approvals.answer(approval_id, approved=True, by=LOCAL)
        turn_id = f"approval:{approval.id}:{approval.status}"
        turn = QueuedTurn(id=turn_id, session_id=run.session_id, kind="approval", subject=approval.id)
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
    await until(lambda: has_no_turns(second))
    assert [each.status for each in await first.runs()] == ["finished", "stopped", "finished"]


async def has_no_turns(host: Served) -> bool:
    return not await host.hub.engine.list()


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
    async with asyncio.timeout(LIMIT):
        running = asyncio.create_task(first.http.post("/api/chat", json=bodies[0]))
        await until(lambda: gate.MADE == ["sign a"])
        waiting = asyncio.create_task(second.http.post("/api/chat", json=bodies[1]))
        await until(lambda: second.hub.runs.starting)
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


EDIT = ask("better", id="u-go", messageId="u-go")
REGENERATION = {**ask("go"), "trigger": "regenerate-message"}
REFUSED: dict[str, tuple[str, Any]] = {
    "rewind": ("/api/sessions/s/rewind", {"messageId": "u-go"}),
    "branch": ("/api/sessions/s/branch", {"messageId": "u-go"}),
    "edit": ("/api/chat", EDIT),
    "regeneration": ("/api/chat", REGENERATION),
    "message": ("/api/chat", ask("more")),
}
INTERRUPTING = {"edit": EDIT, "regeneration": REGENERATION}


@asynccontextmanager
async def opened(hosts: HostCluster, folder: Path, *, count: int) -> AsyncIterator[Sequence[Served]]:
    """One hub on SQLite, or hosts that share Postgres."""
    gate.MADE.clear()
    gate.opened = asyncio.Event()
    if count > 1:
        yield await hosts.open(count, steps=script(SIGN), **OPTIONS)
        return
    async with serving(folder, script(SIGN), play="turns", **OPTIONS) as hub:
        yield (hub, hub)


@asynccontextmanager
async def an_answer_waiting(
    first: Served, second: Served
) -> AsyncIterator[tuple[str, Sequence[asyncio.Task[httpx2.Response]]]]:
    """An answer whose one call runs, at the first host, while the approval of the other waits for that.

    Yields the id of the run, and both requests.
    """
    await first.http.post("/api/chat", json=ask("go"))
    bodies = [await continuation(first, id) for id in ("c1", "c2")]
    async with asyncio.timeout(LIMIT):
        running = asyncio.create_task(first.http.post("/api/chat", json=bodies[0]))
        await until(lambda: gate.MADE == ["sign a"])
        waiting = asyncio.create_task(second.http.post("/api/chat", json=bodies[1]))
        await until(lambda: is_waiting(second))
        [run] = [each for each in await first.runs() if each.status == "running"]
        yield run.id, (running, waiting)


def is_waiting(host: Served) -> bool:
    """Whether a request waits for the run of another one: it lets others pass."""
    return any(each.line.locked() for each in host.hub.runs.starting.values())


@pytest.mark.parametrize("count", [1, 2], ids=["one hub", "two hosts"])
async def test_what_may_not_pass_a_waiting_answer_is_refused_at_once_and_told_of_the_run(
    hosts: HostCluster, tmp_path: Path, count: int
) -> None:
    async with opened(hosts, tmp_path, count=count) as (first, second):
        async with an_answer_waiting(first, second) as (run_id, posted):
            for host in {first, second}:
                for name, (path, body) in REFUSED.items():
                    refused = await host.http.post(path, json=body)
                    assert (refused.status_code, refused.json()["error"]["runId"]) == (409, run_id), name
            assert not any(each.done() for each in posted)
            gate.opened.set()
            assert [each.status_code for each in await asyncio.gather(*posted)] == [200, 200]
        assert await all_outputs(second) == ["signed a", "signed b"]


@pytest.mark.parametrize("name", INTERRUPTING)
@pytest.mark.parametrize("count", [1, 2], ids=["one hub", "two hosts"])
async def test_an_edit_that_interrupts_passes_an_answer_that_waits_for_the_run_to_end(
    hosts: HostCluster, tmp_path: Path, count: int, name: str
) -> None:
    async with opened(hosts, tmp_path, count=count) as (first, second):
        async with an_answer_waiting(first, second) as (run_id, (running, waiting)):
            edited = await second.post({**INTERRUPTING[name], "whenBusy": "interrupt"})
            assert edited[-1]["finishReason"] == "tool-calls"
            assert {each.id: each.status for each in await first.runs()}[run_id] == "stopped"
            assert (await running).status_code == 200
            assert (await waiting).status_code == 404, "its message is in an earlier branch now"
        assert gate.MADE == ["sign a"]


async def has_answered(host: Served) -> bool:
    """Whether the message has an answer that has ended: the next step of the script, whichever that is."""
    *_, message, last = await host.messages()
    return message["id"] == "u-now" and "finishReason" in last["metadata"]
