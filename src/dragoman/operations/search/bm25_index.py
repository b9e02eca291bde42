"""The index: BM25 over weighted fields, kept up to date as operations come and go."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from itertools import islice

from dragoman.operations.operation import Operation
from dragoman.operations.search.bit_slices import add_multiple, add_slices, pack_slices
from dragoman.operations.search.tokenizer import unique_terms

K1 = 1.0
B = 0.75
# An operation's length is set against this, not against what the others have: so what a term is worth to an
# operation never changes, and adding one touches nothing else. Lengths are sums of weights.
REFERENCE_LENGTH = 14.0
MAX_IMPACT = 31  # what a term may be worth to an operation at most: five bits of it
QUERY_SCALE = 4  # how finely the terms of a query are weighed
RARE_LIMIT = 256  # operations that have a term, up to which they are kept one by one; or
RARE_SHARE = 128  # one in so many, if that is more
MAX_TEXT_LENGTH = 2_000  # characters of a description: who writes more gains nothing
MAX_PARAMETERS = 64  # that are searched


def weighted_fields(operation: Operation) -> Iterator[tuple[float, frozenset[str]]]:
    """The terms of an operation's fields, with weights: multiples of a half, so that their sums are exact."""
    yield 2.0, unique_terms(operation.name)
    yield 1.0, unique_terms(operation.namespace)
    yield 1.0, unique_terms(operation.description[:MAX_TEXT_LENGTH])
    properties = operation.input_schema.get("properties")
    named = properties if isinstance(properties, Mapping) else {}
    names = list(islice(named, MAX_PARAMETERS))
    yield 1.0, frozenset().union(*(unique_terms(name[:MAX_TEXT_LENGTH]) for name in names))
    said = (rules.get("description") for name in names if isinstance(rules := named[name], Mapping))
    yield (
        0.5,
        frozenset().union(*(unique_terms(each[:MAX_TEXT_LENGTH]) for each in said if isinstance(each, str))),
    )


def term_weights(operation: Operation) -> dict[str, float]:
    """Each term's weight in an operation. In a field it counts once, and all parameters are one field."""
    weights: dict[str, float] = {}
    for weight, found in weighted_fields(operation):
        for term in found:
            weights[term] = weights.get(term, 0.0) + weight
    return weights


def term_impacts(weights: Mapping[str, float]) -> dict[str, int]:
    """What each term is worth to an operation, 1 to IMPACTS, of the BM25 gain that its rarity allows."""
    norm = K1 * (1 - B + B * sum(weights.values()) / REFERENCE_LENGTH)
    return {term: max(1, round(MAX_IMPACT * weight / (weight + norm))) for term, weight in weights.items()}


class PostingList:
    """The places of the operations that have a term, and what it is worth to each.

    A rare term has them one by one, another as slices.
    """

    __slots__ = ("count", "rare", "slices")

    def __init__(self) -> None:
        self.count = 0
        self.rare: dict[int, int] = {}
        self.slices: list[int] = []

    def add(self, slot: int, impact: int, *, rare_limit: int) -> None:
        """Take a place in; above `rare` of them they become slices."""
        self.count += 1
        if not self.slices:
            self.rare[slot] = impact
            if self.count > rare_limit:
                self.slices, self.rare = pack_slices(self.rare), {}
            return
        self.slices.extend([0] * (impact.bit_length() - len(self.slices)))
        for index in range(impact.bit_length()):
            if impact >> index & 1:
                self.slices[index] |= 1 << slot

    def remove(self, slot: int) -> None:
        """Take it out again."""
        self.count -= 1
        self.rare.pop(slot, None)
        own = 1 << slot
        for index, bits in enumerate(self.slices):
            if bits & own:
                self.slices[index] = bits ^ own

    def contains(self, slot: int) -> bool:
        """Whether the place is in it."""
        return slot in self.rare or any(bits >> slot & 1 for bits in self.slices)


class InvertedIndex:
    """Which places have which terms. It depends on what is in it, and not on how that came."""

    def __init__(self) -> None:
        self._postings: dict[str, PostingList] = {}
        self._terms: dict[int, tuple[str, ...]] = {}

    def add(self, slot: int, operation: Operation) -> None:
        """Take an operation in, at a place that is free."""
        worth = term_impacts(term_weights(operation))
        rare = max(RARE_LIMIT, len(self._terms) // RARE_SHARE)
        for term, impact in worth.items():
            posting = self._postings.get(term)
            if posting is None:
                posting = self._postings[term] = PostingList()
            posting.add(slot, impact, rare_limit=rare)
        self._terms[slot] = tuple(worth)

    def remove(self, slot: int) -> None:
        """Forget what is at a place."""
        for term in self._terms.pop(slot):
            posting = self._postings[term]
            posting.remove(slot)
            if not posting.count:
                del self._postings[term]

    def inverse_document_frequency(self, term: str) -> float:
        """How much a term tells: its inverse document frequency."""
        having = posting.count if (posting := self._postings.get(term)) else 0
        return math.log(1 + (len(self._terms) - having + 0.5) / (having + 0.5))

    def coverage(self, slot: int, query: Set[str]) -> float:
        """How much of the terms, weighed by rarity, an operation has: 0 to 1."""
        rarities = {term: self.inverse_document_frequency(term) for term in query}
        postings = ((rarity, self._postings.get(term)) for term, rarity in rarities.items())
        had = sum(rarity for rarity, posting in postings if posting and posting.contains(slot))
        return had / (sum(rarities.values()) or 1.0)

    def score(self, query: Mapping[str, float]) -> list[int]:
        """The BM25 scores of all places for a query's weighted terms, as slices of whole numbers."""
        total: list[int] = []
        rare: dict[int, int] = {}
        for term, wanted in query.items():
            posting = self._postings.get(term)
            if posting is None:
                continue
            gain = max(1, round(QUERY_SCALE * wanted * self.inverse_document_frequency(term)))
            add_multiple(total, posting.slices, factor=gain)
            for place, impact in posting.rare.items():
                rare[place] = rare.get(place, 0) + gain * impact
        if rare:
            add_slices(total, pack_slices(rare))
        return total
