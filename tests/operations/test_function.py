"""`@operation`: names, docstrings and type hints."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, Field

from dragoman.errors import ConfigError
from dragoman.operations import Calls, Context, Operation, Registry, operation
from dragoman.operations.definitions.decorator import from_function, marked_operation
from dragoman.operations.ledger import MemoryLedger


class Address(BaseModel):
    """Where somebody lives."""

    title: str
    city: str = "Split"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict):
    deep: bool
    depth: NotRequired[int]


async def visit(
    who: str,
    address: Address,
    at: Point | None = None,
    options: Options | None = None,
    mood: Literal["calm", "wild"] = "calm",
    tries: Annotated[int, Field(ge=1, description="how often")] = 3,
) -> Options:
    """Visit somebody.

    Knocks first.

    Args:
        who: The person,
            by name.
        mood (str): How to behave.

    Returns:
        What was found.
    """
    del who, address, at, mood
    return options or Options(deep=False, depth=tries)


def made(function: Callable[..., Any], **extras: Any) -> Operation:
    return from_function(function, "test", **extras)


async def call(function: Callable[..., Any], input: dict[str, Any]) -> Any:
    async with Calls(Registry(made(function)), MemoryLedger()) as calls:
        (found,) = Registry(made(function)).list()
        return (await calls.call(found, input, context=Context())).to_json()


def test_the_name_the_description_and_the_schemas_come_from_the_function() -> None:
    found = made(visit)
    assert found.id == "test.visit"
    assert found.description == "Visit somebody.\n\nKnocks first.\n\nReturns:\n    What was found."
    assert found.effect == "once"
    assert found.input_schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["who", "address"],
        "properties": {
            "who": {"type": "string", "description": "The person, by name."},
            "address": {"$ref": "#/$defs/Address"},
            "at": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}], "default": None},
            "options": {"anyOf": [{"$ref": "#/$defs/Options"}, {"type": "null"}], "default": None},
            "mood": {
                "type": "string",
                "enum": ["calm", "wild"],
                "default": "calm",
                "description": "How to behave.",
            },
            "tries": {"type": "integer", "minimum": 1, "default": 3, "description": "how often"},
        },
        "$defs": {
            "Address": {
                "type": "object",
                "description": "Where somebody lives.",
                "properties": {"title": {"type": "string"}, "city": {"type": "string", "default": "Split"}},
                "required": ["title"],
            },
            "Point": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                "required": ["x"],
            },
            "Options": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"deep": {"type": "boolean"}, "depth": {"type": "integer"}},
                "required": ["deep"],
            },
        },
    }
    assert found.output_schema == {
        "type": "object",
        "properties": {"deep": {"type": "boolean"}, "depth": {"type": "integer"}},
        "required": ["deep"],
    }


async def test_models_dataclasses_and_defaults_reach_the_function_as_python_values() -> None:
    async def show(address: Address, at: Point, tags: frozenset[str] = frozenset({"a"})) -> list[Any]:
        assert isinstance(address, Address)
        assert isinstance(at, Point)
        return [address.city, at.y, sorted(tags)]

    arguments = {"address": {"title": "Dr"}, "at": {"x": 5}}
    assert await call(show, arguments) == {"success": True, "result": ["Split", 0, ["a"]]}


@pytest.mark.parametrize(
    ("hint", "value", "repaired"),
    [
        (int, True, None),
        (int, "1_000", None),
        (int, "12", 12),
        (float, "NaN", None),
        (float, "1e400", None),
        (bool, "on", None),
        (bool, 1, None),
        (Literal[True], 1, None),
        (int | str, True, "true"),
        (dt.datetime, 1_700_000_000, "1700000000"),
        (list[int], ["1", "x"], None),
        (dict[str, bool], {"a": "yes"}, None),
        (Point, {"x": 1, "y": True}, None),
    ],
)
async def test_a_value_that_the_schema_does_not_accept_is_not_converted_silently(
    hint: Any, value: Any, repaired: Any
) -> None:
    def show(value: Any) -> str:
        return repr(value)

    show.__annotations__["value"] = hint
    assert (await call(show, {"value": value}))["error"]["code"] == "invalid_input"
    async with Calls(Registry(found := made(show)), MemoryLedger()) as calls:
        outcome = await calls.call(found, {"value": value}, context=Context(for_model=True))
    assert bool(outcome.notes) is (outcome.error is None) is (repaired is not None)


async def test_a_caller_in_python_may_pass_values_that_json_does_not_have() -> None:
    async def next_day(day: dt.date) -> str:
        return str(day + dt.timedelta(days=1))

    assert await call(next_day, {"day": dt.date(2026, 1, 1)}) == {
        "success": True,
        "result": "2026-01-02",
    }


async def test_parameter_names_that_models_reserve_are_ordinary_parameters() -> None:
    async def odd(json: int, _x: int, model_dump: int, copy: int = 4) -> int:
        return json + _x + model_dump + copy

    assert await call(odd, {"json": 1, "_x": 2, "model_dump": 3}) == {"success": True, "result": 10}


def test_a_decorated_function_is_still_the_function() -> None:
    def double(number: int) -> int:
        """Double it."""
        return 2 * number

    decorated = operation("math", effect="read", name="twice", timeout=2, approval=True)(double)
    assert decorated is double
    assert decorated(4) == 8
    found = marked_operation(decorated)
    assert found is not None
    assert (found.id, found.effect, found.timeout, found.approval) == ("math.twice", "read", 2, True)


def test_a_context_is_no_part_of_the_schema() -> None:
    async def ask(question: str, context: Context, other: Context | None = None) -> None:
        del question, context, other

    assert list(made(ask).input_schema["properties"]) == ["question"]


NUMPY = """Measure a thing.

    Parameters
    ----------
    width : float
        How wide.
    height
        How high,
        in metres.

    Returns
    -------
    float
        The area.
    """
SPHINX = """Measure a thing.

    :param width: How wide.
    :param float height: How high,
        in metres.
    """


@pytest.mark.parametrize("docstring", [NUMPY, SPHINX])
def test_parameters_are_read_from_numpy_and_sphinx_docstrings_too(docstring: str) -> None:
    def measure(width: float, height: float) -> float:
        return width * height

    measure.__doc__ = docstring
    found = made(measure)
    described = {name: rules["description"] for name, rules in found.input_schema["properties"].items()}
    assert described == {"width": "How wide.", "height": "How high, in metres."}
    assert found.description.startswith("Measure a thing.")
    assert "How wide" not in found.description


def untyped(x) -> None:  # type: ignore[no-untyped-def]
    del x


def starred(*numbers: int) -> None:
    del numbers


def positional(x: int, /) -> None:
    del x


def unknown(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821 - that is the point
    del x


def opaque(x: Callable[[], int]) -> None:
    del x


def _hidden() -> None: ...


@pytest.mark.parametrize(
    ("function", "expected_message"),
    [
        (untyped, "untyped: parameter 'x' has no type hint"),
        (starred, "starred: parameter 'numbers' takes any number of values"),
        (positional, "positional: parameter 'x' is positional-only"),
        (unknown, "unknown: a type hint cannot be resolved (name 'Nowhere' is not defined)"),
        (opaque, "opaque: Cannot generate a JsonSchema"),
        (_hidden, "name '_hidden' in 'test' must be 1 to 128 letters"),
        (lambda: None, "name '<lambda>' in 'test' must be 1 to 128 letters"),
    ],
)
def test_a_function_that_cannot_be_an_operation_is_refused_by_name(
    function: Callable[..., Any], expected_message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        made(function)
    assert expected_message in str(error.value)


def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(ConfigError, match=r"timeout of test\.visit must be above 0 seconds, got 0"):
        made(visit, timeout=0)


@pytest.mark.parametrize(
    "decorate", [operation, operation(), operation("tools"), operation(namespace="tools")]
)
async def test_the_decorator_works_with_and_without_parentheses(decorate: Any) -> None:
    @decorate  # type: ignore[untyped-decorator]  # tests/types checks the types
    def ping(who: str = "you") -> str:
        """Answer."""
        return f"pong {who}"

    assert ping() == "pong you"
    marked = marked_operation(ping)
    assert marked is not None
    assert (marked.id, marked.description, marked.effect) == ("tools.ping", "Answer.", "once")
    calls = Calls(Registry(ping), MemoryLedger())
    assert (await calls.call("tools.ping", {"who": "me"}, context=Context())).result == "pong me"


def test_options_of_the_decorator_need_no_namespace() -> None:
    marked = marked_operation(operation(effect="read", name="p")(lambda: None))
    assert marked is not None
    assert (marked.id, marked.effect) == ("tools.p", "read")


def make_scaler(limit: Any, hint: Any) -> Operation:
    """An operation of a function that is defined anew in each call."""

    def scale(size: Any = limit) -> Any:
        return size * 2

    scale.__annotations__ = {"size": hint, "return": hint}
    return from_function(scale, "lab")


@pytest.mark.parametrize(
    ("first", "second"),
    [((1, int), (2, int)), ((1, int), (1, str)), ((1, Any), (True, Any)), (({"a": 1}, Any), ({"a": 2}, Any))],
)
def test_functions_of_one_definition_are_described_by_their_own_hints_and_defaults(
    first: tuple[Any, Any], second: tuple[Any, Any]
) -> None:
    schemas = [make_scaler(*values).input_schema["properties"]["size"] for values in (first, second, first)]
    assert schemas[0] == schemas[2]
    assert repr(schemas[0]) != repr(schemas[1])
    assert [schema["default"] for schema in schemas[:2]] == [first[0], second[0]]
