"""The decoder of Anthropic's stream: every block, event and stop reason that the API sends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.messages import (
    DataPart,
    Part,
    ReasoningPart,
    SourceDocumentPart,
    SourceUrlPart,
    TextPart,
    ToolPart,
)
from dragoman.wire.anthropic.decoder import AnthropicDecoder
from dragoman.wire.source_tracker import source_id

from .anthropic_streams import (
    CITED_PAGE,
    CITED_PAGES,
    FOUND,
    MODEL,
    PING,
    SEARCH,
    STOP,
    STREAMS,
    UNKNOWN,
    block,
    call,
    decode,
    folded,
    parts,
    sse,
    start,
    stop,
    text,
)

SIGNATURE = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk="
REDACTED = "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyI="


def text_part(words: str) -> TextPart:
    return TextPart(words, "done")


def tool_part(id: str, name: str, value: Any, **more: Any) -> ToolPart:
    return ToolPart(f"tool-{name}", id, "input-available", input=value, **more)


PARTS: dict[str, tuple[Part, ...]] = {
    "text": (text_part("Hello wörld 🦜"),),
    "thinking": (
        ReasoningPart("Let me see…", "done", {"anthropic": {"signature": SIGNATURE}}),
        ReasoningPart("", "done", {"anthropic": {"redactedData": REDACTED}}),
        text_part("So."),
    ),
    "omitted_thinking": (ReasoningPart("", "done", {"anthropic": {"signature": "c2ln"}}), text_part("42")),
    "calls": (
        text_part("I'll look."),
        tool_part("toolu_a", "weather", {"city": "Zürich"}),
        tool_part("toolu_b", "now", {}),
        tool_part("toolu_c", "now", {}),
    ),
    "programmatic_calls": (
        tool_part(
            "toolu_p",
            "query",
            {"sql": "select 1"},
            call_provider_metadata={
                "anthropic": {"caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_9"}}
            },
        ),
    ),
    "whole_in_start": (tool_part("toolu_w", "query", {"n": [1, 2]}),),
    "search": (
        ToolPart(
            "tool-web_search",
            "srvtoolu_1",
            "output-available",
            input={"query": "parrots"},
            output=FOUND["content"],
            provider_executed=True,
            call_provider_metadata={"anthropic": {"block": {**SEARCH, "input": {"query": "parrots"}}}},
            result_provider_metadata={"anthropic": {"block": FOUND}},
        ),
        TextPart("There were two.", "done", {"anthropic": {"citations": [CITED_PAGE]}}),
        SourceUrlPart(source_id(str(CITED_PAGE["url"])), str(CITED_PAGE["url"]), "Parrots"),
        TextPart("They talk.", "done", {"anthropic": {"citations": [CITED_PAGES, CITED_PAGE]}}),
        SourceDocumentPart("document-0", "application/pdf", "Birds"),
    ),
    "stop_sequence": (text_part("One, two"),),
    "refusal": (),
    "paused": (
        tool_part(
            "srvtoolu_1",
            "web_search",
            {"query": "x"},
            provider_executed=True,
            call_provider_metadata={"anthropic": {"block": {**SEARCH, "input": {"query": "x"}}}},
        ),
    ),
    "gateway": (text_part("Hi"),),
    "unnamed": (text_part("Hi"),),
    "interleaved": (text_part("ab"), tool_part("srvtoolu_1", "web_search", {"query": 1})),
}


def finish(name: str) -> e.FinishStep:
    answer = decode([STREAMS[name]], provider="up")
    assert answer.finish is not None
    return answer.finish


@pytest.mark.parametrize("name", PARTS)
def test_each_block_type_is_decoded(name: str) -> None:
    assert parts(STREAMS[name]) == PARTS[name]


def test_unknown_events_and_deltas_are_ignored_and_unknown_blocks_kept() -> None:
    compaction = {"type": "compaction", "content": "So far: hello.", "encrypted_content": "Zm9v"}
    assert parts(UNKNOWN) == (
        DataPart("data-anthropic", {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}),
        DataPart("data-anthropic", compaction),
        text_part("Hi you"),
    )


def test_opaque_metadata_names_its_provider() -> None:
    thought = parts(STREAMS["thinking"], provider="up")[0]
    assert isinstance(thought, ReasoningPart)
    assert thought.provider_metadata == {"anthropic": {"signature": SIGNATURE, "provider": "up"}}


@pytest.mark.parametrize(
    ("name", "reason", "metadata"),
    [
        ("text", "stop", {"stopReason": "end_turn"}),
        ("calls", "tool-calls", {"stopReason": "tool_use"}),
        ("whole_in_start", "tool-calls", {"stopReason": "tool_use"}),
        ("stop_sequence", "stop", {"stopReason": "stop_sequence", "stopSequence": "three"}),
        (
            "refusal",
            "content-filter",
            {
                "stopReason": "refusal",
                "stopDetails": {"type": "refusal", "category": "cyber", "explanation": "No."},
            },
        ),
        ("length", "length", {"stopReason": "max_tokens"}),
        (
            "paused",
            "other",
            {
                "stopReason": "pause_turn",
                "container": {"id": "container_1", "expires_at": "2026-11-21T00:00:00Z"},
            },
        ),
    ],
)
def test_the_finish_has_the_stop_reason(name: str, reason: str, metadata: dict[str, Any]) -> None:
    last = finish(name)
    assert (last.finish_reason, last.model, last.provider) == (reason, MODEL, "up")
    assert last.provider_metadata == {"anthropic": {"id": "msg_01", **metadata}}


@pytest.mark.parametrize("reason", ["model_context_window_exceeded", "compaction", "something_new"])
def test_rare_and_unknown_stop_reasons_finish_the_answer(reason: str) -> None:
    answer = decode([sse(start(), *text(0, "Hi"), stop(reason), STOP)])
    expected = "length" if reason.startswith("model") else "other"
    assert answer.finish is not None
    assert answer.finish.finish_reason == expected


def test_end_turn_with_calls_becomes_tool_calls() -> None:
    answer = decode([sse(start(), *call(0, "t", "f"), stop("end_turn"), STOP)])
    assert answer.finish is not None
    assert answer.finish.finish_reason == "tool-calls"


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("text", e.Usage(10, 25, 35)),
        ("thinking", e.Usage(119, 40, 159, 30, 100, 7)),
        ("search", e.Usage(404_500, 510, 405_010, None, 0, 0, web_searches=1)),
        ("gateway", e.Usage(35, 2, 37, None, 4)),
        ("whole_in_start", e.Usage(90, 33, 123)),
    ],
)
def test_usage_is_the_last_total_of_each_count(name: str, usage: e.Usage) -> None:
    assert finish(name).usage == usage


ADVICE = {
    "type": "advisor_message",
    "input_tokens": 823,
    "output_tokens": 531,
    "cache_read_input_tokens": 10,
}


@pytest.mark.parametrize(
    ("first", "last", "usage"),
    [
        ({"input_tokens": 5, "output_tokens": 1}, None, e.Usage(5, None, None)),
        ({"input_tokens": 0, "output_tokens": 0}, {"input_tokens": 0, "output_tokens": 0}, None),
        ({}, {"output_tokens": 7}, e.Usage(None, 7, None)),
        (
            {
                "input_tokens": 1,
                "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3},
            },
            {"output_tokens": 4, "input_tokens": None},
            e.Usage(6, 4, 10, None, None, 5, hour_cache_write_tokens=3),
        ),
        ({"input_tokens": "many"}, {"output_tokens": True}, None),
        (
            {"input_tokens": 5},
            {
                "output_tokens": 2,
                "iterations": [
                    {
                        "type": "compaction",
                        "input_tokens": 100,
                        "output_tokens": 30,
                        "cache_read_input_tokens": 7,
                        "cache_creation": {"ephemeral_1h_input_tokens": 8},
                    },
                    {"type": "message", "input_tokens": 5, "output_tokens": 2},
                    "odd",
                ],
            },
            e.Usage(120, 32, 152, None, 7, 8, hour_cache_write_tokens=8),
        ),
        (
            {"input_tokens": 5, "cache_read_input_tokens": 3},
            {
                "output_tokens": 9,
                "iterations": [
                    {"type": "message", "input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 3},
                    {**ADVICE, "model": "claude-opus-4-8"},
                    {**ADVICE, "model": None},
                    {"type": "message", "input_tokens": 60, "output_tokens": 7, "cache_read_input_tokens": 4},
                ],
            },
            e.Usage(
                *(65 + 7 + 823 + 10, 9 + 531, 65 + 7 + 823 + 10 + 9 + 531),
                cached_input_tokens=7 + 10,
                other_models=(
                    e.ModelUsage("claude-opus-4-8", e.Usage(833, 531, 1364, cached_input_tokens=10)),
                ),
            ),
        ),
    ],
)
def test_absent_counts_stay_unknown_and_those_of_compactions_and_advisors_are_added(
    first: dict[str, Any], last: dict[str, Any] | None, usage: e.Usage | None
) -> None:
    begun = start()
    begun["message"]["usage"] = first
    end = {**stop("end_turn"), "usage": last}
    answer = decode([sse(begun, *text(0, "Hi"), end, STOP)])
    assert answer.finish is not None
    assert answer.finish.usage == usage


@pytest.mark.parametrize(
    ("reads", "value", "problem"),
    [
        (['{"text": "and the'], '{"text": "and the', "not valid JSON"),
        (["[1]"], "[1]", "must be a JSON object, not '[1]'"),
    ],
)
def test_arguments_that_are_not_a_json_object_are_an_error(
    reads: list[str], value: str, problem: str
) -> None:
    answer = decode([sse(start(), *call(0, "t", "f", *reads), stop("tool_use"), STOP)])
    error = next(event for event in answer.events if isinstance(event, e.ToolInputError))
    assert (error.tool_call_id, error.tool_name, error.input) == ("t", "f", value)
    assert problem in error.error_text
    assert error.error_text.endswith("; nothing was run")
    folded(answer.events)


def test_a_missing_or_used_id_is_replaced() -> None:
    raw = sse(start(), *call(0, "old", "f"), *call(1, "", "f"), *call(2, "new", "f"), stop("tool_use"), STOP)
    made = iter(["old", "one", "two"])
    decoded = parts(raw, new_id=lambda: next(made), used_ids={"old"})
    assert [part.tool_call_id for part in decoded if isinstance(part, ToolPart)] == ["one", "two", "new"]


def test_a_failed_server_tool_has_its_error_code() -> None:
    error = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    result = {**FOUND, "content": error}
    (decoded,) = parts(sse(start(), *block(0, SEARCH), *block(1, result), stop("end_turn"), STOP))
    assert isinstance(decoded, ToolPart)
    assert (decoded.state, decoded.error_text) == ("output-error", "max_uses_exceeded")
    assert decoded.result_provider_metadata == {"anthropic": {"block": result}}


def test_a_server_tool_result_without_its_call_is_kept_unchanged() -> None:
    decoded = parts(sse(start(), *block(0, FOUND), *text(1, "Two."), stop("end_turn"), STOP))
    assert decoded == (DataPart("data-anthropic", FOUND), text_part("Two."))


def test_adjacent_deltas_of_one_read_are_merged() -> None:
    deltas = [event for event in decode([STREAMS["text"]]).events if isinstance(event, e.TextDelta)]
    assert deltas == [e.TextDelta("text-0", "Hello wörld 🦜")]
    calls = [event for event in decode([STREAMS["calls"]]).events if isinstance(event, e.ToolInputDelta)]
    assert calls == [e.ToolInputDelta("toolu_a", '{"city": "Zürich"}')]


def test_a_delta_is_returned_by_the_read_that_contains_it() -> None:
    decoder = AnthropicDecoder()
    reads = [sse(event) for event in [start(), *text(0, "a", "b")]]
    heard = [decoder.feed(data) for data in reads]
    assert heard == [
        [],
        [e.TextStart("text-0")],
        [e.TextDelta("text-0", "a")],
        [e.TextDelta("text-0", "b")],
        [e.TextEnd("text-0")],
    ]


def test_pings_and_comments_are_no_events() -> None:
    decoder = AnthropicDecoder()
    assert decoder.feed(sse(PING, b": hello\n\n", PING)) == []
    assert (decoder.done, decoder.failure) == (False, None)


def test_a_text_delta_without_a_block_start_is_decoded() -> None:
    raw = sse(start(), *text(0, "Hi", " you")[1:-1], stop("end_turn"), STOP)
    assert parts(raw) == (text_part("Hi you"),)


def test_a_split_surrogate_pair_is_joined() -> None:
    raw = sse(start(), *text(0, "<1>", "<2>"), stop("end_turn"), STOP)
    raw = raw.replace(b"<1>", b"\\ud83e").replace(b"<2>", b"\\udd9c")
    assert parts(raw) == (text_part("🦜"),)


def test_nothing_is_read_after_message_stop() -> None:
    decoder = AnthropicDecoder()
    events = decoder.feed(STREAMS["text"] + STREAMS["text"])
    assert decoder.done
    assert folded(events).parts[1:] == (text_part("Hello wörld 🦜"),)
    assert decoder.feed(b"data: rubbish\n\n") == []
    assert decoder.close() == []


@pytest.mark.parametrize("name", PARTS)
def test_a_document_gives_the_same_answer_as_its_stream(name: str) -> None:
    """Only complete blocks: the document has what the API would have sent."""
    content = [dict(entry) for entry in _content(name)]
    reason = (finish(name).provider_metadata or {})["anthropic"]["stopReason"]
    message = start(content, reason)["message"]
    events = AnthropicDecoder(provider="up", model="asked").decode_document(msgspec.json.encode(message))
    assert [part for part in folded(events).parts[1:] if isinstance(part, TextPart)] == [
        part for part in parts(STREAMS[name], provider="up") if isinstance(part, TextPart)
    ]
    assert isinstance(events[-1], e.FinishStep)
    assert (events[-1].finish_reason, events[-1].usage) == (finish(name).finish_reason, e.Usage(10, 1, 11))


def _content(name: str) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for part in PARTS[name]:
        if isinstance(part, TextPart):
            cited = (part.provider_metadata or {}).get("anthropic", {}).get("citations")
            content.append({"type": "text", "text": part.text, "citations": cited})
        if isinstance(part, ToolPart) and not part.provider_executed:
            content.append(
                {"type": "tool_use", "id": part.tool_call_id, "name": part.name, "input": part.input}
            )
    return content


@pytest.mark.parametrize(
    ("document", "category", "words"),
    [
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
            "overloaded",
            "Over",
        ),
        (b"<html>", "api_error", "invalid JSON"),
        (b'{"id":"x"}', "api_error", "no content"),
        (b"[" * 100_000, "api_error", "nested"),
        (b'{"content":[],"stop_reason":null}', "network", "without a stop reason"),
    ],
)
def test_a_document_that_is_not_an_answer_is_a_failure(document: bytes, category: str, words: str) -> None:
    with pytest.raises(ProviderError, match=words) as failed:
        AnthropicDecoder().decode_document(document)
    assert failed.value.category == category
