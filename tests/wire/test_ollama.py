"""The /api/chat decoder: content, finishes and failures, however the bytes are split."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.wire.ollama.decoder import OllamaDecoder

from .ollama_streams import DURATIONS, STREAMS, call, decode, last, line, ndjson
from .openai_streams import cut, summarise

COLOGNE = '{"city":"Köln"}'
STORIES: dict[str, list[tuple[Any, ...]]] = {
    "text": [("text", "Hello wörld 🦜 <b>"), ("finish", "stop", "qwen3:8b")],
    "thinking": [("reasoning", "Let me see."), ("text", "Four."), ("finish", "stop", "qwen3:8b")],
    "leaked": [("text", "Okay, the user asks.\n"), ("text", "Hi!"), ("finish", "stop", "qwen3:8b")],
    "tags": [("reasoning", "Hm\n"), ("text", "Hi"), ("finish", "stop", "qwen3:8b")],
    "calls": [
        ("reasoning", "I call."),
        ("text", "Looking."),
        ("call", "call_1", "weather", COLOGNE, {"city": "Köln"}),
        ("call", "call_2", "time", "{}", {}),
        (
            "call",
            "call_3",
            "weather",
            '{"b":[1,2.5,null],"a":"</x>"}',
            {"b": [1, 2.5, None], "a": "</x>"},
        ),
        ("text", "Done."),
        ("finish", "tool-calls", "qwen3:8b"),
    ],
    "old calls": [
        ("call", "call_1", "weather", COLOGNE, {"city": "Köln"}),
        ("call", "call_2", "weather", COLOGNE, {"city": "Köln"}),
        ("finish", "tool-calls", "qwen3:8b"),
    ],
    "all in one": [
        ("reasoning", "Hm"),
        ("text", "Hi"),
        ("call", "call_1", "weather", COLOGNE, {"city": "Köln"}),
        ("finish", "tool-calls", "qwen3:8b"),
    ],
    "cut": [("text", "One two"), ("finish", "length", "qwen3:8b")],
    "load": [("finish", "stop", "qwen3:8b")],
    "error": [("text", "One"), ("failure", "api_error")],
    "silent end": [("text", "Onetwo"), ("failure", "network")],
    "garbage": [("text", "One"), ("failure", "api_error")],
}
BROKEN = {"error", "silent end", "garbage"}


def story(reads: Any) -> list[tuple[Any, ...]]:
    """The decoded content; blocks that a failure left open are included."""
    answer = decode(reads)
    if answer.failure is None:
        return answer.story
    closed = [*answer.events]
    last_event = closed[-1] if closed else None
    if isinstance(last_event, e.TextDelta):
        closed.append(e.TextEnd(last_event.id))
    return [*summarise(closed), ("failure", answer.failure.category)]


@pytest.mark.parametrize("name", STREAMS)
def test_an_answer_is_decoded_in_order(name: str) -> None:
    assert story([STREAMS[name]]) == STORIES[name]


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_empty_lines_and_a_last_line_without_its_end_change_nothing(name: str, ends: bytes) -> None:
    raw = STREAMS[name].replace(b"\n", ends)
    assert story([raw.replace(ends, ends * 2)]) == STORIES[name]
    if name not in BROKEN:
        assert story([raw.removesuffix(ends)]) == STORIES[name]


def test_adjacent_deltas_of_one_read_are_merged() -> None:
    decoder = OllamaDecoder(provider="up")
    assert decoder.feed(ndjson(line(thinking="A"), line(thinking="b"), line("C"), line("d"))) == [
        e.ReasoningStart("reasoning-1"),
        e.ReasoningDelta("reasoning-1", "Ab"),
        e.ReasoningEnd("reasoning-1"),
        e.TextStart("text-1"),
        e.TextDelta("text-1", "Cd"),
    ]
    assert (decoder.done, decoder.failure) == (False, None)
    usage = e.Usage(input_tokens=26, output_tokens=282, total_tokens=308)
    assert decoder.feed(ndjson(last())) == [
        e.TextEnd("text-1"),
        e.FinishStep("stop", usage, "qwen3:8b", "up", provider_metadata={"ollama": DURATIONS}),
    ]
    assert decoder.done
    assert decoder.feed(b"rubbish\n") == decoder.close() == []


@pytest.mark.parametrize(
    ("reason", "calls", "finish"),
    [
        ("stop", 0, "stop"),
        ("stop", 1, "tool-calls"),
        ("length", 0, "length"),
        ("length", 1, "length"),
        ("load", 0, "stop"),
        ("unload", 0, "stop"),
        (None, 0, "stop"),
        (None, 1, "tool-calls"),
        ("something new", 0, "other"),
    ],
)
def test_finish_reasons_are_converted_to_the_hubs(reason: str | None, calls: int, finish: str) -> None:
    answer = decode([ndjson(line(tool_calls=[call()] * calls), last(reason))])
    assert answer.finish is not None
    assert answer.finish.finish_reason == finish


@pytest.mark.parametrize(
    ("counted", "usage"),
    [
        (
            {"prompt_eval_count": 3, "eval_count": 4},
            e.Usage(input_tokens=3, output_tokens=4, total_tokens=7),
        ),
        ({"eval_count": 4}, e.Usage(output_tokens=4)),
        ({"prompt_eval_count": 0, "eval_count": 4.0}, e.Usage(0, 4, 4)),
        ({"prompt_eval_count": None, "eval_count": "x"}, None),
        ({"total_duration": 1}, None),
    ],
)
def test_absent_counts_are_unknown(counted: dict[str, Any], usage: e.Usage | None) -> None:
    answer = decode([ndjson(last(**counted))])
    assert answer.finish is not None
    assert answer.finish.usage == usage


def test_the_requested_model_is_reported_if_the_stream_names_none() -> None:
    nameless = {key: value for key, value in last().items() if key != "model"}
    answer = decode([ndjson(nameless)], model="asked")
    assert answer.finish is not None
    assert answer.finish.model == "asked"


def test_a_missing_or_duplicate_id_is_replaced() -> None:
    ids = iter(["n1", "taken", "n2", "n3"])
    raw = ndjson(line(tool_calls=[call(id="a"), call(id="a"), call(), call(id="taken")]), last())
    answer = decode([raw], new_id=lambda: next(ids), used_ids={"taken"})
    assert [entry[1] for entry in answer.story[:-1]] == ["a", "n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("arguments", "entry"),
    [
        ({"x": 12345678901234567890123}, ("call", "call_1", "f", '{"x":12345678901234567890123}')),
        ('{"x":1}', ("call", "call_1", "f", '{"x":1}', {"x": 1})),
        ("", ("call", "call_1", "f", "", {})),
        (
            [1],
            ("bad call", "call_1", "[1]", "the arguments must be a JSON object, not '[1]'; nothing was run"),
        ),
    ],
)
def test_arguments_may_be_an_object_or_its_text(arguments: Any, entry: tuple[Any, ...]) -> None:
    answer = decode([ndjson(line(tool_calls=[call("f", arguments)]), last())])
    assert answer.story[0][: len(entry)] == entry


def test_a_call_without_a_name_is_an_error() -> None:
    answer = decode([ndjson(line(tool_calls=[{"function": {"arguments": {}}}, {}]), last())])
    assert [entry[0] for entry in answer.story] == ["bad call", "finish"]


@pytest.mark.parametrize(
    ("message", "category", "transient"),
    [
        ("model runner has unexpectedly stopped, this may be due to resource limitations", "api_error", True),
        ("server busy, please try again. maximum pending requests exceeded", "overloaded", True),
        ("the prompt is longer than the context length currently available", "context_limit", False),
        ("model 'x' not found", "bad_request", False),
    ],
)
def test_an_error_line_fails_the_answer(message: str, category: str, transient: bool) -> None:
    decoder = OllamaDecoder()
    events = decoder.feed(ndjson(line("One"), {"error": message}, line("two"), last()))
    assert events == [e.TextStart("text-1"), e.TextDelta("text-1", "One")]
    assert decoder.failure is not None
    assert (decoder.failure.message, decoder.failure.category, decoder.failure.transient) == (
        message,
        category,
        transient,
    )
    with pytest.raises(ProviderError, match=message[:20]):
        decoder.feed(b"")
    with pytest.raises(ProviderError, match=message[:20]):
        decoder.close()


@pytest.mark.parametrize(
    "error_body",
    [
        {"error": {"message": "no", "status_code": 429}},
        {"message": "no", "code": 429},
        {**last(), "error": {"message": "no", "code": 429}},
        {**line("x"), "error": {"message": "no", "code": 429}},
    ],
)
def test_errors_of_proxies_are_recognised_also_beside_an_answer(error_body: Any) -> None:
    answer = decode([ndjson(error_body)])
    assert answer.failure is not None
    assert (answer.failure.message, answer.failure.category) == ("no", "rate_limit")
    assert answer.finish is None


@pytest.mark.parametrize("raw", [b"", b"\n", b"\r\n\n", b'{"model":"m"}\n', b'{"error":""}\n', b"{"])
def test_an_empty_answer_is_a_failure(raw: bytes) -> None:
    answer = decode([raw])
    assert answer.failure is not None
    assert (answer.failure.message, answer.failure.category, answer.failure.transient) == (
        "the provider's answer is empty",
        "network",
        True,
    )


@pytest.mark.parametrize("end", [b"", b'{"model":"m","mess', ndjson(last())[:-3]])
def test_a_finish_is_never_invented(end: bytes) -> None:
    answer = decode([ndjson(line("One")) + end])
    assert answer.failure is not None
    assert answer.failure.message == "the provider's answer ended before it was done"
    assert (answer.failure.category, answer.failure.transient, answer.finish) == ("network", True, None)


def test_a_line_over_the_limit_fails_after_the_events_before_it() -> None:
    short, long = ndjson(line("x" * 300)), ndjson(line("x" * 301))
    for raw in (short + long + short, short + long[:-1], short + b"x" * 1000):
        for reads in ([raw], cut(raw, range(len(raw)))):
            answer = decode(reads, limit=len(short) - 1)
            assert answer.failure is not None
            assert f"longer than {len(short) - 1} bytes" in answer.failure.message
            assert answer.failure.category == "api_error"
            text = "".join(event.delta for event in answer.events if isinstance(event, e.TextDelta))
            assert text == "x" * 300


def test_a_document_is_decoded_completely() -> None:
    document = {
        **last(),
        "message": {"role": "assistant", "content": "Hi", "thinking": "Hm", "tool_calls": [call()]},
    }
    story = STORIES["all in one"]
    raw = msgspec.json.encode(document)
    for variant in (raw, b"\xef\xbb\xbf" + raw + b"\n", msgspec.json.format(raw, indent=2)):
        assert summarise(OllamaDecoder().decode_document(variant)) == story
    assert summarise(OllamaDecoder().decode_document(STREAMS["text"])) == STORIES["text"]


@pytest.mark.parametrize(
    ("raw", "words", "category"),
    [
        (b'{"error":"model \'x\' not found"}', "model 'x' not found", "bad_request"),
        (b"<html>no</html>", "invalid JSON", "api_error"),
        (b"[1]", "the line is a JSON list, not an object", "api_error"),
        (b"{}", "is empty", "network"),
        (b"", "invalid JSON", "api_error"),
        (ndjson(line("Hi")), "before it was done", "network"),
        (ndjson(line("Hi"), line("ho")), "before it was done", "network"),
    ],
)
def test_a_document_that_is_not_an_answer_fails(raw: bytes, words: str, category: str) -> None:
    def decode() -> None:
        decoder = OllamaDecoder()
        decoder.decode_document(raw)
        if decoder.failure is not None:  # after the events that came before it
            raise decoder.failure

    with pytest.raises(ProviderError, match=words) as caught:
        decode()
    assert caught.value.category == category
