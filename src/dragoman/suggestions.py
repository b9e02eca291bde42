"""Suggestions for misspelt names: the existing name that is most similar.

Names come from clients, models and their schemas, so what is compared is bounded: the exact comparison takes
some 50 µs for a pair of names and is made with the few that share most pairs of letters.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice, pairwise

MAX_NAME_LENGTH = 200  # characters; comparing takes time in proportion to the product of the lengths
MAX_COMPARED = 800  # names whose pairs of letters are compared
MAX_CANDIDATES = 6  # names that are compared exactly


def find_similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of the names, whatever the case, or None if none is similar."""
    return next(iter(find_similar_names(name, names, limit=1)), None)


def find_similar_names(name: str, names: Iterable[str], *, limit: int) -> Sequence[str]:
    """Return up to `limit` similar names, the most similar first, whatever the case."""
    if not name or len(name) > MAX_NAME_LENGTH:
        return ()
    by_lower = {each.lower(): each for each in islice(names, MAX_COMPARED) if len(each) <= MAX_NAME_LENGTH}
    candidates: Iterable[str] = by_lower
    if len(by_lower) > MAX_CANDIDATES:
        pairs = letter_pairs(name.lower())
        candidates = heapq.nlargest(MAX_CANDIDATES, by_lower, key=lambda each: shared_part(each, pairs))
    return [by_lower[near] for near in get_close_matches(name.lower(), candidates, n=limit)]


@lru_cache(maxsize=2 * MAX_COMPARED)
def letter_pairs(name: str) -> frozenset[tuple[str, str]]:
    """Return the pairs of letters that follow one another in a name, and its first and last letter."""
    return frozenset(pairwise(f" {name} "))


def shared_part(name: str, pairs: frozenset[tuple[str, str]]) -> float:
    """Return the share of the pairs that a name has in common with these: 0 to 1 (Dice's coefficient)."""
    own = letter_pairs(name)
    return 2 * len(own & pairs) / (len(own) + len(pairs))


def suggest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` if one of the names is similar, else ""."""
    similar = find_similar_name(name, names)
    return "" if similar is None else f"; did you mean {similar!r}?"
