"""Half an emoji in a provider's frame, wherever it stands: joined with its other half, or U+FFFD."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.messages import Message, TextPart
from dragoman.model_request import ModelRequest
from dragoman.wire.anthropic.request import encode_request as encode_anthropic
from dragoman.wire.claude_code.decoder import ClaudeCodeDecoder
from dragoman.wire.json_codec import parse_lenient_json
from dragoman.wire.ollama.request import encode_request as encode_ollama
from dragoman.wire.openai.request import encode_request as encode_openai

from . import anthropic_streams, ollama_streams, openai_streams

EMOJI = "\U0001f600"
CASES = {
    "a pair in one frame": (["a\ud83d\ude00b"], f"a{EMOJI}b"),
    "a pair cut in two frames": (["a\ud83d", "\ude00b"], f"a{EMOJI}b"),
    "a lone first half": (["a\ud83d", "b"], "a\ufffdb"),
    "a lone second half": (["a", "\ude00b"], "a\ufffdb"),
    "a half at the end": (["a\ud83d"], "a\ufffd"),
}
each_case = pytest.mark.parametrize("case", CASES)


def as_frames(values: Iterable[Any]) -> list[bytes]:
    """Frames with escapes for what is not ASCII, as JavaScript and Python write halves."""
    return [b"data: " + json.dumps(value).encode() + b"\n\n" for value in values]


def openai_text(pieces: list[str]) -> list[e.Event]:
    chunks = [openai_streams.chunk({"content": piece}) for piece in pieces]
    return openai_streams.decode(as_frames([*chunks, openai_streams.chunk(finish="stop")])).events


def openai_call(pieces: list[str]) -> list[e.Event]:
    calls: list[dict[str, Any]] = [{"id": "c", "function": {"name": "f"}}]
    calls += [{"function": {"arguments": piece}} for piece in pieces]
    chunks = [openai_streams.chunk({"tool_calls": [{"index": 0, **call}]}) for call in calls]
    return openai_streams.decode(as_frames([*chunks, openai_streams.chunk(finish="tool_calls")])).events


def anthropic(*events: Any) -> list[e.Event]:
    whole = [anthropic_streams.start(), *events, anthropic_streams.stop("end_turn"), anthropic_streams.STOP]
    return anthropic_streams.decode(as_frames(whole)).events


def anthropic_text(pieces: list[str]) -> list[e.Event]:
    return anthropic(*anthropic_streams.text(0, *pieces))


def anthropic_call(pieces: list[str]) -> list[e.Event]:
    return anthropic(*anthropic_streams.call(0, "c", "f", *pieces))


def ollama_text(pieces: list[str]) -> list[e.Event]:
    lines = [*map(ollama_streams.line, pieces), ollama_streams.last()]
    return ollama_streams.decode(json.dumps(each).encode() + b"\n" for each in lines).events


def claude_code(content: Callable[..., list[dict[str, Any]]], pieces: list[str]) -> list[e.Event]:
    decoder = ClaudeCodeDecoder(provider="cc", model="m")
    events = [anthropic_streams.start(), *content(0, *pieces)]
    lines = [{"type": "stream_event", "session_id": "s\ud83d", "event": event} for event in events]
    decoded = [event for each in lines for event in decoder.feed(json.dumps(each).encode())]
    assert decoder.session_id == "s\ufffd"
    return decoded


def claude_code_text(pieces: list[str]) -> list[e.Event]:
    return claude_code(anthropic_streams.text, pieces)


def claude_code_call(pieces: list[str]) -> list[e.Event]:
    return claude_code(lambda index, *reads: anthropic_streams.call(index, "c", "f", *reads), pieces)


@each_case
@pytest.mark.parametrize("decode", [openai_text, anthropic_text, ollama_text, claude_code_text])
def test_text_is_well_formed(decode: Callable[[list[str]], list[e.Event]], case: str) -> None:
    pieces, text = CASES[case]
    events = decode(pieces)
    msgspec.json.encode(events)
    assert "".join(event.delta for event in events if isinstance(event, e.TextDelta)) == text


@each_case
@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize("decode", [openai_call, anthropic_call, claude_code_call])
def test_arguments_are_well_formed(
    decode: Callable[[list[str]], list[e.Event]], case: str, escaped: bool
) -> None:
    pieces, text = CASES[case]
    written = [json.dumps(piece)[1:-1] for piece in pieces] if escaped else pieces
    events = decode(['{"q":"', *written, '"}'])
    msgspec.json.encode(events)
    assert [event.input for event in events if isinstance(event, e.ToolInputAvailable)] == [{"q": text}]


@pytest.mark.parametrize("case", [name for name, (pieces, _) in CASES.items() if len(pieces) == 1])
def test_arguments_that_are_an_object_are_well_formed(case: str) -> None:
    [piece], text = CASES[case]
    value = {"q": piece, piece: [piece]}
    call = {"id": "c", "function": {"name": "f", "arguments": value}}
    streams = [
        ollama_streams.decode(
            json.dumps(each).encode() + b"\n"
            for each in (ollama_streams.line(tool_calls=[call]), ollama_streams.last())
        ).events,
        openai_streams.decode(
            as_frames(
                [openai_streams.chunk({"tool_calls": [call]}), openai_streams.chunk(finish="tool_calls")]
            )
        ).events,
        anthropic(*anthropic_streams.block(0, {"type": "tool_use", "id": "c", "name": "f", "input": value})),
    ]
    for events in streams:
        msgspec.json.encode(events)
        inputs = [event.input for event in events if isinstance(event, e.ToolInputAvailable)]
        assert inputs == [{"q": text, text: [text]}]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_arguments_that_are_not_a_number_are_an_error(number: float) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": {"x": number}}}
    block = {"type": "tool_use", "id": "c", "name": "f", "input": {"x": number}}
    streams = [
        ollama_streams.decode(
            json.dumps(each).encode() + b"\n"
            for each in (ollama_streams.line(tool_calls=[call]), ollama_streams.last())
        ).events,
        anthropic(*anthropic_streams.block(0, block)),
        openai_call(['{"x":', json.dumps(number), "}"]),
        openai_call(['{"x":1e999}']),
    ]
    for events in streams:
        [error] = [event for event in events if isinstance(event, e.ToolInputError)]
        assert "the arguments are not valid JSON" in error.error_text


def test_integers_beyond_64_bits_reach_the_tool_as_they_are() -> None:
    events = openai_call(['{"x":123456789012345678901234567890}'])
    inputs = [event.input for event in events if isinstance(event, e.ToolInputAvailable)]
    assert inputs == [{"x": 123456789012345678901234567890}]


@pytest.mark.parametrize("encode", [encode_openai, encode_anthropic, encode_ollama])
def test_a_request_with_half_an_emoji_can_be_sent(encode: Callable[[ModelRequest], bytes]) -> None:
    message = Message("u", "user", (TextPart("cut \ud83d"),))
    body = encode(ModelRequest(model="m", messages=(message,), instructions="\ude00"))
    assert b"cut \xef\xbf\xbd" in body


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_have_is_left_out_of_opaque_reasoning(number: str) -> None:
    entry = {"type": "reasoning.encrypted", "data": "x", "weight": "?", "list": [1.5, "?"], "in": {"a": "?"}}
    chunks = [openai_streams.chunk({"reasoning_details": [entry]}), openai_streams.chunk(finish="stop")]
    frames = [frame.replace(b'"?"', number.encode()) for frame in as_frames(chunks)]
    (metadata,) = [
        event.provider_metadata
        for event in openai_streams.decode(frames).events
        if isinstance(event, e.ReasoningEnd)
    ]
    expected = {"type": "reasoning.encrypted", "data": "x", "list": [1.5], "in": {}}
    assert metadata == {"openai": {"reasoning_details": [expected]}}


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_a_number_that_json_does_not_have_is_left_out_of_an_opaque_block(number: str) -> None:
    block = {"type": "server_tool_use", "id": "s", "name": "search", "input": {}, "weight": "?"}
    blocks = [
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_stop", "index": 0},
    ]
    whole = [anthropic_streams.start(), *blocks, anthropic_streams.stop("end_turn"), anthropic_streams.STOP]
    frames = [frame.replace(b'"?"', number.encode()) for frame in as_frames(whole)]
    events = anthropic_streams.decode(frames).events
    (metadata,) = [event.provider_metadata for event in events if isinstance(event, e.ToolInputAvailable)]
    assert metadata == {"anthropic": {"block": {key: block[key] for key in ("type", "id", "name", "input")}}}


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00"])
def test_what_is_parsed_leniently_has_no_halves_but_in_frames_whose_other_half_may_follow(half: str) -> None:
    payload = b'{"a\\ud83d": ["%s", NaN, "b"]}' % half.encode()
    value = parse_lenient_json(payload)
    assert json.dumps(value) == '{"a\\ufffd": ["\\ufffd", NaN, "b"]}'
    assert json.dumps(parse_lenient_json(payload, keeps_halves=True)) == payload.decode()
