"""What a hostile or broken runner, a database that is away and a hub that stops do to turns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import Conflict, StoreError, Unavailable
from dragoman.runners.hub import frame_log
from dragoman.store.connection import DatabaseJob
from dragoman.store.sessions.sessions import Session
from tests.runners.test_joining import GatedRuns
from tests.runners.test_runner_sessions import chat
from tests.runners.wire_runner import LIMIT, PATIENT, Turn, connected, new_session, opened
from tests.serving import Served, frames_in, serving, text_of
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def stored_log(hub: Served) -> tuple[int, str]:
    """The last number in the log of the only run, and its text."""
    [run] = await hub.runs()
    batches = await hub.hub.store.runner_frames.list(run.id)
    return max((batch.seq for batch in batches), default=0), "\n".join(batch.body for batch in batches)


async def test_a_frame_that_does_not_fit_fails_alone_though_it_has_a_number(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.text("a")
        await turn.send("message.part.text-delta", delta=7)
        refused = await runner.next("refused")
        assert (refused["error"]["code"], refused["seq"]) == ("bad_frame", 3)
        await turn.text("b")
        await turn.finalize()
        assert text_of(frames_in((await posted).text)) == "ab"
        await runner.pong()
        assert runner.received("refused") == []


async def test_a_frame_that_cannot_be_read_fails_alone_whichever_session_comes_next(hub: Served) -> None:
    await new_session(hub, "other")
    async with connected(hub, "s", "other") as runner:
        posted = [chat(hub), chat(hub, session="other")]
        turns = [await runner.prompt(), await runner.prompt()]
        for unreadable in ({"delta": 7}, {"delta": [[]] * 2, "sessionId": 5}):
            for turn in turns:
                if turn.seq == 0:
                    await turn.create()
                await turn.send("message.part.text-delta", **unreadable)
            for turn in reversed(turns):
                await turn.text("a")
        for turn in turns:
            await turn.finalize()
        assert [text_of(frames_in((await each).text)) for each in posted] == ["aa", "aa"]
        await runner.pong()
        assert {frame["error"]["code"] for frame in runner.received("refused")} == {"bad_frame"}


async def test_a_turn_that_waits_for_an_answer_does_not_hold_the_other_sessions(tmp_path: Path) -> None:
    async with serving(tmp_path, runners={**PATIENT, "window": 100_000}) as hub:
        for name in ("s", "other"):
            await new_session(hub, name)
        async with connected(hub, "s", "other") as runner:
            waiting, posted = chat(hub), chat(hub, session="other")
            turns = {
                turn.prompt["sessionId"]: turn for turn in [await runner.prompt(), await runner.prompt()]
            }
            await turns["s"].create()
            await turns["s"].send("question", questionId="q", text="Which?")
            await waiting
            for number in range(700):  # within the window, and small
                await turns["s"].text(f"{number} ")
            await turns["other"].answer("at once")
            assert text_of(frames_in((await posted).text)) == "at once"
            deleted = await hub.http.delete("/api/sessions/s")
            assert deleted.status_code == 204
            aborted = await runner.next("abort")
            assert (aborted["turnId"], aborted["reason"]) == (
                turns["s"].prompt["turnId"],
                "the session was deleted",
            )
            await turns["s"].text("late")
            assert (await runner.next("refused"))["error"]["code"] == "late"


async def test_text_that_waits_for_a_call_counts_and_the_log_has_no_frame_for_each_letter(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, runners=PATIENT, limits={"answer": 20_000}) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            posted = chat(hub)
            turn = await runner.prompt()
            await turn.create()
            for _ in range(300):
                await turn.text("")
                await turn.text("é")
            await runner.acknowledged(turn.seq)
            seq, text = await stored_log(hub)
            assert (seq, text.count("é"), len(text) < 20_000) == (turn.seq, 300, True)
            await turn.tool("running", args={})
            await turn.send("question", questionId="q", callId="c1", approval=True)
            await posted
            [request] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
            await hub.http.post(f"/api/approvals/{request['id']}", json={"approved": True})
            await runner.next("answer")
            for _ in range(30):
                await turn.text("y" * 1_000)
            assert "limit" in (await runner.next("abort"))["reason"]


async def test_frames_that_are_no_part_of_the_message_are_acknowledged_too(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await runner.acknowledged(1)
        await turn.send("agentStatus", status="thinking")
        await turn.send("git-state", branch="main")
        await runner.acknowledged(3)
        await turn.finalize()
        await posted


async def test_a_hello_and_a_join_name_a_bounded_number_of_sessions(hub: Served) -> None:
    names = [f"n{number}" for number in range(1_001)]
    async with opened(hub) as runner:
        await runner.send({"type": "hello", "protocol": 1, "sessions": names})
        assert "1000 sessions" in (await runner.next("refused"))["error"]["message"]
    async with connected(hub, "s") as runner:
        await runner.send({"type": "join", "sessions": names})
        assert "1000 sessions" in (await runner.next("refused"))["error"]["message"]
        await runner.pong()


class RefusingRuns(GatedRuns):
    """Runs of a hub that refuse a runner once the gate is open."""

    async def bring_here(self, session: Session) -> None:
        await super().bring_here(session)
        raise Conflict("not now")


async def test_a_hub_stops_though_a_runner_is_refused_meanwhile(hub: Served) -> None:
    gate = RefusingRuns(hub, "~s")
    async with opened(hub) as runner:
        await runner.send({"type": "hello", "protocol": 1, "sessions": ["s"]})
        await gate.reached.wait()
        closing = asyncio.create_task(hub.hub.runners.close())
        await asyncio.sleep(0)
        gate.opened.set()
        async with asyncio.timeout(LIMIT / 2):
            await closing


async def test_frames_ahead_of_a_run_count_by_their_size_whatever_they_are(tmp_path: Path) -> None:
    async with serving(tmp_path, runners={**PATIENT, "window": 100_000}) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            posted = chat(hub)
            turn = await runner.prompt()
            await turn.create()
            await turn.send("question", questionId="q", text="Which?")
            await posted  # the run has ended, the turn waits for the answer
            for number in range(25):  # more than eight windows
                await turn.tool("completed", id=f"c{number}", result="x" * 40_000)
            await runner.send({"type": "ping", "n": 2})
            [request] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
            await hub.http.get("/api/sessions/s/messages")
            await hub.http.post(f"/api/approvals/{request['id']}", json={"answer": "a"})
            await runner.next("pong")
            kinds = [frame["type"] for frame in runner.arrived]
            assert kinds.index("answer") < kinds.index("pong"), "it read on, however much waited"
            await turn.finalize()
            await runner.acknowledged(turn.seq)
        parts = (await hub.messages())[-1]["parts"]
        assert [part["type"] for part in parts].count("dynamic-tool") == 25


async def test_what_a_hub_that_stops_could_not_store_is_not_acknowledged(
    hub: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_log, "INTERVAL", 3_600.0)
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await runner.acknowledged(1)
        await turn.text("one")
        await until(lambda: (run := hub.active_run()) is not None and run.fold.size > 2)

        def refuse(*_: Any, **__: Any) -> Any:
            raise Unavailable("the database is away")

        monkeypatch.setattr(hub.hub.store, "submit", refuse)
        await hub.hub.runs.close()
        await turn.finalize()  # the runner does not know yet that the hub stops
        await runner.pong()
        assert [frame["seq"] for frame in runner.received("ack")] == []
        assert runner.received("refused") == [], "a runner forgets a turn whose end is refused"
        posted.cancel()


async def test_a_write_whose_outcome_was_lost_does_not_double_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = {"runners": PATIENT, "disconnect_grace": "never"}
    monkeypatch.setattr(frame_log, "INTERVAL", 0.01)
    async with serving(tmp_path, **config) as hub:
        await new_session(hub)
        lost: list[str] = []
        submit = hub.hub.store.submit

        def submit_and_lose(job: DatabaseJob[Any], **options: Any) -> asyncio.Future[Any]:
            stored = submit(job, **options)
            if lost or "RunnerFrameRepository" not in job.__qualname__:
                return stored
            lost.append(job.__qualname__)
            return asyncio.ensure_future(lose(stored))

        async def lose(stored: asyncio.Future[Any]) -> None:
            await stored
            raise StoreError("the connection broke after the commit")

        monkeypatch.setattr(hub.hub.store, "submit", submit_and_lose)
        async with connected(hub, "s") as runner:
            posted = chat(hub)
            turn = await runner.prompt()
            await turn.create()
            await turn.text("one ")
            await runner.acknowledged(2)
            assert lost
            for run in list(hub.hub.runs._active.values()):
                run.stop_unwritten()
        posted.cancel()
    async with serving(tmp_path, **config) as hub, connected(hub, "s") as again:
        turn = Turn(again, turn.prompt, seq=2)
        await turn.text("two")
        await turn.finalize()
        await again.acknowledged(turn.seq)
        [_, answer] = await hub.messages()
        assert [part["text"] for part in answer["parts"] if part["type"] == "text"] == ["one two"]


async def test_progress_of_a_call_is_not_kept_and_what_is_kept_has_a_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, runners=PATIENT, limits={"answer": 20_000}) as hub:
        await new_session(hub)
        async with connected(hub, "s") as runner:
            posted = chat(hub)
            turn = await runner.prompt()
            await turn.create()
            await turn.tool("running", args={"n": 1})
            for number in range(20):
                await turn.tool("running", result=f"{number} " + "x" * 10_000)
            await runner.acknowledged(turn.seq)
            seq, text = await stored_log(hub)
            assert (seq, "19 x" in text, len(text) < 5_000) == (turn.seq, False, True)
            for number in range(20):
                await turn.send("data-board", id="b", data={"text": "x" * 10_000, "n": number})
            await runner.next("abort")
            await turn.finalize("canceled")
            frames = frames_in((await posted).text)
        assert "limit" in next(frame["errorText"] for frame in frames if frame["type"] == "error")
        assert [run.status for run in await hub.runs()] == ["failed"]


async def test_a_question_of_a_turn_that_is_over_waits_for_nobody(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        await turn.send("question", questionId="q", text="Which?")
        await turn.finalize()
        await posted
        assert (await hub.http.get("/api/approvals?status=pending")).json()["approvals"] == []


async def test_a_turn_has_a_limited_number_of_open_questions(hub: Served) -> None:
    async with connected(hub, "s") as runner:
        posted = chat(hub)
        turn = await runner.prompt()
        await turn.create()
        for number in range(101):
            await turn.send("question", questionId=f"q{number}", text="Which?")
        refused = await runner.next("refused")
        assert (refused["error"]["code"], refused["seq"]) == ("rate_limited", 102)
        await turn.finalize()
        await posted
