"""The runner client against the hub's end of the protocol."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.errors import Conflict, ProviderError
from dragoman.runners.client.runner import Runner
from dragoman.runners.client.turn import RunnerTurn
from dragoman.wire.runner.frames import RunnerSteer
from tests.ports import free_port
from tests.runners.stand_in_hub import LIMIT, final, running, stand_in_hub, text_of


async def shout(turn: RunnerTurn) -> None:
    await turn.write_text(turn.text.upper())


async def test_an_answer_is_a_turn_of_numbered_frames() -> None:
    async with running(shout) as hub:
        frames = await hub.ask("hello")
        await hub.until(lambda: hub.completed == [("s", "t1")])
    assert [(each["type"], each["seq"]) for each in frames] == [
        ("message.create", 1),
        ("message.part.text-delta", 2),
        ("message.finalize", 3),
    ]
    assert {(each["sessionId"], each["turnId"]) for each in frames} == {("s", "t1")}
    assert text_of(frames) == "HELLO"
    assert final(frames)["reason"] == "end_turn"


async def test_what_an_answer_raises_is_the_error_of_the_turn() -> None:
    async def fail(turn: RunnerTurn) -> None:
        await turn.write_text("half")
        raise ProviderError("the model fell over", category="api_error")

    async with running(fail) as hub:
        frames = await hub.ask("hello")
    assert (final(frames)["reason"], final(frames)["error"]) == ("error", "the model fell over")


async def test_an_aborted_answer_is_cancelled_and_the_next_one_runs() -> None:
    ended: list[str] = []

    async def wait(turn: RunnerTurn) -> None:
        if turn.turn_id != "t1":
            return await shout(turn)
        try:
            await turn.write_text("begun")
            await asyncio.Event().wait()
        finally:
            ended.append(turn.turn_id)

    async with running(wait) as hub:
        await hub.prompt("one")
        await hub.until(lambda: text_of(hub.frames["t1"]) == "begun")
        hub.acks = False  # a hub need not acknowledge the end of a turn that it stopped
        await hub.abort()
        assert final(await hub.ended())["reason"] == "canceled"
        assert ended == ["t1"]
        await hub.until(lambda: hub.completed == [("s", "t1")])
        hub.acks = True
        assert text_of(await hub.ask("two", turn="t2")) == "TWO"


async def test_an_agent_sees_that_a_message_waits_for_the_end_of_its_turn() -> None:
    async def work(turn: RunnerTurn) -> None:
        await turn.write_text("begun")
        await turn.steered.wait()

    async with running(work) as hub:
        await hub.prompt("one")
        await hub.until(lambda: text_of(hub.frames["t1"]) == "begun")
        await hub.send(RunnerSteer(session_id="s", turn_id="t1", message_id="m2"))
        assert final(await hub.ended())["reason"] == "end_turn"


async def test_a_question_waits_for_its_answer() -> None:
    async def ask(turn: RunnerTurn) -> None:
        answer = await turn.ask("Which colour?", ["red", "blue"])
        await turn.write_text(f"{answer.answer}!")

    async with running(ask) as hub:
        await hub.prompt("paint")
        await hub.until(lambda: any(each["type"] == "question" for each in hub.frames["t1"]))
        question = hub.frames["t1"][-1]
        assert (question["text"], question["options"]) == ("Which colour?", ["red", "blue"])
        await hub.answer(question["questionId"], "blue")
        assert text_of(await hub.ended()) == "blue!"


async def test_a_call_may_wait_for_an_approval() -> None:
    async def act(turn: RunnerTurn) -> None:
        await turn.update_tool("c1", "delete", status="running", args={"path": "a"})
        answer = await turn.ask_approval("c1", "Delete a?")
        await turn.update_tool("c1", "delete", status="completed", result=answer.approved)

    async with running(act) as hub:
        await hub.prompt("delete a")
        await hub.until(lambda: any(each["type"] == "question" for each in hub.frames["t1"]))
        question = hub.frames["t1"][-1]
        assert (question["callId"], question["approval"]) == ("c1", True)
        await hub.answer(question["questionId"], "yes")
        assert (await hub.ended())[3]["result"] is True


async def test_a_runner_may_join_and_leave_sessions_while_it_is_connected() -> None:
    async with stand_in_hub() as hub, Runner(shout, hub=hub.url, sessions=["s"]) as runner:
        await runner.join("s2")
        assert text_of(await hub.ask("more", session="s2", turn="t2")) == "MORE"
        runner.leave("s2")
        await hub.until(lambda: bool(hub.left))
        assert hub.left == ["s2"]


async def test_a_runner_that_closes_joins_no_session() -> None:
    runner = Runner(shout, hub=f"http://127.0.0.1:{free_port()}", sessions=["s"])
    running_on = asyncio.create_task(runner.run())
    joining = asyncio.create_task(runner.join("s2"))
    await asyncio.sleep(0)
    await runner.close()
    await asyncio.wait_for(running_on, LIMIT)
    for join in (joining, runner.join("s3")):
        with pytest.raises(Conflict, match="the runner is closed"):
            await asyncio.wait_for(join, LIMIT)


@pytest.mark.parametrize("acknowledged", [True, False])
async def test_a_lost_connection_loses_and_repeats_nothing(*, acknowledged: bool) -> None:
    go_on = asyncio.Event()

    async def answer(turn: RunnerTurn) -> None:
        for word in ("one ", "two ", "three "):
            await turn.write_text(word)
        await go_on.wait()
        await turn.write_text("four")

    async with running(answer) as hub:
        hub.acks = acknowledged
        await hub.prompt("count")
        await hub.until(lambda: text_of(hub.frames["t1"]) == "one two three ")
        await hub.lose()
        go_on.set()
        hub.acks = True
        frames = await hub.ended()
        assert text_of(frames) == "one two three four"
        assert [each["seq"] for each in frames] == list(range(1, 7))
        assert hub.hellos[1]["turns"] == ["t1"]
        assert hub.repeated == 0  # the welcome says what the hub has


async def test_an_agent_waits_while_its_hub_acknowledges_nothing() -> None:
    written: list[int] = []

    async def flood(turn: RunnerTurn) -> None:
        for number in range(100):
            await turn.write_text("x" * 1_000)
            written.append(number)

    async with running(flood, buffer=10_000) as hub:
        hub.acks = False
        await hub.prompt("much")
        await hub.until(lambda: len(text_of(hub.frames["t1"])) >= 8_000)
        assert len(written) < 15
        hub.acks = True
        await hub.acknowledge()
        assert len(text_of(await hub.ended())) == 100_000


async def test_no_more_is_sent_ahead_than_the_window_and_no_larger_frame_than_the_hub_takes() -> None:
    async def answer(turn: RunnerTurn) -> None:
        await turn.update_tool("c1", "read", status="running", args={"path": "a"})
        await turn.update_tool("c1", "read", status="completed", result="x" * 60_000)
        await turn.write_text("y" * 40_000)

    async with running(answer) as hub:
        hub.window, hub.acks = 20_000, False
        await hub.lose()
        await hub.until(lambda: len(hub.hellos) == 2)
        await hub.prompt("read")
        await hub.until(lambda: len(text_of(hub.frames["t1"])) >= 16_000)
        assert len(text_of(hub.frames["t1"])) <= 24_000
        hub.acks = True
        await hub.acknowledge()
        frames = await hub.ended()
        assert len(text_of(frames)) == 40_000
        assert "the hub does not accept frames of" in frames[2]["result"]


async def test_a_turn_that_the_hub_has_closed_is_stopped_and_forgotten() -> None:
    ended = asyncio.Event()

    async def wait(turn: RunnerTurn) -> None:
        try:
            await turn.write_text("begun")
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with running(wait) as hub:
        await hub.prompt("one")
        await hub.until(lambda: text_of(hub.frames["t1"]) == "begun")
        hub._open.clear()
        await hub.lose()
        await asyncio.wait_for(ended.wait(), LIMIT)
        assert len(hub.frames["t1"]) == 2


async def test_a_runner_that_is_closed_says_that_its_turns_are_over() -> None:
    async def wait(turn: RunnerTurn) -> None:
        await turn.write_text("begun")
        await asyncio.Event().wait()

    async with stand_in_hub() as hub:
        async with Runner(wait, hub=hub.url, sessions=["s"]):
            await hub.prompt("one")
            await hub.until(lambda: text_of(hub.frames["t1"]) == "begun")
        assert final(hub.frames["t1"])["reason"] == "canceled"


async def test_a_runner_that_was_closed_can_be_opened_again_but_not_twice_at_once() -> None:
    async with stand_in_hub() as hub:
        runner = Runner(shout, hub=hub.url, sessions=["s"])
        for number in ("1", "2"):
            async with runner:
                await hub.until(lambda: hub._socket is not None)
                assert text_of(await hub.ask("hello", turn=number)) == "HELLO"
                with pytest.raises(Conflict, match="serves already"):
                    await runner.__aenter__()
            await hub.until(lambda: hub._socket is None)
    assert len(hub.hellos) == 2
