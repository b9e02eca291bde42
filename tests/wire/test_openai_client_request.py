"""A client's chat.completions request: the parsed request, and what is sent on to a provider."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.messages import FilePart, Message, TextPart, ToolPart
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.wire.client_request import ClientRequest
from dragoman.wire.openai.client_request import parse_chat_completions_request
from dragoman.wire.openai.request import encode_request

HI: dict[str, Any] = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def read(*messages: dict[str, Any], **fields: Any) -> ClientRequest:
    return parse_chat_completions_request(
        msgspec.json.encode({"model": "m", "messages": list(messages), **fields})
    )


def parse(*messages: dict[str, Any]) -> list[Message]:
    return list(read(*messages).request.messages)


def parts(message: dict[str, Any], *after: dict[str, Any]) -> list[Any]:
    return list(parse(message, *after)[0].parts)


def call(id: str = "c1", name: str = "f", arguments: str = '{"x":1}') -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def cache_metadata(**more: Any) -> dict[str, Any]:
    return {"anthropic": {"cacheControl": {"type": "ephemeral", **more}}}


def test_a_plain_body_is_parsed_to_a_model_request() -> None:
    parsed = read(
        {"role": "developer", "content": "Be kind."},
        HI,
        {"role": "assistant", "content": "Hello"},
        {
            "role": "system",
            "content": [{"type": "text", "text": "Now be "}, {"type": "text", "text": "brief"}],
        },
        {"role": "user", "content": ""},
        temperature=0.5,
        max_completion_tokens=9,
        stop=["a"],
        vendor_knob={"deep": [1]},
        seed=None,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert parsed == ClientRequest(
        request=ModelRequest(
            model="m",
            messages=(
                Message("messages[0]", "system", (TextPart("Be kind."),)),
                Message("messages[1]", "user", (TextPart("Hi"),)),
                Message("messages[2]", "assistant", (TextPart("Hello"),)),
                Message("messages[3]", "system", (TextPart("Now be "), TextPart("brief"))),
                Message("messages[4]", "user", ()),
            ),
            options={
                "temperature": 0.5,
                "max_completion_tokens": 9,
                "stop": ["a"],
                "vendor_knob": {"deep": [1]},
            },
        ),
        stream=True,
        include_usage=True,
    )


def test_fields_without_a_neutral_equivalent_are_reported() -> None:
    parsed = read(
        {"role": "user", "name": "ann", "content": "Hi"},
        {"role": "user", "name": "bob", "content": [{"type": "text", "text": "Ho", "tone": "loud"}]},
        {"role": "assistant", "content": "x", "audio": {"id": "a"}, "annotations": [], "refusal": None},
        stream_options={"include_obfuscation": True},
    )
    assert parsed.ignored_fields == (
        "messages[].name",
        "messages[].content[].tone",
        "messages[].audio",
        "stream_options.include_obfuscation",
    )
    assert not parsed.stream
    assert not parsed.include_usage


def test_a_spoken_answer_is_its_transcript() -> None:
    audio = {"id": "audio_1", "data": "UklGRg==", "expires_at": 1, "transcript": "Hello"}
    parsed = read(
        {"role": "assistant", "content": None, "audio": audio},
        {"role": "assistant", "content": "Hi", "audio": audio},
        {"role": "assistant", "content": None, "audio": {"id": "audio_1"}},
    )
    texts = [part.text for message in parsed.request.messages for part in message.parts]  # type: ignore[union-attr]
    assert texts == ["Hello", "Hi"]
    assert parsed.ignored_fields == ("messages[].audio",)


def test_content_parts_become_texts_and_files() -> None:
    content = [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": "data:image/webp;base64,QUJD", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://a.example/cat.jpg?x=1"}},
        {"type": "image_url", "image_url": "https://a.example/cat.gif"},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "flac"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
        {"type": "file", "file": {"filename": "b.csv", "file_data": "QUJD"}},
        {"type": "file", "file": {"file_data": "https://a.example/c.pdf"}},
        {"type": "document_url", "document_url": "https://a.example/d.pdf"},
        {
            "type": "document_url",
            "document_url": "data:application/pdf;base64,QUJD",
            "document_name": "e.pdf",
        },
        {"type": "input_audio", "input_audio": "UklGRkFC"},
        {"type": "input_audio", "input_audio": "//NkxEFC"},
    ]
    assert parts({"role": "user", "content": content}) == [
        TextPart("See"),
        FilePart(
            "image/webp",
            "data:image/webp;base64,QUJD",
            provider_metadata={"openai": {"imageDetail": "low"}},
        ),
        FilePart("image/jpeg", "https://a.example/cat.jpg?x=1"),
        FilePart("image/gif", "https://a.example/cat.gif"),
        FilePart("audio/wav", "data:audio/wav;base64,QUJD"),
        FilePart("audio/flac", "data:audio/flac;base64,QUJD"),
        FilePart("application/pdf", "data:application/pdf;base64,QUJD", "a.pdf"),
        FilePart("text/csv", "data:text/csv;base64,QUJD", "b.csv"),
        FilePart("application/pdf", "https://a.example/c.pdf"),
        FilePart("application/pdf", "https://a.example/d.pdf"),
        FilePart("application/pdf", "data:application/pdf;base64,QUJD", "e.pdf"),
        FilePart("audio/wav", "data:audio/wav;base64,UklGRkFC"),
        FilePart("audio/mpeg", "data:audio/mpeg;base64,//NkxEFC"),
    ]


def test_cache_breakpoints_are_kept_wherever_clients_put_them() -> None:
    image = {"url": "https://a.example/a.png", "detail": "high"}
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    parsed = read(
        {
            "role": "system",
            "content": [{"type": "text", "text": "Long", "cache_control": {"type": "ephemeral"}}],
        },
        {"role": "user", "content": [{"type": "image_url", "image_url": image, **hour}]},
        {"role": "user", "content": "Hi", **hour},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": text, "prompt_cache_breakpoint": {"mode": "explicit", **ttl}}
                for text, ttl in (("a", {}), ("b", {"ttl": "30m"}), ("c", {"ttl": "5m"}))
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [{**call(), **hour}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r", **hour}]},
        tools=[{"type": "function", "function": {"name": "f", "parameters": SCHEMA}, **hour}],
    )
    metadata = [
        part.call_provider_metadata if isinstance(part, ToolPart) else part.provider_metadata  # type: ignore[union-attr]
        for message in parsed.request.messages
        for part in message.parts
    ]
    assert metadata == [
        cache_metadata(),
        {**cache_metadata(ttl="1h"), "openai": {"imageDetail": "high"}},
        cache_metadata(ttl="1h"),
        cache_metadata(),
        cache_metadata(ttl="1h"),
        cache_metadata(ttl="5m"),
        cache_metadata(ttl="1h"),
    ]
    called = parsed.request.messages[-1].parts[0]
    assert isinstance(called, ToolPart)
    assert called.result_provider_metadata == cache_metadata(ttl="1h")
    assert parsed.request.tools == (Tool("f", "", SCHEMA, metadata=cache_metadata(ttl="1h")),)
    assert parsed.ignored_fields == ()


def test_results_are_put_into_their_calls() -> None:
    assistant = {
        "role": "assistant",
        "content": [{"type": "text", "text": "Let me see."}, {"type": "refusal", "refusal": "Not that."}],
        "tool_calls": [call("c1"), call("c2", "g", ""), call("c3", "h", "[1]"), call("c4", "i", '{"x":')],
    }
    results: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": "c3", "content": None},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny", "name": "f"},
        {
            "role": "tool",
            "tool_call_id": "c2",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        },
    ]
    assert parts(assistant, *results) == [
        TextPart("Let me see."),
        TextPart("Not that.", provider_metadata={"openai": {"refusal": True}}),
        ToolPart("tool-f", "c1", "output-available", input={"x": 1}, output="sunny"),
        ToolPart("tool-g", "c2", "output-available", input={}, output="one\ntwo"),
        ToolPart("tool-h", "c3", "output-available", input={}, raw_input="[1]", output=""),
        ToolPart("tool-i", "c4", "input-available", input={}, raw_input='{"x":'),
    ]


def test_a_result_may_contain_an_image() -> None:
    result = {
        "role": "tool",
        "tool_call_id": "c1",
        "content": [
            {"type": "text", "text": "a cat"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        ],
    }
    [part] = parts({"role": "assistant", "tool_calls": [call()]}, result)
    assert part.output == {
        "content": [
            {"type": "text", "text": "a cat"},
            {"type": "image", "data": "QUJD", "mimeType": "image/png"},
        ]
    }


def test_a_reused_id_refers_to_the_newest_call() -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": [call("0"), call("0")]}
    results = [{"role": "tool", "tool_call_id": "0", "content": text} for text in ("a", "b")]
    messages = parse(turn, *results, HI, turn, results[1], results[0])
    outputs = [[part.output for part in message.parts if isinstance(part, ToolPart)] for message in messages]
    assert outputs == [["a", "b"], [], ["b", "a"]]


def test_functions_are_parsed_like_tools() -> None:
    parsed = read(
        HI,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x":1}'}},
        {"role": "function", "name": "f", "content": "sunny"},
        functions=[{"name": "f", "description": "Looks.", "parameters": SCHEMA}],
        function_call={"name": "f"},
    )
    assert parsed.request == ModelRequest(
        model="m",
        messages=(
            Message("messages[0]", "user", (TextPart("Hi"),)),
            Message(
                "messages[1]",
                "assistant",
                (ToolPart("tool-f", "function_call_1", "output-available", input={"x": 1}, output="sunny"),),
            ),
        ),
        tools=(Tool("f", "Looks.", SCHEMA),),
        tool_choice=NamedToolChoice("f"),
        options={"parallel_tool_calls": False},
    )


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


@pytest.mark.parametrize(
    ("choice", "understood", "names"),
    [
        (None, None, ["f", "g"]),
        ("auto", "auto", ["f", "g"]),
        ("none", "none", ["f", "g"]),
        ("required", "required", ["f", "g"]),
        ("any", "required", ["f", "g"]),
        ({"type": "function", "function": {"name": "g"}}, NamedToolChoice("g"), ["f", "g"]),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools("g")}},
            "required",
            ["g"],
        ),
    ],
)
def test_tool_choices_are_parsed(choice: Any, understood: Any, names: list[str]) -> None:
    strict = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    request = read(HI, tools=[strict, *tools("g")], tool_choice=choice).request
    choices = {
        "f": Tool("f", "", SCHEMA, strict=True),
        "g": Tool("g", "", {"type": "object", "properties": {}}),
    }
    assert request.tool_choice == understood
    assert list(request.tools) == [choices[name] for name in names]


OTHER = {"type": "reasoning.summary", "summary": "So", "format": "openai-responses-v1", "id": "rs_1"}


def test_openais_fields_reach_an_openai_server() -> None:
    opaque = {"google": {"thought_signature": "s"}}
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    {
                        "type": "image_url",
                        "image_url": {"url": "data:image/png;base64,QUJD", "detail": "low"},
                    },
                    {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
                    {
                        "type": "file",
                        "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": "Let me look.",
                "reasoning_details": [OTHER],
                "tool_calls": [{**call("c1"), "extra_content": opaque}, call("c2", "g", "{}")],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "c2", "content": "[1]"},
            HI,
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "Looks.", "strict": True, "parameters": SCHEMA},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "temperature": 0.5,
        "max_completion_tokens": 9,
        "stop": ["a", "b"],
        "seed": 1,
        "n": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "logit_bias": {"50256": -100},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        "reasoning_effort": "low",
        "parallel_tool_calls": False,
        "metadata": {"a": "b"},
        "user": "u",
        "vendor_knob": [1, {"a": None}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    parsed = parse_chat_completions_request(msgspec.json.encode(body))
    assert msgspec.json.decode(encode_request(parsed.request)) == body
