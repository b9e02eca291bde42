"""Following a run: resume, stop, disconnect, two tabs, a busy session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.http.asgi_exchange import Exchange
from dragoman.runs import registry
from dragoman.runs.live_tail import Batch
from dragoman.runs.run import HubRun
from tests.answer_gate import Gate
from tests.serving import Frames, Served, ask, frames_in, serving, text_of, types
from tests.waiting import LIMIT

LONG = {"text": [f"word{n} " for n in range(40)], "delay": 0.02}
WHOLE = "".join(LONG["text"])  # type: ignore[arg-type]  # a list of strings, as above


@asynccontextmanager
async def streaming(hub: Served, method: str, path: str, **options: Any) -> AsyncIterator[AsyncIterator[str]]:
    """An open stream; its text as it comes."""
    async with hub.http.stream(method, path, **options) as response:
        assert response.status_code == 200, await response.aread()
        yield response.aiter_text()


async def until(pieces: AsyncIterator[str], word: str) -> str:
    """The stream's text up to and with the piece that holds `word`."""
    seen = ""
    async with asyncio.timeout(LIMIT):
        async for piece in pieces:
            seen += piece
            if word in seen:
                return seen
    raise AssertionError(f"the stream ended before {word!r}: {seen[-300:]!r}")


async def rest(pieces: AsyncIterator[str]) -> str:
    """What is left of the stream."""
    return "".join([piece async for piece in pieces])


async def idle(hub: Served, session: str = "s") -> None:
    """Wait until the session's run is over."""
    run = hub.active_run(session)
    if run is not None:
        async with asyncio.timeout(LIMIT):
            await run.done.wait()


async def cut(hub: Served, word: str = "word3") -> None:
    """Begin a turn and hang up when `word` was seen."""
    async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
        await until(pieces, word)


async def resumed(hub: Served, session: str = "s") -> Frames:
    """All frames of a resume."""
    response = await hub.http.get(f"/api/chat/{session}/stream")
    assert response.status_code == 200, response.status_code
    return frames_in(response.text)


async def test_a_cut_stream_is_resumed_from_the_first_part_and_nothing_is_lost(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG]) as hub:
        await cut(hub)
        frames = await resumed(hub)
        assert types(frames) == [
            "start",
            "start-step",
            "text-start",
            "text-delta",
            "text-end",
            "finish-step",
            "finish",
        ]
        assert text_of(frames) == WHOLE
        assert (await hub.messages())[1]["parts"][1]["text"] == WHOLE


async def test_a_page_that_names_an_interval_gets_the_whole_answer_in_few_writes(tmp_path: Path) -> None:
    words = [f"word{number} " for number in range(300)]
    query = {"interval": 500}
    async with serving(tmp_path, [{"text": words, "delay": 0.001}]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go"), params=query) as pieces:
            begun = await until(pieces, "start-step")
            resumed = await hub.http.get("/api/chat/s/stream", params=query)
            frames = [frames_in(begun + await rest(pieces)), frames_in(resumed.text)]
        for each in frames:
            assert text_of(each) == "".join(words)
            assert [types(each)[at] for at in (0, -1)] == ["start", "finish"]
            assert types(each).count("text-delta") < 50
        for value in ("0", "1001", "fast", "-1"):
            refused = await hub.http.get("/api/chat/s/stream", params={"interval": value})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_request"), value


async def test_a_run_that_has_just_ended_is_replayed_to_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, [{**LONG, "delay": 0.001}]) as hub:
        whole = await hub.chat("go")
        for _ in range(3):
            again = await resumed(hub)
            assert text_of(again) == WHOLE
            assert again[0]["messageId"] == whole[0]["messageId"]
            metadata = whole[0]["messageMetadata"] | whole[-1]["messageMetadata"]
            assert again[-1] == {**whole[-1], "messageMetadata": metadata}
        monkeypatch.setattr(registry, "REPLAY_SECONDS", 0.0)
        assert (await hub.http.get("/api/chat/s/stream")).status_code == 204


async def test_a_run_that_is_stopped_as_its_end_comes_ends_as_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    withdraw_dropped = HubRun._withdraw_dropped
    tasks: list[asyncio.Task[Any]] = []

    async def stop_first(run: HubRun, last_batch: Batch) -> Batch:
        tasks.extend(filter(None, [asyncio.current_task()]))
        run.stop("no client is following the run")
        return await withdraw_dropped(run, last_batch)

    monkeypatch.setattr(HubRun, "_withdraw_dropped", stop_first)
    async with serving(tmp_path, [{"text": "whole"}]) as hub:
        assert types(await hub.chat("go"))[-1] == "finish"
        await asyncio.gather(*tasks)  # raises what they have raised
        assert [run.status for run in await hub.runs()] == ["finished"]


async def test_a_stop_of_a_run_that_has_failed_and_stops_what_answers_it_does_not_leave_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stop_again(run: HubRun, _reason: str) -> None:
        run.stop("stopped by the user")
        for _ in range(3):  # by then the stop would have been noticed
            await asyncio.sleep(0)

    monkeypatch.setattr(HubRun, "on_stop", property(lambda run: partial(stop_again, run), lambda *_: None))
    async with serving(tmp_path, [{"text": ["x" * 70_000, "y"]}], limits={"answer": 1_000}) as hub:
        frames = await hub.chat("go")
        assert "the limit of this hub" in str(frames[-2:])
        assert [run.status for run in await hub.runs()] == ["failed"]


async def test_a_run_that_ended_with_nobody_there_is_replayed_too(tmp_path: Path) -> None:
    async with serving(tmp_path, [{**LONG, "delay": 0.001}]) as hub:
        await cut(hub)
        await idle(hub)
        assert text_of(await resumed(hub)) == WHOLE


async def test_a_failed_run_is_replayed_with_its_error(tmp_path: Path) -> None:
    steps = [{"text": "Half.", "error": {"message": "no", "category": "bad_request"}}]
    async with serving(tmp_path, steps) as hub:
        whole = await hub.chat("go")
        again = await resumed(hub)
        assert types(again) == types(whole)
        assert again[-2] == whole[-2] == {"type": "error", "errorText": "no"}


@pytest.mark.parametrize("seen", [True, False])
async def test_a_call_of_a_client_side_tool_is_not_replayed_once_a_client_has_it(
    tmp_path: Path, seen: bool
) -> None:
    tools = [{"name": "colour", "inputSchema": {"type": "object"}}]
    steps = [{"text": ["a", "b", "c"], "delay": 0.05, "tools": [{"name": "colour", "input": {}}]}]
    async with serving(tmp_path, steps) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go", tools=tools)) as pieces:
            await (rest(pieces) if seen else until(pieces, "text-delta"))
        await idle(hub)
        replies = [await hub.http.get("/api/chat/s/stream") for _ in range(2)]
        assert [each.status_code for each in replies] == ([204, 204] if seen else [200, 204])


async def test_two_tabs_follow_one_run(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as first:
            seen = await until(first, "word2")
            second = asyncio.create_task(resumed(hub))
            third = asyncio.create_task(resumed(hub))
            frames = frames_in(": " + seen.split(": ", 1)[1] + await rest(first))
        assert text_of(frames) == text_of(await second) == text_of(await third) == WHOLE


@pytest.mark.usefixtures("gate")
@pytest.mark.promise("stop-reaches-everything")
async def test_stop_ends_the_run_within_a_moment_and_the_session_goes_on(tmp_path: Path) -> None:
    """The moment is over before the model says another word."""
    async with serving(tmp_path, [LONG, {"text": "Next."}]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word3")
            response = await hub.http.post("/api/chat/s/stop")
            ending = await rest(pieces)
        assert response.json()["stopped"] is True
        assert types(frames_in(ending))[-4:] == ["text-end", "finish-step", "abort", "finish"]
        assert (await hub.http.post("/api/chat/s/stop")).json() == {"stopped": False, "runId": None}
        answered = (await hub.messages())[1]
        assert answered["parts"][1]["state"] == "done"
        assert answered["metadata"]["finishReason"] == "aborted"
        assert text_of(await hub.chat("more")) == "Next."


@pytest.mark.usefixtures("gate")
async def test_a_run_that_nobody_follows_is_stopped_after_the_grace(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG], disconnect_grace=0.05) as hub:
        await cut(hub)
        await idle(hub)
        assert (await hub.messages())[1]["metadata"]["finishReason"] == "aborted"


async def test_with_grace_never_a_run_goes_on_alone(tmp_path: Path, gate: Gate) -> None:
    async with serving(tmp_path, [LONG], disconnect_grace="never") as hub:
        await cut(hub)
        response = await hub.http.post("/api/chat", json=ask("too early"))
        assert response.status_code == 409
        gate.opened.set()
        await idle(hub)
        assert (await hub.messages())[1]["parts"][1]["text"] == WHOLE


async def test_a_busy_session_refuses_a_second_message_and_names_the_run(tmp_path: Path, gate: Gate) -> None:
    async with serving(tmp_path, [LONG]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word1")
            response = await hub.http.post("/api/chat", json=ask("again"))
            assert response.status_code == 409
            error = response.json()["error"]
            assert error["code"] == "run_active"
            assert error["runId"].startswith("run_")
            gate.opened.set()
            await rest(pieces)
        assert [message["role"] for message in await hub.messages()] == ["user", "assistant"]


async def test_a_message_that_queues_is_answered_after_the_one_before(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG, {"text": "Second."}, {"text": "Third."}]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word1")
            queued = asyncio.gather(*[hub.chat(text, whenBusy="queue") for text in ("b", "c")])
            assert text_of(frames_in(": " + await rest(pieces) + "")).endswith("word39 ")
            answers = await queued
        assert sorted(text_of(frames) for frames in answers) == ["Second.", "Third."]
        assert [m["role"] for m in await hub.messages()] == ["user", "assistant"] * 3


@pytest.mark.usefixtures("gate")
async def test_a_new_message_takes_the_place_of_a_run_that_was_left(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG, {"text": "Next."}]) as hub:
        await cut(hub)
        assert text_of(await hub.chat("more")) == "Next."
        messages = await hub.messages()
        assert [message["role"] for message in messages] == ["user", "assistant"] * 2
        assert messages[1]["metadata"]["finishReason"] == "aborted"


async def test_a_reader_that_does_not_read_slows_nothing_and_catches_up(tmp_path: Path) -> None:
    steps = [{"text": ["x" * 50_000 for _ in range(200)]}]
    limits = {"read_ahead": 20_000_000}
    async with serving(tmp_path, steps, disconnect_grace="never", limits=limits) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await idle(hub)
            frames = frames_in(": " + await rest(pieces))
        assert text_of(frames) == "x" * 10_000_000
        assert len(frames) < 200


async def test_a_quiet_stream_is_kept_alive_with_comments(tmp_path: Path) -> None:
    steps = [{"text": ["a", "b"], "delay": 0.3}]
    async with serving(tmp_path, steps, keep_alive=0.01) as hub:
        response = await hub.http.post("/api/chat", json=ask("go"))
        assert response.text.count(": keep-alive\n\n") >= 4
        assert text_of(frames_in(response.text)) == "ab"


@pytest.mark.usefixtures("gate")
@pytest.mark.sqlite_file  # on Postgres they are handed over: tests/hosts/test_takeover.py
async def test_shutting_down_stops_the_runs_and_closes_their_messages(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word1")
            await hub.hub.runs.close()
            assert types(frames_in(": " + await rest(pieces)))[-2:] == ["abort", "finish"]
        response = await hub.http.post("/api/chat", json=ask("late"))
        assert response.status_code == 503


@pytest.mark.usefixtures("gate")
async def test_a_reader_that_is_disconnected_before_its_first_frame_gets_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the host of a run stops at that moment: a stream with an end would be a whole answer."""
    start_response = Exchange.start_response
    async with serving(tmp_path, [LONG]) as hub:

        async def start(exchange: Exchange, status: int, headers: Mapping[str, str]) -> None:
            await start_response(exchange, status, headers)
            if exchange.method == "GET" and (run := hub.active_run()) is not None:
                run.tail.disconnect()

        monkeypatch.setattr(Exchange, "start_response", start)
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            await until(pieces, "word3")
            with pytest.raises(httpx2.TransportError):
                await hub.http.get("/api/chat/s/stream")


async def test_a_resume_of_nothing_is_204(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        response = await hub.http.get("/api/chat/unknown/stream")
        assert (response.status_code, response.content) == (204, b"")


async def test_the_stream_has_the_headers_that_clients_and_proxies_want(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "x"}, {"text": "y"}]) as hub:
        response = await hub.http.post("/api/chat", json=ask("go"))
        assert isinstance(response, httpx2.Response)
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert response.headers["x-accel-buffering"] == "no"
        assert "no-cache" in response.headers["cache-control"]
        accept = {"accept": "text/event-stream; dialect=hub"}
        other = await hub.http.post("/api/sessions/s/chat", json=ask("more"), headers=accept)
        assert "step-finish" in types(frames_in(other.text))
