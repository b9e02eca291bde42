"""chat.completions requests: bodies that every provider accepts, for whole conversations."""

from __future__ import annotations

import base64
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from pydantic import TypeAdapter

from dragoman import events as e
from dragoman.fold import fold
from dragoman.messages import (
    Approval,
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SourceUrlPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from dragoman.model_request import ModelRequest, Tool
from dragoman.wire.openai.decoder import OpenAIDecoder
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.openai.request import encode_request

from .openai_streams import recording

MESSAGES = TypeAdapter(list[ChatCompletionMessageParam])
TOOLS = TypeAdapter(list[ChatCompletionToolUnionParam])


def encode(
    *messages: Message, quirks: Quirks | None = None, provider: str = "up", **fields: Any
) -> dict[str, Any]:
    """The body of a request; it must be valid for OpenAI's own types."""
    body = msgspec.json.decode(
        encode_request(ModelRequest(model="m", messages=messages, **fields), quirks=quirks, provider=provider)
    )
    MESSAGES.validate_python(body["messages"])
    TOOLS.validate_python(body.get("tools", []))
    assert isinstance(body, dict)
    return body


def history(*messages: Message, **options: Any) -> list[dict[str, Any]]:
    written = encode(*messages, **options)["messages"]
    check(written)
    assert isinstance(written, list)
    return written


def check(written: list[dict[str, Any]]) -> None:
    """Check that the results of all calls follow them directly and in order."""
    due: list[str] = []
    for message in written:
        if message["role"] == "tool":
            assert message["tool_call_id"] == due.pop(0)
            assert isinstance(message["content"], str)
        else:
            assert due == []
            due = [call["id"] for call in message.get("tool_calls", [])]
    assert due == []


def user(*parts: Part) -> Message:
    return Message("u", "user", parts)


def assistant(*parts: Part) -> Message:
    return Message("a", "assistant", parts)


def tool(id: str = "call_a", state: Any = "output-available", name: str = "f", **fields: Any) -> ToolPart:
    return ToolPart(f"tool-{name}", id, state, **{"input": {"x": 1}, **fields})


def call_json(id: str = "call_a", name: str = "f", arguments: str = '{"x":1}') -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_body_requests_a_stream_with_usage() -> None:
    assert encode(user(TextPart("Hi")), instructions="Be kind.") == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_options_are_included_but_do_not_override_the_request() -> None:
    options = {
        "temperature": 0.5,
        "model": "other",
        "messages": [],
        "stream": False,
        "stream_options": {"include_usage": False, "include_obfuscation": False},
        "tools": [],
        "max_completion_tokens": 9,
    }
    body = encode(user(TextPart("Hi")), options=options, tools=[Tool("f", "", {})])
    assert (body["model"], body["stream"], len(body["messages"]), len(body["tools"])) == ("m", True, 1, 1)
    assert body["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    assert (body["temperature"], body["max_completion_tokens"]) == (0.5, 9)
    assert "stream_options" not in encode(options=options, quirks=Quirks(include_usage=False))


def test_tools_are_functions_with_allowed_names() -> None:
    schema = MappingProxyType({"type": "object", "properties": {"b": {}, "a": {}}, "required": ["b"]})
    tools = [Tool("hub.call", "Calls.", schema), Tool("plain", "", {})]
    body = encode(tools=tools, tool_choice="required")
    assert body["tools"] == [
        {
            "type": "function",
            "function": {"name": "hub_call", "description": "Calls.", "parameters": dict(schema)},
        },
        {
            "type": "function",
            "function": {"name": "plain", "parameters": {"type": "object", "properties": {}}},
        },
    ]
    assert list(body["tools"][0]["function"]["parameters"]["properties"]) == ["b", "a"]
    assert body["tool_choice"] == "required"
    assert "tool_choice" not in encode(tool_choice="auto")


def test_the_same_request_gives_the_same_bytes() -> None:
    def once(options: dict[str, Any]) -> bytes:
        request = ModelRequest(
            model="m", messages=[assistant(tool(output={"b": 1, "a": 2}))], options=options
        )
        return encode_request(request)

    assert once({"top_p": 1, "seed": 2}) == once({"seed": 2, "top_p": 1})
    assert b'"{\\"b\\":1,\\"a\\":2}"' in once({})


def test_a_step_becomes_a_message_with_its_calls_and_their_results() -> None:
    message = assistant(
        StepStartPart(),
        ReasoningPart("Hm"),
        TextPart("Let me "),
        TextPart("look."),
        tool("call_a", output="sunny"),
        tool("call_b", name="hub.call", output={"t": [1, None]}),
        SourceUrlPart("s", "https://a.example"),
        StepStartPart(),
        tool("call_c", input={}, output=None),
        StepStartPart(),
        TextPart("It is sunny."),
        StepStartPart(),
    )
    assert history(user(TextPart("Weather?")), message, user(TextPart("Thanks"))) == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [call_json(), call_json("call_b", "hub_call")],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_b", "content": '{"t":[1,null]}'},
        {"role": "assistant", "content": None, "tool_calls": [call_json("call_c", arguments="{}")]},
        {"role": "tool", "tool_call_id": "call_c", "content": "null"},
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "Thanks"},
    ]


@pytest.mark.parametrize(
    ("part", "result"),
    [
        (tool(output=""), ""),
        (tool(output=[1]), "[1]"),
        (tool(), "null"),
        (tool(output="half", preliminary=True), "half"),
        (tool(state="output-error", error_text="no such city"), "no such city"),
        (tool(state="output-error"), "the call failed"),
        (
            tool(state="output-denied", approval=Approval("p", approved=False, reason="too dear")),
            "denied: too dear",
        ),
        (tool(state="output-denied"), "denied"),
        (tool(state="approval-responded", approval=Approval("p", approved=False, reason="no")), "denied: no"),
        (tool(state="approval-responded", approval=Approval("p", approved=True)), "not run: interrupted"),
        (tool(state="approval-requested", approval=Approval("p")), "not run: nobody has approved it"),
        (tool(state="input-available"), "not run: interrupted"),
    ],
)
def test_every_call_gets_a_result_in_every_state(part: ToolPart, result: str) -> None:
    assert history(assistant(part)) == [
        {"role": "assistant", "content": None, "tool_calls": [call_json()]},
        {"role": "tool", "tool_call_id": "call_a", "content": result},
    ]


@pytest.mark.parametrize("written", ['{"x":', "[1]", None, msgspec.UNSET])
def test_arguments_that_are_not_an_object_are_sent_back_as_an_empty_object(written: object) -> None:
    message, result = history(
        assistant(tool(state="output-error", input=written, error_text="not valid JSON"))
    )
    assert message["tool_calls"] == [call_json(arguments="{}")]
    assert result["content"] == "not valid JSON"


def test_parts_that_the_model_cannot_use_are_omitted() -> None:
    assert history(
        Message("s", "system", (TextPart("One."), TextPart("Two."))),
        Message("s", "system", ()),
        user(DataPart("data-x", 1)),
        user(),
        assistant(),
        assistant(StepStartPart(), TextPart(""), ReasoningPart("Hm")),
        assistant(tool(state="input-streaming", input=msgspec.UNSET)),
        assistant(
            tool(provider_executed=True, output=1), FilePart("image/png", "data:image/png;base64,AA==")
        ),
        assistant(TextPart("Hi"), tool(state="input-streaming")),
    ) == [{"role": "system", "content": "One.Two."}, {"role": "assistant", "content": "Hi"}]


def test_dynamic_tools_keep_their_own_name() -> None:
    part = ToolPart(
        "dynamic-tool", "call_a", "output-available", tool_name="weather at", input={"x": 1}, output=""
    )
    assert history(assistant(part))[0]["tool_calls"] == [call_json(name="weather_at")]


TEXT = base64.b64encode("Grüße".encode()).decode()


@pytest.mark.parametrize(
    ("part", "written"),
    [
        (
            FilePart("image/png", "https://a.example/p.png"),
            {"type": "image_url", "image_url": {"url": "https://a.example/p.png"}},
        ),
        (
            FilePart("image/*", "data:image/png;base64,AA=="),
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        ),
        (
            FilePart("application/pdf", "data:application/pdf;base64,AA==", "a.pdf"),
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
        ),
        (
            FilePart("audio/mpeg", "data:audio/mpeg;base64,AA=="),
            {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}},
        ),
        (
            FilePart("text/plain", "data:text/plain;base64,/w==", "x.txt"),
            {"type": "file", "file": {"filename": "x.txt", "file_data": "data:text/plain;base64,/w=="}},
        ),
    ],
)
def test_files_are_sent_in_the_matching_content_type(part: FilePart, written: dict[str, Any]) -> None:
    assert history(user(TextPart("See"), TextPart(""), part)) == [
        {"role": "user", "content": [{"type": "text", "text": "See"}, written]}
    ]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (FilePart("text/plain", f"data:text/plain;base64,{TEXT}", "a.txt"), "a.txt:\nGrüße"),
        (FilePart("text/csv; charset=utf-8", "data:text/csv,a%2Cb%0A1,2"), "file:\na,b\n1,2"),
        (FilePart("application/json", "data:;base64,e30="), "file:\n{}"),
        (FilePart("image/svg+xml", "data:image/svg+xml,<svg/>", "a.svg"), "a.svg:\n<svg/>"),
        (
            FilePart("application/pdf", "https://a.example/a.pdf", "a.pdf"),
            "a.pdf (application/pdf): https://a.example/a.pdf",
        ),
    ],
)
def test_a_text_file_is_sent_as_text(part: FilePart, text: str) -> None:
    assert history(user(TextPart("See"), part)) == [{"role": "user", "content": f"See\n{text}"}]


@pytest.mark.parametrize(
    ("kind", "call_id", "sent"),
    [
        ("plain", "call_A-1", "call_A-1"),
        ("plain", "functions.f:0", "call_d3bb"),
        ("plain", "x" * 65, "call_"),
        ("plain", "", "call_"),
        ("any", "functions.f:0", "functions.f:0"),
        ("nine", "Ab1Cd2Ef3", "Ab1Cd2Ef3"),
        ("nine", "call_a", ""),
    ],
)
def test_call_ids_are_in_the_format_that_the_provider_accepts(kind: Any, call_id: str, sent: str) -> None:
    message, result = history(assistant(tool(call_id, output="")), quirks=Quirks(call_id_format=kind))
    id = message["tool_calls"][0]["id"]
    assert result["tool_call_id"] == id
    assert id == call_id if sent == call_id else id.startswith(sent[:5]) and id != call_id
    assert kind != "nine" or (len(id) == 9 and id.isalnum())
    assert history(assistant(tool(call_id, output="")), quirks=Quirks(call_id_format=kind))[1] == result


def test_reasoning_is_sent_back_with_its_calls_to_vendors_that_require_it() -> None:
    parts = (ReasoningPart("So "), ReasoningPart("what"), tool(output=""), StepStartPart())
    message = assistant(*parts, ReasoningPart("Well"), TextPart("Bye"), StepStartPart(), tool("b", output=""))

    def thoughts(field: Any) -> list[Any]:
        written = history(message, quirks=Quirks(reasoning_field=field))
        return [
            [written_message.get(name) for name in ("reasoning", "reasoning_content")]
            for written_message in written
        ]

    assert thoughts("none") == [[None, None]] * 5
    assert thoughts("reasoning") == [
        ["So what", None],
        [None, None],
        [None, None],
        [None, None],
        [None, None],
    ]
    assert thoughts("reasoning_content") == [
        [None, "So what"],
        [None, None],
        [None, None],
        [None, " "],
        [None, None],
    ]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("openrouter_encrypted", "reasoning_details", ["ZW5j", "c2Vj"]),
        ("gemini", "extra_content", {"google": {"thought_signature": "c2ln"}}),
    ],
)
def test_opaque_metadata_is_sent_back_to_its_provider_only(name: str, key: str, value: Any) -> None:
    answer = OpenAIDecoder(provider="up").feed(recording(name))
    message = fold(None, [e.Start("a"), e.StartStep(), *answer])

    def sealed(provider: str) -> Any:
        written_message = history(message, provider=provider)[0]
        details = written_message.get(key) or written_message["tool_calls"][0].get(key)
        return [detail["data"] for detail in details] if isinstance(details, list) else details

    assert sealed("up") == value
    assert sealed("other") is None


def test_instructions_may_have_the_developer_role() -> None:
    quirks = Quirks(system_role="developer")
    assert history(Message("s", "system", (TextPart("B"),)), instructions="A", quirks=quirks) == [
        {"role": "developer", "content": "A"},
        {"role": "developer", "content": "B"},
    ]


def test_an_output_that_is_not_json_raises_a_type_error() -> None:
    with pytest.raises(TypeError, match="object cannot be sent as JSON"):
        encode_request(ModelRequest(model="m", messages=[assistant(tool(output=object()))]))
