"""One-line summaries and signatures of operations."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.operations import Operation
from dragoman.operations.search.summary import signature, summarise

ANY: dict[str, Any] = {}


def made(description: str, schema: dict[str, Any] | None = None) -> Operation:
    async def nothing(*_: Any) -> None: ...

    return Operation.from_schema(nothing, schema or {}, namespace="a", name="b", description=description)


@pytest.mark.parametrize(
    ("description", "summary"),
    [
        ("", ""),
        ("Paint a wall.\n\nTakes long.", "Paint a wall."),
        ("  Paint\n  a   wall,\tall of it.  ", "Paint a wall, all of it."),
        ("x" * 161, "x" * 159 + "…"),
        ("x" * 160, "x" * 160),
    ],
)
def test_the_summary_is_the_first_paragraph_on_one_line(description: str, summary: str) -> None:
    assert summarise(made(description)) == summary


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"type": "array", "items": {"type": "integer"}}, "integer[]"),
        ({"type": "array"}, "any[]"),
        ({"enum": ["c", "f", 3]}, '"c"|"f"|3'),
        ({"enum": [1, 2, 3, 4, 5]}, "1|2|3|4|…"),
        ({"const": True}, "true"),
        ({"$ref": "#/$defs/Point"}, "Point"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "integer"}]}, "integer|number"),
        (
            {"oneOf": [{"type": kind} for kind in ("integer", "string", "null", "array")]},
            "integer|string|null|…",
        ),
        ({"description": "anything"}, "any"),
        (True, "any"),
    ],
)
def test_a_signature_says_the_type_of_each_input(rules: Any, kind: str) -> None:
    schema = {"properties": {"x": rules}, "required": ["x"], "$defs": {"Point": ANY}}
    assert signature(made("", schema).input_schema) == f"(x: {kind})"


def test_a_signature_has_what_is_required_first_and_marks_the_rest() -> None:
    optional = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    schema = {"properties": {"unit": optional, "city": {"type": "string"}}, "required": ["city"]}
    assert signature(schema) == "(city: string, unit?: string)"


@pytest.mark.parametrize(("schema", "text"), [({}, "(…)"), ({"properties": {}}, "()")])
def test_a_signature_of_nothing_is_short(schema: dict[str, Any], text: str) -> None:
    assert signature(schema) == text


def test_a_signature_stays_short() -> None:
    text = signature({"properties": {f"parameter_{index}": {"type": "string"} for index in range(99)}})
    assert len(text) < 210
    assert text.endswith(", …)")
