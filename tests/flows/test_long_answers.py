"""Long histories and long answers: what they cost is bounded, and others are served."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.events import TextDelta
from dragoman.fold import SPILLED_FROM
from dragoman.part_builders import BlockBuilder
from dragoman.runs.journal import MAX_PIECE
from dragoman.runs.live_tail import Batch, Follower
from dragoman.server.http.listener import bind_listener
from dragoman.store.sessions.messages import MessageRepository, PartChanges
from dragoman.store.sessions.spill_file import SpillFile
from tests.serving import ask, frames_in, serving, text_of
from tests.waiting import LIMIT, until

PICTURE = "data:image/png;base64," + "A" * 60_000
CHUNK = "x" * 50_000


def picture(number: int) -> dict[str, Any]:
    """A user message with a picture."""
    part = {"type": "file", "mediaType": "image/png", "url": PICTURE}
    return {"id": f"u{number}", "role": "user", "parts": [part]}


async def test_a_session_with_many_pictures_stays_usable_in_the_tab_that_sends_them_all(
    tmp_path: Path,
) -> None:
    steps = [{"text": f"Picture {number}."} for number in range(6)]
    async with serving(tmp_path, steps, limits={"body": 100_000, "history": 1_000_000}) as hub:
        messages: list[dict[str, Any]] = []
        for number in range(6):
            messages.append(picture(number))
            frames = await hub.post({"id": "s", "messages": messages, "trigger": "submit-message"})
            assert text_of(frames) == f"Picture {number}."
            messages = await hub.messages()
        assert len(messages) == 12
        body = {"id": "s", "messages": [*messages, picture(9)], "x": "y" * 1_000_000}
        refused = await hub.http.post("/api/chat", json=body)
        assert (refused.status_code, "limits.history" in refused.text) == (413, True)
        big = {"id": "big", "role": "user", "parts": [{"type": "text", "text": "z" * 150_000}]}
        refused = await hub.http.post("/api/chat", json={"id": "s", "messages": [*messages, big]})
        assert (refused.status_code, "limits.body" in refused.text) == (413, True)


async def test_an_answer_over_the_limit_ends_with_an_error_and_keeps_its_text(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [{"text": [CHUNK] * 40}, {"text": "Next."}]
    async with serving(tmp_path, steps, limits={"answer": 500_000}) as hub:
        frames = await hub.chat("go")
        [error] = [frame for frame in frames if frame["type"] == "error"]
        assert "more than 500000 characters" in error["errorText"]
        assert frames[-1]["finishReason"] == "error"
        text = (await hub.messages())[1]["parts"][1]["text"]
        assert 500_000 < len(text) < 1_000_000
        assert text_of(frames) == text
        assert text_of(await hub.chat("more")) == "Next."


async def test_a_growing_answer_is_written_once_in_pieces_and_not_again_as_a_whole(
    tmp_path: Path, monkeypatch: Any
) -> None:
    written: list[int] = []
    write = MessageRepository.write_changes_job

    def count(self: Any, session_id: str, message_id: str, *, changes: PartChanges) -> Any:
        written.append(
            sum(len(body) for _, body in changes.changed) + sum(len(t.text) for t in changes.tails)
        )
        return write(self, session_id, message_id, changes=changes)

    monkeypatch.setattr(MessageRepository, "write_changes_job", count)
    steps = [{"text": [CHUNK] * 60, "delay": 0.001}]
    async with serving(tmp_path, steps) as hub:
        assert len(text_of(await hub.chat("go"))) == 3_000_000
        assert len((await hub.messages())[1]["parts"][1]["text"]) == 3_000_000
    assert sum(written) < 1.3 * 3_000_000
    assert max(written) <= MAX_PIECE + 50_000


async def test_a_run_waits_when_none_of_its_readers_keeps_up_and_goes_on_when_one_reads(
    tmp_path: Path,
) -> None:
    steps: list[dict[str, Any]] = [{"text": [CHUNK] * 200}, {"text": "Other."}]
    limits = {"read_ahead": 500_000}
    async with serving(tmp_path, steps, limits=limits, disconnect_grace="never") as hub:
        async with hub.http.stream("POST", "/api/chat", json=ask("go")) as response:
            run = hub.active_run()
            assert run is not None
            await until(lambda: run.tail.room is not None)
            assert text_of(await hub.chat("hi", session="other")) == "Other."
            assert run.fold.size < 10_000_000
            assert not run.done.is_set()
            text = "".join([piece async for piece in response.aiter_text()])
        assert text_of(frames_in(text)) == CHUNK * 200


async def test_a_reader_that_takes_nothing_is_disconnected_and_the_run_goes_on(tmp_path: Path) -> None:
    steps = [{"text": [CHUNK] * 200}]
    limits = {"read_ahead": 500_000, "reader_timeout": 0.05}
    async with serving(tmp_path, steps, limits=limits, disconnect_grace="never") as hub:
        async with hub.http.stream("POST", "/api/chat", json=ask("go")):
            run = hub.active_run()
            assert run is not None
            async with asyncio.timeout(LIMIT):
                await run.done.wait()
        assert len((await hub.messages())[1]["parts"][1]["text"]) == 10_000_000


async def test_a_long_difference_is_handed_out_in_pieces(tmp_path: Path) -> None:
    steps = [{"text": [CHUNK] * 40, "delay": 0.001}]
    async with serving(tmp_path, steps) as hub:
        chatting = asyncio.create_task(hub.chat("go"))
        await until(lambda: hub.active_run() is not None)
        run = hub.active_run()
        assert run is not None
        await chatting
        with run.follow(replay=True) as follower:
            sizes = []
            while batch := await follower.next():
                sizes.append(sum(len(getattr(event, "delta", "")) for event in batch))
        assert sum(sizes) == 2_000_000
        assert max(sizes) <= MAX_PIECE


def test_the_system_queues_little_for_a_connection_whose_client_reads_nothing() -> None:
    with (
        bind_listener("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        accepted.setblocking(False)
        sent = 0
        with suppress(BlockingIOError):
            while True:
                sent += accepted.send(bytes(65_536))
        assert sent < 1_000_000  # without a limit 4 MB on Linux


async def test_a_long_answer_keeps_little_text_in_memory_and_every_reader_gets_all_of_it(
    tmp_path: Path,
) -> None:
    chunks = [f"{number:06}é" * 7_000 for number in range(100)]
    steps: list[dict[str, Any]] = [{"text": chunks}]
    async with serving(tmp_path, steps, disconnect_grace="never") as hub:
        async with hub.http.stream("POST", "/api/chat", json=ask("go")) as response:
            run = hub.active_run()
            assert run is not None
            pieces: list[str] = []
            most = 0
            async for piece in response.aiter_text():
                pieces.append(piece)
                blocks = [block for block in run.fold.builders if isinstance(block, BlockBuilder)]
                most = max(most, sum(block.size_in_memory for block in blocks))
        assert most < SPILLED_FROM + 3 * 65_536
        assert text_of(frames_in("".join(pieces))) == "".join(chunks)
        assert (await hub.messages())[1]["parts"][1]["text"] == "".join(chunks)
        with run.follow(replay=True) as late:
            events = [event async for batch in batches_of(late) for event in batch]
        assert "".join(event.delta for event in events if isinstance(event, TextDelta)) == "".join(chunks)


async def batches_of(follower: Follower) -> AsyncIterator[Batch]:
    """The batches of a follower, to the end."""
    while batch := await follower.next():
        yield batch


async def test_an_answer_stays_in_memory_where_the_disk_accepts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: SpillFile, raw: bytes) -> int:
        raise OSError(28, f"no space for {len(raw)} bytes")

    monkeypatch.setattr(SpillFile, "append", refuse)
    async with serving(tmp_path, [{"text": [CHUNK] * 40}]) as hub:
        assert text_of(await hub.chat("go")) == CHUNK * 40
        assert (await hub.messages())[1]["parts"][1]["text"] == CHUNK * 40


@pytest.mark.parametrize("method", ["append", "read"])
async def test_a_disk_that_does_not_answer_stops_only_the_answers_that_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    blocked, released = threading.Event(), threading.Event()
    work: Callable[..., Any] = getattr(SpillFile, method)

    def wait(file: SpillFile, *arguments: Any) -> Any:
        blocked.set()
        assert released.wait(LIMIT)
        return work(file, *arguments)

    monkeypatch.setattr(SpillFile, method, wait)
    steps: list[dict[str, Any]] = [{"text": [CHUNK] * 40, "delay": 0.001}, {"text": "Other."}]
    async with serving(tmp_path, steps, disconnect_grace="never") as hub:
        chatting = asyncio.create_task(hub.chat("go"))
        await until(lambda: hub.active_run() is not None)
        run = hub.active_run()
        assert run is not None
        await until(lambda: blocked.is_set() or chatting.done())  # where the database is behind, it is read
        reading = None
        if chatting.done():
            reading = asyncio.create_task(gather_text(run.follow(replay=True)))
        await until(blocked.is_set)
        assert text_of(await hub.chat("hi", session="other")) == "Other."
        assert not (reading or chatting).done()
        released.set()
        assert text_of(await chatting) == CHUNK * 40
        if reading is not None:
            assert await reading == CHUNK * 40


async def gather_text(follower: Follower) -> str:
    """The text of a follower, to the end."""
    with follower:
        batches = [batch async for batch in batches_of(follower)]
    return "".join(event.delta for batch in batches for event in batch if isinstance(event, TextDelta))
