"""The database is down while a response is made in the background: its events and its end are in it later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import Unavailable
from dragoman.server.gateway.responses import background
from dragoman.store import sqlite
from tests.faults.test_usage_database_down import busy
from tests.gateway.metered_hub import Site, desk, tokens
from tests.gateway.test_conversations import new_conversation, texts
from tests.gateway.test_responses import ask, events_in
from tests.gateway.test_responses_background import until_ended
from tests.waiting import poll, until

pytestmark = pytest.mark.sqlite_file  # the file itself is locked


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_events_and_the_end_that_came_while_the_database_was_down_are_stored_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(background, "WRITE_INTERVAL", 0.05)
    begun, released, has_tried = asyncio.Event(), asyncio.Event(), asyncio.Event()
    finish = background.BackgroundWriter.finish

    async def finish_seen(self: background.BackgroundWriter) -> None:
        has_tried.set()
        await finish(self)

    monkeypatch.setattr(background.BackgroundWriter, "finish", finish_seen)

    async def answer(peer: Any, _: Any) -> None:
        begun.set()
        await released.wait()
        await peer.send(tokens("one ", "two ", "three"))

    async with desk(tmp_path, up=Site(answer)) as at:
        body = {"model": "up/m", "input": "a", "background": True, "stream": True}
        async with at.http.stream("POST", "/v1/responses", json=body) as stream:
            line = await anext(line async for line in stream.aiter_lines() if "resp_" in line)
        id = line.split('"id":"')[1].split('"')[0]
        await begun.wait()
        with busy(tmp_path):
            released.set()
            await has_tried.wait()
            await until(lambda: not at.hub.store.database.is_up)
        ended = await until_ended(at, id)
        assert (ended["status"], ended["output"][0]["content"][0]["text"]) == ("completed", "one two three")
        query = {"stream": "true", "starting_after": "-1"}
        events = events_in((await at.http.get(f"/v1/responses/{id}", params=query)).content)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "one two three"
        assert events[-1]["type"] == "response.completed"


async def test_what_is_stored_again_and_again_has_its_conversation_too_and_is_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WRITE_INTERVAL", 0.05)
    refused, accepts = asyncio.Event(), asyncio.Event()
    async with desk(tmp_path, up=Site(tokens("one"))) as at:
        append = at.hub.store.conversations.append

        async def refuse_at_first(*values: Any, **names: Any) -> None:
            refused.set()
            if not accepts.is_set():
                raise Unavailable("the database does not take it")
            await append(*values, **names)

        monkeypatch.setattr(at.hub.store.conversations, "append", refuse_at_first)
        conversation = await new_conversation(at)
        begun = (await ask(at, input="a", background=True, conversation=conversation)).json()

        async def cancel_requested() -> bool | None:
            response = await at.hub.store.responses.get(begun["id"], owner="local")
            return response.cancel_requested or None

        await refused.wait()
        cancelling = asyncio.ensure_future(at.http.post(f"/v1/responses/{begun['id']}/cancel"))
        await poll(cancel_requested)
        accepts.set()
        assert (await cancelling).json()["status"] == "completed"
        assert await texts(at, conversation) == ["a", "one"]
