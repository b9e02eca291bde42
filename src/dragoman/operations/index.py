"""The index: BM25 over weighted fields, and names; kept up to date as operations come and go."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Set

from dragoman.operations.operation import Operation
from dragoman.operations.words import normalise, terms

K1 = 1.0
B = 0.75
NEAR = 0.25  # of the best score: what has less is no match
SHARED = 200  # names
TEXT_LIMIT = 2_000  # of a description: who writes more, or a word twice, gains nothing


def fields(operation: Operation) -> Iterator[tuple[float, str]]:
    """What is searched of an operation, with weights: multiples of a half, so that their sums are exact."""
    yield 2.0, operation.name
    yield 1.0, operation.namespace
    yield 1.0, operation.description[:TEXT_LIMIT]
    properties = operation.input_schema.get("properties")
    for name, rules in properties.items() if isinstance(properties, Mapping) else ():
        yield 1.0, name
        if isinstance(rules, Mapping) and isinstance(said := rules.get("description"), str):
            yield 0.5, said[:TEXT_LIMIT]


def weigh(operation: Operation) -> dict[str, float]:
    """Each term's weight in an operation; within a field a term counts once."""
    weights: dict[str, float] = {}
    for weight, text in fields(operation):
        for term in set(terms(text)):
            weights[term] = weights.get(term, 0.0) + weight
    return weights


class Index:
    """Which operations have which terms. It depends on what is in it, and not on how that came."""

    def __init__(self) -> None:
        self._postings: dict[str, dict[str, float]] = {}
        self._terms: dict[str, tuple[str, ...]] = {}
        self._lengths: dict[str, float] = {}
        self._total = 0.0
        self._shares: dict[str, dict[str, float]] = {}

    def add(self, operation: Operation) -> None:
        """Take an operation in, in the place of one with its id."""
        self.remove(operation)
        weights = weigh(operation)
        for term, weight in weights.items():
            self._postings.setdefault(term, {})[operation.id] = weight
        self._terms[operation.id] = tuple(weights)
        self._lengths[operation.id] = sum(weights.values())
        self._total += self._lengths[operation.id]
        self._shares.clear()

    def remove(self, operation: Operation) -> None:
        """Forget an operation, if it is here."""
        for term in self._terms.pop(operation.id, ()):
            having = self._postings[term]
            del having[operation.id]
            if not having:
                del self._postings[term]
        self._total -= self._lengths.pop(operation.id, 0.0)
        self._shares.clear()

    def has(self, id: str, term: str) -> bool:
        """Whether an operation has a term."""
        return id in self._postings.get(term, ())

    def rarity(self, term: str) -> float:
        """How much a term tells: its inverse document frequency."""
        having = len(self._postings.get(term, ()))
        return math.log(1 + (len(self._terms) - having + 0.5) / (having + 0.5))

    def score(self, query: Mapping[str, float], visible: Set[str] | None = None) -> dict[str, float]:
        """The BM25 scores, for a query's weighted terms, of the visible operations that come near the best.

        Terms that tell most go first, so that those that half of all operations have need only be looked up
        for the few that can still come near.
        """
        gains = {term: wanted * self.rarity(term) * (K1 + 1) for term, wanted in query.items()}
        left = sum(gains.values())
        scores: dict[str, float] = {}
        for term in sorted(gains, key=lambda term: (-gains[term], term)):
            floor = NEAR * max(scores.values(), default=0.0)
            scores = {key: score for key, score in scores.items() if score + left >= floor}
            shares = self._weigh(term)
            within = visible if left >= floor else scores.keys()
            gain = gains[term]
            for key in shares if within is None else shares.keys() & within:
                scores[key] = scores.get(key, 0.0) + gain * shares[key]
            left -= gain
        floor = NEAR * max(scores.values(), default=0.0)
        return {key: score for key, score in scores.items() if score >= floor}

    def _weigh(self, term: str) -> Mapping[str, float]:
        """How much of a term's gain each operation with it gets; kept until an operation comes or goes."""
        known = self._shares.get(term)
        if known is None and term in self._postings:
            flat = K1 * (1 - B)
            slope = K1 * B * len(self._terms) / (self._total or 1.0)
            known = self._shares[term] = {
                key: weight / (weight + flat + slope * self._lengths[key])
                for key, weight in self._postings[term].items()
            }
        return known or {}


class Names:
    """Names without case and punctuation, for exact and prefix matches."""

    def __init__(self) -> None:
        self._sorted: list[tuple[str, str]] = []

    def add(self, operation: Operation) -> None:
        """Take an operation's name and id in."""
        self.remove(operation)
        for pair in spellings(operation):
            insort(self._sorted, pair)

    def remove(self, operation: Operation) -> None:
        """Forget them, if they are here."""
        for pair in spellings(operation):
            place = bisect_left(self._sorted, pair)
            if self._sorted[place : place + 1] == [pair]:
                del self._sorted[place]

    def match(self, wanted: str) -> dict[str, bool]:
        """The ids whose name, or whole id, is what is wanted (True) or begins with it (False).

        A beginning that more than SHARED names have says nothing, and gives only those that are it.
        """
        found: dict[str, bool] = {}
        for place in range(bisect_left(self._sorted, (wanted, "")), len(self._sorted)):
            name, key = self._sorted[place]
            if not name.startswith(wanted):
                break
            found[key] = found.get(key, False) or name == wanted
            if len(found) > SHARED and name != wanted:
                return {key: exact for key, exact in found.items() if exact}
        return found


def spellings(operation: Operation) -> set[tuple[str, str]]:
    """What an operation may be asked for by, with its id."""
    return {(normalise(name), operation.id) for name in (operation.name, operation.id)}
