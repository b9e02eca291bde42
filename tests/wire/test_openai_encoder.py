"""The chat.completions encoder: what each event becomes in a stream and in a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.wire.openai.encoder import OpenAIStreamEncoder, encode_document

USAGE = e.Usage(7, 5, 12, reasoning_tokens=2, cached_input_tokens=3, cache_write_tokens=1)
SPOKEN_USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "m"}


def stream(*, include_usage: bool = False) -> OpenAIStreamEncoder:
    return OpenAIStreamEncoder(id="chatcmpl-1", model="m", created=5, include_usage=include_usage)


def frames(raw: bytes) -> list[Any]:
    """The payloads of a stream."""
    assert raw.endswith(b"\n\n")
    return [
        payload if payload == b"[DONE]" else msgspec.json.decode(payload)
        for frame in raw.removesuffix(b"\n\n").split(b"\n\n")
        if (payload := frame.removeprefix(b"data: "))
    ]


def deltas(*events: e.Event) -> list[Any]:
    """The deltas and finish reasons; checks that all chunks have the same head."""
    collected = []
    for chunk in frames(stream().encode(events)):
        [choice] = chunk.pop("choices")
        assert chunk == HEAD
        assert choice.pop("index") == 0
        collected.append(
            choice["delta"] if choice["finish_reason"] is None else (choice["finish_reason"], choice["delta"])
        )
    return collected


def message(*events: e.Event) -> dict[str, Any]:
    read = msgspec.json.decode(encode_document(events, id="chatcmpl-1", model="m", created=5))
    found = read["choices"][0]["message"]
    assert isinstance(found, dict)
    return found


def finish(reason: e.FinishReason = "stop", **fields: Any) -> e.FinishStep:
    return e.FinishStep(reason, **fields)


TEXT: Sequence[e.Event] = (
    e.TextStart("t"),
    e.TextDelta("t", "Hé"),
    e.TextDelta("t", '"llo"'),
    e.TextEnd("t"),
)


def test_text_is_encoded_as_it_arrives_and_usage_at_the_end() -> None:
    writer = stream(include_usage=True)
    raw = (
        b"".join(map(writer.encode, ([e.StartStep()], TEXT[:2], TEXT[2:], [finish(usage=USAGE)])))
        + writer.end()
    )
    head = {**HEAD, "usage": None}
    assert frames(raw) == [
        {
            **head,
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hé"}, "finish_reason": None}],
        },
        {**head, "choices": [{"index": 0, "delta": {"content": '"llo"'}, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**HEAD, "choices": [], "usage": SPOKEN_USAGE},
        b"[DONE]",
    ]


def test_a_client_that_did_not_request_usage_gets_none() -> None:
    writer = stream()
    raw = writer.encode([*TEXT, finish(usage=USAGE)]) + writer.end()
    assert b"usage" not in raw
    assert raw.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("usage", [None, e.Usage(), e.Usage(total_tokens=4)])
def test_unknown_usage_is_omitted(usage: e.Usage | None) -> None:
    writer = stream(include_usage=True)
    assert writer.encode([*TEXT, finish(usage=usage)])
    assert writer.end() == b"data: [DONE]\n\n"
    assert (
        msgspec.json.decode(encode_document([finish(usage=usage)], id="1", model="m", created=5))["usage"]
        is None
    )


@pytest.mark.parametrize(
    ("usage", "spoken"),
    [
        (e.Usage(1, 2), {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
        (e.Usage(None, 2), {"completion_tokens": 2}),
        (
            e.Usage(1, 2, 3, cached_input_tokens=0, estimated=True),
            {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "total_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 0},
                "estimated": True,
            },
        ),
    ],
)
def test_known_counts_of_usage_are_encoded(usage: e.Usage, spoken: dict[str, Any]) -> None:
    writer = stream(include_usage=True)
    writer.encode([finish(usage=usage)])
    assert frames(writer.end())[0]["usage"] == spoken
    assert (
        msgspec.json.decode(encode_document([finish(usage=usage)], id="1", model="m", created=5))["usage"]
        == spoken
    )


def test_calls_are_encoded_one_after_the_other_and_numbered() -> None:
    events: list[e.Event] = [
        e.ToolInputStart("a", "f"),
        e.ToolInputDelta("a", '{"x":'),
        e.ToolInputStart("s", "web_search", provider_executed=True),
        e.ToolInputDelta("s", "{}"),
        e.ToolInputAvailable("s", "web_search", {}, provider_executed=True),
        e.ToolOutputAvailable("s", [], provider_executed=True),
        e.ToolInputStart("b", "g"),
        e.ToolInputDelta("a", "1}"),
        e.ToolInputAvailable("a", "f", {"x": 1}),
        e.ToolInputAvailable("b", "g", {}),
        e.ToolInputAvailable("c", "h", {"y": 2}),
        finish("tool-calls"),
    ]

    def header(index: int, id: str, name: str, arguments: str = "") -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"index": index, "id": id, "type": "function", "function": function}

    def arguments_delta(index: int, arguments: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}

    assert deltas(*events) == [
        {"role": "assistant", "content": None, "tool_calls": [header(0, "a", "f")]},
        arguments_delta(0, '{"x":'),
        {"tool_calls": [*arguments_delta(0, "1}")["tool_calls"], header(1, "b", "g")]},
        arguments_delta(1, "{}"),
        {"tool_calls": [header(2, "c", "h", '{"y":2}')]},
        ("tool_calls", {}),
    ]
    assert message(*events) == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in (("a", "f", '{"x":1}'), ("b", "g", "{}"), ("c", "h", '{"y":2}'))
        ],
    }


def test_a_call_waits_until_the_one_before_it_is_complete() -> None:
    events: list[e.Event] = [
        e.ToolInputStart("a", "f"),
        e.ToolInputStart("b", "g"),
        e.ToolInputDelta("b", '{"y":2}'),
        e.TextStart("t"),
        e.TextDelta("t", "Hi"),
        e.TextEnd("t"),
        e.ToolInputStart("c", "h"),
        e.ToolInputAvailable("a", "f", {}),
    ]
    fragments = [
        [(fragment["index"], fragment["function"]["arguments"]) for fragment in delta.get("tool_calls", ())]
        for delta in deltas(*events)
    ]
    assert fragments == [[(0, "")], [], [(0, "{}"), (1, '{"y":2}'), (2, "")]]
    writer = stream()
    writer.encode(events[:-1])
    [last] = frames(writer.encode([finish("tool-calls"), e.ToolInputDelta("c", "{}")]))
    assert [call["index"] for call in last["choices"][0]["delta"]["tool_calls"]] == [1, 2]


@pytest.mark.parametrize(
    ("events", "arguments"),
    [
        ([e.ToolInputStart("a", "f"), e.ToolInputAvailable("a", "f", {})], "{}"),
        ([e.ToolInputStart("a", "f"), e.ToolInputDelta("a", " "), e.ToolInputAvailable("a", "f", {})], " {}"),
        ([e.ToolInputAvailable("a", "f", None)], "{}"),
        ([e.ToolInputAvailable("a", "f", "SELECT 1")], "SELECT 1"),
        ([e.ToolInputError("a", "f", '{"x":', "bad")], '{"x":'),
        ([e.ToolInputError("a", "f", "", "no name")], ""),
        ([e.ToolInputError("a", "f", [1], "no object")], "[1]"),
        (
            [
                e.ToolInputStart("a", "f"),
                e.ToolInputDelta("a", '{"x":'),
                e.ToolInputError("a", "f", '{"x":', "bad"),
            ],
            '{"x":',
        ),
    ],
)
def test_arguments_are_what_the_model_wrote(events: list[e.Event], arguments: str) -> None:
    encoded = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas(*events)]
    assert "".join(encoded) == arguments
    assert message(*events, finish("tool-calls"))["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    ]


def test_reasoning_is_encoded_in_its_own_field_and_its_signature_after_it() -> None:
    signed = {"anthropic": {"signature": "sig", "provider": "claude"}}
    other = {"type": "reasoning.encrypted", "data": "x", "format": "openai-responses-v1", "index": 7}
    events: list[e.Event] = [
        e.ReasoningStart("r1"),
        e.ReasoningDelta("r1", "H"),
        e.ReasoningDelta("r1", "m"),
        e.ReasoningEnd("r1", signed),
        e.ReasoningStart("r2", {"anthropic": {"redactedData": "blob"}}),
        e.ReasoningEnd("r2"),
        e.ReasoningStart("r3"),
        e.ReasoningDelta("r3", "Ah"),
        e.ReasoningEnd("r3", {"openai": {"reasoning_details": [other]}}),
        e.ReasoningStart("r4"),
        e.ReasoningDelta("r4", "!"),
        e.ReasoningEnd("r4"),
        *TEXT,
        finish(),
    ]
    entries = [
        {
            "index": 0,
            "type": "reasoning.text",
            "text": "Hm",
            "signature": "sig",
            "format": "anthropic-claude-v1",
            "provider": "claude",
        },
        {"index": 1, "type": "reasoning.encrypted", "data": "blob", "format": "anthropic-claude-v1"},
        {**other, "index": 2},
    ]
    assert deltas(*events) == [
        {"role": "assistant", "content": None, "reasoning_content": "H"},
        {"reasoning_content": "m"},
        *({"reasoning_details": [entry]} for entry in entries[:2]),
        {"reasoning_content": "Ah"},
        {"reasoning_details": [entries[2]]},
        {"reasoning_content": "!"},
        {"content": "Hé"},
        {"content": '"llo"'},
        ("stop", {}),
    ]
    assert message(*events) == {
        "role": "assistant",
        "content": 'Hé"llo"',
        "refusal": None,
        "reasoning_content": "HmAh!",
        "reasoning_details": entries,
    }


def test_a_refusal_is_not_content() -> None:
    refusal = {"openai": {"refusal": True}}
    events: list[e.Event] = [
        e.TextStart("t", refusal),
        e.TextDelta("t", "No"),
        e.TextDelta("t", "."),
        e.TextEnd("t", refusal),
        finish(),
    ]
    assert deltas(*events) == [
        {"role": "assistant", "content": None, "refusal": "No"},
        {"refusal": "."},
        ("stop", {}),
    ]
    assert message(*events) == {"role": "assistant", "content": None, "refusal": "No."}


def test_the_providers_reason_for_a_refusal_is_encoded() -> None:
    why = {"anthropic": {"stopReason": "refusal", "stopDetails": {"explanation": "Not that."}}}
    events = [*TEXT, finish("content-filter", provider_metadata=why)]
    assert deltas(*events)[-1] == ("content_filter", {"refusal": "Not that."})
    assert message(*events) == {"role": "assistant", "content": 'Hé"llo"', "refusal": "Not that."}


def test_citations_and_images_are_numbered() -> None:
    events: list[e.Event] = [
        *TEXT,
        e.SourceUrl("s1", "https://a.example", "A"),
        e.SourceUrl("s2", "https://b.example"),
        e.SourceDocument("d", "text/plain", "a document has no URL"),
        e.File("data:image/png;base64,QUJD", "image/png"),
        e.File("data:audio/wav;base64,QUJD", "audio/wav"),
        e.Data("data-anthropic", {"type": "compaction"}),
        finish(),
    ]
    position = {"start_index": 7, "end_index": 7}
    annotations = [
        {
            "index": 0,
            "type": "url_citation",
            "url_citation": {"url": "https://a.example", "title": "A", **position},
        },
        {
            "index": 1,
            "type": "url_citation",
            "url_citation": {"url": "https://b.example", "title": "https://b.example", **position},
        },
    ]
    image = {"index": 0, "type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    assert deltas(*events)[2:-1] == [
        *({"annotations": [entry]} for entry in annotations),
        {"images": [image]},
    ]
    answer = message(*events)
    assert (answer["annotations"], answer["images"]) == (annotations, [image])


@pytest.mark.parametrize(
    ("reason", "spoken"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content-filter", "content_filter"),
        ("tool-calls", "tool_calls"),
        ("other", "stop"),
    ],
)
def test_a_finish_is_encoded_once_and_nothing_after_it(reason: e.FinishReason, spoken: str) -> None:
    writer = stream()
    writer.encode([e.TextStart("t"), e.TextDelta("t", "Hi")])
    assert frames(writer.encode([finish(reason)]))[0]["choices"][0]["finish_reason"] == spoken
    assert writer.encode([e.TextDelta("t", "more"), finish(reason), e.ReasoningDelta("r", "more")]) == b""
    assert writer.end() == b"data: [DONE]\n\n"


def test_an_empty_answer_has_an_empty_text() -> None:
    assert deltas(finish()) == [("stop", {"role": "assistant", "content": ""})]
    assert message(finish()) == {"role": "assistant", "content": "", "refusal": None}


@pytest.mark.parametrize("last", [[], [finish("error")], [finish("aborted")], [e.FinishStep()]])
def test_a_finish_is_never_invented(last: list[e.Event]) -> None:
    writer = stream(include_usage=True)
    assert b"stop" not in writer.encode([*TEXT, *last])
    with pytest.raises(ProviderError) as broken:
        writer.end()
    assert (broken.value.category, broken.value.transient) == ("network", True)
    with pytest.raises(ProviderError):
        encode_document([*TEXT, *last], id="1", model="m", created=5)


def test_nothing_is_encoded_after_a_failure() -> None:
    writer = stream(include_usage=True)
    writer.encode(TEXT[:2])
    [frame] = frames(writer.encode_error(ProviderError("gone", category="network")))
    assert frame == {"error": {"message": "gone", "type": "server_error", "param": None, "code": "network"}}
    assert writer.encode([*TEXT, finish()]) == b""
    assert writer.encode_error(ProviderError("again")) == b""
    with pytest.raises(ProviderError):
        writer.end()


def test_a_document_is_a_chat_completion() -> None:
    assert msgspec.json.decode(
        encode_document([*TEXT, finish("length", usage=USAGE)], id="chatcmpl-1", model="m", created=5)
    ) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 5,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": 'Hé"llo"', "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": SPOKEN_USAGE,
    }
