"""Names: which operations are called what is asked for, or begin with it, whatever the spelling."""

from __future__ import annotations

from bisect import bisect_left, insort
from enum import IntEnum

from dragoman.operations.operation import Operation
from dragoman.operations.search.tokenizer import normalise_name

PREFIX_LENGTH = 2  # letters by which names are kept apart; a shorter word is no beginning, only a name
MAX_PREFIX_MATCHES = 200  # names


class NameMatch(IntEnum):
    """How well a name fits; better ones are less."""

    ID = 0  # the id, letter for letter
    NAME = 1  # the name or id, but for case and punctuation
    PREFIX = 2


class NameIndex:
    """Names and ids without case and punctuation, for exact and prefix matches."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, list[tuple[str, str]]] = {}

    def add(self, operation: Operation) -> None:
        """Take an operation's name and id in."""
        for name, id in search_keys(operation):
            insort(self._by_prefix.setdefault(name[:PREFIX_LENGTH], []), (name, id))

    def remove(self, operation: Operation) -> None:
        """Forget them."""
        for pair in search_keys(operation):
            held = self._by_prefix[pair[0][:PREFIX_LENGTH]]
            del held[bisect_left(held, pair)]
            if not held:
                del self._by_prefix[pair[0][:PREFIX_LENGTH]]

    def match(self, q: str) -> dict[str, NameMatch]:
        """The ids that `q` names or begins.

        A beginning that more than SHARED names have says nothing, and gives only those that are it.
        """
        wanted = normalise_name(q)
        held = self._by_prefix.get(wanted[:PREFIX_LENGTH], [])
        found: dict[str, NameMatch] = {}
        for place in range(bisect_left(held, (wanted, "")), len(held)):
            name, id = held[place]
            if not name.startswith(wanted):
                break
            found[id] = min(found.get(id, NameMatch.PREFIX), match_quality(q, id, exact=name == wanted))
            if len(found) > MAX_PREFIX_MATCHES and name != wanted:
                return {id: match for id, match in found.items() if match < NameMatch.PREFIX}
        return found


def match_quality(q: str, id: str, *, exact: bool) -> NameMatch:
    """How well the words fit an operation whose spelling begins with them, or is them."""
    if q.lower() == id.lower():
        return NameMatch.ID
    return NameMatch.NAME if exact else NameMatch.PREFIX


def search_keys(operation: Operation) -> set[tuple[str, str]]:
    """What an operation may be asked for by, with its id."""
    id = operation.id
    return {(normalise_name(operation.name), id), (normalise_name(id), id)}
