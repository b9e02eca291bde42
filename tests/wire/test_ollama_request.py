"""/api/chat requests: complete bodies for whole conversations."""

from __future__ import annotations

import base64
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from ollama._types import ChatRequest

from dragoman.errors import BadRequest
from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.wire.multimodal_outputs import write_multimodal_output
from dragoman.wire.ollama.request import check_request, encode_request

PNG = "iVBORw0KGgo="


def encode(*messages: Message, choice: Any = None, **fields: Any) -> dict[str, Any]:
    """The body of a request; it must be valid for the types of Ollama's client."""
    request = ModelRequest(model="m", messages=messages, **fields)
    body = msgspec.json.decode(encode_request(request, provider="up", **(choice or {})))
    ChatRequest.model_validate(body)
    assert isinstance(body, dict)
    return body


def history(*messages: Message, **fields: Any) -> list[dict[str, Any]]:
    written = encode(*messages, **fields)["messages"]
    assert isinstance(written, list)
    return written


def user(*parts: Part) -> Message:
    return Message("messages[0]", "user", parts)


def assistant(*parts: Part) -> Message:
    return Message("messages[1]", "assistant", parts)


def tool(id: str = "call_a", state: Any = "output-available", name: str = "f", **fields: Any) -> ToolPart:
    return ToolPart(f"tool-{name}", id, state, **{"input": {"x": 1}, **fields})


HI = user(TextPart("Hi"))


def test_a_body_has_the_request_and_asks_for_a_stream() -> None:
    assert encode(HI, instructions="Be kind.") == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        "stream": True,
    }
    assert encode(HI, choice={"stream": False})["stream"] is False


def test_a_step_becomes_a_message_with_its_calls_and_their_results() -> None:
    message = assistant(
        StepStartPart(),
        ReasoningPart("Hm, "),
        ReasoningPart("so.", None, {"openai": {"provider": "up"}}),
        ReasoningPart("Another's.", None, {"anthropic": {"provider": "else", "signature": "s"}}),
        TextPart("Let me "),
        TextPart("look."),
        tool("call_a", output="sunny"),
        tool("call_b", name="hub.call", input=MappingProxyType({"b": 1, "a": [None]}), output={"t": 1}),
        DataPart("data-anthropic", {"type": "compaction"}),
        StepStartPart(),
        tool("call_c", "output-error", input="{", error_text="invalid JSON"),
        tool("call_d", "input-available"),
        tool("call_e", "input-streaming"),
        tool("call_f", provider_executed=True, output=1),
        StepStartPart(),
        ReasoningPart("Done."),
    )
    after = Message("messages[2]", "system", (TextPart("Be "), TextPart("brief.")))
    assert history(HI, message, after, user(TextPart("And"), TextPart("now?"))) == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "thinking": "Hm, so.",
            "tool_calls": [
                {"id": "call_a", "function": {"name": "f", "arguments": {"x": 1}}},
                {"id": "call_b", "function": {"name": "hub.call", "arguments": {"b": 1, "a": [None]}}},
            ],
        },
        {"role": "tool", "content": "sunny", "tool_name": "f", "tool_call_id": "call_a"},
        {"role": "tool", "content": '{"t":1}', "tool_name": "hub.call", "tool_call_id": "call_b"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_c", "function": {"name": "f", "arguments": {}}},
                {"id": "call_d", "function": {"name": "f", "arguments": {"x": 1}}},
            ],
        },
        {"role": "tool", "content": "invalid JSON", "tool_name": "f", "tool_call_id": "call_c"},
        {"role": "tool", "content": "not run: interrupted", "tool_name": "f", "tool_call_id": "call_d"},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "And\nnow?"},
    ]


def test_images_are_sent_as_base64_and_text_files_as_text() -> None:
    text = base64.b64encode(b"a,b").decode()
    message = user(
        TextPart("See"),
        FilePart("image/png", f"data:image/png;base64,{PNG}"),
        FilePart("text/csv", f"data:text/csv;base64,{text}", "a.csv"),
        FilePart("IMAGE/JPEG; x=1", f"data:image/jpeg;base64,{PNG}"),
    )
    assert history(message) == [{"role": "user", "content": "See\na.csv:\na,b", "images": [PNG, PNG]}]
    assert history(user(FilePart("image/png", f"data:image/png;base64,{PNG}"))) == [
        {"role": "user", "content": "", "images": [PNG]}
    ]


def test_files_of_a_result_are_sent_with_it() -> None:
    output = write_multimodal_output(
        [
            TextPart("Here:"),
            FilePart("image/png", f"data:image/png;base64,{PNG}"),
            FilePart("application/pdf", "https://a.example/a.pdf"),
        ]
    )
    assert history(HI, assistant(tool(output=output)))[2] == {
        "role": "tool",
        "content": "Here:\nfile (application/pdf): https://a.example/a.pdf",
        "images": [PNG],
        "tool_name": "f",
        "tool_call_id": "call_a",
    }


@pytest.mark.parametrize(
    ("message", "field", "words"),
    [
        (user(FilePart("image/png", "https://a.example/p.png?key=x")), "messages[0]", "does not fetch URLs"),
        (user(FilePart("image/png", "data:image/png,%89PNG")), "messages[0]", "does not fetch URLs"),
        (user(FilePart("audio/wav", "data:audio/wav;base64,AA==")), "messages[0]", "'audio/wav'"),
        (user(FilePart("application/pdf", "data:application/pdf;base64,AA==")), "messages[0]", "pdf"),
        (user(FilePart("application/pdf", "https://a.example/a.pdf")), "messages[0]", "pdf"),
        (user(TextPart("")), "messages", "all messages are empty"),
    ],
)
def test_unsupported_files_are_rejected_and_the_field_is_named(
    message: Message, field: str, words: str
) -> None:
    request = ModelRequest(model="m", messages=[message])
    for ask in (check_request, encode_request):
        with pytest.raises(BadRequest, match=words) as caught:
            ask(request)
        assert caught.value.field == field
        assert "key=x" not in str(caught.value)


SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["b"]}
TOOLS = (Tool("weather", "Tells.", MappingProxyType(SCHEMA)), Tool("hub.time", "", {}))
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": SCHEMA}}
TIME = {
    "type": "function",
    "function": {"name": "hub.time", "parameters": {"type": "object", "properties": {}}},
}
ANY = "Answer with a call of one of the tools, and with nothing else."
ONE = "Answer with a call of the tool hub.time, and with nothing else."


@pytest.mark.parametrize(
    ("choice", "tools", "order"),
    [
        (None, [WEATHER, TIME], None),
        ("auto", [WEATHER, TIME], None),
        ("none", None, None),
        ("required", [WEATHER, TIME], ANY),
        (NamedToolChoice("hub.time"), [TIME], ONE),
    ],
)
def test_a_required_call_is_requested_in_the_system_message(
    choice: Any, tools: Any, order: str | None
) -> None:
    body = encode(HI, tools=TOOLS, tool_choice=choice)
    assert body.get("tools") == tools
    messages = [{"role": "user", "content": "Hi"}]
    assert body["messages"] == ([{"role": "system", "content": order}, *messages] if order else messages)
    led = history(HI, tools=TOOLS, tool_choice=choice, instructions="Be kind.")[0]
    assert led["content"] == (f"Be kind.\n\n{order}" if order else "Be kind.")
    request = ModelRequest(model="m", messages=[HI], tools=TOOLS, tool_choice=choice)
    assert check_request(request) == (["tool_choice"] if order else [])


def test_a_choice_of_an_unknown_tool_is_rejected_and_one_without_tools_is_ignored() -> None:
    with pytest.raises(BadRequest, match="no tool 'x'") as caught:
        encode(HI, tools=TOOLS, tool_choice=NamedToolChoice("x"))
    assert caught.value.field == "tool_choice"
    assert encode(HI, tool_choice="required") == encode(HI)
    strict = ModelRequest(model="m", messages=[HI], tools=[Tool("f", "", {}, strict=True)])
    assert check_request(strict) == ["tools.strict"]
