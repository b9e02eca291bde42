"""Arguments of an operation on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.cli.ops import parse_arguments
from dragoman.errors import BadRequest

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "many": {"type": ["array", "null"]},
}


@pytest.mark.parametrize(
    ("raw", "pairs", "expected"),
    [
        (None, [], {}),
        ("", [], {}),
        (None, ["text=42"], {"text": "42"}),
        (None, ["text=a=b", "text2="], {"text": "a=b", "text2": ""}),
        (None, ["count=42", "either=null"], {"count": 42, "either": "null"}),
        (None, ['many=["a", 1]', "other=word"], {"many": ["a", 1], "other": "word"}),
        ('{"text": "a", "count": 1}', ["count=2"], {"text": "a", "count": 2}),
    ],
)
def test_pairs_are_read_as_the_schema_says(
    raw: str | None, pairs: list[str], expected: dict[str, Any]
) -> None:
    assert parse_arguments(raw, pairs, properties=PROPERTIES) == expected


@pytest.mark.parametrize(("raw", "pairs"), [("{", []), ("[1]", []), (None, ["text"]), (None, ["=x"])])
def test_what_is_no_argument_is_refused(raw: str | None, pairs: list[str]) -> None:
    with pytest.raises(BadRequest):
        parse_arguments(raw, pairs, properties=PROPERTIES)
