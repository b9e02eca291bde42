"""Sessions that a runner answers, as their clients and the runner see them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.runners.hub.frame_log import FrameLog
from tests.runners.wire_runner import PATIENT, connected, new_session, opened
from tests.server.test_events import following
from tests.serving import Served, ask, frames_in, serving, text_of, types
from tests.waiting import until

pytestmark = pytest.mark.anyio


def chat(hub: Served, text: str = "hi", session: str = "s", **fields: Any) -> asyncio.Task[Any]:
    """POST a message to a session, in the background; the response."""
    body = ask(text, session=session, **fields)
    return asyncio.create_task(hub.http.post(f"/api/sessions/{session}/chat", json=body))


@pytest.mark.parity
async def test_a_prompt_reaches_the_runner_and_its_answer_the_client(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub, "How many files?")
        turn = await runner.prompt()
        assert turn.prompt["text"] == "How many files?"
        assert turn.prompt["message"]["role"] == "user"
        await turn.create()
        await turn.text("Let me look. ")
        await turn.tool("pending")
        await turn.tool("running", args={"cmd": "ls"})
        await turn.tool("completed", result="a b")
        await turn.text("Two.")
        usage = {"inputTokens": 7, "outputTokens": 3}
        await turn.finalize(usage=usage, cost=0.25, model="m")
        response = await posted
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    frames = frames_in(response.text)
    assert types(frames) == [
        "start",
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "tool-input-start",
        "tool-input-available",
        "tool-output-available",
        "finish-step",
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ]
    assert frames[0]["messageId"] == turn.prompt["turnId"]
    assert all(frame["providerExecuted"] for frame in frames if frame["type"].startswith("tool-"))
    [user, answer] = await hub.messages()
    assert user["role"] == "user"
    assert [part["type"] for part in answer["parts"]] == [
        "step-start",
        "text",
        "dynamic-tool",
        "step-start",
        "text",
    ]
    assert (answer["metadata"]["cost"], answer["metadata"]["servedModel"]) == (0.25, "m")
    [run] = await hub.runs()
    assert (run.status, run.agent, run.usage and run.usage.input_tokens) == ("finished", "runner", 7)


async def test_every_frame_is_acknowledged_once_it_is_stored(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.text("one")
        await runner.acknowledged(2)
        await turn.finalize()
        await runner.acknowledged(3)
        await posted


@pytest.mark.parity
async def test_a_session_that_is_not_a_runners_is_answered_by_the_hub(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "I am the hub."}]) as hub:
        response = await chat(hub, session="other")
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert text_of(frames_in(response.text)) == "I am the hub."
        async with opened(hub) as runner:
            await runner.send({"type": "hello", "protocol": 1, "sessions": ["other"]})
            refused = await runner.next("refused")
            assert refused["error"]["code"] == "conflict"


@pytest.mark.parity
async def test_several_viewers_see_the_same_answer_and_one_that_comes_late_all_of_it(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.text("Hel")
        await runner.acknowledged(2)
        resumed = asyncio.create_task(hub.http.get("/api/sessions/s/stream"))
        await until_followed(hub, 2)
        await turn.text("lo")
        await turn.finalize()
        first, second = await asyncio.gather(posted, resumed)
    assert text_of(frames_in(first.text)) == text_of(frames_in(second.text)) == "Hello"


async def until_followed(hub: Served, count: int) -> None:
    await until(lambda: (run := hub.active_run()) is not None and run.tail.follower_count >= count)


async def test_a_message_that_steers_asks_the_runner_to_end_its_turn_and_is_its_next_prompt(
    hub: Served,
) -> None:
    async with connected(hub, "s") as runner:
        first = chat(hub, "one")
        turn = await runner.prompt()
        await turn.create()
        await turn.text("as far as I am")
        await runner.acknowledged(2)
        second = chat(hub, "two", whenBusy="steer")
        steer = await runner.next("steer")
        assert (steer["turnId"], steer["messageId"]) == (turn.prompt["turnId"], "u-two")
        await runner.drop()
    async with connected(hub, "s") as runner:
        assert await runner.next("steer") == steer, "a runner that comes back is asked again"
        turn.runner = runner
        await turn.finalize()
        following = await runner.prompt()
        assert following.prompt["text"] == "two"
        await following.answer("done")
        assert text_of(frames_in((await first).text)) == "as far as I am"
        assert text_of(frames_in((await second).text)) == "done"


async def test_domain_events_of_a_runner_are_events_of_the_session_and_checked_by_their_schemas(
    tmp_path: Path,
) -> None:
    schema = {"type": "object", "properties": {"files": {"type": "integer"}}, "required": ["files"]}
    async with serving(tmp_path, events={"schemas": {"diff": schema}}) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner, following(hub, "?session=s") as events:
            posted = chat(hub, "go")
            turn = await runner.prompt()
            await turn.create()
            await turn.send("data-diff", data={"files": "many"})
            refused = await runner.next("refused")
            assert (refused["error"]["code"], refused["seq"]) == ("invalid_input", 2)
            await turn.send("data-diff", data={"files": 2})
            await turn.send("git-state", branch="main")
            await turn.send("data-progress", data=1, transient=True)
            await turn.finalize()
            frames = frames_in((await posted).text)
            found = await events.until("run.ended")
        shown = [frame["data"] for frame in frames if frame["type"] == "data-diff"]
        assert shown == [{"files": 2}], "what was refused is not in the chat either"
        assert "data-git-state" not in types(frames)
        published = {event["name"]: event for event in found if event["name"].startswith("data-")}
        assert {name: event["data"] for name, event in published.items()} == {
            "data-diff": {"files": 2},
            "data-git-state": {"branch": "main"},
            "data-progress": {"value": 1},
        }
        assert published["data-progress"]["id"] is None, "a transient one is not stored"


@pytest.mark.parity
async def test_a_stop_reaches_the_runner_and_waits_for_its_end(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.text("Long")
        await runner.acknowledged(2)
        stopping = asyncio.create_task(hub.http.post("/api/sessions/s/stop"))
        abort = await runner.next("abort")
        assert (abort["sessionId"], abort["turnId"]) == ("s", turn.prompt["turnId"])
        assert not stopping.done()
        await turn.finalize("canceled")
        await runner.acknowledged(3)
        assert (await stopping).json()["stopped"] is True
        await turn.text("late")
        refused = await runner.next("refused")
        assert refused["error"]["code"] == "late"
        frames = frames_in((await posted).text)
    assert types(frames)[-2:] == ["abort", "finish"]


async def test_a_turn_is_closed_when_the_runner_does_not_stop(tmp_path: Path) -> None:
    async with serving(tmp_path, runners={**PATIENT, "stop": 0.5}) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            posted = chat(hub)
            turn = await runner.prompt()
            await turn.create()
            await turn.tool("running", args={})
            stopped = await hub.http.post("/api/sessions/s/stop")
            assert stopped.json()["stopped"] is True
            await posted
        answer = (await hub.messages())[-1]
        assert answer["parts"][2]["state"] == "output-error"
        assert [run.status for run in await hub.runs()] == ["stopped"]


async def test_an_error_of_the_runner_is_the_error_of_the_answer(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.finalize("error", error="the disk is full")
        frames = frames_in((await posted).text)
    assert {"type": "error", "errorText": "the disk is full"} in frames
    assert [(run.status, run.error) for run in await hub.runs()] == [("failed", "the disk is full")]


async def test_a_runner_that_stays_away_interrupts_the_turn(tmp_path: Path) -> None:
    async with serving(tmp_path, runners={**PATIENT, "grace": 0.5}) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            posted = chat(hub)
            turn = await runner.prompt()
            await turn.create()
            await turn.text("Half")
            await runner.acknowledged(2)
            await runner.drop()
        frames = frames_in((await posted).text)
        assert text_of(frames) == "Half"
        assert frames[-1]["messageMetadata"]["finishReason"] == "interrupted"
        assert [run.status for run in await hub.runs()] == ["interrupted"]


@pytest.mark.parity
async def test_a_runner_that_comes_back_goes_on_where_it_was(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.text("one ")
        await runner.acknowledged(2)
        await turn.text("two ")
        await runner.drop()
    async with connected(hub, "s") as again:
        [state] = again.welcome["sessions"]
        assert (state["sessionId"], state["turnId"]) == ("s", turn.prompt["turnId"])
        assert state["seq"] in (2, 3)
        turn.runner = again
        await again.send(*turn.sent[state["seq"] :])
        await turn.text("three")
        await turn.finalize()
        frames = frames_in((await posted).text)
        await again.pong()
    assert text_of(frames) == "one two three"
    assert again.received("refused") == []


async def test_what_is_stored_while_a_runner_repeats_it_is_not_refused(
    hub: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The welcome has named an earlier frame; what the runner then repeats is acknowledged meanwhile."""
    logs: list[FrameLog] = []
    flush = FrameLog.flush
    monkeypatch.setattr(FrameLog, "flush", lambda log: logs.append(log))  # noqa: PLW0108 - bound to the log
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.text("one ")
        await until(lambda: (run := hub.active_run()) is not None and run.fold.size > 2)
        await runner.drop()
    async with connected(hub, "s") as again:
        assert again.welcome["sessions"][0].get("seq", 0) == 0
        monkeypatch.setattr(FrameLog, "flush", flush)
        logs[-1].flush()
        await again.acknowledged(2)
        turn.runner = again
        await again.send(*turn.sent)
        await turn.text("two")
        await turn.finalize()
        assert text_of(frames_in((await posted).text)) == "one two"
        await again.pong()
        assert again.received("refused") == []


async def test_a_prompt_that_nothing_came_of_is_sent_again(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        first = await runner.prompt()
        await runner.drop()
    async with connected(hub, "s", hello={"turns": []}) as again:
        turn = await again.prompt()
        assert turn.prompt == first.prompt
        await turn.answer("now")
        assert text_of(frames_in((await posted).text)) == "now"


async def test_a_message_waits_for_a_runner_that_connects_after_it(hub: Served) -> None:
    posted = chat(hub)
    async with connected(hub, "s") as runner:
        turn = await runner.prompt()
        await turn.answer("here")
        assert text_of(frames_in((await posted).text)) == "here"


async def test_a_runner_that_no_longer_has_a_turn_ends_it_at_once(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.text("Half")
        await runner.acknowledged(2)
        await runner.drop()
    async with connected(hub, "s", hello={"turns": []}):
        frames = frames_in((await posted).text)
    assert frames[-1]["messageMetadata"]["finishReason"] == "interrupted"
    assert text_of(frames) == "Half"


async def test_frames_out_of_place_are_refused_and_the_turn_goes_on(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.text("a")
        place = {"sessionId": "s", "turnId": turn.prompt["turnId"]}
        await runner.send({"type": "message.part.text-delta", **place, "seq": 1, "delta": "x"})
        assert (await runner.next("refused"))["error"]["code"] == "repeated"
        await runner.send({"type": "message.part.text-delta", **place, "seq": 9, "delta": "x"})
        assert (await runner.next("refused"))["error"]["code"] == "out_of_order"
        await runner.send({"type": "message.create", **place, "turnId": "another"})
        assert (await runner.next("refused"))["error"]["code"] == "no_turn"
        await runner.send({"type": "message.create", **place, "sessionId": "foreign"})
        assert (await runner.next("refused"))["error"]["code"] == "not_found"
        await runner.socket.send('{"type": ' + "[" * 10_000)
        assert (await runner.next("refused"))["error"]["code"] == "bad_frame"
        await runner.socket.send(b"\x00binary")
        await runner.send({"type": "something-new", **place})
        await turn.text("b")
        await turn.finalize()
        assert text_of(frames_in((await posted).text)) == "ab"


async def test_a_runner_may_repeat_a_long_turn_that_the_hub_does_not_know(hub: Served) -> None:
    """As after a crash of the hub between the end of a turn and its acknowledgment."""
    async with connected(hub, "s") as runner:
        place = {"type": "message.part.text-delta", "sessionId": "s", "turnId": "before the crash"}
        await runner.send(*({**place, "seq": seq, "delta": "x"} for seq in range(1, 151)))
        for _ in range(150):
            assert (await runner.next("refused"))["error"]["code"] == "no_turn"
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.text("still here")
        await turn.finalize()
        assert text_of(frames_in((await posted).text)) == "still here"


async def test_a_runner_without_numbers_is_understood(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        prompt = await runner.next("prompt")
        place = {"sessionId": "s", "turnId": prompt["turnId"]}
        await runner.send(
            {"type": "agentStatus", "sessionId": "s", "status": "thinking"},
            {"type": "message.create", **place},
            {"type": "agentStatus", **place, "status": "streaming"},
            {"type": "message.part.text-delta", **place, "delta": "Hi"},
            {"type": "message.finalize", **place, "reason": "end_turn", "finalText": "Hi there"},
            {"type": "complete", "sessionId": "s"},
        )
        frames = frames_in((await posted).text)
        assert text_of(frames) == "Hi there"
        status = [frame for frame in frames if frame["type"] == "data-agent-status"]
        assert status[-1]["data"] == {"status": "streaming"}
        await runner.pong()
        assert runner.received("refused") == []


async def test_the_idle_runner_of_an_earlier_turn_does_not_end_the_next_one(hub: Served) -> None:
    """Its `complete` may be on the way while the next message comes."""
    async with connected(hub, "s") as runner:
        posted = chat(hub, "one")
        first = await runner.prompt()
        await first.answer("first")
        assert text_of(frames_in((await posted).text)) == "first"
        posted = chat(hub, "two")
        second = await runner.prompt()
        await runner.send(
            {"type": "complete", "sessionId": "s"},
            {"type": "complete", "sessionId": "s", "turnId": first.prompt["turnId"]},
        )
        await second.answer("second")
        assert text_of(frames_in((await posted).text)) == "second"


async def test_lost_deltas_in_the_middle_are_repaired_in_the_stored_message(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.text("All t")
        await turn.finalize(finalText="All of it")
        assert (await posted).status_code == 200
    answer = (await hub.messages())[-1]
    assert [part["text"] for part in answer["parts"] if part["type"] == "text"] == ["All of it"]


async def test_two_sessions_of_one_runner_do_not_wait_for_each_other(hub: Served) -> None:
    await new_session(hub, "t")
    async with connected(hub, "s", "t") as runner:
        first, second = chat(hub, session="s"), chat(hub, session="t")
        turns = {turn.prompt["sessionId"]: turn for turn in [await runner.prompt(), await runner.prompt()]}
        await turns["s"].create()
        await turns["t"].answer("second")
        assert text_of(frames_in((await second).text)) == "second"
        await turns["s"].text("first")
        await turns["s"].finalize()
        assert text_of(frames_in((await first).text)) == "first"


async def test_a_later_connection_replaces_an_earlier_one(hub: Served) -> None:
    async with connected(hub, "s") as earlier, connected(hub, "s") as later:
        bye = await earlier.next("bye")
        assert (bye["code"], bye["again"]) == ("replaced", False)
        posted = chat(hub)
        turn = await later.prompt()
        await turn.answer("later")
        assert text_of(frames_in((await posted).text)) == "later"


async def test_the_second_message_of_a_session_is_a_turn_of_its_own(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        for text in ("one", "two"):
            posted = chat(hub, text)
            turn = await runner.prompt()
            assert turn.prompt["text"] == text
            await turn.answer(f"answer {text}")
            assert text_of(frames_in((await posted).text)) == f"answer {text}"
    assert len(await hub.messages()) == 4


async def test_an_answer_over_the_limit_ends_the_turn(tmp_path: Path) -> None:
    async with serving(tmp_path, runners=PATIENT, limits={"answer": 100_000}) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            posted = chat(hub)
            turn = await runner.prompt()
            await turn.create()
            for _ in range(4):
                await turn.text("x" * 65_536)
            await runner.next("abort")
            await turn.finalize("canceled")
            frames = frames_in((await posted).text)
    assert any(frame["type"] == "error" for frame in frames)


async def test_a_huge_frame_is_refused_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, runners={**PATIENT, "frame": 10_000}) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            assert runner.welcome["frame"] == 10_000
            posted = chat(hub)
            turn = await runner.prompt()
            await turn.create()
            await runner.send({"type": "message.part.text-delta", "delta": "x" * 20_000})
            assert (await runner.next("refused"))["error"]["code"] == "frame_too_long"
            await turn.text("small")
            await turn.finalize()
            assert text_of(frames_in((await posted).text)) == "small"
