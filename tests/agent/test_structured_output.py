"""Structured output for each provider family: a value, or the reason why not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

from dragoman.agent.structured_output import Output, Problem
from dragoman.errors import ConfigError
from dragoman.messages import Message, TextPart, ToolPart
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.wire.anthropic import request as anthropic_request
from dragoman.wire.ollama import request as ollama_request
from dragoman.wire.openai import request as openai_request

TOOL = Tool("look", "Looks.", {"type": "object", "properties": {}})


class City(pydantic.BaseModel):
    """A city."""

    name: str = pydantic.Field(min_length=1)
    people: int = 0
    founded: date | None = None


@dataclass
class Point:
    x: int
    y: int


class Options(TypedDict):
    colour: Literal["red", "blue"]


class Struct(msgspec.Struct):
    name: str
    tags: list[str] = []


class Node(pydantic.BaseModel):
    value: int
    children: list[Node] = []


def asking(model: str = "m", *tools: Tool) -> ModelRequest:
    message = Message("u", "user", (TextPart("Which city?"),))
    return ModelRequest(model=model, messages=[message], instructions="Be brief.", tools=tools)


def called(input: Any, **more: Any) -> ToolPart:
    return ToolPart("tool-final_answer", "c1", more.pop("state", "input-available"), input=input, **more)


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (City, '{"name": "Bonn", "founded": "0011-01-01"}', City(name="Bonn", founded=date(11, 1, 1))),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Options, '{"colour": "red"}', {"colour": "red"}),
        (Struct, '{"name": "a", "tags": ["b"]}', Struct("a", ["b"])),
        (list[Struct], '{"value": [{"name": "a"}]}', [Struct("a")]),
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (list[int], "[1, 2]", [1, 2]),
        (int, '{"value": 3}', 3),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (
            Node,
            '{"value": {"value": 1, "children": [{"value": 2}]}}',
            Node(value=1, children=[Node(value=2)]),
        ),
    ],
)
def test_an_answer_is_a_value_of_the_type_in_text_and_in_a_call(type: Any, text: str, value: Any) -> None:
    output = Output[Any](type)
    assert output.read(text) == value
    parsed = msgspec.json.decode(text)
    if isinstance(parsed, dict):
        assert output.read("", [called(parsed)]) == value


@pytest.mark.parametrize(
    "text",
    [
        'Here it is:\n```json\n{"name": "Bonn"}\n```\nAnything else?',
        '```\n{"name": "Bonn"}\n```',
        'The city is {"name": "Bonn"}.',
        "{'name': 'Bonn'}",
        '  {"name": "Bonn",}  ',
    ],
)
def test_json_is_found_among_words_and_repaired(text: str) -> None:
    assert Output(City).read(text) == City(name="Bonn")


@pytest.mark.parametrize("text", ["The numbers are [1, 2].", "[1, 2] it is", 'So: {"value": [1, 2]}!'])
def test_a_list_is_found_among_words_like_an_object(text: str) -> None:
    assert Output(list[int]).read(text) == [1, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no answer"),
        ("It is Bonn.", "not valid JSON"),
        ('{"people": 1}', "name: expected a value"),
        ('{"name": "Bonn", "people": "many"}', "people: expected a valid integer"),
        ('{"name": ""}', "name"),
    ],
)
def test_what_is_wrong_is_reported_by_its_field(text: str, says: str) -> None:
    problem = Output(City).read(text)
    assert isinstance(problem, Problem)
    assert says in problem.message
    reminder = Output(City).remind(problem)
    assert reminder.role == "user"
    assert problem.message in str(reminder.parts)
    assert '\\"name\\"' in str(reminder.parts) or '"name"' in str(reminder.parts)
    error = problem.error()
    assert (error.code, error.transient) == ("output_invalid", False)
    assert problem.message in error.message
    assert "does not fit City, asked 3 times: " in problem.error(type="City", tries=3).message


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (int, '{"value": "12"}', 12),
        (list[int], '["1", 2]', [1, 2]),
        (int, '{"value": true}', None),
        (int, '{"value": "1_000"}', None),
        (float, '{"value": "NaN"}', None),
        (bool, '{"value": "on"}', None),
        (dict[str, int], '{"a": true}', None),
        (int, '{"value": 123456789012345678901234567890}', 123456789012345678901234567890),
    ],
)
def test_a_value_that_the_schema_does_not_accept_is_a_problem_unless_it_takes_no_guessing(
    type: Any, text: str, value: Any
) -> None:
    read = Output[Any](type).read(text)
    assert isinstance(read, Problem) if value is None else read == value


@pytest.mark.parametrize(
    ("type", "name"),
    [(City, "City"), (list[int], "list[int]"), (Literal["yes", "no"], "Literal['yes', 'no']")],
)
def test_a_type_is_named_as_it_is_written(type: Any, name: str) -> None:
    assert Output[Any](type).type == name


def test_a_wrong_call_is_a_problem_of_that_call() -> None:
    problem = Output(Struct).read("", [called({"name": 1})])
    assert problem == Problem("Expected `str`, got `int` - at `$.name`", "c1")
    broken = called('{"name', state="output-error", error_text="the arguments are not JSON")
    assert Output(Struct).read("", [broken]) == Problem("the arguments are not JSON", "c1")
    assert isinstance(Output[Any](list[int]).read("", [called({"x": 1})]), Problem)


def openai(request: ModelRequest) -> Any:
    return msgspec.json.decode(openai_request.encode_request(request))


def anthropic(request: ModelRequest) -> Any:
    return msgspec.json.decode(anthropic_request.encode_request(request))


def ollama(request: ModelRequest) -> Any:
    return msgspec.json.decode(ollama_request.encode_request(request))


def test_openai_is_held_to_the_schema_strictly() -> None:
    body = openai(Output(City).prepare(asking("gpt-5", TOOL), "openai"))
    json_schema = body["response_format"]["json_schema"]
    assert body["response_format"]["type"] == "json_schema"
    assert (json_schema["name"], json_schema["strict"]) == ("final_answer", True)
    assert json_schema["schema"]["required"] == ["name", "people", "founded"]
    assert json_schema["schema"]["additionalProperties"] is False
    assert "default" not in str(json_schema["schema"])
    assert [tool["function"]["name"] for tool in body["tools"]] == ["look"]
    assert "tool_choice" not in body


def test_openai_is_not_held_strictly_to_what_may_have_fields_of_any_name() -> None:
    json_schema = openai(Output[Any](dict[str, int]).prepare(asking("gpt-5"), "openai"))["response_format"][
        "json_schema"
    ]
    assert "strict" not in json_schema
    assert json_schema["schema"]["additionalProperties"] == {"type": "integer"}


def test_a_recursive_type_is_held_strictly_behind_an_object() -> None:
    schema = openai(Output(Node).prepare(asking("gpt-5"), "openai"))["response_format"]["json_schema"][
        "schema"
    ]
    assert schema["properties"] == {"value": {"$ref": "#/$defs/Node"}}
    assert schema["$defs"]["Node"]["required"] == ["value", "children"]
    assert schema["$defs"]["Node"]["additionalProperties"] is False


def test_a_server_that_may_not_do_both_is_given_a_last_tool_beside_others() -> None:
    body = openai(Output(City).prepare(asking("llama-3", TOOL), "openai"))
    assert "response_format" not in body
    assert [tool["function"]["name"] for tool in body["tools"]] == ["look", "final_answer"]
    assert body["tool_choice"] == "required"
    assert "response_format" in openai(Output(City).prepare(asking("llama-3"), "openai"))


def test_anthropic_is_held_to_the_schema_where_its_model_can_and_else_given_a_tool() -> None:
    new = anthropic(Output(City).prepare(asking("claude-sonnet-4-5", TOOL), "anthropic"))
    assert new["output_config"]["format"]["schema"]["additionalProperties"] is False
    assert [tool["name"] for tool in new["tools"]] == ["look"]
    for request in (
        Output(City).prepare(asking("claude-3-5-sonnet-latest"), "anthropic"),
        Output[Any](dict[str, int]).prepare(asking("claude-sonnet-4-5"), "anthropic"),
    ):
        old = anthropic(request)
        assert "output_config" not in old
        assert [tool["name"] for tool in old["tools"]] == ["final_answer"]
        assert old["tool_choice"] == {"type": "tool", "name": "final_answer"}


def test_ollama_is_given_the_format_and_told_it_or_a_tool_beside_others() -> None:
    output = Output(City)
    body = ollama(output.prepare(asking(), "ollama"))
    assert body["format"] == output.schema
    assert body["messages"][0]["content"].startswith("Be brief.\n\nGive the final answer as JSON")
    both = ollama(output.prepare(asking("m", TOOL), "ollama"))
    assert "format" not in both
    assert [tool["function"]["name"] for tool in both["tools"]] == ["look", "final_answer"]


def test_a_provider_of_another_family_gets_the_schema_in_its_instructions() -> None:
    request = Output(City).prepare(asking(), "claude-code")
    assert (request.options, request.tools) == ({}, ())
    assert '"people"' in (request.instructions or "")


def test_the_way_may_be_chosen() -> None:
    request = Output(City, way="tool", name="city").prepare(asking("gpt-5"), "openai")
    assert request.tool_choice == NamedToolChoice("city")
    assert Output(City, way="tool", name="city").read('{"name": "x"}') == City(name="x")


def test_a_tool_of_the_same_name_is_never_left_out() -> None:
    output, own = Output(City, way="tool"), Tool("final_answer", "Mine.", {"type": "object"})
    with pytest.raises(ConfigError, match="has a tool 'final_answer' of its own"):
        output.prepare(asking("m", own), "openai")
    other = output.beside([own, Tool("final_answer_2", "", {"type": "object"})])
    request = other.prepare(asking("m", own), "openai")
    assert [tool.name for tool in request.tools] == ["final_answer", "final_answer_3"]
    assert [tool.name for tool in other.prepare(request, "openai").tools] == [
        tool.name for tool in request.tools
    ]
    assert isinstance(other.read("", [called({"name": "x"})]), Problem), "a call of the other tool"
    assert output.beside([TOOL]) is output


def test_a_type_without_a_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no JSON Schema"):
        Output[Any](object())  # type: ignore[arg-type]  # that is what is tried
