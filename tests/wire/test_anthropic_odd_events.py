"""Odd events of servers that speak Anthropic's protocol: its SDK's accumulator reads the relayed stream."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from anthropic._models import construct_type
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent

from dragoman.wire.anthropic.tap import AnthropicTap

from .test_openai_tap import frames

Event = tuple[str | None, Any]
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
END = {"stop_reason": "end_turn", "stop_sequence": None}


def event(name: str, **fields: Any) -> Event:
    return name, {"type": name, **fields}


def start(*without: str, **fields: Any) -> Event:
    message = {name: value for name, value in {**MESSAGE, **fields}.items() if name not in without}
    return event("message_start", message=message)


def block(*, number: Any = 0, **content: Any) -> Event:
    return event("content_block_start", index=number, content_block={"type": "text", "text": "", **content})


def say(text: Any, *, number: Any = 0, **fields: Any) -> Event:
    return event("content_block_delta", index=number, delta={"type": "text_delta", "text": text, **fields})


def end(**fields: Any) -> Event:
    return event("message_delta", **{"delta": END, "usage": {"output_tokens": 5}, **fields})


CLOSE, STOP = event("content_block_stop", index=0), event("message_stop")
REGULAR = [start(), block(), say("Hel"), say("lo"), CLOSE, end(), STOP]


def instead(place: int, *events: Event) -> list[Event]:
    return [*REGULAR[:place], *events, *REGULAR[place + 1 :]]


def beside(place: int, *events: Event) -> list[Event]:
    return [*REGULAR[:place], *events, *REGULAR[place:]]


def numbered(number: Any) -> list[Event]:
    closing = event("content_block_stop", index=number)
    return [
        start(),
        block(number=number),
        say("Hel", number=number),
        say("lo", number=number),
        closing,
        end(),
        STOP,
    ]


NO_INDEX = [
    (name, {key: value for key, value in fields.items() if key != "index"}) for name, fields in REGULAR
]
ODD: dict[str, list[Event]] = {  # each says "Hello"
    **{f"start without {name}": instead(0, start(name)) for name in MESSAGE},
    **{f"start with {name} null": instead(0, start(**{name: None})) for name in ("content", "usage", "id")},
    "start with content text": instead(0, start(content="")),
    "start without message": instead(0, event("message_start")),
    "no start": REGULAR[1:],
    "no start and no block": REGULAR[2:],
    "no block": instead(1),
    "block null": instead(1, event("content_block_start", index=0, content_block=None)),
    "block missing": instead(1, event("content_block_start", index=0)),
    "block without text": instead(1, event("content_block_start", index=0, content_block={"type": "text"})),
    "block text null": instead(1, block(text=None)),
    "block without type": instead(1, event("content_block_start", index=0, content_block={"text": ""})),
    "block twice": beside(2, block()),
    "no indexes": NO_INDEX,
    **{f"index {number!r}": numbered(number) for number in (1, 7, "0", "3", None)},
    "delta without index": instead(
        2, event("content_block_delta", delta={"type": "text_delta", "text": "Hel"})
    ),
    "delta null": beside(3, event("content_block_delta", index=0, delta=None)),
    "delta missing": beside(3, event("content_block_delta", index=0)),
    "delta text null": beside(3, say(None)),
    "delta text number": beside(3, say(7)),
    "delta without type": instead(2, event("content_block_delta", index=0, delta={"text": "Hel"})),
    "delta unknown": beside(3, event("content_block_delta", index=0, delta={"type": "x_delta", "x": 1})),
    "stop missing": instead(4),
    "stop without index": instead(4, event("content_block_stop")),
    "stop twice": beside(5, CLOSE),
    "end without usage": instead(5, event("message_delta", delta={**END, "usage": {"output_tokens": 5}})),
    "end usage null": instead(
        5, end(usage=None), event("message_delta", delta={}, usage={"output_tokens": 5})
    ),
    "end twice": beside(6, end()),
    "usage after the end": beside(6, event("message_delta", usage={"output_tokens": 5})),
    "delta null after the end": beside(6, end(delta=None)),
    "no reason after the end": beside(6, end(delta={"stop_reason": None, "stop_sequence": None})),
    "end before the end": beside(2, end(delta={"stop_reason": None}, usage={"output_tokens": 1})),
    "unknown event": beside(3, event("vendor_event", x=1)),
    "heartbeat text": beside(3, ("heartbeat", b"alive")),
    "heartbeat list": beside(3, ("heartbeat", [1])),
    "heartbeat null": beside(3, ("heartbeat", None)),
    "null": beside(3, (None, None)),
    "done": beside(3, ("data", b"[DONE]")),
}


def encode(events: list[Event]) -> bytes:
    raw = b""
    for name, data in events:
        raw += f"event: {name}\n".encode() if name else b""
        raw += b"data: " + (data if isinstance(data, bytes) else msgspec.json.encode(data)) + b"\n\n"
    return raw


def relay(raw: bytes) -> bytes:
    """What a relay passes on: the same at once and byte by byte."""
    whole, single = AnthropicTap(), AnthropicTap()
    output = whole.feed(raw) + whole.close()
    assert output == b"".join(single.feed(raw[at : at + 1]) for at in range(len(raw))) + single.close()
    assert (whole.failure, single.failure) == (None, None)
    return output


def accumulate(raw: bytes) -> Any:
    """The message that the `.stream()` helper of Anthropic's library makes of a stream."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for name, data in frames(raw):
        if name not in (None, "ping") and data:
            made: Any = construct_type(value=json.loads(data), type_=RawMessageStreamEvent)
            snapshot = accumulate_event(event=made, current_snapshot=snapshot, json_bufs=buffers)
    return snapshot


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD)
def test_the_accumulator_reads_the_message_around_odd_events(name: str) -> None:
    message = accumulate(relay(encode(ODD[name])))
    assert [part.text for part in message.content] == ["Hello"]
    assert (message.role, message.stop_reason, message.usage.output_tokens) == ("assistant", "end_turn", 5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("input", [{}, "", None])
def test_thinking_and_calls_are_read_whatever_their_blocks_begin_with(input: Any) -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": input}
    events = [
        event("content_block_start", index=1, content_block={"type": "thinking"}),
        event("content_block_delta", index=1, delta={"type": "thinking_delta", "thinking": "Hm"}),
        event("content_block_delta", index=1, delta={"type": "signature_delta", "signature": "s"}),
        event("content_block_stop", index=1),
        event("content_block_start", index=2, content_block=call),
        event("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": None}),
        event("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": '{"a":1}'}),
        event("content_block_stop", index=2),
    ]
    thought, called = accumulate(relay(encode([start(), *events, end(), STOP]))).content
    assert (thought.thinking, thought.signature, called.input) == ("Hm", "s", {"a": 1})


def test_a_regular_stream_keeps_its_bytes() -> None:
    tool = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    more = [
        event(
            "content_block_start",
            index=1,
            content_block={"type": "thinking", "thinking": "", "signature": ""},
        ),
        event("content_block_delta", index=1, delta={"type": "thinking_delta", "thinking": "Hm"}),
        event("content_block_delta", index=1, delta={"type": "signature_delta", "signature": "s"}),
        event("content_block_stop", index=1),
        event("content_block_start", index=2, content_block={"type": "redacted_thinking", "data": "x"}),
        event("content_block_stop", index=2),
        event("content_block_start", index=3, content_block=tool),
        event("content_block_delta", index=3, delta={"type": "input_json_delta", "partial_json": ""}),
        event("content_block_delta", index=3, delta={"type": "input_json_delta", "partial_json": "{}"}),
        event("content_block_stop", index=3),
        event("ping"),
    ]
    raw = encode(beside(5, *more))
    assert relay(raw) == raw
