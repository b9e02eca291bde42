"""What a client is told is in the database: at each frame, not only at the end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.databases import query
from tests.serving import Served, ask, serving, text_of
from tests.waiting import until

DEADLINE = 120.0
TOOL = {"name": "confirm", "description": "Ask.", "inputSchema": {"type": "object"}}
AGENTS = {"default": {"client_tools": [TOOL]}}
CALLS = {"tools": [{"name": "confirm", "id": "c1", "input": {"n": 1}}, {"name": "confirm", "id": "c2"}]}

Json = dict[str, Any]


def stored_parts(data: Path) -> list[Json]:
    """The parts of the last message as another process reads them now: what a crash would leave."""
    last = "SELECT id FROM messages ORDER BY position DESC LIMIT 1"
    sql = f"SELECT body FROM parts WHERE message_id = ({last}) ORDER BY position"
    return [msgspec.json.decode(body) for (body,) in query(data / "hub", sql)]


@pytest.mark.parametrize(
    "answers",
    [
        {"c1": {"state": "output-available", "output": {"yes": True}}},
        {"c1": {"state": "output-error", "errorText": "no"}},
        {
            "c1": {"state": "output-available", "output": None},
            "c2": {"state": "output-available", "output": "b" * 10_000},
        },
    ],
)
async def test_the_outputs_of_client_side_tools_are_stored_with_the_begin_of_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Json]
) -> None:
    async with serving(tmp_path, [CALLS, {"text": "Thanks."}], play="turns", agents=AGENTS) as hub:
        await hub.chat()
        [_, answer] = await hub.messages()
        for part in answer["parts"]:
            part.update(answers.get(part.get("toolCallId"), {}))
        runs, at_begin = hub.hub.store.runs, list[list[Json]]()
        submit = runs.submit_create

        def submit_and_look(*args: Any, **options: Any) -> asyncio.Future[None]:
            storing = submit(*args, **options)
            # What a kill between this and the run's first event would leave.
            storing.add_done_callback(lambda _: at_begin.append(stored_parts(tmp_path)))
            return storing

        monkeypatch.setattr(runs, "submit_create", submit_and_look)
        await hub.post({"id": "s", "messages": [answer], "trigger": "submit-message"})
    [parts] = at_begin
    calls = {part["toolCallId"]: part for part in parts if "toolCallId" in part}
    for id, fields in answers.items():
        assert {name: calls[id].get(name) for name in fields} == fields


SCRIPTS: dict[str, list[Json]] = {
    "text": [{"text": ["one ", "two"]}],
    "reasoning": [{"reasoning": ["why ", "so"], "text": ["one ", "two"]}],
    "a call of the front end": [
        {"text": ["one ", "two"], "tools": [{"name": "confirm", "id": "c", "input": {"n": 1}}]}
    ],
    "a call of the hub": [
        {"text": ["one ", "two"], "tools": [{"name": "time_now", "id": "c", "input": {}}]},
        {"text": ["three"]},
    ],
}
ENDS = ("text-end", "reasoning-end", "tool-input-available", "tool-output-available", "finish-step", "finish")


def claimed(frame: Json, parts: list[Json]) -> bool:
    """Whether what a frame says is in the parts."""
    calls = {part.get("toolCallId"): part for part in parts}
    match frame["type"]:
        case "text-end" | "reasoning-end" as kind:
            states = [part["state"] for part in parts if part["type"] == kind.removesuffix("-end")]
            return "done" in states
        case "tool-input-available":
            return bool(calls.get(frame["toolCallId"], {}).get("input") == frame["input"])
        case "tool-output-available":
            return bool(calls.get(frame["toolCallId"], {}).get("output") == frame["output"])
        case "finish":
            return "streaming" not in [part.get("state") for part in parts]
        case _:
            return True


class BlockedWriter:
    """Blocks a hub's database from the commit that begins a run, until it is told to go on."""

    def __init__(self, hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        runs, database = hub.hub.store.runs, hub.hub.store.database
        submit = runs.submit_create

        def submit_and_block(*args: Any, **options: Any) -> asyncio.Future[None]:
            storing = submit(*args, **options)
            storing.add_done_callback(lambda _: database.enqueue(lambda _: self.free.wait(DEADLINE)))
            return storing

        monkeypatch.setattr(runs, "submit_create", submit_and_block)


@pytest.mark.parametrize("script", SCRIPTS)
async def test_what_is_complete_is_reported_once_it_is_stored_and_what_grows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    pinned = ["time.now"] if "hub" in script else []
    async with serving(tmp_path, SCRIPTS[script], agents=AGENTS, pinned=pinned) as hub:
        writer = BlockedWriter(hub, monkeypatch)
        body, seen = ask("go"), list[Json]()
        async with hub.http.stream("POST", "/api/chat", json=body) as response:
            left = ""
            async for piece in response.aiter_text():
                *lines, left = (left + piece).split("\n\n")
                for line in lines:
                    if not line.startswith("data: {"):
                        continue
                    frame = msgspec.json.decode(line[6:])
                    seen.append(frame)
                    assert claimed(frame, stored_parts(tmp_path)), frame
                    if frame.get("delta", "").endswith(("so", "two")) and not writer.free.is_set():
                        await settled(hub)
                        assert not {frame["type"] for frame in seen}.intersection(ENDS)
                        writer.free.set()
        assert seen[-1]["type"] == "finish"
        assert text_of(seen).startswith("one two")


async def settled(hub: Served) -> None:
    """Wait until the run goes on no further: something is held back, for the database is blocked."""
    run = hub.active_run()
    assert run is not None
    await until(lambda: run.tail.is_holding)
    for _ in range(100):
        await asyncio.sleep(0)
