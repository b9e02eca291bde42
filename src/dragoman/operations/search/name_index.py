"""The name index: operations by their exact name or its prefix, whatever the spelling."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from enum import IntEnum

from dragoman.operations.operation import Operation
from dragoman.operations.search.tokenizer import normalise_name

PREFIX_LENGTH = 2  # letters that names are bucketed by; a shorter query is not taken as a prefix
MAX_PREFIX_MATCHES = 200  # matches of a prefix


class NameMatch(IntEnum):
    """How well a name matches; lower is better."""

    ID = 0  # the id itself
    NAME = 1  # the name or id, ignoring case and punctuation
    PREFIX = 2


class NameIndex:
    """Names and ids without case and punctuation, for exact and prefix matches."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, list[tuple[str, str]]] = {}

    def add(self, operation: Operation) -> None:
        """Add an operation's name and id."""
        for name, id in search_keys(operation):
            insort(self._by_prefix.setdefault(name[:PREFIX_LENGTH], []), (name, id))

    def remove(self, operation: Operation) -> None:
        """Remove an operation's name and id."""
        for pair in search_keys(operation):
            bucket = self._by_prefix[pair[0][:PREFIX_LENGTH]]
            del bucket[bisect_left(bucket, pair)]
            if not bucket:
                del self._by_prefix[pair[0][:PREFIX_LENGTH]]

    def match(self, q: str, *, allow: Callable[[str], bool] | None = None) -> dict[str, NameMatch]:
        """Return the ids that `q` equals or is a prefix of, and that `allow` accepts.

        A prefix of more than MAX_PREFIX_MATCHES names is not selective; then only equal names match.
        """
        normalised = normalise_name(q)
        bucket = self._by_prefix.get(normalised[:PREFIX_LENGTH], [])
        matches: dict[str, NameMatch] = {}
        for index in range(bisect_left(bucket, (normalised, "")), len(bucket)):
            name, id = bucket[index]
            if not name.startswith(normalised):
                break
            if allow is not None and not allow(id):
                continue
            matches[id] = min(
                matches.get(id, NameMatch.PREFIX), match_quality(q, id, exact=name == normalised)
            )
            if len(matches) > MAX_PREFIX_MATCHES and name != normalised:
                return {id: match for id, match in matches.items() if match < NameMatch.PREFIX}
        return matches


def match_quality(q: str, id: str, *, exact: bool) -> NameMatch:
    """Return how well the query matches a name that starts with it or equals it."""
    if q.lower() == id.lower():
        return NameMatch.ID
    return NameMatch.NAME if exact else NameMatch.PREFIX


def search_keys(operation: Operation) -> set[tuple[str, str]]:
    """Return the normalised names of an operation, with its id."""
    id = operation.id
    return {(normalise_name(operation.name), id), (normalise_name(id), id)}
