"""A model request as a body of the Responses API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, Message, Part, ReasoningPart, StepStartPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.wire.responses.request import check_request, encode_request, rejected_field

PNG = "data:image/png;base64,iVBORw0KGgo="
PDF = "data:application/pdf;base64,JVBERi0="
WEATHER = Tool("weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


def user(*parts: Part) -> Message:
    return Message("u", "user", parts)


def assistant(*parts: Part) -> Message:
    return Message("a", "assistant", parts)


def body(*messages: Message, provider: str = "up", drop: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    fields = {"model": "gpt-5.1", "messages": messages or (user(TextPart("Hi")),), **more}
    encoded = encode_request(ModelRequest(**fields), provider=provider, drop=drop)
    decoded: dict[str, Any] = msgspec.json.decode(encoded)
    return decoded


def sealed(text: str, provider: str = "up") -> ReasoningPart:
    metadata = {"responses": {"itemId": "rs_1", "encryptedContent": "gAA+/=", "provider": provider}}
    return ReasoningPart(text, provider_metadata=metadata)


def test_a_plain_request_is_streamed_and_kept_by_nobody() -> None:
    assert body(instructions="Be brief.") == {
        "model": "gpt-5.1",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


def test_a_turn_with_reasoning_and_calls_is_its_items_and_then_the_outputs() -> None:
    call = ToolPart("tool-weather", "call_1", "output-available", input={"city": "Oslo"}, output={"c": 3})
    failed = ToolPart("tool-weather", "call_2", "output-error", input={}, error_text="no city")
    unrun = ToolPart("tool-weather", "call_3", "input-available", input={})
    history = assistant(
        StepStartPart(),
        sealed("Hm."),
        call,
        failed,
        unrun,
        StepStartPart(),
        TextPart("Cold."),
        sealed("Rest."),
    )
    items = body(user(TextPart("Hi")), history, user(TextPart("And now?")))["input"]
    assert items[1:] == [
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "gAA+/=",
            "id": "rs_1",
        },
        *(
            {"type": "function_call", "call_id": id, "name": "weather", "arguments": arguments}
            for id, arguments in [("call_1", '{"city":"Oslo"}'), ("call_2", "{}"), ("call_3", "{}")]
        ),
        {"type": "function_call_output", "call_id": "call_1", "output": '{"c":3}'},
        {"type": "function_call_output", "call_id": "call_2", "output": "no city"},
        {"type": "function_call_output", "call_id": "call_3", "output": "not run: interrupted"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Cold.", "annotations": []}],
        },
        {"role": "user", "content": "And now?"},
    ]


def test_reasoning_of_another_provider_is_left_out() -> None:
    history = assistant(sealed("Hm.", provider="other"), ReasoningPart("Plain."), TextPart("Cold."))
    assert [item["type"] for item in body(history)["input"]] == ["message"]


def test_a_call_id_occurs_once_in_a_request() -> None:
    def call(id: str, output: str) -> ToolPart:
        return ToolPart("tool-weather", id, "output-available", input={}, output=output)

    first = assistant(StepStartPart(), call("c", "1"), call("c", "2"), StepStartPart(), call("c", "3"))
    items = body(user(TextPart("Hi")), first, user(TextPart("More")), assistant(call("c-2", "4")))["input"]
    ids = [item["call_id"] for item in items if item.get("type") == "function_call"]
    assert ids == ["c", "c-2", "c-3", "c-2-2"]
    outputs = [(item["call_id"], item["output"]) for item in items if "output" in item]
    assert outputs == list(zip(ids, "1234", strict=True))


def test_cache_marks_are_breakpoints_of_the_content_unless_the_model_refuses_them() -> None:
    mark = {"anthropic": {"cacheControl": {"type": "ephemeral", "ttl": "1h"}}}
    call = ToolPart(
        "tool-weather", "c", "output-available", input={}, output="1", result_provider_metadata=mark
    )
    history = (
        Message("s", "system", (TextPart("Be brief."), TextPart("Long.", provider_metadata=mark))),
        user(TextPart("Hi", provider_metadata=mark), FilePart("image/png", PNG, provider_metadata=mark)),
        assistant(TextPart("Hm.", provider_metadata=mark), call),
        user(TextPart("More")),
    )
    marked = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    image = {"type": "input_image", "image_url": PNG, "detail": "auto"}
    answer = {"type": "output_text", "text": "Hm.", "annotations": []}
    called = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c"}
    assert body(*history)["input"] == [
        {
            "role": "system",
            "content": [
                {"type": "input_text", "text": "Be brief."},
                {"type": "input_text", "text": "Long.", **marked},
            ],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "Hi", **marked}, {**image, **marked}]},
        {"type": "message", "role": "assistant", "content": [answer]},
        called,
        {**output, "output": [{"type": "input_text", "text": "1", **marked}]},
        {"role": "user", "content": "More"},
    ]
    assert body(*history, drop=("prompt_cache_breakpoint",))["input"] == [
        {"role": "system", "content": "Be brief.Long."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, image]},
        {"type": "message", "role": "assistant", "content": [answer]},
        called,
        {**output, "output": "1"},
        {"role": "user", "content": "More"},
    ]


def test_files_are_parts_of_the_input_and_of_outputs() -> None:
    files = (
        FilePart("image/png", PNG),
        FilePart("application/pdf", PDF, "a.pdf"),
        FilePart("application/pdf", "https://example.org/a.pdf"),
        FilePart("text/plain", "data:text/plain,hello", "a.txt"),
    )
    output = {"content": [{"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}]}
    call = ToolPart("tool-look", "call_1", "output-available", input={}, output=output)
    question, _, result = body(user(TextPart("What is it?"), *files), assistant(call))["input"]
    assert question["content"] == [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": PNG, "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        {"type": "input_file", "file_url": "https://example.org/a.pdf"},
        {"type": "input_text", "text": "a.txt:\nhello"},
    ]
    assert result["output"] == [{"type": "input_image", "image_url": PNG, "detail": "auto"}]


def test_tools_are_flat_and_their_schemas_enforced_only_if_that_is_asked_for() -> None:
    sent = body(
        tools=(WEATHER,), tool_choice=NamedToolChoice("weather"), options={"parallel_tool_calls": False}
    )
    assert sent["tools"] == [
        {
            "type": "function",
            "name": "weather",
            "description": "The weather.",
            "parameters": WEATHER.input_schema,
            "strict": False,
        }
    ]
    assert sent["tool_choice"] == {"type": "function", "name": "weather"}
    assert sent["parallel_tool_calls"] is False
    assert "strict" not in body(tools=(WEATHER,), drop=("strict",))["tools"][0]


SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"max_tokens": 9}, {"max_output_tokens": 9}),
        ({"max_completion_tokens": 9}, {"max_output_tokens": 9}),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low", "summary": "auto"}}),
        ({"reasoning_effort": "none"}, {"reasoning": {"effort": "none"}}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9000}},
            {"reasoning": {"effort": "medium", "summary": "auto"}},
        ),
        ({"verbosity": "low"}, {"text": {"verbosity": "low"}}),
        ({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "bird", "schema": SCHEMA, "strict": True},
                }
            },
            {"text": {"format": {"type": "json_schema", "name": "bird", "schema": SCHEMA, "strict": True}}},
        ),
        ({"temperature": 0.5, "top_p": None, "user": "ada"}, {"temperature": 0.5, "user": "ada"}),
        ({"extra_body": {"foo": 1, "store": True}}, {"foo": 1}),
    ],
)
def test_options_become_the_fields_of_the_api(options: dict[str, Any], fields: dict[str, Any]) -> None:
    plain = body()
    assert body(options=options) == plain | fields
    assert check_request(ModelRequest(model="m", messages=(), options=options)) == []


def test_what_the_api_does_not_have_is_reported_or_refused() -> None:
    options = {"stop": ["x"], "seed": 1, "logit_bias": None, "top_k": 3}
    assert check_request(ModelRequest(model="m", messages=(), options=options)) == ["seed", "stop", "top_k"]
    assert body(options=options) == body()
    with pytest.raises(BadRequest, match="one answer"):
        check_request(ModelRequest(model="m", messages=(), options={"n": 2}))


@pytest.mark.parametrize(
    ("error", "field"),
    [
        ({"message": "Encrypted content is not supported with this model."}, "include"),
        (
            {
                "message": "Unsupported parameter: 'temperature' is not supported with this model.",
                "param": "temperature",
                "code": "unsupported_parameter",
            },
            "temperature",
        ),
        (
            {
                "message": "Unsupported parameter: 'reasoning.effort'",
                "param": "reasoning.effort",
                "code": "unsupported_parameter",
            },
            "reasoning.effort",
        ),
        ({"message": "Unknown parameter: 'include'.", "param": None}, "include"),
        (
            {
                "message": "Unknown parameter: 'input[0].content[0].prompt_cache_breakpoint'.",
                "param": "input[0].content[0].prompt_cache_breakpoint",
                "code": "unknown_parameter",
            },
            "prompt_cache_breakpoint",
        ),
        (
            {"message": "Invalid value for 'temperature'", "param": "temperature", "code": "invalid_value"},
            None,
        ),
        (
            {"message": "Unsupported parameter: 'input'", "param": "input", "code": "unsupported_parameter"},
            None,
        ),
    ],
)
def test_a_field_that_a_model_refuses_is_found_if_the_request_can_do_without_it(
    error: dict[str, Any], field: str | None
) -> None:
    assert rejected_field(error) == field
