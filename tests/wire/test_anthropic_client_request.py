"""Anthropic requests of clients: requests of Claude Code and the SDK are parsed without loss."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from dragoman.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolPart,
)
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.wire.anthropic.client_request import (
    estimate_input_tokens,
    parse_count_tokens_request,
    parse_messages_request,
)
from dragoman.wire.client_request import ClientRequest
from dragoman.wire.multimodal_outputs import write_multimodal_output
from tests.wire.anthropic_bodies import (
    LONG_MARK,
    MARK,
    NAMES,
    PICTURE,
    SIGNATURE,
    asking,
    claude_code,
    image,
    result,
    saying,
    tool,
    use,
)

URL = f"data:image/png;base64,{PICTURE}"


def marked(mark: dict[str, str] = MARK) -> dict[str, dict[str, Any]]:
    return {"anthropic": {"cacheControl": mark}}


def parts(raw: bytes, message: int = 0) -> tuple[Part, ...]:
    return parse_messages_request(raw).request.messages[message].parts


def read_call(*content: Any, **beside: Any) -> ToolPart:
    """The call of a small request, with this result."""
    part = parts(
        asking(
            messages=[
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [use("c1", "f")]},
                {"role": "user", "content": [result("c1", *content, **beside)]},
            ]
        ),
        1,
    )[0]
    assert isinstance(part, ToolPart)
    return part


def test_a_turn_of_claude_code_is_parsed_completely() -> None:
    described = [tool(name) for name in NAMES]
    tools = [Tool(each["name"], each["description"], each["input_schema"]) for each in described]
    tools[-1] = msgspec.structs.replace(tools[-1], metadata=marked())
    shot = ToolPart(
        "tool-Read",
        "toolu_01",
        "output-available",
        input={"target": "shot.png"},
        output=write_multimodal_output([TextPart("shot.png:"), FilePart("image/png", URL)]),
    )
    text = ToolPart("tool-Read", "toolu_02", "output-available", input={"target": "a.txt"}, output="1\tHello")
    bash = ToolPart(
        "tool-Bash",
        "toolu_03",
        "output-error",
        input={"target": "ls"},
        error_text="<error>denied</error>",
        result_provider_metadata=marked(),
    )
    grep = ToolPart(
        "tool-Grep",
        "toolu_04",
        "output-available",
        input={"target": "x"},
        output="",
        result_provider_metadata=marked(),
    )
    thoughts = (
        ReasoningPart("Look at both.", None, {"anthropic": {"signature": SIGNATURE}}),
        ReasoningPart("", None, {"anthropic": {"redactedData": "cmVkYWN0ZWQ="}}),
    )
    system = (
        TextPart("You are Claude Code.", None, marked()),
        TextPart("Be concise.\n<env>linux</env>", None, marked(LONG_MARK)),
    )
    parsed = (
        TextPart("<system-reminder>today is Monday</system-reminder>"),
        TextPart("What is in shot.png and a.txt?", None, marked()),
    )
    request = ModelRequest(
        model="claude-opus-5",
        messages=(
            Message("system", "system", system),
            Message("messages[0]", "user", parsed),
            Message("messages[1]", "assistant", (*thoughts, TextPart("I look."), shot, text, bash)),
            Message("messages[2]", "user", (TextPart("Go on."),)),
            Message("messages[3]", "assistant", (grep,)),
        ),
        tools=tuple(tools),
        options={
            "max_tokens": 32000,
            "temperature": 1,
            "thinking": {"type": "enabled", "budget_tokens": 31999},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "user": "user_1_account_2_session_3",
        },
    )
    assert parse_messages_request(msgspec.json.encode(claude_code())) == ClientRequest(
        request=request, stream=True
    )


def test_strings_become_texts_and_a_system_message_keeps_its_position() -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "system", "content": "From now on in French."},
        {"role": "user", "content": "Bye"},
    ]
    request = parse_messages_request(asking(system="Be kind.", messages=messages)).request
    assert [(message.id, message.role, message.parts) for message in request.messages] == [
        ("system", "system", (TextPart("Be kind."),)),
        ("messages[0]", "user", (TextPart("Hi"),)),
        ("messages[1]", "assistant", (TextPart("Hello."),)),
        ("messages[2]", "system", (TextPart("From now on in French."),)),
        ("messages[3]", "user", (TextPart("Bye"),)),
    ]


def test_images_and_documents_become_files() -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
    plain = {"type": "text", "media_type": "text/plain", "data": "Grüße"}
    settings = {"title": "Notes", "context": "old", "citations": {"enabled": True}, "cache_control": MARK}
    metadata = {
        "anthropic": {"cacheControl": MARK, **{k: v for k, v in settings.items() if k != "cache_control"}}
    }
    grown = base64.b64encode("Grüße".encode()).decode()
    assert parts(
        saying(
            {**image(), "cache_control": MARK},
            {"type": "image", "source": {"type": "url", "url": "https://a.example/b.jpg?c=1"}},
            {"type": "document", "source": pdf},
            {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}, "title": "B"},
            {"type": "document", "source": plain, **settings},
        )
    ) == (
        FilePart("image/png", URL, None, marked()),
        FilePart("image/jpeg", "https://a.example/b.jpg?c=1"),
        FilePart("application/pdf", "data:application/pdf;base64,JVBERg=="),
        FilePart("application/pdf", "https://a.example/b.pdf", "B", {"anthropic": {"title": "B"}}),
        FilePart("text/plain", f"data:text/plain;base64,{grown}", "Notes", metadata),
    )


def test_block_documents_and_search_results_become_texts_and_the_latter_are_reported() -> None:
    blocks = {"type": "content", "content": [{"type": "text", "text": "One"}, image()]}
    search_result = {
        "type": "search_result",
        "title": "T",
        "source": "https://a.example",
        "content": [{"type": "text", "text": "P"}],
    }
    parsed = parse_messages_request(
        saying({"type": "document", "title": "D", "source": blocks}, search_result)
    )
    assert parsed.request.messages[0].parts == (
        TextPart("D:"),
        TextPart("One"),
        FilePart("image/png", URL),
        TextPart("T\nhttps://a.example\nP"),
    )
    assert parsed.ignored_fields == ("messages[].content[].type.search_result",)


def test_results_become_texts_unless_they_contain_files() -> None:
    two = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": MARK}]
    assert read_call(two).output == "a\nb"
    assert read_call(two).result_provider_metadata == marked()
    assert read_call("plain").output == "plain"
    assert (read_call([]).output, read_call(None).output) == ("", "")
    assert read_call([image()]).output == write_multimodal_output([FilePart("image/png", URL)])
    failed = read_call(two, is_error=True)
    assert (failed.state, failed.error_text, failed.output) == ("output-error", "a\nb", msgspec.UNSET)


def test_a_call_without_a_result_stays_open_and_a_reused_id_is_another_call() -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [use("call_0", "f", a=1)]},
        {"role": "user", "content": [result("call_0", "one")]},
        {"role": "assistant", "content": [use("call_0", "f", a=2), use("call_1", "g")]},
        {"role": "user", "content": [result("call_0", "two")]},
    ]
    request = parse_messages_request(asking(messages=messages)).request
    calls = [part for message in request.messages for part in message.parts if isinstance(part, ToolPart)]
    assert [(part.input, part.state, part.output) for part in calls] == [
        ({"a": 1}, "output-available", "one"),
        ({"a": 2}, "output-available", "two"),
        ({}, "input-available", msgspec.UNSET),
    ]


def test_server_tool_blocks_and_unknown_blocks_are_kept_unchanged() -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [{"type": "web_search_result"}],
    }
    compaction = {"type": "compaction", "content": "so far"}
    cited = {"type": "text", "text": "So.", "citations": [{"type": "char_location"}]}
    assert parts(saying(search, found, cited, compaction, role="assistant")) == (
        ToolPart(
            "tool-web_search",
            "s1",
            "output-available",
            input={"query": "q"},
            output=[{"type": "web_search_result"}],
            provider_executed=True,
            call_provider_metadata={"anthropic": {"block": search}},
            result_provider_metadata={"anthropic": {"block": found}},
        ),
        TextPart("So.", None, {"anthropic": {"citations": [{"type": "char_location"}]}}),
        DataPart("data-anthropic", compaction),
    )


def test_unsigned_thinking_has_no_signature() -> None:
    thoughts = [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "thinking", "thinking": "So."},
    ]
    assert parts(saying(*thoughts, role="assistant")) == (ReasoningPart("Hm."), ReasoningPart("So."))


@pytest.mark.parametrize(
    ("choice", "read", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", None),
        ({"type": "tool", "name": "Bash"}, NamedToolChoice("Bash"), None),
        ({"type": "none"}, "none", None),
    ],
)
def test_tool_choices_are_parsed(choice: dict[str, Any], read: Any, parallel: bool | None) -> None:
    request = parse_messages_request(asking(tools=[tool("Bash")], tool_choice=choice)).request
    assert (request.tool_choice, request.options.get("parallel_tool_calls")) == (read, parallel)


def test_a_tool_keeps_anthropics_own_fields() -> None:
    tool_json = {
        **tool("f"),
        "type": "custom",
        "strict": True,
        "defer_loading": True,
        "input_examples": [{"a": 1}],
    }
    read = parse_messages_request(asking(tools=[tool_json])).request.tools[0]
    assert (read.strict, read.metadata) == (
        True,
        {"anthropic": {"deferLoading": True, "inputExamples": [{"a": 1}]}},
    )


def test_options_get_neutral_names_if_there_are_some() -> None:
    raw = asking(
        stop_sequences=["END"],
        top_p=0.5,
        top_k=3,
        service_tier="standard_only",
        output_config={"effort": "low"},
        metadata={"user_id": "u", "team": "t"},
        speed="fast",
        stream=False,
    )
    parsed = parse_messages_request(raw)
    assert parsed.request.options == {
        "max_tokens": 10,
        "stop": ["END"],
        "top_p": 0.5,
        "top_k": 3,
        "service_tier": "standard_only",
        "output_config": {"effort": "low"},
        "user": "u",
        "speed": "fast",
    }
    assert (parsed.stream, parsed.ignored_fields) == (False, ("metadata.team",))


FORMAT = {"type": "json_schema", "schema": {"type": "object"}}


@pytest.mark.parametrize("config", [None, {"effort": "low"}, {"effort": "low", "format": FORMAT}])
def test_the_output_format_of_beta_clients_is_that_of_output_config(config: dict[str, Any] | None) -> None:
    options = parse_messages_request(asking(output_format=FORMAT, output_config=config)).request.options
    assert options == {"max_tokens": 10, "output_config": {**(config or {}), "format": FORMAT}}


def test_a_count_tokens_request_needs_no_max_tokens() -> None:
    body = claude_code()
    del body["max_tokens"]
    request = parse_count_tokens_request(msgspec.json.encode(body))
    assert request.messages == parse_messages_request(msgspec.json.encode(claude_code())).request.messages
    assert 2500 < estimate_input_tokens(request) < 5000
    assert estimate_input_tokens(parse_count_tokens_request(asking())) == 6
