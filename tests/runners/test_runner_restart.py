"""The hub is restarted, or dies, while a runner answers: the run goes on as the runner comes back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.store.runner_frame_log import FrameBatch
from tests.runners.wire_runner import PATIENT, Turn, WireRunner, connected, new_session
from tests.serving import Served, ask, frames_in, serving, text_of
from tests.waiting import poll, until

pytestmark = pytest.mark.anyio
CONFIG: Any = {"runners": PATIENT, "disconnect_grace": "never"}


async def post(hub: Served) -> None:
    with suppress(httpx2.HTTPError):
        await hub.http.post("/api/sessions/s/chat", json=ask("hi"))


async def resumed(again: WireRunner, turn: Turn) -> None:
    """Repeat what the hub does not have."""
    [state] = again.welcome["sessions"]
    assert state["turnId"] == turn.prompt["turnId"]
    turn.runner = again
    await again.send(*turn.sent[state.get("seq", 0) :])


@pytest.mark.parity
@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_turn_goes_on_after_the_hub_has_started_again(tmp_path: Path, is_killed: bool) -> None:
    async with AsyncExitStack() as stack:
        async with serving(tmp_path, **CONFIG) as hub:
            await new_session(hub)
            runner = await stack.enter_async_context(connected(hub, "s"))
            posting = asyncio.create_task(post(hub))
            turn = await runner.prompt()
            await turn.create()
            await turn.text("one ")
            await turn.tool("running", args={"n": 1})
            await runner.acknowledged(3)
            await turn.tool("completed", result="r")
            await turn.text("two ")
            if is_killed:
                await runner.acknowledged(4)
                for run in list(hub.hub.runs._active.values()):
                    run.stop_unwritten()
        await posting
        async with serving(tmp_path, **CONFIG) as hub, connected(hub, "s") as again:
            await resumed(again, turn)
            following = asyncio.create_task(hub.http.get("/api/sessions/s/stream"))
            await turn.text("three")
            await turn.finalize()
            await again.acknowledged(turn.seq)
            assert text_of(frames_in((await following).text)) == "one two three"
            message = (await hub.messages())[-1]
            types = [part["type"] for part in message["parts"]]
            assert types == ["step-start", "text", "dynamic-tool", "step-start", "text"]
            assert [run.status for run in await hub.runs()] == ["finished"]
            await until(lambda: has_no_frames(hub))


async def has_no_frames(hub: Served) -> bool:
    """Whether the frames of the session's only run are deleted: soon after its end is stored."""
    [run] = await hub.runs()
    return not await hub.hub.store.runner_frames.list(run.id)


async def test_a_question_outlives_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path, **CONFIG) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            posting = asyncio.create_task(hub.http.post("/api/sessions/s/chat", json=ask("hi")))
            turn = await runner.prompt()
            await turn.create()
            await turn.send("question", questionId="q", text="Which?")
            await posting
    async with serving(tmp_path, **CONFIG) as hub, connected(hub, "s") as again:
        await resumed(again, turn)
        [request] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
        await hub.http.post(f"/api/approvals/{request['id']}", json={"answer": "a"})
        assert (await again.next("answer"))["answer"] == "a"
        await turn.text("Good.")
        await turn.finalize()
        await again.acknowledged(turn.seq)
        assert (await hub.messages())[-1]["parts"][-1]["text"] == "Good."


async def test_a_runner_that_never_comes_back_after_a_restart_interrupts_the_turn(tmp_path: Path) -> None:
    async with serving(tmp_path, **CONFIG) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            posting = asyncio.create_task(post(hub))
            turn = await runner.prompt()
            await turn.create()
            await turn.text("Half")
            await runner.acknowledged(2)
            for run in list(hub.hub.runs._active.values()):
                run.stop_unwritten()
        await posting
    config = {**CONFIG, "runners": {"grace": 0.2, "stop": 0.2}}
    async with serving(tmp_path, **config) as hub:
        frames = frames_in((await hub.http.get("/api/sessions/s/stream")).text)
        assert text_of(frames) == "Half"
        assert [run.status for run in await hub.runs()] == ["interrupted"]


async def test_the_frames_of_a_run_that_ended_as_its_hub_died_are_deleted_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, **CONFIG) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            posting = asyncio.create_task(post(hub))
            turn = await runner.prompt()
            await turn.answer("Whole.")
            await runner.acknowledged(turn.seq)
            await posting
        [run] = await hub.runs()
        frames = hub.hub.store.runner_frames
        await hub.hub.store.write(frames.put_job(run.id, FrameBatch(0, 1, "what a crash has left")))
    async with serving(tmp_path, **CONFIG) as hub:

        async def look() -> bool:
            return not await hub.hub.store.runner_frames.list(run.id)

        assert await poll(look)
