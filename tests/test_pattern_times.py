"""Texts from outside are searched, normalised and parsed in time in proportion to the text, whatever it is.

The interpreter does nothing else while an expression is searched, or a C function works on a text. Each text
is so long that the square of its length would be hours, which ends the test by its time limit.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dragoman.agent.hooks.guards import destructive_commands, paths
from dragoman.errors import BadRequest
from dragoman.http.url_and_proxy import split_url
from dragoman.operations.arguments.schema_cost import pattern_cost
from dragoman.operations.arguments.validation import is_secret_name
from dragoman.operations.search.tokenizer import unique_terms
from dragoman.spokes.hub.permissions import canonical_namespace
from dragoman.store.sessions.message_search import split_snippet
from dragoman.store.sessions.postgres_words import split_words
from dragoman.teams.skill_files import tools_in_field
from dragoman.teams.tasks.new_task import text_hash
from dragoman.tools.web.html_text import parse_page
from dragoman.tools.web.url import parse_url
from dragoman.wire.responses.request import rejected_field

LONG = 300_000
ACCENTS = "a" + "\u0315\u0300" * LONG  # which normalisation sorts
SCRIPT = "".join(chr(0x4E00 + n % 20_000) for n in range(LONG))  # a host in Punycode
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
    "accents in a search for operations": (lambda text: unique_terms(text) == {"a"}, ACCENTS, False),
    "accents in a task": (lambda text: len(text_hash(text)), ACCENTS, 32),
    "accents in a namespace": (lambda text: len(canonical_namespace(text)) > LONG, ACCENTS, True),
    "accents in a path": (lambda text: len(list(paths.decoded_forms(text))), ACCENTS, 2),
    "accents in a command": (lambda text: len(destructive_commands.normalised_forms(text)), ACCENTS, 1),
    "accents in a message": (lambda text: [each.word for each in split_words(text)], ACCENTS, ["a"]),
    "accents in the link of a page": (
        lambda text: parse_page(f'<a href="//{text}">x</a>', url="http://h/", markdown=True).text.strip(),
        ACCENTS,
        "x",
    ),
    "accents in a host": (lambda text: refusal(split_url, f"http://{text}"), ACCENTS, ValueError),
    "a host in another script": (
        lambda text: refusal(split_url, f"http://{text}"),
        SCRIPT[:1_900],
        ValueError,
    ),
    "a host of a fetched page in another script": (
        lambda text: refusal(parse_url, f"http://{text}"),
        SCRIPT[:8_000],
        BadRequest,
    ),
}


def refusal(parse: Callable[[str], object], text: str) -> type[Exception] | None:
    """Return which error a function raises for a text."""
    try:
        parse(text)
    except (ValueError, BadRequest) as error:
        return type(error)
    return None


@pytest.mark.parametrize("case", CASES)
def test_a_long_text_takes_time_in_proportion(case: str) -> None:
    function, text, result = CASES[case]
    assert function(text) == result
