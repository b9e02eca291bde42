"""Messages that queue behind the question of a runner: its turn waits without a run, and is not over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.identity import LOCAL
from dragoman.messages import Message, TextPart
from dragoman.runs import run_queue
from dragoman.runs.preparation import RESUME_WAIT
from dragoman.session_ids import hub_session_id
from dragoman.store.settled_clock import SettledClock
from dragoman.wire.ui.client_request import ChatRequest, NewMessage
from tests.flows.background import read_run, send_away, until_state
from tests.runners.wire_runner import PATIENT, Turn, WireRunner, connected, new_session
from tests.serving import Served, ask, serving
from tests.waiting import until

pytestmark = pytest.mark.anyio
SESSION = hub_session_id("s", owner=LOCAL.owner)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, runners=PATIENT) as hub:
        await new_session(hub)
        yield hub


async def question(hub: Served, runner: WireRunner, **options: Any) -> Turn:
    """Let a runner ask; the turn, once it waits for the answer."""
    posted = asyncio.create_task(hub.http.post("/api/sessions/s/chat", json=ask("hi"), **options))
    turn = await runner.prompt()
    await turn.create()
    await turn.text("I ask.")
    await turn.send("question", questionId="q1", text="Which?")
    assert (await posted).status_code == 200
    return turn


async def pending(hub: Served, **options: Any) -> dict[str, Any]:
    """The request that waits for its answer."""
    response = await hub.http.get("/api/approvals?status=pending", **options)
    [approval] = response.json()["approvals"]
    return dict(approval)


async def answer_question(hub: Served, **options: Any) -> None:
    """Answer what waits."""
    id = (await pending(hub, **options))["id"]
    response = await hub.http.post(f"/api/approvals/{id}", json={"answer": "b"}, **options)
    assert response.status_code == 200, response.text


async def texts(hub: Served) -> list[str]:
    """What each message of the session says."""
    messages = await hub.messages()
    return ["".join(part.get("text", "") for part in message["parts"]) for message in messages]


@pytest.mark.parametrize("mode", ["queue", "steer"])
async def test_a_message_that_queues_waits_for_the_answer_to_a_question(hub: Served, mode: str) -> None:
    async with connected(hub, "s") as runner:
        turn = await question(hub, runner)
        waiting = await send_away(hub, "next", whenBusy=mode)
        await hub.hub.runs.queue.sweep()
        assert (await read_run(hub, waiting))["state"] == "queued"
        assert (await pending(hub))["question"]["text"] == "Which?"
        await answer_question(hub)
        assert (await runner.next("answer"))["answer"] == "b"
        if mode == "steer":
            assert (await runner.next("steer"))["messageId"] == "u-next"
        await turn.text("You said b.")
        await turn.finalize()
        following = await runner.prompt()
        assert following.prompt["text"] == "next"
        await following.answer("fine")
        await until_state(hub, waiting, "done")
    assert await texts(hub) == ["hi", "I ask.You said b.", "next", "fine"]


@pytest.mark.parametrize("how", ["finalized", "lost"])
async def test_a_message_waits_no_longer_than_the_turn_that_asks(hub: Served, how: str) -> None:
    async with connected(hub, "s") as runner:
        turn = await question(hub, runner)
        await runner.acknowledged(turn.seq)
        waiting = await send_away(hub, "next", whenBusy="queue")
        if how == "finalized":
            await turn.text("Then a.")
            await turn.finalize()
            await runner.acknowledged(turn.seq)
    hello: dict[str, Any] | None = None if how == "finalized" else {"turns": []}
    async with connected(hub, "s", hello=hello) as runner:
        await (await runner.prompt()).answer("fine")
        await until_state(hub, waiting, "done")
    assert await texts(hub) == ["hi", "I ask.Then a." if how == "finalized" else "I ask.", "next", "fine"]
    [approval] = (await hub.http.get("/api/approvals?status=denied")).json()["approvals"]
    assert approval["reason"] == "the turn that asked this is over"


async def test_a_message_that_waits_for_an_answer_is_known_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path, runners=PATIENT) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            turn = await question(hub, runner)
            await runner.acknowledged(turn.seq)
            waiting = await send_away(hub, "next", whenBusy="queue")
    async with serving(tmp_path, runners=PATIENT) as hub:
        assert await send_away(hub, "next", whenBusy="queue") == waiting
        behind = await send_away(hub, "more", whenBusy="queue")
        async with connected(hub, "s") as runner:
            turn.runner = runner
            await answer_question(hub)
            await runner.next("answer")
            await turn.finalize()
            for text in ("next", "more"):
                following = await runner.prompt()
                assert following.prompt["text"] == text
                await following.answer("fine")
            await until_state(hub, behind, "done")


async def test_a_message_that_waits_for_an_answer_ends_with_its_session(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        await question(hub, runner)
        sending = asyncio.create_task(
            hub.http.post("/api/sessions/s/chat", json=ask("next", whenBusy="queue"))
        )
        await until(lambda: hub.hub.runs.queue.has_waiting(SESSION))
        assert (await hub.http.delete("/api/sessions/s")).status_code == 204
        assert (await sending).status_code in (404, 409)
        assert (await runner.next("abort"))["reason"] == "the session was deleted"


async def test_a_full_queue_refuses_a_message_and_leaves_the_question_open(tmp_path: Path) -> None:
    async with serving(tmp_path, runners=PATIENT, limits={"queued": 1}) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            await question(hub, runner)
            await send_away(hub, "one", whenBusy="queue")
            body = ask("two", whenBusy="queue", background=True)
            assert (await hub.http.post("/api/chat", json=body)).status_code == 429
            assert (await pending(hub))["question"]["text"] == "Which?"


async def test_messages_that_wait_for_people_do_not_keep_others_waiting(
    hub: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_queue, "SWEPT", 1)
    async with connected(hub, "s") as runner:
        await question(hub, runner)
        await send_away(hub, "one", whenBusy="queue")
        await new_session(hub, "t")
        store = hub.hub.store
        session = await store.sessions.get(hub_session_id("t", owner=LOCAL.owner))
        assert session is not None
        message = Message("u-two", "user", (TextPart("two"),))
        request = ChatRequest(session_id=session.id, action=NewMessage(message), background=True)
        await hub.hub.runs.queue.add(request, message, session=session, identity=LOCAL)
        async with connected(hub, "t") as other:
            await hub.hub.runs.queue.sweep()
            await hub.hub.runs.queue.sweep()
            assert (await other.prompt()).prompt["text"] == "two"


async def test_a_message_does_not_wait_for_ever_for_a_turn_that_cannot_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path, runners=PATIENT, keys=True) as hub:
        key, secret = await hub.hub.store.keys.create("ann", scopes=["chat", "runner"])
        _, spare = await hub.hub.store.keys.create("ann", scopes=["chat", "runner"])
        first, second = ({"authorization": f"Bearer {each}"} for each in (secret, spare))
        await new_session(hub, **first)
        async with connected(hub, "s", key=spare) as runner:
            await question(hub, runner, headers=first)
            body = ask("next", whenBusy="queue", background=True)
            waiting = (await hub.http.post("/api/chat", json=body, headers=second)).json()["runId"]
            await hub.hub.store.keys.revoke(key.id)  # for whom the turn would go on
            await answer_question(hub, headers=second)
            queue = hub.hub.runs.queue
            await queue.sweep()
            assert (await read_run(hub, waiting, headers=second))["state"] == "queued"
            queue._settled_clock = SettledClock(lambda: time.time() + RESUME_WAIT)
            await queue.sweep()
            await (await runner.prompt()).answer("fine")
            await until_state(hub, waiting, "done", headers=second)


async def test_a_clock_that_is_set_ahead_passes_over_no_question(hub: Served) -> None:
    ahead = 0.0

    def clock() -> float:
        return time.time() + ahead

    queue, approvals = hub.hub.runs.queue, hub.hub.store.approvals
    queue._settled_clock, approvals._clock = SettledClock(clock), clock
    async with connected(hub, "s") as runner:
        await question(hub, runner)
        waiting = await send_away(hub, "next", whenBusy="queue")
        ahead = 31_536_000.0
        await queue.sweep()
        assert (await read_run(hub, waiting))["state"] == "queued"
        ahead = 0.0
        await answer_question(hub)
        assert (await runner.next("answer"))["answer"] == "b"
