"""Schema errors name the path, what was expected and what came."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import InvalidInput
from dragoman.operations.arguments.validation import MAX_PROBLEMS, make_parser

Wrong = list[tuple[str, str, str]]
SHAPES = [
    {
        "type": "object",
        "properties": {"kind": {"const": "dot"}, "x": {"type": "integer"}},
        "required": ["kind", "x"],
    },
    {
        "type": "object",
        "properties": {"kind": {"const": "line"}, "to": {"type": "string"}},
        "required": ["kind"],
    },
]


def wrong(schema: dict[str, Any], input: Any) -> Wrong:
    with pytest.raises(InvalidInput) as error:
        make_parser(schema)(input)
    return [(str(each["path"]), str(each["expected"]), str(each["got"])) for each in error.value.problems]


def of(**rules: Any) -> dict[str, Any]:
    """A schema whose field `a` has these rules."""
    return {"properties": {"a": rules}}


NUMBER = {"type": "number"}
CASES: dict[str, tuple[dict[str, Any], Any, Wrong]] = {
    "type": (of(type=["integer", "null"]), {"a": "x"}, [("a", "integer or null", '"x"')]),
    "enum": (of(enum=["C", "F", 1]), {"a": "K"}, [("a", 'one of "C", "F", 1', '"K"')]),
    "const": (of(const={"b": 1}), {"a": 1}, [("a", '{"b":1}', "1")]),
    "required": (
        {"required": ["b"], "properties": {"b": {"enum": ["x", "y"]}}},
        {},
        [("b", 'a value (required): one of "x", "y"', "nothing")],
    ),
    "a near name": (
        {"properties": {"count": {}, "colour": {}}, "additionalProperties": False},
        {"cuont": 1, "zzz": 2},
        [
            ("cuont", "no field of this name; did you mean `count`?", "1"),
            ("zzz", "no field of this name; there are `count`, `colour`", "2"),
        ],
    ),
    "nested lists": (
        of(items={"items": {"properties": {"b": NUMBER}}}),
        {"a": [[], [{"b": 1}, {"b": "2"}]]},
        [("a[1][1].b", "number", '"2"')],
    ),
    "another list": (of(prefixItems=[{}], items=False), {"a": [1, 2]}, [("a[1]", "nothing here", "2")]),
    "unique": (
        of(uniqueItems=True),
        {"a": [1, 3, 1]},
        [("a", "items that all differ; items 0 and 2 are the same", "[1,3,1]")],
    ),
    "contains": (
        of(contains=NUMBER, minContains=2),
        {"a": [1, "x"]},
        [("a", 'at least 2 of its items to fit {"type":"number"}', '[1,"x"]')],
    ),
    "contains too many": (
        of(contains=NUMBER, maxContains=1),
        {"a": [1, 2]},
        [("a", 'at most 1 of its items to fit {"type":"number"}', "[1,2]")],
    ),
    "dependent": (
        {"dependentRequired": {"card": ["name"]}, "properties": {"name": {"type": "string"}}},
        {"card": 1},
        [("name", "a value (required, because of `card`): string", "nothing")],
    ),
    "then": (
        {"if": {"properties": {"kind": {"const": 1}}}, "then": {"required": ["b"]}},
        {"kind": 1},
        [("b", "a value (required, because of `kind`)", "nothing")],
    ),
    "names": (
        {"propertyNames": {"pattern": "^a"}},
        {"b": 1},
        [("", 'field names that are text that matches ^a; "b" is not', '{"b":1}')],
    ),
    "pattern of names": (
        {"patternProperties": {"^s": {"type": "string"}}},
        {"s1": 1},
        [("s1", "string", "1")],
    ),
    "too few fields": ({"minProperties": 2}, {"b": 1}, [("", "at least 2 fields", '{"b":1}')]),
    "not": ({"not": {"required": ["b"]}}, {"b": 1}, [("", 'anything but {"required":["b"]}', '{"b":1}')]),
    "the form that is meant": (
        of(anyOf=SHAPES),
        {"a": {"kind": "dot", "x": "1"}},
        [("a.x", "integer", '"1"')],
    ),
    "no form of these": (of(anyOf=SHAPES), {"a": {"kind": "arc"}}, [("a.kind", '"dot" or "line"', '"arc"')]),
    "another sort": (of(oneOf=[*SHAPES, {"type": "null"}]), {"a": 3}, [("a", "object or null", "3")]),
    "two forms at once": (
        of(oneOf=[{"type": "object"}, {"required": ["b"]}, {"type": "null"}]),
        {"a": {"b": 1}},
        [("a", "exactly one of its 3 forms; it fits the 1st and 2nd of them", '{"b":1}')],
    ),
    "a part elsewhere": (
        {
            "properties": {"a": {"$ref": "#/$defs/b"}},
            "$defs": {"b": {"required": ["c"], "properties": {"c": NUMBER}}},
        },
        {"a": {}},
        [("a.c", "a value (required): number", "nothing")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_problem_names_the_place_what_is_expected_there_and_what_it_got(case: str) -> None:
    schema, input, problems = CASES[case]
    assert wrong(schema, input) == problems


def test_formats_are_left_to_whoever_runs_the_call() -> None:
    input = {"a": "tomorrow"}
    assert make_parser(of(type="string", format="date"))(input) is input


def test_a_secret_is_not_said_back() -> None:
    schema = {
        "properties": {"count": {}, "b": NUMBER, "max_tokens": {"type": "integer"}},
        "additionalProperties": False,
    }
    input = {"api_key": "sk-very-secret", "b": {"inner": {"password": "hunter2"}}, "max_tokens": "5"}
    found_problems = wrong(schema, input)
    assert "secret" not in str(found_problems)
    assert "hunter2" not in str(found_problems)
    assert ("max_tokens", "integer", '"5"') in found_problems


def test_at_most_twenty_problems_are_reported() -> None:
    assert len(wrong({"items": NUMBER, "type": "array"}, ["x"] * 500)) == MAX_PROBLEMS


def test_what_is_big_gets_its_first_problem_only() -> None:
    assert wrong({"items": NUMBER}, ["x"] * 300_000) == [("[0]", "number", '"x"')]


def test_a_schema_that_multiplies_is_no_danger() -> None:
    twice = {f"x{n}": {"allOf": [{"$ref": f"#/$defs/x{n - 1}"}] * 2} for n in range(1, 40)}
    schema = {"$ref": "#/$defs/x39", "$defs": {"x0": {"type": "string"}, **twice}}
    ((path, expected, _),) = wrong(schema, {})
    assert (path, expected) == ("", "a value that matches its schema, which is too complex to say more")


def test_what_is_nested_too_deep_is_refused() -> None:
    input: dict[str, Any] = {}
    for _ in range(50_000):
        input = {"a": input}
    ((_, expected, _),) = wrong({}, input)
    assert expected == "values nested at most 100 deep"
    while input:  # taken apart from above: no deep chain of destructors
        input = input["a"]


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(a|aa)+$", r"(a*)*c\1", r"^(?=(a+)+b)\w+$"])
def test_no_pattern_takes_long(pattern: str) -> None:
    assert wrong(of(pattern=pattern), {"a": "a" * 5_000 + "!"})  # backtracking, it would not end today
