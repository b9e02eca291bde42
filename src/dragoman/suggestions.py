"""Suggestions for misspelt names: the existing name that is most similar."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

MAX_NAME_LENGTH = 100  # characters; comparing takes time in proportion to the product of the lengths
MAX_COMPARED = 2_000  # names


def find_similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of the names, whatever the case, or None if none is similar."""
    if not name or len(name) > MAX_NAME_LENGTH:
        return None
    by_lower = {each.lower(): each for each in islice(names, MAX_COMPARED)}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def suggest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` if one of the names is similar, else ""."""
    similar = find_similar_name(name, names)
    return "" if similar is None else f"; did you mean {similar!r}?"
