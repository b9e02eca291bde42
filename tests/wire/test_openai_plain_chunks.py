"""Chunks that hold nothing but text are read many at once, with the same events as one by one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dragoman.errors import ProviderError
from dragoman.wire.openai import decoder
from dragoman.wire.openai.decoder import OpenAIDecoder
from tests.effort import rounds

DELTAS: list[dict[str, Any]] = [
    *({"content": text} for text in ("word ", "", None, "é😀", "<think>", "</think>", "<", "\ud83d", "a<b")),
    {"role": "assistant", "content": ""},
    {"content": "said", "refusal": None, "tool_calls": None},
    {"content": "cut", "tool_calls": []},
    {"reasoning_content": "why"},
    {"refusal": "no"},
    {"content": [{"type": "text", "text": "part"}]},
    {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]},
]
CHOICES: list[dict[str, Any]] = [
    *({},) * 12,
    *({"index": 0}, {"index": 1}, {"index": None}, {"finish_reason": ""}, {"finish_reason": "length"}),
    *({"logprobs": {"content": []}}, {"error": {"message": "broken"}}, {"vendor": 1}),
]
CHUNKS: list[dict[str, Any]] = [
    *({},) * 12,
    *({"model": None}, {"usage": None}, {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}),
    *({"choices": []}, {"system_fingerprint": "fp"}, {"x_groq": {"id": "r"}}, {"error": None}),
]
USAGE = {"prompt_tokens": 1, "completion_tokens": 2}
ENDS: list[list[dict[str, Any]]] = [
    [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}],
    [{"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": USAGE}],
    [{"choices": [{"delta": {"content": "!"}, "finish_reason": "stop"}]}, {"choices": [], "usage": USAGE}],
]


def make_stream(chance: random.Random) -> bytes:
    plain = chance.random() < 0.5
    frames = []
    for _ in range(chance.randrange(30)):
        delta = {"content": "word "} if plain and chance.random() < 0.9 else chance.choice(DELTAS)
        choice = {"delta": delta, **({} if plain else chance.choice(CHOICES))}
        frames.append({"model": "m", "choices": [choice], **({} if plain else chance.choice(CHUNKS))})
    frames += chance.choice(ENDS)
    separators = chance.choice([(",", ":"), (", ", ": ")])
    lines = [f"data: {json.dumps(frame, separators=separators)}\n\n" for frame in frames]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def decode(pieces: list[bytes]) -> list[Any]:
    """The events of each read, and the failure."""
    answer, found = OpenAIDecoder(), list[Any]()
    try:
        found += [answer.feed(piece) for piece in pieces]
        found.append(answer.close())
    except ProviderError as error:
        found.append((error.category, error.message))
    return found


@pytest.mark.parametrize("seed", range(rounds(quick=150, thorough=5_000)))
def test_plain_chunks_give_the_same_events_as_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    stream = make_stream(chance)
    cuts = sorted(chance.randrange(len(stream)) for _ in range(chance.randrange(4)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    events = decode(pieces)
    monkeypatch.setattr(decoder, "PLAIN_ATTEMPTS", 0)
    assert events == decode(pieces)


def test_a_vendor_with_fields_of_its_own_is_decoded_twice_for_two_reads_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[int] = []
    monkeypatch.setattr(decoder, "read_plain_text", lambda payloads: attempts.append(len(payloads)))
    frame = b'data: {"model":"m","choices":[{"delta":{"content":"a"}}]}\n\n'
    answer = OpenAIDecoder()
    for _ in range(5):
        answer.feed(frame * 3)
    assert attempts == [3, 3]


@pytest.mark.parametrize("named_at", range(4))
@pytest.mark.parametrize("frames_a_read", [1, 4])
def test_a_model_that_a_later_chunk_names_is_taken(named_at: int, frames_a_read: int) -> None:
    chunks: list[dict[str, Any]] = [
        {"model": "m" if at == named_at else None, "choices": [{"delta": {"content": "a"}}]}
        for at in range(4)
    ]
    frames = [f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n" for chunk in chunks]
    end = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    reads = ["".join(frames[at : at + frames_a_read]) for at in range(0, 4, frames_a_read)]
    [*_, last] = [event for found in decode([read.encode() for read in [*reads, end]]) for event in found]
    assert last.model == "m"
