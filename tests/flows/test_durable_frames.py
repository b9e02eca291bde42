"""What a client is told is in the database: at each frame, not only at the end."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.store.store import DATABASE_FILE
from tests.serving import serving

TOOL = {"name": "confirm", "description": "Ask.", "inputSchema": {"type": "object"}}
AGENTS = {"default": {"client_tools": [TOOL]}}
CALLS = {"tools": [{"name": "confirm", "id": "c1", "input": {"n": 1}}, {"name": "confirm", "id": "c2"}]}

Json = dict[str, Any]


def stored_parts(data: Path) -> list[Json]:
    """The parts of the last message as another process reads them now: what a crash would leave."""
    last = "SELECT id FROM messages ORDER BY position DESC LIMIT 1"
    sql = f"SELECT body FROM parts WHERE message_id = ({last}) ORDER BY position"
    with closing(sqlite3.connect(data / "hub" / DATABASE_FILE)) as raw:
        return [msgspec.json.decode(body) for (body,) in raw.execute(sql)]


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
        create = runs.create

        async def create_and_look(*args: Any, **options: Any) -> None:
            await create(*args, **options)
            at_begin.append(stored_parts(tmp_path))  # a kill between this and the run's first event

        monkeypatch.setattr(runs, "create", create_and_look)
        await hub.post({"id": "s", "messages": [answer], "trigger": "submit-message"})
    [parts] = at_begin
    calls = {part["toolCallId"]: part for part in parts if "toolCallId" in part}
    for id, fields in answers.items():
        assert {name: calls[id].get(name) for name in fields} == fields
