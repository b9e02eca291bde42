"""`kill -9` at any moment: acknowledged data is there, and every session continues."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman.messages import FINAL_STATES
from tests.databases import BACKENDS
from tests.effort import rounds
from tests.faults.process import Process, started, write_config
from tests.serving import ask, frames_in, text_of
from tests.waiting import until

KILLS = rounds(quick=4, thorough=15)
LENGTH = 0.9  # seconds that the turn below takes
WORDS = [f"word{n} " for n in range(8)]
MARKS = Path(__file__).with_name("marks.py")


def call(word: str) -> dict[str, Any]:
    return {"name": "hub_call", "input": {"calls": [{"tool": "marks.add", "input": {"word": word}}]}}


STEPS = [
    {"reasoning": WORDS, "text": WORDS, "tools": [call("one"), call("two")], "delay": 0.01},
    {"text": WORDS, "tools": [call("three")], "delay": 0.01},
    {"text": WORDS, "delay": 0.01},
]


async def talk(hub: Process, session: str, seen: list[dict[str, Any]]) -> None:
    """A turn; every whole frame that arrives goes into `seen`, until the hub is gone."""
    left = ""
    try:
        async with hub.http.stream("POST", "/api/chat", json=ask("go", session=session)) as response:
            seen.append({"type": "head", "status": response.status_code})
            async for piece in response.aiter_text():
                *frames, left = (left + piece).split("\n\n")
                seen += [msgspec.json.decode(f[6:]) for f in frames if f.startswith("data: {")]
    except httpx2.TransportError:
        pass


async def killed_turn(config: Path, data: Path, *, session: str, after: float) -> list[dict[str, Any]]:
    """What a client saw of a turn whose hub was killed `after` seconds into it."""
    seen: list[dict[str, Any]] = []
    async with started(config, data) as hub:
        turn = asyncio.create_task(talk(hub, session, seen))
        await asyncio.wait([turn], timeout=after)
        await hub.kill()
        await turn
    return seen


async def go_on(hub: Process, session: str) -> set[str]:
    """Wait until the run has gone on to its end. Calls of which nobody knows whether they took effect ask.

    Returns the words of the calls that were answered to be done.
    """
    answered_words: set[str] = set()

    async def look() -> bool:
        await hub.http.get(f"/api/chat/{session}/stream")
        waiting = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
        for approval in waiting:
            assert approval["question"]["options"] == ["done", "not done", "try again"]
            answered = await hub.http.post(f"/api/approvals/{approval['id']}", json={"answer": "done"})
            assert answered.status_code == 200, answered.text
            answered_words.update(item["input"]["word"] for item in approval["items"])
        return not waiting and not await is_queued(hub, session)

    await until(look)
    return answered_words


async def is_queued(hub: Process, session: str) -> bool:
    """Whether the session's answer is to go on, and has not begun to."""
    response = await hub.http.get(f"/api/sessions/{session}/messages")
    messages = response.json()["messages"] if response.status_code == 200 else []
    metadata = messages[-1].get("metadata") or {} if messages else {}
    return metadata.get("finishReason") == "tool-calls"


def check(seen: Sequence[dict[str, Any]], received: Sequence[dict[str, Any]]) -> None:
    """Everything that the client was told for sure is there, and the message is valid."""
    if not seen:
        return
    assert [message["role"] for message in received] == ["user", "assistant"]
    parts = received[1]["parts"]
    calls = {part["toolCallId"]: part for part in parts if part["type"].startswith("tool-")}
    assert all(part["state"] in FINAL_STATES for part in calls.values())
    assert all(part.get("state") != "streaming" for part in parts)
    for frame in seen:
        if frame["type"] == "tool-output-available":
            assert calls[frame["toolCallId"]]["output"] == frame["output"]
        if frame["type"] == "tool-input-available":
            assert calls[frame["toolCallId"]]["input"] == frame["input"]
        if frame["type"] == "finish":
            texts = [part["text"] for part in parts if part["type"] == "text"]
            assert texts == ["".join(WORDS)] * 3


def check_ends(seen: Sequence[dict[str, Any]], received: Sequence[dict[str, Any]]) -> None:
    """Each block whose end the client was told is there, whole."""
    for kind in ("text", "reasoning"):
        ends = sum(frame["type"] == f"{kind}-end" for frame in seen)
        parts = [
            part["text"] for message in received[1:] for part in message["parts"] if part["type"] == kind
        ]
        assert parts[:ends] == ["".join(WORDS)] * ends


def check_marks(file: Path, received: Sequence[dict[str, Any]], *, answered: set[str]) -> None:
    """No mark was made twice, and each that the record calls done was made, or a person has said so."""
    made = file.read_text().split() if file.exists() else []
    assert len(made) == len(set(made)), f"a finished call ran again: {made}"
    done = [
        call["input"]["calls"][0]["input"]["word"]
        for message in received
        for call in message["parts"]
        if call["type"] == "tool-hub_call" and call["state"] == "output-available"
    ]
    assert set(done) <= set(made) | answered


@pytest.mark.promise("nothing-lost-in-a-crash")
async def test_after_kill_9_at_any_moment_nothing_acknowledged_is_lost_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, STEPS, operations=[str(MARKS)])
    chance = random.Random(7)
    for number in range(KILLS):
        monkeypatch.setenv("MARKS", str(tmp_path / f"marks-{number}"))
        session = f"s{number}"
        seen = await killed_turn(config, tmp_path / "hub", session=session, after=chance.uniform(0, LENGTH))
        async with started(config, tmp_path / "hub") as hub:
            answered = await go_on(hub, session)
            response = await hub.http.get(f"/api/sessions/{session}/messages")
            pending = response.json()["messages"] if response.status_code == 200 else []
            check(seen, pending)
            check_ends(seen, pending)
            check_marks(tmp_path / f"marks-{number}", pending, answered=answered)
            monkeypatch.setenv("MARKS", str(tmp_path / "next"))
            again = await hub.http.post("/api/chat", json=ask("more", session=session))
            assert text_of(frames_in(again.text)).endswith("word7 ")
            assert len(await hub.messages(session)) == len(pending) + 2


@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_an_answer_that_is_closed_after_a_crash_says_what_had_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    calls = [{"tool": "marks.add", "input": {"word": "one"}}, {"tool": "marks.die", "input": {"word": "two"}}]
    steps: list[dict[str, Any]] = [
        {"text": "So.", "tools": [{"name": "hub_call", "input": {"calls": calls}, "id": "c1"}]},
        {"text": "Oh."},
    ]
    agents = {"default": {"after_crash": "close"}}
    config = write_config(tmp_path, steps, operations=[str(MARKS)], agents=agents)
    seen: list[dict[str, Any]] = []
    async with started(config, tmp_path / "hub") as hub:
        await talk(hub, "s", seen)
    assert "tool-output-available" not in [frame["type"] for frame in seen]
    async with started(config, tmp_path / "hub") as hub:
        _, answered = await hub.messages("s")
        _, text, call = answered["parts"]
        assert (text["text"], text["state"]) == ("So.", "done")
        assert (call["toolCallId"], call["state"], call["input"]) == ("c1", "output-error", {"calls": calls})
        _, unknown = call["errorText"].split("not known whether it took effect: ")
        assert "marks.die" in unknown.split(", ")
        assert answered["metadata"]["finishReason"] == "interrupted"
