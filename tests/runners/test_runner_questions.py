"""Questions and approvals of a runner, answered where those of the hub's own agents are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.runners.wire_runner import PATIENT, Turn, WireRunner, connected, new_session
from tests.serving import Served, ask, frames_in, serving, text_of, types

pytestmark = pytest.mark.anyio


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, runners=PATIENT) as hub:
        await new_session(hub)
        yield hub


async def question(hub: Served, runner: WireRunner, **fields: Any) -> tuple[Turn, list[dict[str, Any]]]:
    """Let a runner ask; the turn, and the frames of the run that ends there."""
    posted = asyncio.create_task(hub.http.post("/api/sessions/s/chat", json=ask("hi")))
    turn = await runner.prompt()
    await turn.create()
    await turn.text("I ask.")
    await turn.tool("running", args={"cmd": "rm"})
    if not fields.get("approval"):
        await turn.tool("completed", result="ok")
    await turn.send("question", questionId="q1", **fields)
    return turn, frames_in((await posted).text)


async def pending(hub: Served) -> dict[str, Any]:
    [approval] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
    return dict(approval)


@pytest.mark.parity
async def test_a_question_waits_in_the_inbox_and_its_answer_reaches_the_runner(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        turn, frames = await question(hub, runner, text="Which?", options=["a", "b"])
        assert types(frames)[-3:] == ["data-question", "finish-step", "finish"]
        assert frames[-1]["finishReason"] == "tool-calls"
        request = await pending(hub)
        assert (request["question"]["text"], request["sessionId"]) == ("Which?", "s")
        answered = await hub.http.post(f"/api/approvals/{request['id']}", json={"answer": "b"})
        assert answered.status_code == 200
        answer = await runner.next("answer")
        assert answer == {
            "type": "answer",
            "sessionId": "s",
            "turnId": turn.prompt["turnId"],
            "questionId": "q1",
            "approved": True,
            "answer": "b",
        }
        followed = asyncio.create_task(hub.http.get("/api/sessions/s/stream"))
        await turn.text("You said b.")
        await turn.finalize()
        replay = frames_in((await followed).text)
        assert text_of(replay) == "I ask.You said b."
        await runner.acknowledged(turn.seq)
    message = (await hub.messages())[-1]
    parts = {part["type"]: part for part in message["parts"]}
    assert parts["data-question"]["data"]["answer"] == "b"
    assert parts["tool-question"]["output"] == "b"
    assert [run.status for run in await hub.runs()] == ["finished", "finished"]


async def test_a_question_that_nothing_waits_for_any_more_is_shown_as_declined(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = asyncio.create_task(hub.http.post("/api/sessions/s/chat", json=ask("hi")))
        turn = await runner.prompt()
        await turn.create()
        await turn.tool("running", args={})
        await turn.send("question", questionId="q1", callId="c1", approval=True)
        await turn.tool("pending")
        await turn.tool("running")  # it goes on without an answer
        await turn.send("question", questionId="q1", callId="c1", approval=True)
        assert (await runner.next("refused"))["error"]["code"] == "repeated"
        await turn.send("question", questionId="q2", text="Which?")
        await runner.acknowledged(turn.seq)
        stopping = asyncio.create_task(hub.http.post("/api/sessions/s/stop"))
        await runner.next("abort")
        await turn.finalize("canceled")
        await stopping
        shown = [
            frame["data"] for frame in frames_in((await posted).text) if frame["type"] == "data-question"
        ]
        assert [(each["status"], each.get("reason")) for each in shown] == [
            ("pending", None),
            ("declined", "stopped by the user"),
        ]
        stored = {part["type"]: part for part in (await hub.messages())[-1]["parts"]}
        assert stored["data-question"]["data"] == shown[-1]


async def test_a_page_that_answers_a_question_by_its_tool_output_goes_on(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        turn, _ = await question(hub, runner, text="Which?")
        user, message = await hub.messages()
        for part in message["parts"]:
            if part["type"] == "tool-question":
                part |= {"state": "output-available", "output": "mine"}
        body = {
            "id": "s",
            "messages": [user, message],
            "messageId": message["id"],
            "trigger": "submit-message",
        }
        posted = asyncio.create_task(hub.http.post("/api/sessions/s/chat", json=body))
        assert (await runner.next("answer"))["answer"] == "mine"
        await turn.text("Thanks.")
        await turn.finalize()
        frames = frames_in((await posted).text)
    assert text_of(frames) == "Thanks."
    assert frames[0]["messageId"] == turn.prompt["turnId"]


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_decides_about_the_call_of_the_runner(hub: Served, approved: bool) -> None:
    async with connected(hub, "s") as runner:
        turn, frames = await question(hub, runner, callId="c1", approval=True)
        request = next(frame for frame in frames if frame["type"] == "tool-approval-request")
        approval = await pending(hub)
        assert (approval["id"], approval["operation"]) == (request["approvalId"], "runner.bash")
        assert approval["input"]["args"] == {"cmd": "rm"}
        await hub.http.post(f"/api/approvals/{approval['id']}", json={"approved": approved})
        assert (await runner.next("answer"))["approved"] is approved
        await turn.tool("completed" if approved else "error", result="gone", error="denied")
        await turn.text("So.")
        await turn.finalize()
        await runner.acknowledged(turn.seq)
    call = next(part for part in (await hub.messages())[-1]["parts"] if part["type"] == "dynamic-tool")
    assert call["state"] == ("output-available" if approved else "output-denied")


async def test_a_runner_that_goes_on_meanwhile_gets_the_answer_in_the_same_run(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = asyncio.create_task(hub.http.post("/api/sessions/s/chat", json=ask("hi")))
        turn = await runner.prompt()
        await turn.create()
        await turn.tool("running", "c2", args={})
        await turn.send("question", questionId="q1", text="Which?")
        await runner.acknowledged(turn.seq)
        request = await pending(hub)
        await hub.http.post(f"/api/approvals/{request['id']}", json={"answer": "x"})
        assert (await runner.next("answer"))["answer"] == "x"
        await turn.tool("completed", "c2", result=1)
        await turn.text("Done.")
        await turn.finalize()
        frames = frames_in((await posted).text)
    statuses = [frame["data"]["status"] for frame in frames if frame["type"] == "data-question"]
    assert statuses == ["pending", "answered"]
    assert text_of(frames) == "Done."
    assert len(await hub.runs()) == 1


async def test_a_new_message_withdraws_the_question_and_aborts_the_turn(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        first, _ = await question(hub, runner, text="Which?")
        posted = asyncio.create_task(hub.http.post("/api/sessions/s/chat", json=ask("never mind")))
        abort = await runner.next("abort")
        assert abort["turnId"] == first.prompt["turnId"]
        turn = await runner.prompt()
        assert turn.prompt["text"] == "never mind"
        await turn.answer("fine")
        assert text_of(frames_in((await posted).text)) == "fine"
    assert (await hub.http.get("/api/approvals?status=pending")).json()["approvals"] == []


async def test_an_answer_given_while_the_runner_is_away_waits_for_it(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        turn, _ = await question(hub, runner, text="Which?")
        await runner.acknowledged(turn.seq)
        await runner.drop()
    request = await pending(hub)
    await hub.http.post(f"/api/approvals/{request['id']}", json={"answer": "late"})
    async with connected(hub, "s", hello={"turns": [turn.prompt["turnId"]]}) as again:
        [state] = again.welcome["sessions"]
        assert (state["turnId"], state["seq"]) == (turn.prompt["turnId"], turn.seq)
        assert (await again.next("answer"))["answer"] == "late"
        turn.runner = again
        await turn.text("Done.")
        await turn.finalize()
        await again.acknowledged(turn.seq)
    assert (await hub.messages())[-1]["parts"][-1]["text"] == "Done."
