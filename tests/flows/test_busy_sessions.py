"""Messages that arrive while a run is active: queued, put in after the step, refused, or instead of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.answer_gate import Gate
from tests.databases import BACKENDS
from tests.flows.background import answer_of, read_run, send_away, until_state
from tests.flows.test_following import LONG, WHOLE, rest, streaming, until
from tests.serving import Served, ask, frames_in, serving, text_of, types
from tests.waiting import poll

SLOW = Path(__file__).with_name("slow_operations.py")
DANGER = Path(__file__).with_name("approval_operation.py")


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """What each message says."""
    return ["".join(part.get("text", "") for part in message["parts"]) for message in messages]


async def queued(hub: Served, session: str = "s") -> list[dict[str, Any]]:
    """What waits in a session."""
    response = await hub.http.get(f"/api/sessions/{session}/queue")
    assert response.status_code == 200, response.text
    waiting: list[dict[str, Any]] = response.json()["queued"]
    return waiting


async def until_queued(hub: Served, count: int) -> list[dict[str, Any]]:
    """What waits, once there are so many."""

    async def look() -> tuple[list[dict[str, Any]]] | None:
        waiting = await queued(hub)
        return (waiting,) if len(waiting) == count else None

    [waiting] = await poll(look)
    return waiting


@pytest.mark.promise("messages-to-a-busy-session")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_messages_that_queue_are_answered_in_order(tmp_path: Path, gate: Gate) -> None:
    steps: list[dict[str, Any]] = [LONG, {"text": "Second."}, {"text": "Third."}, {"text": "Fourth."}]
    async with serving(tmp_path, steps) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word1")
            ids = [await send_away(hub, text, whenBusy="queue") for text in ("b", "c", "d")]
            assert [(each["runId"], each["mode"]) for each in await queued(hub)] == [
                (id, "queue") for id in ids
            ]
            assert (await read_run(hub, ids[0]))["state"] == "queued"
            listed = (await hub.http.get("/api/sessions/s/messages")).json()
            assert [each["message"]["id"] for each in listed["queued"]] == ["u-b", "u-c", "u-d"]
            assert len(listed["messages"]) == 2
            gate.opened.set()
            await rest(pieces)
        await until_state(hub, ids[-1], "done")
        assert texts(await hub.messages()) == ["go", WHOLE, "b", "Second.", "c", "Third.", "d", "Fourth."]
        assert [(await read_run(hub, id))["state"] for id in ids] == ["done"] * 3
        assert await queued(hub) == []


async def test_a_message_that_queues_is_streamed_to_its_sender_once_it_is_answered(
    tmp_path: Path, gate: Gate
) -> None:
    async with serving(tmp_path, [LONG, {"text": "Second."}]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word1")
            sending = asyncio.ensure_future(hub.chat("b", whenBusy="queue"))
            [waiting] = await until_queued(hub, 1)
            gate.opened.set()
            seen = await rest(pieces)
            frames = await sending
        notice = [frame for frame in frames_in(seen) if frame["type"] == "data-queued"]
        assert [(each["transient"], each["data"]["message"]["id"]) for each in notice] == [(True, "u-b")]
        assert notice[0]["data"]["runId"] == waiting["runId"]
        assert types(frames)[0] == "start"
        assert text_of(frames) == "Second."
        assert not hub.hub.runs.queue._waiters, "nobody waits any more"


async def test_a_page_that_follows_on_at_the_end_of_an_answer_gets_the_next_one(
    tmp_path: Path, gate: Gate
) -> None:
    async with serving(tmp_path, [LONG, {"text": "Second."}] * 5) as hub:
        for number in range(5):
            question = ask("go", id=f"go{number}", session=f"s{number}")
            async with streaming(hub, "POST", "/api/chat", json=question) as pieces:
                await until(pieces, "word1")
                await send_away(hub, "b", session=f"s{number}", whenBusy="queue")
                gate.opened.set()
                await rest(pieces)
                gate.opened.clear()
            followed = await hub.http.get(f"/api/chat/s{number}/stream")
            assert text_of(frames_in(followed.text)) == "Second."


async def test_a_sender_that_leaves_leaves_its_message_in_the_queue(tmp_path: Path, gate: Gate) -> None:
    async with serving(tmp_path, [LONG, {"text": "Second."}], disconnect_grace=0) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word1")
            sending = asyncio.create_task(hub.http.post("/api/chat", json=ask("b", whenBusy="queue")))
            [waiting] = await until_queued(hub, 1)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            gate.opened.set()
            await rest(pieces)
        assert answer_of(await until_state(hub, waiting["runId"], "done")) == "Second."


async def test_the_same_message_queued_twice_is_answered_once(tmp_path: Path, gate: Gate) -> None:
    async with serving(tmp_path, [LONG, {"text": "Second."}]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word1")
            first = {await send_away(hub, "b", whenBusy="queue") for _ in range(3)}
            assert len(first) == 1
            assert {await send_away(hub, "b")} == first, "it waits, whatever a repetition says"
            other = ask("other", id="u-b", whenBusy="queue", background=True)
            assert (await hub.http.post("/api/chat", json=other)).status_code == 409
            gate.opened.set()
            await rest(pieces)
        await until_state(hub, *first, "done")
        assert {await send_away(hub, "b")} == first
        assert texts(await hub.messages()) == ["go", WHOLE, "b", "Second."]


async def test_a_message_is_withdrawn_while_it_waits(tmp_path: Path, gate: Gate) -> None:
    async with serving(tmp_path, [LONG, {"text": "Third."}]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word1")
            sending = asyncio.ensure_future(hub.http.post("/api/chat", json=ask("b", whenBusy="queue")))
            [second] = await until_queued(hub, 1)
            third = await send_away(hub, "c", whenBusy="queue")
            gone = await hub.http.delete(f"/api/sessions/s/queue/{second['runId']}")
            assert (gone.status_code, (await sending).status_code) == (204, 409)
            assert (await hub.http.delete(f"/api/sessions/s/queue/{second['runId']}")).status_code == 404
            assert (await read_run(hub, second["runId"]))["state"] == "aborted"
            gate.opened.set()
            seen = frames_in(await rest(pieces))
        states = [frame["data"]["state"] for frame in seen if frame["type"] == "data-queued"]
        assert states == ["queued", "queued", "withdrawn"]
        await until_state(hub, third, "done")
        assert texts(await hub.messages()) == ["go", WHOLE, "c", "Third."]
        assert (await hub.http.delete("/api/sessions/s/queue/u-c")).status_code == 404


async def test_so_many_messages_may_wait_and_no_more(tmp_path: Path) -> None:
    limits = {"queued": 2, "owner_queued": 3}
    steps = [{"text": "x", "delay": 30}] * 2
    async with serving(tmp_path, steps, limits=limits) as hub:
        for session in ("s", "t"):
            await send_away(hub, "go", session=session)
            await send_away(hub, "a", session=session, whenBusy="queue")
        await send_away(hub, "b", whenBusy="queue")
        for session in ("s", "t"):
            body = ask("c", session=session, whenBusy="queue", background=True)
            refused = await hub.http.post("/api/chat", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        for session in ("s", "t"):
            assert (await hub.http.delete(f"/api/sessions/{session}")).status_code == 204
        assert (await hub.http.get("/api/runs?state=queued")).json()["runs"] == []


@pytest.mark.usefixtures("gate")
async def test_an_interruption_stops_the_run_and_is_answered_before_what_waits(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [LONG, {"text": "Now."}, {"text": "Later."}]
    async with serving(tmp_path, steps) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word1")
            later = await send_away(hub, "later", whenBusy="queue")
            assert text_of(await hub.chat("now", whenBusy="interrupt")) == "Now."
            seen = frames_in(await rest(pieces))
            assert types(seen)[-2:] == ["abort", "finish"]
        await until_state(hub, later, "done")
        first, stopped, *others = texts(await hub.messages())
        assert (first, others) == ("go", ["now", "Now.", "later", "Later."])
        assert stopped.startswith("word0 ")
        assert len(stopped) < len(WHOLE)


async def test_the_configuration_says_what_a_busy_session_does(tmp_path: Path) -> None:
    agents = {"polite": {"model": "sim/any"}, "strict": {"model": "sim/any", "when_busy": "refuse"}}
    steps = [{"text": "x", "delay": 30}] * 2
    async with serving(tmp_path, steps, agents=agents, when_busy="queue") as hub:
        for agent, status in (("polite", 202), ("strict", 409)):
            await send_away(hub, "go", session=agent, agent=agent)
            body = ask("more", session=agent, agent=agent, background=True)
            assert (await hub.http.post("/api/chat", json=body)).status_code == status
            body = ask("again", session=agent, agent=agent, background=True, whenBusy="refuse")
            assert (await hub.http.post("/api/chat", json=body)).status_code == 409


async def test_what_waits_does_not_pass_over_a_request_for_an_approval(tmp_path: Path, gate: Gate) -> None:
    steps: list[dict[str, Any]] = [
        {"text": "word3 ", "tools": [{"name": "danger_wipe", "input": {"disk": "a"}, "id": "c1"}]},
        {"text": "It is gone."},
        {"text": "Second."},
    ]
    async with serving(tmp_path, steps, operations=[str(DANGER)], pinned=["danger.wipe"]) as hub:
        first = await send_away(hub, "wipe")
        second = await send_away(hub, "b", whenBusy="queue")
        gate.opened.set()
        await until_state(hub, first, "waiting")
        await hub.hub.runs.queue.sweep()
        assert (await read_run(hub, second))["state"] == "queued"
        [approval] = (await hub.http.get("/api/approvals")).json()["approvals"]
        await hub.http.post(f"/api/approvals/{approval['id']}", json={"approved": True})
        await until_state(hub, second, "done")
        assert texts(await hub.messages()) == ["wipe", "word3 It is gone.", "b", "Second."]


async def test_runs_in_the_background_wait_for_room(tmp_path: Path, gate: Gate) -> None:
    steps = [{"text": "word3 "}] * 4
    async with serving(tmp_path, steps, limits={"background_runs": 2}) as hub:
        ids = [await send_away(hub, session=f"s{number}") for number in range(4)]
        states = [(await read_run(hub, id))["state"] for id in ids]
        assert states == ["running", "running", "queued", "queued"]
        gate.opened.set()
        for id in ids:
            await until_state(hub, id, "done")


@pytest.mark.usefixtures("gate")
async def test_a_queued_message_whose_key_was_revoked_is_not_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG], keys=True) as hub:
        key, secret = await hub.hub.store.keys.create("ann")
        _, spare = await hub.hub.store.keys.create("ann")
        mine, theirs = ({"authorization": f"Bearer {each}"} for each in (secret, spare))
        body = ask("go", background=True)
        first = (await hub.http.post("/api/chat", json=body, headers=theirs)).json()["runId"]
        body = ask("b", background=True, whenBusy="queue")
        second = (await hub.http.post("/api/chat", json=body, headers=mine)).json()["runId"]
        await hub.hub.store.keys.revoke(key.id)
        await hub.http.post(f"/api/runs/{first}/stop", headers=theirs)
        run = await until_state(hub, second, "failed", headers=theirs)
        assert "revoked" in run["error"]


PASS_GATE = {"tools": [{"name": "lab_pass_gate", "input": {}, "id": "c1"}]}
LAB: Mapping[str, Any] = {"operations": [str(SLOW)], "pinned": ["lab.pass_gate"]}


@pytest.mark.promise("messages-to-a-busy-session")
@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_a_message_is_put_in_after_the_step_and_read_by_the_next_model_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("GATE", str(gate))
    steps: list[dict[str, Any]] = [PASS_GATE, {"text": "Instead."}, {"text": "Later."}]
    async with serving(tmp_path, steps, **LAB) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "tool-input-available")
            later = await send_away(hub, "later", whenBusy="queue")
            steered = asyncio.create_task(hub.chat("rather this", whenBusy="steer"))
            await until_queued(hub, 2)
            gate.touch()
            assert text_of(await steered) == "Instead."
            seen = frames_in(await rest(pieces))
        assert types(seen)[-5:] == ["finish-step", "start-step", "data-steered", "finish-step", "finish"]
        assert seen[-3]["data"]["messageId"] == "u-rather this"
        await until_state(hub, later, "done")
        assert [message["role"] for message in await hub.messages()] == ["user", "assistant"] * 3
        assert texts(await hub.messages()) == ["go", "", "rather this", "Instead.", "later", "Later."]
        call = (await hub.messages())[1]["parts"][1]
        assert (call["state"], call["output"]) == ("output-available", "through")
        provider: Any = hub.hub.runs.agents.routing.providers["sim"]
        sent = provider.requests[1].messages
        assert [message.role for message in sent] == ["user", "assistant", "user"]


async def test_a_message_put_in_while_the_last_step_answers_comes_after_the_answer(
    tmp_path: Path, gate: Gate
) -> None:
    async with serving(tmp_path, [LONG, {"text": "Second."}]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word1")
            steered = asyncio.create_task(hub.chat("b", whenBusy="steer"))
            await until_queued(hub, 1)
            gate.opened.set()
            assert text_of(await steered) == "Second."
            seen = frames_in(await rest(pieces))
        assert "data-steered" not in types(seen)
        assert texts(await hub.messages()) == ["go", WHOLE, "b", "Second."]


async def test_several_messages_are_put_in_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv("GATE", str(gate))
    steps: list[dict[str, Any]] = [PASS_GATE, {"text": "One."}, {"text": "Two."}]
    async with serving(tmp_path, steps, **LAB) as hub:
        first = await send_away(hub)
        ids = [await send_away(hub, text, whenBusy="steer") for text in ("one", "two")]
        gate.touch()
        for id in (first, *ids):
            await until_state(hub, id, "done")
        assert texts(await hub.messages()) == ["go", "", "one", "One.", "two", "Two."]
