"""Runs that wait for an approval survive `kill -9` and resume once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from tests.cli.program import run as program
from tests.databases import process_environment
from tests.effort import PROFILE
from tests.faults.process import Process, started, write_config
from tests.faults.subagent_approvals import ASK, BATCH, BOSS, CLERK, MARKS, WAYS, configure
from tests.serving import ask, frames_in, text_of
from tests.waiting import poll


async def read_text(hub: Process) -> list[dict[str, Any]]:
    """The frames of a first turn."""
    response = await hub.http.post("/api/chat", json=ask("paint it"))
    return frames_in(response.text)


async def waiting(hub: Process) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
    return found


async def ended(hub: Process) -> dict[str, Any]:
    """The answer, once the run has gone on to its end."""

    async def look() -> dict[str, Any] | None:
        *_, answer = await hub.messages("s")
        is_whole = answer["parts"][-1].get("text") == "All done."
        return answer if is_whole and answer["metadata"]["finishReason"] == "stop" else None

    return await poll(look)


async def next_question(hub: Process, before: set[str]) -> str:
    """The id of the next thing that is asked."""

    async def look() -> list[str]:
        return [each["id"] for each in await waiting(hub) if each["id"] not in before]

    [id] = await poll(look)
    return id


def reply(folder: Path, id: str, word: str = "answer", *more: str) -> None:
    env = process_environment(folder / "hub", {})
    done = program("approvals", word, id, *more, "--data", folder / "hub", env=env)
    assert done.code == 0, done.err


async def settled(hub: Process) -> None:
    """No call, and no approval, is left as if it still waited."""
    calls = (await hub.http.get("/api/calls?limit=200")).json()["calls"]
    assert {call["name"]: call["status"] for call in calls if call["status"] in ("pending", "running")} == {}
    assert await waiting(hub) == []


def turns(ways: Iterable[str]) -> list[Any]:
    """Each way while the hub is up or down, in turn; in `make soak`, each way both times."""
    return [
        pytest.param(way, up, id=f"{way}, {'up' if up else 'down'}")
        for number, way in enumerate(ways)
        for up in (False, True)
        if PROFILE == "thorough" or up == bool(number % 2)
    ]


@pytest.mark.promise("waiting-goes-on-where-it-was")
@pytest.mark.parametrize(("way", "up"), turns(WAYS))
async def test_a_run_that_waits_survives_kill_9_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, *, up: bool
) -> None:
    lead, marks, questions = WAYS[way]
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    config, question_ids = configure(tmp_path, lead), set[str]()
    answer: dict[str, Any] = {}
    messages: list[dict[str, Any]] = []
    async with started(config, tmp_path / "hub") as hub:
        frames = await read_text(hub)
        assert [frame["data"]["status"] for frame in frames if frame["type"] == "data-question"] == [
            "pending"
        ]
        [first] = await waiting(hub)
        id = first["id"]
    for left in range(questions, 0, -1):
        question_ids.add(id)
        if not up:
            reply(tmp_path, id, "answer", "blue")
        async with started(config, tmp_path / "hub") as hub:
            if up:
                assert [each["id"] for each in await waiting(hub)] == [id]
                reply(tmp_path, id, "answer", "blue")
            if left > 1:
                id = await next_question(hub, question_ids)
                continue
            answer = await ended(hub)
            await settled(hub)
            messages = (await hub.http.get("/api/approvals")).json()["approvals"]
    assert [(each["status"], each["answer"]) for each in messages] == [("used", "blue")] * questions
    shown = {part["data"]["answer"] for part in answer["parts"] if part["type"] == "data-question"}
    assert shown == {"blue"}
    made = (tmp_path / "marks").read_text().split() if marks else []
    assert sorted(made) == sorted(marks), "nothing is done twice, and nothing left out"


SLOW = [{"ask": "marks.wipe", "expires": 0.5}, {"ask": "user.question", "expires": 0.5}]
WIPE: tuple[str, Any] = ("marks_wipe", {})
LATE = {
    "a question": (ASK, ASK),
    "an agent's": (CLERK, WIPE),
    "an agent's agent's": (BOSS, ASK),
    "two agents' in a batch": (BATCH, WIPE),
}


@pytest.mark.promise("late-is-told-once")
@pytest.mark.parametrize(("who", "down"), turns(LATE))
async def test_what_nobody_answers_in_time_is_reported_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, *, down: bool
) -> None:
    lead, asks = LATE[who]
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    config = configure(tmp_path, lead, asks=asks, policy=SLOW)
    async with started(config, tmp_path / "hub") as hub:
        await read_text(hub)
        if not down:
            await over(hub, tmp_path)
    if down:
        async with started(config, tmp_path / "hub") as hub:
            await over(hub, tmp_path)


async def over(hub: Process, folder: Path) -> None:
    answer = await ended(hub)
    await settled(hub)
    made = (folder / "marks").read_text() if (folder / "marks").exists() else ""
    assert "wiped" not in made
    assert made.count("boss") <= 1
    messages = [part for part in answer["parts"] if part["type"] == "data-question"]
    assert {part["data"]["status"] for part in messages} <= {"declined"}
    assert {part["data"]["reason"] for part in messages} <= {"nobody answered in time"}


async def test_an_agent_that_is_denied_in_the_middle_of_its_run_goes_on_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    config = configure(tmp_path, BOSS, asks=WIPE)
    async with started(config, tmp_path / "hub") as hub:
        frames = await read_text(hub)
        [first] = await waiting(hub)
        assert first["items"][0]["agent"] == "clerk"
        assert "state" not in msgspec.json.encode(first).decode()
        assert text_of(frames) == ""
    reply(tmp_path, first["id"], "deny", "--reason", "not today")
    async with started(config, tmp_path / "hub") as hub:
        await ended(hub)
        await settled(hub)
        calls = (await hub.http.get("/api/calls?limit=200")).json()["calls"]
        statuses = {call["name"]: call["status"] for call in calls}
    assert statuses == {
        "agents.boss": "done",
        "agents.clerk": "done",
        "marks.wipe": "denied",
        "marks.add": "done",
    }
    assert (tmp_path / "marks").read_text().split() == ["boss", "before", "after"]


async def test_a_question_beside_a_call_that_took_the_hub_down_can_still_be_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    is_stored = tmp_path / "stored"
    dying = {"name": "marks_die", "input": {"word": "died", "once": str(is_stored)}}
    both = [{"name": ASK[0], "input": ASK[1]}, dying]
    steps: list[dict[str, Any]] = [{"tools": both}, {"text": "All done."}]
    pinned = ["user.question", "marks.die"]
    config = write_config(tmp_path, steps, operations=[str(MARKS)], pinned=pinned)
    async with started(config, tmp_path / "hub") as hub:
        reading = asyncio.create_task(read_text(hub))
        await poll(lambda: waiting(hub))  # the question is stored
        is_stored.touch()
        with pytest.raises(httpx2.HTTPError):
            await reading
    async with started(config, tmp_path / "hub") as hub:
        await hub.http.get("/api/chat/s/stream")  # until the run waits
        requests = {each["operation"]: each for each in await waiting(hub)}
        assert requests["user.question"]["question"]["text"] == "Which colour?"
        reply(tmp_path, requests["user.question"]["id"], "answer", "blue")
        reply(tmp_path, requests["marks.die"]["id"], "answer", "not done")
        answer = await ended(hub)
        await settled(hub)
    states = {part["type"]: part["state"] for part in answer["parts"] if "state" in part}
    assert (states["tool-user_question"], states["tool-marks_die"]) == ("output-available", "output-error")
    assert (tmp_path / "marks").read_text().split() == ["died"]
