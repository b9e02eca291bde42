"""Anthropic's encoder: the official SDK reads the content of the events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.errors import OutOfOrder, ProviderError
from dragoman.wire.anthropic.encoder import AnthropicStreamEncoder, encode_document
from dragoman.wire.anthropic.foreign_reasoning import FOREIGN_SIGNATURE
from tests.wire.anthropic_clients import created, raw_events, streamed, written

USAGE = e.Usage(
    input_tokens=120, output_tokens=30, reasoning_tokens=8, cached_input_tokens=90, cache_write_tokens=10
)
TOLD = {
    "input_tokens": 20,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 10,
    "output_tokens": 30,
    "output_tokens_details": {"thinking_tokens": 8},
}
STOP = e.FinishStep("stop", USAGE)


def text(words: str, id: str = "text-1") -> list[e.Event]:
    return [e.TextStart(id), *(e.TextDelta(id, letter) for letter in words), e.TextEnd(id)]


def thought(words: str, metadata: dict[str, Any] | None, id: str = "reasoning-1") -> list[e.Event]:
    family = {"anthropic": metadata} if metadata is not None else None
    return [
        e.ReasoningStart(id),
        *(e.ReasoningDelta(id, letter) for letter in words),
        e.ReasoningEnd(id, family),
    ]


def call(id: str, name: str, arguments: str, size: int = 3) -> list[e.Event]:
    fragments = [arguments[start : start + size] for start in range(0, len(arguments), size)]
    return [
        e.ToolInputStart(id, name),
        *(e.ToolInputDelta(id, fragment) for fragment in fragments),
        e.ToolInputAvailable(id, name, msgspec.json.decode(arguments or "{}")),
    ]


def content(events: list[e.Event]) -> Any:
    """The content as the SDK reads it: the same streamed, in one batch and as a document."""
    finished = [*events, STOP]
    singly = streamed(written([[event] for event in finished]))
    assert streamed(written([finished])) == singly
    assert created(encode_document(finished, id="msg_1", model="m")) == singly
    return singly["content"]


def test_a_text_answer_reaches_the_sdk_with_its_stop_reason_and_usage() -> None:
    message = streamed(written([[e.StartStep(), *text("Grüß dich, 世界 🌍\n")], [STOP]]))
    assert message == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Grüß dich, 世界 🌍\n"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": TOLD,
    }


def test_the_stream_matches_the_protocol_byte_for_byte() -> None:
    stream = AnthropicStreamEncoder(id="msg_1", model="m", input_tokens=7)
    assert stream.encode([]) == b""
    assert stream.encode([e.TextStart("t")]) == (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message",'
        b'"role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,'
        b'"usage":{"input_tokens":7,"output_tokens":0}}}\n\n'
    )
    first = (
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        b'"content_block":{"type":"text","text":""}}\n\n'
    )
    delta = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"a\\n"}}\n\n'
    )
    assert stream.encode([e.TextDelta("t", "a\n")]) == first + delta
    assert stream.encode([e.TextDelta("t", "a\n")]) == delta
    assert stream.encode([e.TextEnd("t"), e.FinishStep("length", e.Usage(output_tokens=2))]) == (
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens",'
        b'"stop_sequence":null,"stop_details":null},"usage":{"output_tokens":2}}\n\n'
    )
    assert stream.ping() == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert stream.end() == b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


def test_signed_thinking_keeps_its_signature_and_unsigned_thinking_has_one_of_the_hubs() -> None:
    signature = "EqQBCgIYAhIk/+=" * 20
    assert content([*thought("Hm.", {"signature": signature}), *thought("So.", None, "reasoning-2")]) == [
        {"type": "thinking", "thinking": "Hm.", "signature": signature},
        {"type": "thinking", "thinking": "So.", "signature": FOREIGN_SIGNATURE},
    ]


def test_redacted_thinking_and_a_lone_signature_become_blocks_and_empty_thinking_does_not() -> None:
    assert content(
        [
            *thought("", {"redactedData": "c2VjcmV0", "provider": "claude"}),
            *thought("", {"signature": "c2ln"}, "reasoning-2"),
            *thought("", None, "reasoning-3"),
            *text("", "text-1"),
            *text("Hi", "text-2"),
        ]
    ) == [
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        {"type": "thinking", "thinking": "", "signature": "c2ln"},
        {"type": "text", "text": "Hi"},
    ]


def test_calls_carry_their_arguments_and_one_without_any_an_empty_object() -> None:
    assert content(
        [*text("Look:"), *call("c1", "read", '{"path": "a.txt", "n": [1, {}]}'), *call("c2", "now", "")]
    ) == [
        {"type": "text", "text": "Look:"},
        {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a.txt", "n": [1, {}]}},
        {"type": "tool_use", "id": "c2", "name": "now", "input": {}},
    ]


def test_a_call_without_streamed_arguments_is_encoded_as_one_delta() -> None:
    assert content([e.ToolInputAvailable("c1", "read", {"path": "a"})]) == [
        {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}}
    ]


def test_overlapping_parallel_calls_become_sequential_blocks() -> None:
    events: list[e.Event] = [
        e.ToolInputStart("c1", "a"),
        e.ToolInputDelta("c1", '{"x":'),
        e.ToolInputStart("c2", "b"),
        e.ToolInputDelta("c2", '{"y"'),
        e.ToolInputDelta("c1", "1}"),
        e.TextStart("t"),
        e.TextDelta("t", "and"),
        e.ToolInputDelta("c2", ":2}"),
        e.TextEnd("t"),
        e.ToolInputAvailable("c1", "a", {"x": 1}),
        e.ToolInputAvailable("c2", "b", {"y": 2}),
    ]
    assert content(events) == [
        {"type": "tool_use", "id": "c1", "name": "a", "input": {"x": 1}},
        {"type": "tool_use", "id": "c2", "name": "b", "input": {"y": 2}},
        {"type": "text", "text": "and"},
    ]


def test_a_call_with_complete_arguments_ends_when_the_next_one_starts() -> None:
    stream = AnthropicStreamEncoder(id="msg_1", model="m", input_tokens=None)
    stream.encode([e.ToolInputStart("c1", "a"), e.ToolInputDelta("c1", '{"x": 1}')])
    second = stream.encode([e.ToolInputStart("c2", "b"), e.ToolInputDelta("c2", "{")])
    assert b'"content_block_stop","index":0' in second
    assert b'"index":1,"content_block":{"type":"tool_use","id":"c2"' in second
    assert second.endswith(b'"partial_json":"{"}}\n\n')


def test_invalid_arguments_are_wrapped_as_anthropic_documents() -> None:
    broken = e.ToolInputError("c1", "read", '{"path": oops', "invalid JSON")
    assert content([broken]) == [
        {"type": "tool_use", "id": "c1", "name": "read", "input": {"INVALID_JSON": '{"path": oops'}}
    ]
    streamed_in: list[e.Event] = [
        e.ToolInputStart("c1", "read"),
        e.ToolInputDelta("c1", '{"path": oops'),
        broken,
        STOP,
    ]
    assert msgspec.json.decode(encode_document(streamed_in, id="i", model="m"))["content"][0]["input"] == {
        "INVALID_JSON": '{"path": oops'
    }


def test_arguments_that_are_not_an_object_are_wrapped_for_the_sdk() -> None:
    def block_input(written: str, event: e.ToolInputAvailable | e.ToolInputError) -> Any:
        return content([e.ToolInputStart("c1", "f"), e.ToolInputDelta("c1", written), event])[0]["input"]

    assert block_input(" null", e.ToolInputAvailable("c1", "f", {})) == {}
    assert block_input("ls -l", e.ToolInputAvailable("c1", "f", "ls -l")) == {"INVALID_JSON": "ls -l"}
    assert block_input("[1]", e.ToolInputError("c1", "f", "[1]", "no object")) == {"INVALID_JSON": "[1]"}
    twice = r'"{\"a\":1}"'
    assert block_input(twice, e.ToolInputError("c1", "f", twice, "no object")) == {"a": 1}
    text = r'"{\"a\":"'
    assert block_input(text, e.ToolInputError("c1", "f", text, "no object")) == {"INVALID_JSON": text}
    assert block_input("\n{}", e.ToolInputAvailable("c1", "f", {})) == {}


def test_server_tools_citations_and_unknown_blocks_are_sent_as_anthropic_sent_them() -> None:
    use = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "hub"}}
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [
            {"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "x"}
        ],
    }
    cited = {
        "type": "web_search_result_location",
        "url": "https://a.example",
        "title": "A",
        "cited_text": "hub",
        "encrypted_index": "e",
    }
    events: list[e.Event] = [
        e.ToolInputStart("s1", "web_search", provider_executed=True),
        e.ToolInputDelta("s1", '{"query": "hub"}'),
        e.ToolInputAvailable(
            "s1",
            "web_search",
            use["input"],
            provider_executed=True,
            provider_metadata={"anthropic": {"block": use}},
        ),
        e.ToolOutputAvailable(
            "s1", found["content"], provider_executed=True, provider_metadata={"anthropic": {"block": found}}
        ),
        e.TextStart("t"),
        e.TextDelta("t", "It is."),
        e.SourceUrl("1", "https://a.example"),
        e.TextEnd("t", {"anthropic": {"citations": [cited]}}),
        e.Data("data-anthropic", {"type": "container_upload", "file_id": "f"}),
    ]
    assert content(events) == [
        use,
        found,
        {"type": "text", "text": "It is.", "citations": [cited]},
        {"type": "container_upload", "file_id": "f"},
    ]


def test_events_without_an_anthropic_equivalent_are_omitted() -> None:
    events: list[e.Event] = [
        e.Start("m"),
        e.File("data:image/png;base64,AA==", "image/png"),
        e.ToolInputStart("s1", "search", provider_executed=True),
        e.ToolInputAvailable("s1", "search", {}, provider_executed=True),
        e.ToolOutputAvailable("s1", "found", provider_executed=True),
        e.ToolOutputAvailable("c1", "not the provider's"),
        e.Data("data-weather", {"c": 3}),
        e.MessageMetadata({"a": 1}),
        *text("Hi"),
        e.Finish("stop"),
    ]
    assert content(events) == [{"type": "text", "text": "Hi"}]


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("tool-calls", "tool_use"),
        ("content-filter", "refusal"),
        ("other", "end_turn"),
    ],
)
def test_finish_reasons_become_stop_reasons(reason: e.FinishReason, stop_reason: str) -> None:
    assert streamed(written([[e.FinishStep(reason)]]))["stop_reason"] == stop_reason


def test_an_answer_that_only_claims_calls_ends_its_turn() -> None:
    """vLLM and others say `tool_calls` after a plain text."""
    events = [*text("Hi"), e.FinishStep("tool-calls")]
    assert streamed(written([events]))["stop_reason"] == "end_turn"
    assert created(encode_document(events, id="i", model="m"))["stop_reason"] == "end_turn"
    called = [*call("c1", "f", "{}"), e.FinishStep("tool-calls")]
    assert streamed(written([called]))["stop_reason"] == "tool_use"


def test_anthropics_own_stop_reason_takes_precedence_and_a_stop_sequence_is_reported() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "no"}
    own = {"anthropic": {"stopReason": "refusal", "stopDetails": details, "id": "msg_9"}}
    message = streamed(written([[e.FinishStep("other", provider_metadata=own)]]))
    assert (message["stop_reason"], message["stop_details"]) == ("refusal", details)
    sequence = {"anthropic": {"stopSequence": "END"}}
    message = streamed(written([[e.FinishStep("stop", provider_metadata=sequence)]]))
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


def test_unknown_counts_stay_as_in_the_message_start() -> None:
    assert streamed(written([[e.FinishStep("stop")]], input_tokens=41))["usage"] == {
        "input_tokens": 41,
        "output_tokens": 0,
    }
    assert streamed(written([[e.FinishStep("stop", e.Usage(input_tokens=9))]]))["usage"] == {
        "input_tokens": 9,
        "output_tokens": 0,
    }
    message = created(encode_document([e.FinishStep("stop")], id="i", model="m", input_tokens=41))
    assert message["usage"] == {"input_tokens": 41, "output_tokens": 0}


def test_an_unknown_output_count_is_estimated_and_marked_as_estimated() -> None:
    events: list[e.Event] = [*text("twelve chars"), e.FinishStep("stop")]
    call: list[e.Event] = [
        e.ToolInputStart("c", "add"),
        e.ToolInputDelta("c", '{"a":12}'),
        e.ToolInputAvailable("c", "add", {"a": 12}),
        e.FinishStep("tool-calls", e.Usage(input_tokens=9)),
    ]
    usage = {"input_tokens": 41, "output_tokens": 3}
    assert b'"usage":{"output_tokens":3,"estimated":true}' in written([events], input_tokens=41)
    assert streamed(written([events], input_tokens=41))["usage"] == usage  # the SDK passes the mark over
    assert created(encode_document(events, id="i", model="m", input_tokens=41))["usage"] == {
        **usage,
        "estimated": True,
    }
    assert streamed(written([call]))["usage"] == {"input_tokens": 9, "output_tokens": 2}
    counted: list[e.Event] = [*text("twelve chars"), e.FinishStep("stop", e.Usage(output_tokens=7))]
    assert streamed(written([counted], input_tokens=41))["usage"] == {"input_tokens": 41, "output_tokens": 7}


def test_an_answer_without_a_finish_is_an_error() -> None:
    stream = AnthropicStreamEncoder(id="msg_1", model="m", input_tokens=1)
    stream.encode(text("half an ans"))
    with pytest.raises(ProviderError) as caught:
        stream.end()
    assert (caught.value.category, caught.value.transient) == ("network", True)
    with pytest.raises(ProviderError):
        encode_document(text("half"), id="i", model="m")
    for reason in ("error", "aborted", None):
        with pytest.raises(ProviderError):
            written([[e.FinishStep(reason)]])


def test_sent_blocks_cannot_be_reset_but_a_document_starts_over() -> None:
    stream = AnthropicStreamEncoder(id="msg_1", model="m", input_tokens=1)
    stream.encode([e.StartStep(), e.TextStart("t"), e.ResetStep(), e.TextStart("t"), e.TextDelta("t", "a")])
    with pytest.raises(OutOfOrder):
        stream.encode([e.ResetStep()])
    raw = encode_document([*text("first"), e.ResetStep(), *text("second"), STOP], id="i", model="m")
    assert created(raw)["content"] == [{"type": "text", "text": "second"}]


def test_the_plain_stream_has_dense_indexes_and_one_open_block_at_a_time() -> None:
    events = [
        *thought("Hm", {"signature": "s"}),
        *text("a"),
        *call("c1", "f", '{"a":1}'),
        *call("c2", "g", ""),
    ]
    seen = [(event["type"], event.get("index")) for event in raw_events(written([[*events, STOP]]))]
    assert [pair for pair in seen if pair[0] != "content_block_delta"] == [
        ("message_start", None),
        *[(kind, index) for index in range(4) for kind in ("content_block_start", "content_block_stop")],
        ("message_delta", None),
        ("message_stop", None),
    ]
