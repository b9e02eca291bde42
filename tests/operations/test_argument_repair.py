"""Repair of arguments that nearly fit: nothing invented, nothing lost."""

from __future__ import annotations

import time
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.operations.arguments.argument_repair import RepairedArguments, repair_arguments
from dragoman.operations.arguments.broken_json import repair_json

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "on": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "unit": {"enum": ["C", "F"]},
        "fileName": {"type": "string"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "deep": {"$ref": "#/$defs/deep"},
        "when": {"type": "string", "format": "date"},
    },
    "additionalProperties": False,
    "$defs": {
        "deep": {"type": "object", "properties": {"n": {"type": "integer"}, "in": {"$ref": "#/$defs/deep"}}}
    },
}
MENDED: dict[str, tuple[Any, Any, str]] = {
    "a number in text": ({"count": "3"}, {"count": 3}, "`count` was text; taken as the number 3"),
    "a fraction in text": ({"ratio": "0.1"}, {"ratio": 0.1}, "`ratio` was text; taken as the number 0.1"),
    "a truth value in text": ({"on": "True"}, {"on": True}, "`on` was text; taken as true"),
    "a number for text": (
        {"fileName": 7},
        {"fileName": "7"},
        "`fileName` was a number; taken as the text '7'",
    ),
    "one for a list": (
        {"tags": "a"},
        {"tags": ["a"]},
        "`tags` was a single value; taken as a list of that one",
    ),
    "a list in text": (
        {"tags": '["a"]'},
        {"tags": ["a"]},
        "`tags` was JSON in a text; taken as the list in it",
    ),
    "an object in text": (
        {"deep": "{'n': 1}"},
        {"deep": {"n": 1}},
        "`deep` was JSON in a text; taken as the object in it",
    ),
    "another case": ({"unit": " c"}, {"unit": "C"}, "`unit` was 'c'; taken as 'C'"),
    "another name": ({"file_name": "x"}, {"fileName": "x"}, "`file_name` was taken as `fileName`, its name"),
    "null for nothing": ({"count": None}, {}, "`count` was null; left out"),
    "one of two forms": ({"limit": "4"}, {"limit": 4}, "`limit` was text; taken as the number 4"),
    "deep down": (
        {"deep": {"in": {"n": "2"}}},
        {"deep": {"in": {"n": 2}}},
        "`deep.in.n` was text; taken as the number 2",
    ),
    "wrapped": (
        {"arguments": {"count": 1}},
        {"count": 1},
        "the arguments were wrapped in `arguments`; taken out of it",
    ),
    "all in text": ('{"count": 1,}', {"count": 1}, "the arguments were text; taken as the object in it"),
}


@pytest.mark.parametrize("case", MENDED)
def test_what_nearly_fits_is_taken_as_meant_and_told(case: str) -> None:
    input, value, note = MENDED[case]
    before = msgspec.json.encode(input)
    assert repair_arguments(input, SCHEMA) == RepairedArguments(value, (note,))
    assert msgspec.json.encode(input) == before


@pytest.mark.parametrize(
    "input",
    [
        {"count": "007"},
        {"count": "3.5"},
        {"count": "three"},
        {"count": True},
        {"ratio": "0.12345678901234567890123"},
        {"on": "yes"},
        {"on": 1},
        {"unit": "Kelvin"},
        {"file_name": "a", "FileName": "b"},
        {"stranger": None},
        {"arguments": {"count": 1}, "count": 2},
        {"arguments": {"stranger": 1}},
        {"tags": None, "count": "x"},
        "count is 3",
        [{"count": 1}],
        None,
    ],
)
def test_what_could_only_be_guessed_is_left_to_the_model(input: Any) -> None:
    assert repair_arguments(input, SCHEMA) is None


def test_a_required_field_is_not_dropped_and_two_ways_are_none() -> None:
    assert repair_arguments({"a": None}, {"properties": {"a": {"type": "string"}}, "required": ["a"]}) is None
    either = {"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "array"}]}}}
    assert repair_arguments({"a": "3"}, either) is None


@pytest.mark.parametrize(
    ("name", "input", "is_same"),
    [
        ("имя", "фамилия", False),  # no letter of theirs is one of ASCII
        ("grüße", "größe", False),
        ("_", "$", False),
        ("имя_файла", "ИмяФайла", True),
        ("straßenName", "Straßen_Name", True),
        ("caf\u00e9", "Cafe\u0301", True),
    ],
)
def test_names_in_any_script_are_the_same_but_for_case_and_separators(
    name: str, input: str, is_same: bool
) -> None:
    schema = {"properties": {name: {"type": "string"}}, "required": [name], "additionalProperties": False}
    repaired = repair_arguments({input: "x"}, schema)
    assert (repaired is not None and repaired.value == {name: "x"}) is is_same


def test_a_name_is_left_alone_where_any_name_is_let_in() -> None:
    schema = {"properties": {"fileName": {"type": "string"}, "n": {"type": "integer"}}}
    mended = repair_arguments({"file_name": "x", "n": "1"}, schema)
    assert mended is not None
    assert mended.value == {"file_name": "x", "n": 1}


REPAIRED: dict[str, Any] = {
    '{"a": 1,}': {"a": 1},
    "{'a': 'it\\'s', 'b': True, 'c': None}": {"a": "it's", "b": True, "c": None},
    '```json\n{"a": 1}\n```': {"a": 1},
    '{"a": "two\nlines"}': {"a": "two\nlines"},
    '{"a": [1, 2], "b": {"c": "x"}': {"a": [1, 2], "b": {"c": "x"}},
    '{"a": -5, "p": 1.50,}': {"a": -5, "p": 1.5},
    "{a: 1}": {"a": 1},
    '{"a": -5, "b": 1e-7, "c": 2.5E+3, "d": "x != -y",}': {
        "a": -5,
        "b": 1e-7,
        "c": 2500.0,
        "d": "x != -y",
    },
}


@pytest.mark.parametrize("text", REPAIRED)
def test_broken_json_is_read_as_meant(text: str) -> None:
    assert repair_json(text) == REPAIRED[text]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "x',
        '{"cmd": "rm -rf /tmp',
        '{"a": 1',
        '{"a": 01}',
        '{"a": 1} and then some',
        '{"a": 1}{"b": 2}',
        '{"a": 1, "a": 2,}',
        '{"a": \u22125,}',
        '{"a": ~5,}',
        '{"a": 50%,}',
        '{"a": !true,}',
        '{"a":-5abc,}',
        '{"a": 1e999,}',
        '{"a": 1e9999999999999999999,}',
        '{"a": 1e9999999999999999999, "b": "x" "y"}',
        "[1, 2]",
        "nothing",
        "",
        '{"a": "' + "x" * 1_000_001 + '",}',
    ],
)
def test_nothing_is_lost_or_made_up_in_a_repair(text: str) -> None:
    assert repair_json(text) is None


@pytest.mark.parametrize("text", ['{"a": [1, 2]', '{"a": {"b": 1}', '{"a": "x",'])
def test_what_is_known_to_be_cut_off_is_not_completed(text: str) -> None:
    assert repair_json(text, truncated=True) is None
    assert repair_json('{"a": 1}', truncated=True) == {"a": 1}


@pytest.mark.parametrize("piece", ['{"a":[', "{", "[", '{"a": "x"y", ', "'", '\\"', "("])
def test_no_text_takes_long_to_repair(piece: str) -> None:
    began = time.process_time()
    for start in ("", '{"k": "'):
        repair_json((start + piece * 900_000)[:900_000] + "}")
        repair_json((start + piece * 4_000)[:3_990] + "}")
    assert time.process_time() - began < 10


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.floats(-9, 9)
    | st.sampled_from(["", "1", "-2.5", "true", "None", " c ", "x", "[1]", '{"a": "1"}', "007", "1e3"])
)
names = st.sampled_from(["a", "B", "a_b", "aB", "arguments", "c"])
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
plain_rules = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "number", "maximum": 5},
        {"type": "string"},
        {"type": "boolean"},
        {"type": ["integer", "null"]},
        {"enum": ["C", "x", 1, None]},
        {"const": "true"},
        {"type": "string", "minLength": 2},
        {"$ref": "#"},
        {},
    ]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = {"properties": st.dictionaries(names, inner, max_size=3)}
    more = {"required": st.lists(names, max_size=2, unique=True), "additionalProperties": st.booleans()}
    return st.fixed_dictionaries({"type": st.just("object"), **fields}, optional=more)


rules = st.recursive(
    plain_rules,
    lambda inner: (
        objects(inner)
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)})
        | st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=2)})
        | st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)})
    ),
    max_leaves=6,
)


@given(schema=objects(rules), input=st.dictionaries(names, values, max_size=3))
def test_what_is_repaired_fits_and_what_fitted_is_left_as_it_was(schema: Any, input: Any) -> None:
    validator = jsonschema_rs.validator_for(schema)
    before = repr(input)
    mended = repair_arguments(input, schema)
    assert repr(input) == before
    if validator.is_valid(input):
        assert mended == RepairedArguments(input)
        assert repr(mended.value) == before
    elif mended is not None:
        assert validator.is_valid(mended.value)
        assert mended.notes
