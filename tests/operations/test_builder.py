"""The tool builder: operations without type hints."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.errors import ConfigError
from dragoman.operations import Calls, Context, Operation, Registry
from dragoman.operations.definitions.tool_builder import tool
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.outcome import CallOutcome
from tests.waiting import LIMIT


async def run(operation: Operation, input: dict[str, Any]) -> CallOutcome:
    async with asyncio.timeout(LIMIT), Calls(Registry(operation), MemoryLedger()) as calls:
        return await calls.call(operation.id, input, context=Context())


ADD = tool("add", "Add two numbers").param("a", "number").param("b", "number")


async def add_all(args: dict[str, Any]) -> dict[str, Any]:
    return {"result": args["a"] + args["b"]}


def add_named(a: float, b: float) -> dict[str, Any]:
    return {"result": a + b}


async def add_with_context(args: dict[str, Any], context: Context) -> dict[str, Any]:
    context.progress("adding")
    return {"result": args["a"] + args["b"]}


def add_any(**args: float) -> dict[str, Any]:
    return {"result": args["a"] + args["b"]}


class Adder:
    async def __call__(self, b: float, a: float) -> dict[str, Any]:
        return {"result": a + b}


@pytest.mark.parametrize(
    "function",
    [add_all, add_named, add_with_context, add_any, Adder(), lambda args: {"result": args["a"] + args["b"]}],
)
async def test_a_tool_takes_a_dict_or_its_arguments_by_name(function: Any) -> None:
    outcome = await run(ADD.build(function), {"a": 2, "b": 2.5})
    assert (outcome.ok, outcome.result) == (True, {"result": 4.5})


def test_a_built_tool_is_an_operation_with_a_schema() -> None:
    built = (
        tool("book", "Book a room", namespace="rooms")
        .param("room", "string", description="Which one.", enum=["red", "blue"])
        .param("hours", "integer", description="How long.", default=1)
        .param("note", ["string", "null"], required=False)
        .param("guests", {"type": "array", "items": {"type": "string"}}, required=False)
        .returns("object", description="The booking.")
        .build(lambda args: args, effect="idempotent", timeout=5, approval=True, retries=1)
    )
    assert (built.id, built.description, built.effect) == ("rooms.book", "Book a room", "idempotent")
    assert (built.timeout, built.approval, built.retries) == (5, True, 1)
    assert built.output_schema == {"type": "object", "description": "The booking."}
    assert built.input_schema == {
        "type": "object",
        "properties": {
            "room": {"type": "string", "description": "Which one.", "enum": ["red", "blue"]},
            "hours": {"type": "integer", "description": "How long.", "default": 1},
            "note": {"type": ["string", "null"]},
            "guests": {"type": "array", "items": {"type": "string"}},
        },
        "additionalProperties": False,
        "required": ["room"],
    }


def test_a_tool_is_in_the_namespace_tools_and_does_once_unless_said() -> None:
    built = ADD.build(add_all)
    assert (built.id, built.effect) == ("tools.add", "once")


async def test_defaults_are_filled_in() -> None:
    built = tool("greet", "").param("name").param("how", default="hello").build(lambda args: args)
    assert (await run(built, {"name": "ann"})).result == {"name": "ann", "how": "hello"}


@pytest.mark.parametrize(
    ("input", "path"), [({"a": 1}, "b"), ({"a": 1, "b": "x"}, "b"), ({"a": 1, "b": 2, "c": 3}, "c")]
)
async def test_wrong_arguments_are_refused_before_it_runs(input: dict[str, Any], path: str) -> None:
    ran: list[Any] = []
    outcome = await run(ADD.build(ran.append), input)
    assert outcome.error is not None
    assert (outcome.error.code, ran) == ("invalid_input", [])
    assert path in outcome.error.message


def test_a_builder_is_not_changed_by_what_is_built_on_it() -> None:
    begun = tool("x", "").param("a")
    begun.param("b")
    assert list(begun.build(lambda args: args).input_schema["properties"]) == ["a"]


@pytest.mark.parametrize(
    ("build", "expected_message"),
    [
        (lambda: tool("x").param("a", "float"), "parameter 'a' of the tool 'x': 'float' is not a JSON type"),
        (lambda: tool("x").param("a", []), "it has no type"),
        (lambda: tool("x").param("a").param("a"), "has two parameters 'a'"),
        (lambda: tool("x").param(""), "a parameter without a name"),
        (lambda: tool("x").param("a", enum="red"), "the enum of 'a' must be a list"),
        (
            lambda: tool("x").param("a", {"type": "banana"}).build(lambda args: args),
            "is not a valid JSON Schema",
        ),
        (lambda: tool("x").returns("float"), "the result of the tool 'x'"),
        (lambda: tool("x y").build(lambda args: args), "name 'x y'"),
        (lambda: tool("x", namespace="hub hub").build(lambda args: args), "namespace 'hub hub'"),
        (lambda: tool("x").build("print"), "is built from a function, got 'print'"),  # type: ignore[arg-type]  # that is tested
        (lambda: ADD.build(lambda a: a), "does not take 'b'"),
        (lambda: ADD.build(lambda a, b, c: a + b + c), "requires 'c', which is not a parameter of the tool"),
        (
            lambda: tool("x").param("a").param("b", required=False).build(lambda a, b: a + b),
            "has no default for 'b'",
        ),
        (lambda: tool("x").param("a").param("b").build(lambda a, b, /: a + b), "cannot take 'a' by name"),
        (lambda: tool("x").build(lambda args: args, retries=2), "cannot have retries"),
    ],
)
def test_what_cannot_be_is_said(build: Any, expected_message: str) -> None:
    with pytest.raises(ConfigError, match=expected_message):
        build()
