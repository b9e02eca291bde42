"""Words of a text for Postgres' full-text search, split as SQLite's index splits them.

Postgres' own parsers keep host names, paths and numbers with signs together, depend on the locale of the
database, and keep accents. Therefore `tsvector` and `tsquery` values are written here, in their text form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dragoman.unicode_normalisation import normalise_text

WORD = re.compile(r"[^\W_]+(?:[\u0300-\u036f]+[^\W_]*)*")
ACCENTS = re.compile("[\u0300-\u036f]+")
MAX_LEXEME_BYTES = 1_000  # of 2,046
MAX_VECTOR_BYTES = 900_000  # of 1,048,575: of a longer text, only the first words are indexed
MAX_POSITION = 16_383  # Postgres' own limit: phrases after it are not found as phrases
MAX_POSITIONS = 255  # of one word
SCOPE_MARK = "#"  # begins the lexeme of a scope; no word has it


class QueryWord(NamedTuple):
    """A word of a query, as the words it consists of; `is_prefix`: longer words match the last one too."""

    words: tuple[str, ...]
    is_prefix: bool


class WordSpan(NamedTuple):
    """A word of a text, and where it is."""

    word: str
    start: int
    end: int


def fold_word(word: str) -> str:
    """Return a word in lower case and without accents."""
    if not word.isascii():
        word = ACCENTS.sub("", normalise_text("NFD", word.lower()))
    return word.lower().encode(errors="replace")[:MAX_LEXEME_BYTES].decode(errors="ignore")


def split_words(text: str) -> Iterator[WordSpan]:
    """Yield the words of a text in order."""
    for match in WORD.finditer(text):
        yield WordSpan(fold_word(match[0]), *match.span())


def text_vector(text: str, *, scope: str) -> str:
    """Return the `tsvector` of a text; `scope` are names that a search can be restricted to."""
    positions: dict[str, list[int]] = {f"{SCOPE_MARK}{name}": [] for name in scope.split()}
    size = 0
    for number, (word, _, _) in enumerate(split_words(text), 1):
        places = positions.get(word)
        if places is None:
            size += len(word.encode()) + 8
            if size > MAX_VECTOR_BYTES:
                break
            places = positions[word] = []
        if len(places) < MAX_POSITIONS:
            places.append(min(number, MAX_POSITION))
            size += 2
    return " ".join(
        f"'{word}'" if not places else f"'{word}':{','.join(map(str, places))}"
        for word, places in positions.items()
    )


def text_query(words: Sequence[QueryWord], *, match_all: bool) -> str:
    """Return the `tsquery` of words: a word matches itself or, as a prefix, longer ones."""
    terms = []
    for found in words:
        phrase = " <-> ".join(f"'{word}'" for word in found.words)
        terms.append(f"({phrase} | {phrase}:*)" if found.is_prefix else f"({phrase})")
    return (" & " if match_all else " | ").join(terms)


def scoped_query(query: str, *, scope: str) -> str:
    """Return a `tsquery` restricted to a scope."""
    return f"'{SCOPE_MARK}{scope}' & ({query})"


def find_hits(spans: Sequence[WordSpan], words: Sequence[QueryWord]) -> Iterator[tuple[int, int, int]]:
    """Yield the hits in a text, which do not overlap: first and last span, and which word of the query."""
    at = 0
    while at < len(spans):
        for number, (phrase, is_prefix) in enumerate(words):
            last = at + len(phrase) - 1
            if last < len(spans) and is_hit(spans[at : last + 1], phrase, is_prefix=is_prefix):
                yield at, last, number
                at = last
                break
        at += 1


def is_hit(spans: Sequence[WordSpan], phrase: Sequence[str], *, is_prefix: bool) -> bool:
    """Return whether these words of a text match the phrase of the same length."""
    *earlier, last = phrase
    matches_last = spans[-1].word.startswith(last) if is_prefix else spans[-1].word == last
    return matches_last and all(span.word == word for span, word in zip(spans, earlier, strict=False))
