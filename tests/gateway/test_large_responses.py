"""The last events of a long response repeat all of its text: they hold no event loop, and none is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.wire.sse import NamedFrame, SSEParser
from tests.effort import rows
from tests.gateway.test_large_answers import MOST, TEXTS, hub_client, measure, openai_stream

SIZE = 3_000_000  # characters
CASES: dict[str, dict[str, Any]] = {
    "model": {"model": "openai/m"},
    "agent": {"model": "agent/default"},
    "background": {"model": "openai/m", "background": True},
}


@pytest.mark.parametrize("kind", rows(sorted(TEXTS), quick=3))
async def test_the_end_of_a_long_response_does_not_hold_the_event_loop(tmp_path: Path, kind: str) -> None:
    lags: dict[str, float] = {}
    text = TEXTS[kind](SIZE)
    async with hub_client(tmp_path) as (client, upstream):
        upstream.body = openai_stream(text)
        for name, fields in CASES.items():
            body = msgspec.json.encode({"input": "a", "stream": True, **fields})
            status, answer, lags[name] = await measure(client, "/v1/responses", body)
            assert status == 200
            events = read_events(answer)
            numbers = [event["sequence_number"] for event in events]
            assert numbers == list(range(len(events)))
            last = events[-1]["response"]
            assert (events[-1]["type"], last["output"][0]["content"][0]["text"]) == (
                "response.completed",
                text,
            )
            deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
            assert "".join(deltas) == text
            _, stored = await client.get(f"/v1/responses/{last['id']}")
            assert msgspec.json.decode(stored)["output"] == last["output"]
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


@pytest.mark.thorough
async def test_a_response_with_an_event_that_is_too_long_to_be_stored_is_sent(tmp_path: Path) -> None:
    text = TEXTS["escapes"](17_000_000)
    async with hub_client(tmp_path) as (client, upstream):
        upstream.body = openai_stream(text)
        body = msgspec.json.encode({"input": "a", "stream": True, "model": "openai/m"})
        _, answer = await client.post("/v1/responses", body)
        last = read_events(answer)[-1]
        assert last["response"]["output"][0]["content"][0]["text"] == text
        status, _ = await client.get(f"/v1/responses/{last['response']['id']}")
        assert status == 404


def read_events(stream: bytes) -> list[dict[str, Any]]:
    frames = SSEParser(limit=100_000_000).feed(stream)
    return [msgspec.json.decode(frame) for frame in frames if isinstance(frame, NamedFrame)]
