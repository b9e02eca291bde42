"""Suggestions for misspelt names, of which only a few are compared exactly."""

from __future__ import annotations

import pytest

from dragoman.suggestions import find_similar_name, find_similar_names, suggest

MANY = [f"field_{number}_name" for number in range(400)]


@pytest.mark.parametrize(
    ("name", "names", "similar"),
    [
        ("colour", ["color", "size"], "color"),
        ("COLOUR", ["Color", "size"], "Color"),
        ("field_17_nam", MANY, "field_17_name"),
        ("fiedl_399_name", MANY, "field_399_name"),
        ("invoices.craete", [*MANY, "invoices.create"], "invoices.create"),
        ("unlike", MANY, None),
        ("", MANY, None),
        ("x", [], None),
    ],
)
def test_the_most_similar_name_is_found(name: str, names: list[str], similar: str | None) -> None:
    assert find_similar_name(name, names) == similar
    assert suggest(name, names) == ("" if similar is None else f"; did you mean {similar!r}?")


def test_several_similar_names_come_in_the_order_of_their_likeness() -> None:
    assert find_similar_names("time.noww", ["time.no", "time.now", "date.now"], limit=2) == [
        "time.now",
        "time.no",
    ]


def test_long_names_are_not_compared() -> None:
    assert find_similar_names("a" * 201, ["a" * 200], limit=1) == ()
    assert find_similar_names("a" * 200, ["a" * 201], limit=1) == []


def test_of_many_names_few_are_compared_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def note_names(_: str, names: list[str], n: int) -> list[str]:
        compared.extend(names)
        return names[: 0 * n]

    monkeypatch.setattr("dragoman.suggestions.get_close_matches", note_names)
    assert find_similar_name("field_17_nam", MANY * 100) is None
    assert "field_17_name" in compared
    assert len(compared) < 10
