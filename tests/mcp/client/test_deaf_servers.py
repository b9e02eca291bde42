"""Servers that ask for the client's folders and go on without them, and servers that stop reading."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.mcp.client import connection, sdk_filter


async def test_a_call_goes_on_after_its_server_was_refused_the_folders(
    open_hub: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "QUESTION_SECONDS", 0.01)
    async with open_hub(raw("raw", "folders")) as hub:
        await hub.servers.wait_until_started()
        outcome = await hub.call("raw.echo", {"a": 1})
        assert outcome.result == '{"a": 1}', outcome.error


async def test_a_server_that_stops_reading_is_given_up_and_started_again(
    open_hub: Any, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_hub(raw("raw", "deaf")) as hub:
        await hub.servers.wait_until_started()
        monkeypatch.setattr(sdk_filter, "WRITE_SECONDS", 0.2)
        calls = [
            hub.call("raw.hang", {"a": "x" * 1_000_000}) for _ in range(3)
        ]  # read, being written, waiting
        for outcome in await asyncio.gather(*calls):
            assert "was lost during the call" in outcome.error.message
        monkeypatch.undo()
        (again,) = await hub.servers.wait_until_started()
        assert (again.state, again.attempts) == ("ready", 2)
