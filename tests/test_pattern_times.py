"""Regular expressions over texts from outside take time in proportion to the text, whatever it is.

The interpreter does nothing else while an expression is searched. Each text is so long that the square of its
length would be hours, which ends the test by its time limit.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dragoman.operations.arguments.schema_cost import pattern_cost
from dragoman.operations.arguments.validation import is_secret_name
from dragoman.store.sessions.message_search import split_snippet
from dragoman.teams.skill_files import tools_in_field
from dragoman.wire.responses.request import rejected_field

LONG = 300_000
CASES: dict[str, tuple[Callable[[str], object], str, object]] = {
    "classes without an end in a schema's pattern": (pattern_cost, "[" * LONG, 0.0),
    "properties without an end in a schema's pattern": (
        lambda text: pattern_cost(text) > 0,
        r"\p{" * LONG,
        True,
    ),
    "a number without an end in a schema's pattern": (
        lambda text: round(pattern_cost(text)),
        "a{" + "9" * LONG + "}",
        100_000,
    ),
    "the name of an argument": (is_secret_name, "token" + "max" * LONG, True),
    "brackets in the tools of a skill": (lambda text: tools_in_field(text, source=""), "(" * LONG, [""]),
    "the message of a provider's error": (
        lambda text: rejected_field({"message": text}),
        "extra" * LONG,
        None,
    ),
    "marks of hits in a message": (lambda text: len(split_snippet(text)), "\x02" * LONG, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_a_long_text_is_searched_in_time_in_proportion(case: str) -> None:
    function, text, result = CASES[case]
    assert function(text) == result
