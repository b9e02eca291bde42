"""Constrained requests: what is sent to a model that cannot call tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from dragoman.errors import ProviderError
from dragoman.messages import FilePart, Message, Part, StepStartPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.operations.meta_tools import META_TOOLS
from dragoman.tools.builtin import builtin_operations
from dragoman.wire.constrained.request import prepare_request
from dragoman.wire.constrained.schema import answer_schema, example_value, simplify_schema, tool_input_schema

CITY = Tool(
    "city_size",
    "Count the people of a city. Uses the last census.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
TIME = Tool("time_now", "Tell the time.", {"type": "object", "properties": {"zone": {"type": "string"}}})
TOOLS = (CITY, TIME)
STEP = StepStartPart()
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def user(text: str, *more: Part) -> Message:
    return Message("u", "user", (TextPart(text), *more))


def tool_part(output: Any = msgspec.UNSET, **fields: Any) -> ToolPart:
    state = fields.pop("state", "output-available")
    return ToolPart("tool-city_size", "c1", state, input={"city": "Rome"}, output=output, **fields)


def assistant(*parts: Part) -> Message:
    return Message("a", "assistant", parts)


def request(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(model="m", messages=messages, **fields)


def lines(sent: ModelRequest, last: int = 1000) -> list[tuple[str, str]]:
    """The messages of the request."""
    messages = [(str(message.role), message.parts[0]) for message in sent.messages]
    return [(role, part.text) for role, part in messages if isinstance(part, TextPart)][-last:]


def test_without_tools_the_request_is_a_plain_one() -> None:
    ask = prepare_request(request(user("Hi"), instructions="Be kind."))
    assert (ask.constrained, lines(ask.request)) == (False, [("user", "Hi")])
    assert ask.request.instructions == "Be kind."
    assert ask.request.options["max_tokens"] == 256
    assert "response_format" not in ask.request.options


def test_with_tools_the_schema_allows_a_call_or_an_answer() -> None:
    ask = prepare_request(
        request(user("How many people live in Rome?"), tools=TOOLS, instructions="Be kind.")
    )
    assert ask.constrained
    assert (ask.request.tools, ask.request.tool_choice) == ((), None)
    assert ask.request.options["response_format"]["json_schema"]["schema"] == answer_schema(
        TOOLS, allow_answer=True
    )
    assert ask.request.instructions == (
        "Be kind.\n\nReply in JSON. You have these tools:\n"
        "- city_size(city): Count the people of a city.\n- time_now(zone): Tell the time."
    )
    assert lines(ask.request, 7) == [
        ("user", "Count the people of a city."),
        ("assistant", '{"call": "city_size", "input": {"city": "..."}}'),
        ("user", "Tell the time."),
        ("assistant", '{"call": "time_now", "input": {}}'),
        ("user", "Count the people of a city."),  # nearest to the question, so once more
        ("assistant", '{"call": "city_size", "input": {"city": "..."}}'),
        ("user", "How many people live in Rome?"),
    ]


def test_examples_come_before_the_question_and_do_not_change_with_it() -> None:
    first, second = (
        lines(prepare_request(request(user(text), tools=TOOLS)).request) for text in ("Hm?", "So?")
    )
    assert first[:-1] == second[:-1]
    assert first[-1] == ("user", "Hm?")


def test_required_excludes_answers_and_none_excludes_calls() -> None:
    required = prepare_request(request(user("Hi"), tools=TOOLS, tool_choice="required"))
    assert required.request.options["response_format"]["json_schema"]["schema"] == answer_schema(
        TOOLS, allow_answer=False
    )
    assert ANSWER not in answer_schema(TOOLS, allow_answer=False)["anyOf"]
    assert not prepare_request(request(user("Hi"), tools=TOOLS, tool_choice="none")).constrained


def test_results_are_sent_as_facts_and_answered_in_plain_text() -> None:
    ask = prepare_request(
        request(
            user("Rome?"), assistant(STEP, TextPart("Let me look."), tool_part({"people": 3})), tools=TOOLS
        )
    )
    assert not ask.constrained
    assert "response_format" not in ask.request.options
    assert lines(ask.request, 1) == [
        ("user", "Facts from city_size(Rome):\npeople: 3\n\nAnswer with these facts: Rome?")
    ]


@pytest.mark.parametrize(
    ("part", "facts"),
    [
        (tool_part(84), "84"),
        (tool_part("plain text"), "plain text"),
        (tool_part([1, "b"]), "- 1\n- b"),
        (tool_part([{"name": "a", "size": 1}, {}]), "- name: a, size: 1\n- {}"),
        (tool_part({"a": {"b": [True, None]}, "c": []}), "a:\n  b:\n    - true\n    - null\nc: []"),
        (tool_part(state="output-error", error_text="no such city"), "error: no such city"),
        (tool_part(state="input-available"), "error: not run: interrupted"),
        (tool_part("x" * 3000), "x" * 2000 + "…"),
    ],
)
def test_a_result_is_written_as_readable_lines(part: ToolPart, facts: str) -> None:
    written = lines(prepare_request(request(user("Q"), assistant(STEP, part))).request, 1)
    assert written == [("user", f"Facts from city_size(Rome):\n{facts}\n\nAnswer with these facts: Q")]


def test_a_turn_may_call_tools_for_the_configured_number_of_rounds() -> None:
    turn = [user("Rome?"), assistant(STEP, tool_part(1), tool_part(2))]
    again = prepare_request(request(*turn, tools=TOOLS, options={"tool_rounds": 2, "top_k": 3}))
    assert again.constrained
    assert again.request.options["top_k"] == 3
    assert "tool_rounds" not in again.request.options
    assert lines(again.request, 2) == [
        ("assistant", '{"call": "city_size", "input": {"city": "Rome"}}'),
        ("user", "Facts from city_size(Rome):\n2"),
    ]
    assert not prepare_request(request(*turn, tools=TOOLS, options={"tool_rounds": 1})).constrained
    with pytest.raises(ProviderError, match="tool_rounds must be an integer, got 'two'"):
        prepare_request(request(*turn, options={"tool_rounds": "two"}))


def test_an_earlier_turn_is_written_as_constrained_json() -> None:
    turn = [user("Rome?"), assistant(STEP, tool_part(3), STEP, TextPart("Three."))]
    assert lines(prepare_request(request(*turn, user("Sure?"), tools=TOOLS)).request, 5) == [
        ("user", "Rome?"),
        ("assistant", '{"call": "city_size", "input": {"city": "Rome"}}'),
        ("user", "Facts from city_size(Rome):\n3"),
        ("assistant", '{"answer": "Three."}'),
        ("user", "Sure?"),
    ]
    assert lines(prepare_request(request(*turn, user("Sure?"))).request) == [
        ("user", "Facts from city_size(Rome):\n3\n\nAnswer with these facts: Rome?"),
        ("assistant", "Three."),
        ("user", "Sure?"),
    ]


def test_the_history_alternates_roles_and_contains_only_text() -> None:
    picture = FilePart("image/png", "data:image/png;base64,AAAA", "a.png")
    note = FilePart("text/plain", "data:text/plain;base64,aGk=", "n.txt")
    system = Message("s", "system", (TextPart("Be brief."),))
    ask = prepare_request(request(system, user("One"), user("Two", picture, note), instructions="Be kind."))
    assert lines(ask.request) == [("user", "One\n\nTwo\n[a file that this model cannot read]\nn.txt:\nhi")]
    assert ask.request.instructions == "Be kind.\n\nBe brief."


def test_the_requests_options_take_precedence() -> None:
    options = {"temperature": 0.9, "max_completion_tokens": 7}
    sent = prepare_request(request(user("Hi"), options=options)).request.options
    assert sent == {"repeat_penalty": 1.1, "seed": 1, **options}


REF = {"properties": {"p": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "integer", "minimum": 2}}}
TREE = {"$ref": "#/$defs/T", "$defs": {"T": {"properties": {"next": {"$ref": "#/$defs/T"}}}}}


@pytest.mark.parametrize(
    ("schema", "simple"),
    [
        (
            {"type": "string", "pattern": "^a", "format": "email", "maxLength": 3},
            {"type": "string", "maxLength": 3},
        ),
        (
            {"type": "array", "items": {"type": "string", "x-y": 1}},
            {"type": "array", "items": {"type": "string"}},
        ),
        ({"oneOf": [{"type": "null"}, True]}, {"anyOf": [{"type": "null"}, {}]}),
        ({"type": "object"}, {"type": "object"}),
        (
            {"type": "object", "additionalProperties": {"type": "integer", "title": "N"}},
            {"type": "object", "additionalProperties": {"type": "integer"}},
        ),
        (
            {"type": "object", "additionalProperties": False},
            {"type": "object", "properties": {}, "additionalProperties": False},
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {}}, "required": ["a"]},
                    {"properties": {"b": {}}, "required": ["b"]},
                ]
            },
            {
                "type": "object",
                "properties": {"b": {}, "a": {}},
                "required": ["b", "a"],
                "additionalProperties": False,
            },
        ),
        (
            REF,
            {
                "type": "object",
                "properties": {"p": {"type": "integer", "minimum": 2}},
                "required": [],
                "additionalProperties": False,
            },
        ),
        (
            TREE,
            {"type": "object", "properties": {"next": {}}, "required": [], "additionalProperties": False},
        ),
        ({"$ref": "#/nowhere"}, {}),
        ({"$ref": "https://example.org/schema"}, {}),
    ],
)
def test_a_schema_is_simplified_to_common_keywords(schema: Any, simple: Any) -> None:
    assert simplify_schema(schema) == simple


def test_a_recursive_schema_is_cut_off() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    assert '"string"' not in msgspec.json.encode(simplify_schema(schema)).decode()


def test_an_input_without_properties_is_an_object() -> None:
    assert tool_input_schema(Tool("t", "", {})) == {"type": "object"}
    choices = {"oneOf": [{"properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}, {}]}
    assert [choice["type"] for choice in tool_input_schema(Tool("t", "", choices))["anyOf"]] == [
        "object",
        "object",
    ]
    assert example_value(tool_input_schema(Tool("t", "", choices))) == {"a": "x"}


def test_the_example_inputs_are_valid_for_our_own_operations(tmp_path: Path) -> None:
    schemas = [tool.input_schema for tool in META_TOOLS]
    schemas += [operation.input_schema for operation in builtin_operations(tmp_path)]
    for schema in schemas:
        jsonschema_rs.validate(dict(schema), example_value(simplify_schema(schema)))
