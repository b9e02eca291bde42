"""Answers decoded and encoded again: the SDK reads the same as directly from the provider."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.wire.anthropic.client_request import parse_messages_request
from dragoman.wire.anthropic.encoder import AnthropicStreamEncoder, encode_document
from dragoman.wire.anthropic.encoder_blocks import INVALID_JSON_KEY
from dragoman.wire.anthropic.request import encode_request
from tests.wire import anthropic_streams, openai_streams
from tests.wire.anthropic_bodies import claude_code
from tests.wire.anthropic_clients import created, streamed

TRIPPED = ("gateway", "unnamed")  # streams that the SDK itself does not read
UNTOLD = ("caller", "server_tool_use", "stop_details")  # what the events do not hold, or the SDK fills in

WHOLE = [
    name
    for name in openai_streams.NAMES
    if not openai_streams.decode([openai_streams.recording(name)]).failure
]


def sdk_message(events: list[e.Event], direct: dict[str, Any]) -> dict[str, Any]:
    """The message that the SDK accumulates from these events."""
    stream = AnthropicStreamEncoder(id=direct["id"], model=direct["model"], input_tokens=None)
    return streamed(b"".join([*(stream.encode([event]) for event in events), stream.end()]))


def without(value: Any, *names: str) -> Any:
    """The value without the fields of these names."""
    if isinstance(value, dict):
        return {name: without(item, *names) for name, item in value.items() if name not in names}
    return [without(item, *names) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", sorted({*anthropic_streams.STREAMS} - {*TRIPPED}))
def test_anthropics_own_streams_are_encoded_as_they_were_received(name: str) -> None:
    raw = anthropic_streams.STREAMS[name]
    answer = anthropic_streams.decode([raw])
    direct = streamed(raw)
    message = sdk_message(answer.events, direct)
    assert answer.failure is None
    assert without(message, *UNTOLD) == without(direct, *UNTOLD)
    if name != "length":  # a call that was cut off: a stream has the half, a whole message its text
        assert created(encode_document(answer.events, id=direct["id"], model=direct["model"])) == message


@pytest.mark.parametrize("name", WHOLE)
def test_answers_of_other_families_reach_the_sdk_completely(name: str) -> None:
    answer = openai_streams.decode([openai_streams.recording(name)])
    message = sdk_message(answer.events, {"id": "msg_1", "model": "m"})
    text = "".join(event.delta for event in answer.events if isinstance(event, e.TextDelta))
    thought = "".join(event.delta for event in answer.events if isinstance(event, e.ReasoningDelta))
    inputs = {
        event.tool_call_id: event.input if isinstance(event.input, dict) else {INVALID_JSON_KEY: event.input}
        for event in answer.events
        if isinstance(event, e.ToolInputAvailable)
    }
    blocks = message["content"]
    assert "".join(block["text"] for block in blocks if block["type"] == "text") == text
    assert "".join(block["thinking"] for block in blocks if block["type"] == "thinking") == thought
    calls = {block["id"]: block["input"] for block in blocks if block["type"] == "tool_use"}
    assert {id: calls[id] for id in inputs} == inputs


def test_a_turn_of_claude_code_is_sent_to_anthropic_unchanged_with_results_in_call_order() -> None:
    body = claude_code()
    del body["temperature"], body["stream"]  # one that this model refuses, and one that the provider decides
    results = body["messages"][2]["content"]
    results[0], results[1] = results[1], results[0]
    del body["messages"][4]["content"][0]["content"]
    request = parse_messages_request(msgspec.json.encode(claude_code())).request
    again = msgspec.json.decode(encode_request(request, provider="claude"))
    assert without(again, "stream") == body
