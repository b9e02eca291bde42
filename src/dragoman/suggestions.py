"""Suggestions for misspelt names: the existing name that is most similar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice

MAX_NAME_LENGTH = 100  # characters; comparing takes time in proportion to the product of the lengths
MAX_COMPARED = 2_000  # names


def find_similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of the names, whatever the case, or None if none is similar."""
    return next(iter(find_similar_names(name, names, limit=1)), None)


def find_similar_names(name: str, names: Iterable[str], *, limit: int) -> Sequence[str]:
    """Return up to `limit` similar names, the most similar first, whatever the case."""
    if not name or len(name) > MAX_NAME_LENGTH:
        return ()
    by_lower = {each.lower(): each for each in islice(names, MAX_COMPARED)}
    return [by_lower[near] for near in get_close_matches(name.lower(), by_lower, n=limit)]


def suggest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` if one of the names is similar, else ""."""
    similar = find_similar_name(name, names)
    return "" if similar is None else f"; did you mean {similar!r}?"
