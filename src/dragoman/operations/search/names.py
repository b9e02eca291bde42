"""Names: which operations are called what is asked for, or begin with it, whatever the spelling."""

from __future__ import annotations

from bisect import bisect_left, insort
from enum import IntEnum

from dragoman.operations.operation import Operation
from dragoman.operations.search.words import normalise

HEAD = 2  # letters by which names are kept apart; a shorter word is no beginning, only a name
SHARED = 200  # names


class Match(IntEnum):
    """How well a name fits; better ones are less."""

    ID = 0  # the id, letter for letter
    NAME = 1  # the name or id, but for case and punctuation
    BEGINNING = 2


class Names:
    """Names and ids without case and punctuation, for exact and prefix matches."""

    def __init__(self) -> None:
        self._by_head: dict[str, list[tuple[str, str]]] = {}

    def add(self, operation: Operation) -> None:
        """Take an operation's name and id in."""
        for name, id in spellings(operation):
            insort(self._by_head.setdefault(name[:HEAD], []), (name, id))

    def remove(self, operation: Operation) -> None:
        """Forget them."""
        for pair in spellings(operation):
            held = self._by_head[pair[0][:HEAD]]
            del held[bisect_left(held, pair)]
            if not held:
                del self._by_head[pair[0][:HEAD]]

    def match(self, q: str) -> dict[str, Match]:
        """The ids that `q` names or begins.

        A beginning that more than SHARED names have says nothing, and gives only those that are it.
        """
        wanted = normalise(q)
        held = self._by_head.get(wanted[:HEAD], [])
        found: dict[str, Match] = {}
        for place in range(bisect_left(held, (wanted, "")), len(held)):
            name, id = held[place]
            if not name.startswith(wanted):
                break
            found[id] = min(found.get(id, Match.BEGINNING), how(q, id, exact=name == wanted))
            if len(found) > SHARED and name != wanted:
                return {id: match for id, match in found.items() if match < Match.BEGINNING}
        return found


def how(q: str, id: str, *, exact: bool) -> Match:
    """How well the words fit an operation whose spelling begins with them, or is them."""
    if q.lower() == id.lower():
        return Match.ID
    return Match.NAME if exact else Match.BEGINNING


def spellings(operation: Operation) -> set[tuple[str, str]]:
    """What an operation may be asked for by, with its id."""
    id = operation.id
    return {(normalise(operation.name), id), (normalise(id), id)}
