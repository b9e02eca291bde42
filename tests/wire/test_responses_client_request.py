"""A client's Responses request: the parsed request, with every shape of items that clients send."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.errors import BadRequest
from dragoman.messages import FilePart, Message, ReasoningPart, TextPart, ToolPart
from dragoman.model_request import NamedToolChoice
from dragoman.wire.responses.client_request import ResponsesRequest, parse_responses_request

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "weather", "description": "d", "parameters": SCHEMA, "strict": True}


def parse(input: Any = "hi", **fields: Any) -> ResponsesRequest:
    return parse_responses_request(msgspec.json.encode({"model": "p/m", "input": input, **fields}))


def messages(*items: Any, **fields: Any) -> list[Message]:
    return list(parse(list(items), **fields).request.messages)


def test_a_string_is_a_message_of_the_user() -> None:
    request = parse("hi", instructions="Be brief.").request
    assert request.instructions == "Be brief."
    assert list(request.messages) == [Message("input[0]", "user", (TextPart("hi"),))]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "id": "m1", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"role": "user", "content": "hi"},
    ],
)
def test_a_message_may_leave_out_its_type_and_id_and_have_a_string_or_parts(item: Any) -> None:
    assert messages(item) == [Message("input[0]", "user", (TextPart("hi"),))]


def test_developer_and_system_items_are_instructions_in_their_place() -> None:
    found = messages(
        {"role": "developer", "content": "one"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "two"},
    )
    assert [(message.role, message.text) for message in found] == [
        ("system", "one"),
        ("user", "hi"),
        ("system", "two"),
    ]


def test_a_turn_with_reasoning_calls_and_outputs_becomes_one_message_a_step() -> None:
    found = messages(
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"x":1}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": ""},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "b"}]},
        {"type": "function_call_output", "call_id": "c1", "output": "a"},
        {"role": "assistant", "content": "Done."},
    )
    call = ToolPart("tool-weather", "c1", "output-available", input={"x": 1}, output="a")
    other = ToolPart("tool-weather", "c2", "output-available", input={}, output="b")
    assert found[1:] == [
        Message(
            "input[1]",
            "assistant",
            (
                ReasoningPart("hm", provider_metadata={"responses": {"itemId": "rs_1"}}),
                TextPart("Look."),
                call,
                other,
            ),
        ),
        Message("input[7]", "assistant", (TextPart("Done."),)),
    ]


@pytest.mark.parametrize("id", ["undefined", "terminal:0"])
def test_calls_of_a_step_that_share_an_id_get_the_outputs_in_their_order(id: str) -> None:
    """As of clients that number calls anew in each turn, or have none (pi, hermes-agent, gpt-oss)."""

    def call(x: int) -> dict[str, Any]:
        return {"type": "function_call", "call_id": id, "name": "weather", "arguments": f'{{"x":{x}}}'}

    def output(text: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": id, "output": text}

    hi = {"role": "user", "content": "hi"}
    items = (hi, call(1), call(2), output("a"), output("b"), hi, call(3), hi, call(4), output("d"))
    calls = [part for message in messages(*items) for part in message.parts if isinstance(part, ToolPart)]
    assert [(part.tool_call_id, part.input, part.output or None) for part in calls] == [
        (id, {"x": 1}, "a"),
        (id, {"x": 2}, "b"),
        (id, {"x": 3}, None),
        (id, {"x": 4}, "d"),
    ]
    with pytest.raises(BadRequest, match="no earlier call"):
        messages(hi, call(1), output("a"), output("b"))


def test_encrypted_reasoning_is_kept_byte_for_byte() -> None:
    sealed = "gAAAA+/=\u00e9 \u2028x"
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}
    [message] = messages(item, instructions="x")
    assert message.parts == (
        ReasoningPart("", provider_metadata={"responses": {"itemId": "rs_1", "encryptedContent": sealed}}),
    )


def test_images_and_files_become_files() -> None:
    [message] = messages(
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": "https://x.example/a.png", "detail": "low"},
                {
                    "type": "input_file",
                    "filename": "a.pdf",
                    "file_data": "data:application/pdf;base64,AA==",
                },
            ],
        }
    )
    assert [part.media_type for part in message.parts if isinstance(part, FilePart)] == [
        "image/png",
        "application/pdf",
    ]


def test_a_function_tool_is_flat_and_can_be_chosen() -> None:
    request = parse(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}).request
    [tool] = request.tools
    assert (tool.name, tool.description, tool.input_schema, tool.strict) == ("weather", "d", SCHEMA, True)
    assert request.tool_choice == NamedToolChoice("weather")


def test_tools_of_codex_are_unfolded_from_namespaces_and_items_and_can_be_found_again() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    parsed = parse(
        [
            {
                "type": "additional_tools",
                "role": "developer",
                "tools": [
                    {
                        "type": "namespace",
                        "name": "functions",
                        "tools": [
                            {"type": "custom", "name": "exec", "description": "Run.", "format": grammar},
                            {"type": "function", "name": "wait", "parameters": {"type": "object"}},
                        ],
                    }
                ],
            },
            {"role": "user", "content": "hi"},
            {
                "type": "custom_tool_call",
                "call_id": "c1",
                "name": "exec",
                "namespace": "functions",
                "input": "ls",
            },
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "a.txt"},
        ],
        tools=[{"type": "web_search"}, WEATHER],
    )
    assert [tool.name for tool in parsed.request.tools] == ["functions__exec", "functions__wait", "weather"]
    execute = parsed.request.tools[0]
    assert execute.input_schema["required"] == ["input"]
    assert "start: /.+/" in execute.input_schema["properties"]["input"]["description"]
    client = parsed.tools.find("functions__exec")
    assert client is not None
    assert (client.namespace, client.name, client.kind) == ("functions", "exec", "custom")
    assert parsed.request.messages[1].parts == (
        ToolPart("tool-functions__exec", "c1", "output-available", input={"input": "ls"}, output="a.txt"),
    )
    assert parsed.ignored_fields == ("tools[].type.web_search",)


def test_tools_that_a_client_finds_by_its_own_search_are_offered_from_then_on() -> None:
    search = {"type": "tool_search", "execution": "client", "description": "Find.", "parameters": SCHEMA}
    found = [
        {"type": "namespace", "name": "mcp__hub", "tools": [{**WEATHER, "defer_loading": True}]},
        {"type": "function", "name": "wait"},
    ]
    call = {"type": "tool_search_call", "call_id": "c1", "arguments": {"city": "x"}, "execution": "client"}
    begun = parse("hi", tools=[search])
    assert [(tool.name, tool.input_schema) for tool in begun.request.tools] == [("tool_search", SCHEMA)]
    parsed = parse(
        [
            {"role": "user", "content": "hi"},
            {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}},
            {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []},
            call,
            {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": found},
        ],
        tools=[search],
    )
    assert [tool.name for tool in parsed.request.tools] == ["mcp__hub__weather", "wait", "tool_search"]
    output = "These tools can be called now: mcp__hub__weather, wait"
    assert parsed.request.messages[1].parts == (
        ToolPart("tool-tool_search", "c1", "output-available", input={"city": "x"}, output=output),
    )
    assert parsed.ignored_fields == ("input[].type.tool_search_call", "input[].type.tool_search_output")


def test_a_conversation_with_openais_tool_search_goes_to_other_providers() -> None:
    search = {"execution": "server", "call_id": None, "status": "completed"}
    load = {"type": "function", "name": "rate", "parameters": {"type": "object"}, "defer_loading": True}
    items = [
        {"role": "user", "content": "hi"},
        {**search, "id": "tsc_1", "type": "tool_search_call", "arguments": {"queries": ["rate"]}},
        {**search, "id": "tso_1", "type": "tool_search_output", "tools": [load]},
        {"type": "function_call", "call_id": "c", "namespace": "rate", "name": "rate", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "0.92"},
    ]
    body = {"model": "p/m", "input": items, "tools": [{"type": "tool_search"}, load], "truncation": "auto"}
    parsed = parse_responses_request(msgspec.json.encode(body))
    ((question, answer), (tool,)) = parsed.request.messages, parsed.request.tools
    (part,) = answer.parts
    assert (part.name, part.output) == (tool.name, "0.92")  # type: ignore[union-attr]
    assert question.text == "hi"
    assert set(parsed.ignored_fields) >= {
        "input[].type.tool_search_call",
        "input[].type.tool_search_output",
        "tools[].type.tool_search",
        "truncation",
    }


def test_long_names_of_namespaces_stay_within_what_providers_accept_and_apart() -> None:
    tools = [
        {"type": "namespace", "name": "n" * 60, "tools": [{"type": "function", "name": name}]}
        for name in ("first", "second")
    ]
    names = [tool.name for tool in parse(tools=tools).request.tools]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 64


def test_options_are_those_of_chat_completions() -> None:
    output = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    parsed = parse(
        max_output_tokens=9,
        temperature=0.5,
        parallel_tool_calls=False,
        text={"format": output, "verbosity": "low"},
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        client_metadata={"x": 1},
        prompt_cache_key="k",
        moderation={"x": 1},
    )
    assert parsed.request.options == {
        "max_tokens": 9,
        "temperature": 0.5,
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "verbosity": "low",
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
        },
    }
    assert parsed.ignored_fields == ("moderation",)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_txt"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].call_id"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": 5}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "https://x.example"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"max_tool_calls": "5"}, "max_tool_calls"),
        ({"input": [{"type": "tool_search_output", "call_id": "c", "tools": 5}]}, "input[0].tools"),
    ],
)
def test_bad_input_is_refused_by_the_name_of_its_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_responses_request(msgspec.json.encode({"model": "p/m", "input": "hi", **body}))
    assert caught.value.field == field
