"""Files in tool outputs, and other families' metadata in a history, in a chat.completions request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter

from dragoman.messages import DataPart, FilePart, Message, Part, ReasoningPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.wire.multimodal_outputs import write_multimodal_output
from dragoman.wire.openai.quirks import CallIdFormat, Quirks
from dragoman.wire.openai.request import encode_request

PNG = FilePart("image/png", "data:image/png;base64,AA==")
MESSAGES = TypeAdapter(list[ChatCompletionMessageParam])


def history(*messages: Message, quirks: Quirks | None = None) -> list[dict[str, Any]]:
    request = ModelRequest(model="m", messages=messages)
    written = msgspec.json.decode(encode_request(request, quirks=quirks, provider="up"))["messages"]
    MESSAGES.validate_python(written)
    assert isinstance(written, list)
    return written


def assistant(*parts: Part) -> Message:
    return Message("a", "assistant", parts)


def tool(id: str, output: Any, name: str = "f") -> ToolPart:
    return ToolPart(f"tool-{name}", id, "output-available", input={}, output=output)


def image(url: str = PNG.url, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def test_files_from_results_follow_all_results_in_one_message() -> None:
    first = write_multimodal_output([TextPart("Two:"), PNG, FilePart("image/png", "https://a.example/b.png")])
    third = write_multimodal_output(
        [
            FilePart("audio/wav", "data:audio/wav;base64,AA=="),
            FilePart("text/plain", "https://a.example/notes"),
        ]
    )
    message = assistant(
        TextPart("I look."), tool("a", first), tool("b", {"x": 1}), tool("c", third, "hub.hear")
    )
    assert history(message, Message("u", "user", (TextPart("And?"),)))[1:] == [
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": "Two:\n[file 1 in the user message after the results]\n"
            "[file 2 in the user message after the results]",
        },
        {"role": "tool", "tool_call_id": "b", "content": '{"x":1}'},
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": "[file 3 in the user message after the results]\n"
            "file (text/plain): https://a.example/notes",
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "[file 1, from f]"},
                image(),
                {"type": "text", "text": "[file 2, from f]"},
                image("https://a.example/b.png"),
                {"type": "text", "text": "[file 3, from hub_hear]"},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            ],
        },
        {"role": "user", "content": "And?"},
    ]


def test_an_output_that_only_resembles_files_is_unchanged() -> None:
    output = {"content": [{"type": "text", "text": "x"}]}
    assert history(assistant(tool("a", output)))[1]["content"] == msgspec.json.encode(output).decode()


@pytest.mark.parametrize("detail", ["low", "high", "auto"])
def test_the_image_detail_is_sent(detail: str) -> None:
    part = FilePart(PNG.media_type, PNG.url, None, {"openai": {"imageDetail": detail}})
    assert history(Message("u", "user", (part,))) == [{"role": "user", "content": [image(detail=detail)]}]


@pytest.mark.parametrize(
    ("named", "back"), [({}, True), ({"provider": "up"}, True), ({"provider": "x"}, False)]
)
def test_opaque_metadata_is_sent_back_unless_it_names_another_provider(named: Any, back: bool) -> None:
    details = [{"type": "reasoning.encrypted", "data": "c2Vj"}]
    sealed = ReasoningPart("Hm", None, {"openai": {"reasoning_details": details, **named}})
    answer = history(assistant(sealed, tool("a", "")))[0]
    assert answer.get("reasoning_details") == (details if back else None)


def test_anthropics_metadata_in_a_history_is_not_sent_to_other_providers() -> None:
    signed = {"anthropic": {"signature": "c2ln", "provider": "claude"}}
    marked = {"anthropic": {"cacheControl": {"type": "ephemeral"}}}
    block = {"anthropic": {"block": {"type": "server_tool_use"}}}
    answer = assistant(
        ReasoningPart("", None, {"anthropic": {"redactedData": "x"}}),
        ReasoningPart("Hm", None, signed),
        DataPart("data-anthropic", {"type": "compaction", "content": "x"}),
        ToolPart(
            "tool-web_search",
            "srvtoolu_1",
            "output-available",
            input={},
            output=[],
            provider_executed=True,
            call_provider_metadata=block,
            result_provider_metadata=block,
        ),
        TextPart("Hi", None, marked),
    )
    assert history(Message("u", "user", (TextPart("Q", None, marked),)), answer) == [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "Hi"},
    ]


def test_a_system_message_inside_the_conversation_keeps_its_position() -> None:
    messages = [
        Message("1", "system", (TextPart("A"),)),
        Message("2", "user", (TextPart("B"),)),
        Message("3", "system", (TextPart("C"),)),
        Message("4", "user", (TextPart("D"),)),
    ]
    assert [(one["role"], one["content"]) for one in history(*messages)] == [
        ("system", "A"),
        ("user", "B"),
        ("system", "C"),
        ("user", "D"),
    ]


@pytest.mark.parametrize("id_format", ["plain", "nine", "any"])
def test_calls_of_a_step_with_the_same_id_get_ids_of_their_own(id_format: CallIdFormat) -> None:
    quirks = Quirks(call_id_format=id_format)
    answer, *results = history(assistant(tool("a", "1"), tool("a", "2"), tool("a-2", "3")), quirks=quirks)
    ids = [call["id"] for call in answer["tool_calls"]]
    assert len(set(ids)) == 3
    assert [(each["tool_call_id"], each["content"]) for each in results] == list(
        zip(ids, ["1", "2", "3"], strict=True)
    )
