"""Reasoning in a client's chat.completions request, in each field that clients send it in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.messages import ReasoningPart, TextPart, ToolPart
from dragoman.wire.openai.client_request import parse_chat_completions_request
from dragoman.wire.openai.encoder import encode_document

SIGNED = {"type": "reasoning.text", "text": "Hm", "signature": "sig", "format": "anthropic-claude-v1"}
SEALED = {"type": "reasoning.encrypted", "data": "blob", "format": "anthropic-claude-v1"}
OTHER = {"type": "reasoning.summary", "summary": "So", "format": "openai-responses-v1", "id": "rs_1"}


def test_thinking_in_the_content_of_a_mistral_message_is_reasoning() -> None:
    thinking = [{"type": "text", "text": "Let me "}, {"type": "text", "text": "see."}]
    content = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": "Noon."}]
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    parsed = parse_chat_completions_request(msgspec.json.encode({"model": "p/m", "messages": turns}))
    assert parsed.request.messages[1].parts == (ReasoningPart("Let me see."), TextPart("Noon."))
    assert parsed.ignored_fields == ()


@pytest.mark.parametrize(
    ("fields", "thoughts"),
    [
        ({"reasoning_content": "Hm"}, [ReasoningPart("Hm")]),
        ({"reasoning": "Hm", "reasoning_content": None}, [ReasoningPart("Hm")]),
        (
            {"reasoning_content": "Hm", "reasoning_details": [SIGNED, SEALED]},
            [
                ReasoningPart("Hm", provider_metadata={"anthropic": {"signature": "sig"}}),
                ReasoningPart("", provider_metadata={"anthropic": {"redactedData": "blob"}}),
            ],
        ),
        (
            {"reasoning_details": [{**SIGNED, "provider": "a"}, {**SEALED, "provider": "a", "format": None}]},
            [
                ReasoningPart("Hm", provider_metadata={"anthropic": {"signature": "sig", "provider": "a"}}),
                ReasoningPart("", provider_metadata={"anthropic": {"redactedData": "blob", "provider": "a"}}),
            ],
        ),
        (  # the pieces of a stream, as a client has heard them
            {
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "H", "index": 0},
                    {"type": "reasoning.text", "text": "m", "index": 0},
                    {"type": "reasoning.text", "signature": "sig", "index": 0},
                    {"type": "reasoning.text", "text": "Ah", "signature": "sig2", "index": 1},
                ]
            },
            [
                ReasoningPart("Hm", provider_metadata={"anthropic": {"signature": "sig"}}),
                ReasoningPart("Ah", provider_metadata={"anthropic": {"signature": "sig2"}}),
            ],
        ),
        (  # whole blocks without numbers stay apart
            {"reasoning_details": [{"type": "reasoning.text", "text": "a"}, SIGNED, SIGNED]},
            [
                ReasoningPart("a"),
                ReasoningPart("Hm", provider_metadata={"anthropic": {"signature": "sig"}}),
                ReasoningPart("Hm", provider_metadata={"anthropic": {"signature": "sig"}}),
            ],
        ),
        (
            {
                "reasoning": "Hm",
                "reasoning_details": [SEALED, {"type": "reasoning.text", "signature": "sig"}],
            },
            [
                ReasoningPart("", provider_metadata={"anthropic": {"redactedData": "blob"}}),
                ReasoningPart("Hm", provider_metadata={"anthropic": {"signature": "sig"}}),
            ],
        ),
        (
            {"reasoning": "Hm", "reasoning_details": [SEALED]},
            [
                ReasoningPart("Hm"),
                ReasoningPart("", provider_metadata={"anthropic": {"redactedData": "blob"}}),
            ],
        ),
        (
            {"reasoning": "So", "reasoning_details": [OTHER]},
            [ReasoningPart("So", provider_metadata={"openai": {"reasoning_details": [OTHER]}})],
        ),
        (
            {
                "thinking_blocks": [
                    {"type": "thinking", "thinking": "Hm", "signature": "sig"},
                    {"type": "redacted_thinking", "data": "blob"},
                ]
            },
            [
                ReasoningPart("Hm", provider_metadata={"anthropic": {"signature": "sig"}}),
                ReasoningPart("", provider_metadata={"anthropic": {"redactedData": "blob"}}),
            ],
        ),
        (
            {"reasoning_opaque": "blob"},
            [ReasoningPart("", provider_metadata={"openai": {"reasoning_opaque": "blob"}})],
        ),
    ],
)
def test_reasoning_is_parsed_before_the_text(fields: dict[str, Any], thoughts: list[ReasoningPart]) -> None:
    message = {"role": "assistant", "content": "x", **fields}
    request = parse_chat_completions_request(
        msgspec.json.encode({"model": "m", "messages": [message]})
    ).request
    assert list(request.messages[0].parts) == [*thoughts, TextPart("x")]


def test_reasoning_that_the_hub_encoded_is_parsed_back_unchanged() -> None:
    signed = {"anthropic": {"signature": "sig", "provider": "claude"}}
    sealed = {"anthropic": {"redactedData": "blob", "provider": "claude"}}
    other = {"openai": {"reasoning_details": [{**OTHER, "index": 2}]}}
    events: list[e.Event] = [
        e.ReasoningStart("r1"),
        e.ReasoningDelta("r1", "Hm"),
        e.ReasoningEnd("r1", signed),
        e.ReasoningStart("r2"),
        e.ReasoningEnd("r2", sealed),
        e.ReasoningStart("r3"),
        e.ReasoningDelta("r3", "So"),
        e.ReasoningEnd("r3", other),
        e.TextStart("t"),
        e.TextDelta("t", "I look."),
        e.TextEnd("t"),
        e.ToolInputAvailable("c1", "f", {"x": 1}),
        e.FinishStep("tool-calls"),
    ]
    answer = msgspec.json.decode(encode_document(events, id="chatcmpl-1", model="m", created=5))
    history = [answer["choices"][0]["message"], {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
    parsed = parse_chat_completions_request(msgspec.json.encode({"model": "m", "messages": history}))
    assert parsed.ignored_fields == ()
    assert parsed.request.messages[0].parts == (
        ReasoningPart("Hm", provider_metadata=signed),
        ReasoningPart("", provider_metadata=sealed),
        ReasoningPart("So", provider_metadata=other),
        TextPart("I look."),
        ToolPart("tool-f", "c1", "output-available", input={"x": 1}, output="sunny"),
    )
