"""The decoders of all families: bytes split, truncated or damaged anywhere give the same answer, or a
failure.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ProviderError
from dragoman.wire.anthropic.decoder import AnthropicDecoder
from dragoman.wire.anthropic.tap import AnthropicTap
from dragoman.wire.openai.decoder import OpenAIDecoder
from dragoman.wire.openai.tap import OpenAITap
from dragoman.wire.responses.decoder import ResponsesDecoder
from dragoman.wire.responses.tap import ResponsesTap
from dragoman.wire.tap import AnswerTap
from tests.effort import rounds, rows
from tests.odd_values import ODD_VALUES, places, replaced

from . import anthropic_streams, ollama_streams, openai_streams, responses_streams
from .anthropic_streams import STOP, UNKNOWN, block, call, folded, start, stop
from .openai_streams import Answer, cut, recording

MARK = b"\xef\xbb\xbf"
OBJECT_LINE = re.compile(rb"^(?:data: ?)?(\{.*\})\r?$", re.MULTILINE)
PLACES = rounds(quick=15, thorough=100_000)
LETTERS = ["", "stop", "a<th", "a</th", "ink>", "{", "text", "\ud83e"]
FIELDS = [
    "text",
    "summary",
    "signature",
    "url",
    "name",
    "arguments",
    "message",
    "type",
    "input",
    "error_code",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 500) | st.floats(width=16) | st.sampled_from(LETTERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=5,
)
WORDS = st.sampled_from(["a", "b", "", None, 7])


def fields(*names: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object that has some of these fields; fields without a strategy have any value."""
    return st.fixed_dictionaries({}, optional={**dict.fromkeys(names, VALUES), **more})


def openai_chunks() -> st.SearchStrategy[Any]:
    function = fields(
        name=st.sampled_from(["f", "g", "", None]), arguments=st.sampled_from(["{", "}", "{}"]) | VALUES
    )
    fragment = fields(index=st.sampled_from([0, 1, "0", None, 2.5]), id=WORDS, function=function)
    delta = fields(
        *("content", "reasoning", "refusal", "reasoning_details", "images", "audio", "annotations"),
        tool_calls=st.lists(fragment, max_size=3) | VALUES,
    )
    choice = fields("finish_reason", "index", delta=delta | VALUES)
    return fields(
        "usage",
        "model",
        choices=st.lists(choice, max_size=2) | VALUES,
        error=st.sampled_from([None, {}]),
    )


def ollama_lines() -> st.SearchStrategy[Any]:
    function = fields(name=st.sampled_from(["f", "g", "", None]), arguments=VALUES)
    calls = st.lists(fields(id=WORDS, function=function | VALUES), max_size=3)
    return fields(
        *("done", "done_reason", "model", "eval_count", "prompt_eval_count"),
        message=fields("content", "thinking", tool_calls=calls | VALUES) | VALUES,
        error=st.sampled_from([None, {}, ""]),
    )


def anthropic_events() -> st.SearchStrategy[Any]:
    def typed(types: Iterable[str], *names: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        kinds = st.fixed_dictionaries({"type": st.sampled_from(list(types))})
        return st.builds(lambda kind, rest: kind | rest, kinds, fields(*names, **more))

    blocks = typed(
        ["text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "x_tool_result", "new"],
        *("id", "tool_use_id", "name", "input", "text", "data", "content", "citations"),
    ) | fields("type", "text")
    deltas = typed(
        ["text_delta", "thinking_delta", "input_json_delta", "citations_delta", "signature_delta", "new"],
        *("text", "thinking", "partial_json", "citation", "signature", "stop_reason"),
    )
    block_events = ["content_block_start", *["content_block_delta"] * 2, "content_block_stop"]
    return typed(
        ["message_start", *block_events, "message_delta"],
        "usage",
        index=st.sampled_from([0, 1, 2, "1", None, 2.5]),
        content_block=blocks | VALUES,
        delta=deltas | VALUES,
        message=fields(content=st.lists(blocks | VALUES, max_size=2)) | VALUES,
    )


def responses_events() -> st.SearchStrategy[Any]:
    item_types = ["message", "reasoning", "function_call", "custom_tool_call", "mcp_call", "new"]
    items = fields(
        *("arguments", "summary", "encrypted_content", "result", "input", "output", "error", "status"),
        type=st.sampled_from(item_types) | VALUES,
        id=WORDS,
        call_id=WORDS,
        name=st.sampled_from(["f", "g", "", None]),
        content=st.lists(fields("type", "text", "refusal", "annotations"), max_size=2) | VALUES,
    )
    names = [
        *("output_text", "refusal", "reasoning_summary_text", "reasoning_text", "new"),
        *("function_call_arguments", "custom_tool_call_input"),
    ]
    types = [f"response.{name}.{end}" for name in names for end in ("delta", "done")]
    types += ["response.output_item.added", "response.output_item.done", "response.created"]
    types += ["response.output_text.annotation.added"]
    index = st.sampled_from([0, 1, "1", None, 2.5])
    return st.builds(
        lambda kind, rest: {"type": kind} | rest,
        st.sampled_from(types),
        fields(
            *("delta", "text", "refusal", "arguments", "annotation", "response"),
            output_index=index,
            content_index=index,
            summary_index=index,
            item=items | VALUES,
        ),
    )


def as_text(value: Any) -> bytes:
    """JSON that may have NaN and lone surrogates."""
    return json.dumps(value).encode()


def openai_stream(chunks: Iterable[Any]) -> bytes:
    return openai_streams.sse(*(b"data: " + as_text(chunk) + b"\n\n" for chunk in chunks))


def anthropic_stream(events: Iterable[Any]) -> bytes:
    ends = [stop("end_turn"), STOP]
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + as_text(event) + b"\n\n"
        for event in [*events, *ends]
    )


def responses_stream(events: Iterable[Any]) -> bytes:
    return b"".join(
        b"event: " + event["type"].encode() + b"\ndata: " + as_text(event) + b"\n\n"
        for event in [*events, responses_streams.ending()]
    )


def deep_event(event: Any) -> str:
    """An Anthropic event, with `%s` in place of the deep value."""
    return str(msgspec.json.encode(event).decode()).replace('"<deep>"', "%s")


@dataclass(frozen=True)
class Family:
    """A decoder, its inputs, and how its server's values are encoded."""

    decode: Callable[[Iterable[bytes]], Answer]
    whole: Callable[[bytes], Any]
    streams: Mapping[str, bytes]
    frames: st.SearchStrategy[Any]
    write: Callable[[Iterable[Any]], bytes]
    write_document: Callable[[bytes], bytes]
    deep: tuple[str, ...]
    ends: tuple[bytes, ...] = (b"\n", b"\r\n", b"\r")


FAMILIES = {
    "openai": Family(
        decode=openai_streams.decode,
        whole=lambda raw: OpenAIDecoder().decode_document(raw),
        streams={name: recording(name) for name in openai_streams.NAMES},
        frames=openai_chunks(),
        write=openai_stream,
        write_document=lambda document: openai_streams.sse(b"data: " + document + b"\n\n"),
        deep=(
            '{"choices":[{"index":0,"delta":{"content":%s}}]}',
            '{"choices":[{"index":0,"delta":{"reasoning_details":[{"signature":"s","text":%s}]}}]}',
            '{"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"arguments":{"x":%s}}}]}}]}',
            '{"choices":[{"index":0,"delta":{"images":%s}}],"citations":%s}',
            '{"choices":"x","error":%s}',
            '{"detail":%s}',
            "%s",
        ),
    ),
    "anthropic": Family(
        decode=anthropic_streams.decode,
        whole=lambda raw: AnthropicDecoder().decode_document(raw),
        streams={**anthropic_streams.STREAMS, "unknown": UNKNOWN},
        frames=anthropic_events(),
        write=anthropic_stream,
        write_document=lambda document: anthropic_streams.sse(
            b"data: " + document + b"\n\n", stop("end_turn"), STOP
        ),
        deep=(
            deep_event(block(0, {"type": "new", "x": "<deep>"})[0]),
            deep_event(block(0, {"type": "tool_use", "id": "a", "name": "f", "input": {"x": "<deep>"}})[0]),
            deep_event(call(0, "a", "f")[0] | {"delta": "<deep>"}),
            deep_event(start(["<deep>"])),
            deep_event({"type": "error", "error": {"message": "<deep>"}}),
            "%s",
        ),
    ),
    "ollama": Family(
        decode=ollama_streams.decode,
        whole=ollama_streams.decode_document,
        streams=ollama_streams.STREAMS,
        frames=ollama_lines(),
        write=lambda lines: b"".join(as_text(line) + b"\n" for line in lines),
        write_document=lambda document: document + b"\n",
        deep=(
            '{"message":{"content":%s}}',
            '{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"x":%s}}}]}}',
            '{"message":{},"error":%s}',
            '{"message":{},"done_reason":%s}',
            '{"detail":%s}',
            "%s",
        ),
        ends=(b"\n", b"\r\n"),
    ),
    "responses": Family(
        decode=responses_streams.decode,
        whole=lambda raw: ResponsesDecoder().decode_document(raw),
        streams=responses_streams.STREAMS,
        frames=responses_events(),
        write=responses_stream,
        write_document=lambda document: responses_streams.sse(
            b"data: " + document + b"\n\n", responses_streams.ending()
        ),
        deep=(
            '{"type":"response.output_text.delta","delta":%s}',
            '{"type":"response.output_item.done","item":{"type":"mcp_call","id":"a","output":%s}}',
            '{"type":"response.completed","response":{"status":"completed","output":[%s]}}',
            '{"type":"error","error":{"message":%s}}',
            '{"output":[{"type":"reasoning","summary":%s}]}',
            "%s",
        ),
    ),
}
STREAMS = [(family, name) for family, case in FAMILIES.items() for name in case.streams]
DEEP = [(family, index) for family, case in FAMILIES.items() for index in case.deep]
NESTED = [
    *((family, index, depth) for depth in (3, 300, 900) for family, index in DEEP),
    *((family, index, 100_000) for family, index in rows(DEEP, quick=3)),  # each family has more than three
]
TAPS: dict[str, Callable[[], AnswerTap]] = {
    "openai": OpenAITap,
    "anthropic": AnthropicTap,
    "responses": ResponsesTap,
}
each_family = pytest.mark.parametrize("family", FAMILIES)


def content_and_ending(answer: Answer) -> tuple[Any, ...]:
    """The content and how it ended; checks that it ended in exactly one way."""
    assert (answer.failure is None) == (answer.finish is not None)
    msgspec.json.encode([answer.events, answer.failure and answer.failure.message])
    return repr(folded(answer.events)), answer.finish, answer.failure and str(answer.failure)


@pytest.mark.parametrize(("family", "name"), STREAMS)
def test_cuts_line_ends_and_a_mark_change_nothing(family: str, name: str) -> None:
    decode, stream = FAMILIES[family].decode, FAMILIES[family].streams[name]
    whole = content_and_ending(decode([stream]))
    for end in FAMILIES[family].ends:
        raw = MARK + stream.replace(b"\n", end)
        assert content_and_ending(decode([raw])) == whole
        assert content_and_ending(decode(raw[index : index + 1] for index in range(len(raw)))) == whole
        for index in random.Random(3).sample(range(len(raw)), min(PLACES, len(raw))):
            assert content_and_ending(decode(cut(raw, [index]))) == whole


@pytest.mark.parametrize(("family", "name"), STREAMS)
def test_a_stream_that_stops_early_ends_in_a_failure_or_a_finish(family: str, name: str) -> None:
    decode, raw = FAMILIES[family].decode, FAMILIES[family].streams[name]
    for end in range(0, len(raw), 7):
        content_and_ending(decode([raw[:end]]))


@each_family
@given(st.data(), st.lists(st.integers(0, 4000), max_size=30))
def test_many_splits_change_nothing(family: str, data: st.DataObject, places: list[int]) -> None:
    decode, streams = FAMILIES[family].decode, FAMILIES[family].streams
    raw = streams[data.draw(st.sampled_from(sorted(streams)))]
    assert content_and_ending(decode(cut(raw, [index % len(raw) for index in places]))) == content_and_ending(
        decode([raw])
    )


@each_family
@given(st.data(), st.lists(st.integers(0, 2000), max_size=8))
def test_any_input_ends_in_a_finish_or_a_failure_however_it_is_split(
    family: str, data: st.DataObject, places: list[int]
) -> None:
    raw = FAMILIES[family].write(data.draw(st.lists(FAMILIES[family].frames, max_size=8)))
    decode = FAMILIES[family].decode
    whole, again = (
        content_and_ending(decode([raw])),
        content_and_ending(decode(cut(raw, [min(index, len(raw)) for index in places]))),
    )
    assert again[1:] == whole[1:]
    if whole[1] is not None:
        assert again == whole


DAMAGE = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=6)
NASTY = [*b'\n\r{}"\\,:\x00\xff</', 200]


@each_family
@given(st.data(), DAMAGE | st.lists(st.tuples(st.integers(0, 3000), st.sampled_from(NASTY)), max_size=6))
def test_damaged_bytes_never_break_the_decoder(
    family: str, data: st.DataObject, damage: list[tuple[int, int]]
) -> None:
    check_damage(family, data.draw(st.sampled_from(sorted(FAMILIES[family].streams))), damage)


@pytest.mark.parametrize(
    ("family", "name", "damage"),
    [
        ("anthropic", "calls", [(315, 0)]),
        ("anthropic", "search", [(585, 0)]),
        ("responses", "calls", [(2995, 0)]),
    ],
)
def test_damage_that_once_broke_a_decoder_breaks_it_no_more(
    family: str, name: str, damage: list[tuple[int, int]]
) -> None:
    check_damage(family, name, damage)


@each_family
def test_an_odd_value_in_any_place_gives_an_answer_or_a_failure(family: str) -> None:
    chance = random.Random(family)
    streams = [(raw, list(objects_in(raw))) for raw in FAMILIES[family].streams.values()]
    streams = [(raw, found) for raw, found in streams if found]
    for _ in range(rounds(quick=300, thorough=50_000)):
        raw, found = chance.choice(streams)
        line, value = chance.choice(found)
        odd = replaced(value, chance.choice(list(places(value))), chance.choice(ODD_VALUES))
        sent = raw.replace(line, json.dumps(odd).encode(), 1)
        answer = FAMILIES[family].decode([sent])
        msgspec.json.encode([answer.events, answer.failure and answer.failure.message])
        if family in TAPS:
            relay(TAPS[family](), sent)


def relay(tap: AnswerTap, raw: bytes) -> None:
    with suppress(ProviderError):
        tap.feed(raw)
        tap.close()
    msgspec.json.encode([tap.usage, tap.model])


def objects_in(raw: bytes) -> Iterator[tuple[bytes, Any]]:
    """Yield the JSON objects that are lines of a stream, as they are there and decoded."""
    for found in OBJECT_LINE.finditer(raw):
        try:
            yield found[1], msgspec.json.decode(found[1])
        except msgspec.DecodeError:  # some recordings have invalid JSON
            continue


def check_damage(family: str, name: str, damage: list[tuple[int, int]]) -> None:
    raw = bytearray(FAMILIES[family].streams[name])
    for index, byte in damage:
        raw[index % len(raw)] = byte
    decode = FAMILIES[family].decode
    whole, again = (
        content_and_ending(decode([bytes(raw)])),
        content_and_ending(decode(cut(bytes(raw), range(0, len(raw), 5)))),
    )
    assert again[1:] == whole[1:]
    if whole[1] is not None:
        assert again == whole


@pytest.mark.parametrize(("family", "index", "depth"), NESTED)
def test_deeply_nested_json_never_breaks_the_decoder(family: str, index: str, depth: int) -> None:
    for left, right in (("[", "]"), ('{"text":', "}"), ('{"message":', "}")):
        deep = left * depth + ('"\\ud83e"' if left == "[" else "1") + right * depth
        document = index.replace("%s", deep).encode()
        answers = [
            FAMILIES[family].decode([FAMILIES[family].write_document(document)]),
            whole(family, document),
        ]
        for answer in answers:
            assert answer.failure is not None or (family != "ollama" and answer.finish is not None)
            msgspec.json.encode([answer.events, answer.failure and answer.failure.message])


def whole(family: str, document: bytes) -> Answer:
    try:
        return Answer(FAMILIES[family].whole(document))
    except ProviderError as error:
        return Answer(failure=error)
