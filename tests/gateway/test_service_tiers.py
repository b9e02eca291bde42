"""The service tier of a provider's answer, in the words of the client's protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.gateway.metered_hub import Desk, Site, chunked, desk
from tests.providers.servers import ok
from tests.wire import anthropic_streams, openai_streams, responses_streams

JSON = "content-type: application/json"


def answers(family: str, tier: str) -> dict[bool, bytes]:
    """A provider's answer with this tier, as a document and as a stream."""
    match family:
        case "openai":
            frames = [
                openai_streams.chunk({"role": "assistant", "content": "Hi"}, service_tier=tier),
                openai_streams.chunk(finish="stop", service_tier=tier),
            ]
            message = {"role": "assistant", "content": "Hi"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            document: Any = {**openai_streams.HEAD, "service_tier": tier, "choices": [choice]}
            return {False: msgspec.json.encode(document), True: openai_streams.sse(*frames)}
        case "anthropic":
            text = {"type": "text", "text": "Hi"}
            begin = anthropic_streams.start()
            begin["message"]["usage"] |= {"service_tier": tier}
            document = {**begin["message"], "type": "message", "content": [text], "stop_reason": "end_turn"}
            end = [anthropic_streams.stop("end_turn"), anthropic_streams.STOP]
            events = [begin, *anthropic_streams.text(0, "Hi"), *end]
            return {False: msgspec.json.encode(document), True: anthropic_streams.sse(*events)}
        case _:
            item = responses_streams.message("Hi")
            last = responses_streams.ending(item, service_tier=tier)
            parts = [*responses_streams.opening(), *responses_streams.text_events(0, item, "Hi"), last]
            return {False: msgspec.json.encode(last["response"]), True: responses_streams.sse(*parts)}


async def read_tier(at: Desk, door: str, model: str, *, stream: bool) -> Any:
    """The tier that a client of a protocol reads; of a stream, in its last frames."""
    fields: dict[str, Any] = {"model": model, "stream": stream}
    if door == "responses":
        response = await at.http.post("/v1/responses", json={**fields, "input": "hi", "store": False})
    else:
        response = await (at.chat if door == "openai" else at.message)(**fields)
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    found = [msgspec.json.decode(line) for line in lines] if stream else [response.json()]
    match door:
        case "openai":
            return next((each["service_tier"] for each in reversed(found) if "service_tier" in each), None)
        case "anthropic":
            usages = [each.get("message", each).get("usage") or {} for each in reversed(found)]
            return next((usage["service_tier"] for usage in usages if "service_tier" in usage), None)
        case _:
            return found[-1].get("response", found[-1])["service_tier"]


@pytest.mark.parametrize(
    ("family", "tier", "chat", "messages", "responses"),
    [
        ("openai", "priority", "priority", "priority", "priority"),
        ("openai", "default", "default", "standard", "default"),
        ("openai", "flex", "flex", None, "flex"),
        ("anthropic", "standard", "default", "standard", "default"),
        ("anthropic", "priority", "priority", "priority", "priority"),
        ("responses", "flex", "flex", None, "flex"),
        ("responses", "default", "default", "standard", "default"),
    ],
)
async def test_the_service_tier_of_an_answer_is_translated(
    tmp_path: Path, family: str, tier: str, chat: str | None, messages: str | None, responses: str
) -> None:
    bodies = answers(family, tier)
    up = Site(type=family)
    async with desk(tmp_path, up=up) as at:
        for stream in (False, True):
            up.replies(chunked(bodies[True]) if stream else ok(bodies[False], JSON))
            doors = {"openai": chat, "anthropic": messages, "responses": responses}
            assert {door: await read_tier(at, door, "up/m", stream=stream) for door in doors} == doors
