"""The BM25 index over weighted fields of operations, updated as operations come and go."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import NamedTuple

from dragoman.offload import Slices
from dragoman.operations.operation import Operation
from dragoman.operations.search.bit_slices import pack_slices, sum_slices, to_mask
from dragoman.operations.search.tokenizer import unique_terms

K1 = 2.0
MAX_IMPACT = 31  # the greatest impact of a term: five bits
QUERY_SCALE = 4  # resolution of the weights of query terms
RARE_LIMIT = 64  # operations with a term up to which these are stored in a dict, or
RARE_SHARE = 128  # one in so many of all operations, if that is more
MAX_TEXT_LENGTH = 2_000  # indexed characters of a description
MAX_PARAMETERS = 64  # indexed parameters
MAX_NAMES_LENGTH = 1_000  # indexed characters of the names of all parameters
MAX_DESCRIPTIONS_LENGTH = 3_000  # indexed characters of their descriptions: a new word takes 40 µs
MAX_ADDED = 100  # operations that are not indexed yet; a search must not wait long for them
REPETITIVE = 25  # characters per distinct term above which a text repeats itself; 10 are usual


class Field(NamedTuple):
    """How much a field counts, and the length in terms above which it counts less.

    `normalisation` is BM25's b: 0 ignores the length, 1 divides by it. The reference length stands for the
    average of all operations: so a term's impact never changes, and adding an operation touches nothing else.
    """

    weight: float
    normalisation: float
    reference_length: float

    def term_weight(self, length: int) -> float:
        """Return the weight of each term of a field of this length."""
        return self.weight / (1 - self.normalisation + self.normalisation * length / self.reference_length)


NAME = Field(2.0, 0.5, 3)
NAMESPACE = Field(1.0, 0.0, 2)
DESCRIPTION = Field(1.0, 0.75, 10)
PARAMETER_NAMES = Field(1.0, 0.5, 4)
PARAMETER_DESCRIPTIONS = Field(0.5, 0.5, 12)


def field_terms(operation: Operation) -> Iterator[tuple[Field, frozenset[str]]]:
    """Yield the distinct terms of each field of an operation; all parameters are one field."""
    yield NAME, unique_terms(operation.name)
    yield NAMESPACE, unique_terms(operation.namespace)
    yield DESCRIPTION, unique_terms(operation.description[:MAX_TEXT_LENGTH])
    properties = operation.input_schema.get("properties")
    rules_by_name = properties if isinstance(properties, Mapping) else {}
    names = list(islice(rules_by_name, MAX_PARAMETERS))
    yield PARAMETER_NAMES, terms_of_all(names, MAX_NAMES_LENGTH)
    descriptions = (
        rules.get("description") for name in names if isinstance(rules := rules_by_name[name], Mapping)
    )
    texts = (description for description in descriptions if isinstance(description, str))
    yield PARAMETER_DESCRIPTIONS, terms_of_all(texts, MAX_DESCRIPTIONS_LENGTH)


def terms_of_all(texts: Iterable[str], length: int) -> frozenset[str]:
    """Return the distinct terms of the texts, up to `length` characters in all."""
    distinct: set[str] = set()
    for text in texts:
        if length <= 0:
            break
        distinct |= unique_terms(text[: min(length, MAX_TEXT_LENGTH)])
        length -= len(text)
    return frozenset(distinct)


def term_weights(operation: Operation) -> dict[str, float]:
    """Return each term's weight: the sum over the fields that have it (BM25F, Robertson and others, 2004)."""
    weights: dict[str, float] = {}
    for field, terms_of_field in field_terms(operation):
        length = len(terms_of_field)
        if field is DESCRIPTION:  # repeating a sentence must not raise the score
            length = max(length, min(len(operation.description), MAX_TEXT_LENGTH) // REPETITIVE)
        weight = field.term_weight(length)
        for term in terms_of_field:
            weights[term] = weights.get(term, 0.0) + weight
    return weights


def term_impacts(weights: Mapping[str, float]) -> dict[str, int]:
    """Return each term's impact, 1 to MAX_IMPACT, as a share of the BM25 gain that its rarity allows."""
    return {term: max(1, round(MAX_IMPACT * weight / (weight + K1))) for term, weight in weights.items()}


class PostingList:
    """The slots of the operations that have a term, with its impact on each.

    A rare term has a dict, a frequent one bit slices.
    """

    __slots__ = ("count", "rare", "slices")

    def __init__(self) -> None:
        self.count = 0
        self.rare: dict[int, int] = {}
        self.slices: list[int] = []

    def add(self, slot: int, impact: int, *, rare_limit: int) -> None:
        """Add a slot; above `rare_limit` slots the dict becomes bit slices."""
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
        """Remove a slot."""
        self.count -= 1
        self.rare.pop(slot, None)
        slot_bit = 1 << slot
        for index, bits in enumerate(self.slices):
            if bits & slot_bit:
                self.slices[index] = bits ^ slot_bit

    def count_except(self, hidden: int) -> int:
        """Return how many slots are in it, without those of a mask."""
        if not hidden:
            return self.count
        present = to_mask(self.rare)
        for bits in self.slices:
            present |= bits
        return self.count - (present & hidden).bit_count()

    def contains(self, slot: int) -> bool:
        """Return whether the slot is in it."""
        return slot in self.rare or any(bits >> slot & 1 for bits in self.slices)


class InvertedIndex:
    """Which slots have which terms. Its state does not depend on the order of changes.

    The last few operations are indexed at the next search: a hub without searches never loads the stemmer.
    `hidden` is a mask of slots that do not count: rarities are those of an index without them.
    """

    def __init__(self) -> None:
        self._postings: dict[str, PostingList] = {}
        self._terms: dict[int, tuple[str, ...]] = {}
        self._added: dict[int, Operation] = {}  # by slot, not indexed yet
        self._rarities: dict[str, float] = {}  # by term, of all slots, until the next change

    def add(self, slot: int, operation: Operation) -> None:
        """Add an operation in a free slot."""
        self._added[slot] = operation
        if len(self._added) > MAX_ADDED:
            self._index_first_added()

    async def prepare(self) -> None:
        """Index the last operations in slices, between which other tasks run."""
        slices = Slices()
        while self._added:
            self._index_first_added()
            await slices.rest()

    def _index_added(self) -> None:
        while self._added:
            self._index_first_added()

    def _index_first_added(self) -> None:
        slot = next(iter(self._added))
        self._index(slot, self._added.pop(slot))

    def _index(self, slot: int, operation: Operation) -> None:
        self._rarities.clear()
        impacts = term_impacts(term_weights(operation))
        rare_limit = max(RARE_LIMIT, len(self._terms) // RARE_SHARE)
        for term, impact in impacts.items():
            posting = self._postings.get(term)
            if posting is None:
                posting = self._postings[term] = PostingList()
            posting.add(slot, impact, rare_limit=rare_limit)
        self._terms[slot] = tuple(impacts)

    def remove(self, slot: int) -> None:
        """Remove the operation in a slot."""
        if self._added.pop(slot, None) is not None:
            return
        self._rarities.clear()
        for term in self._terms.pop(slot):
            posting = self._postings[term]
            posting.remove(slot)
            if not posting.count:
                del self._postings[term]

    def inverse_document_frequency(self, term: str, *, hidden: int = 0) -> float:
        """Return the rarity of a term."""
        self._index_added()
        cached = None if hidden else self._rarities.get(term)
        if cached is not None:
            return cached
        posting = self._postings.get(term)
        frequency = posting.count_except(hidden) if posting else 0
        count = len(self._terms) - hidden.bit_count()
        rarity = math.log(1 + (count - frequency + 0.5) / (frequency + 0.5))
        if posting and not hidden:  # terms that only occur in queries would fill the cache without end
            self._rarities[term] = rarity
        return rarity

    def coverage(self, slot: int, query: Set[str], *, hidden: int = 0) -> float:
        """Return the share of the query's terms that an operation has, weighted by rarity: 0 to 1."""
        self._index_added()
        present = self._terms.get(slot, ())
        total = matched = 0.0
        for term in query:
            rarity = self.inverse_document_frequency(term, hidden=hidden)
            total += rarity
            matched += rarity if term in present else 0.0
        return matched / (total or 1.0)

    def score(self, query: Mapping[str, float], *, hidden: int = 0) -> list[int]:
        """Return the BM25 scores of all slots for a query's weighted terms, as bit slices of integers."""
        self._index_added()
        frequent: list[tuple[Sequence[int], int]] = []
        rare: dict[int, int] = {}
        for term, weight in query.items():
            posting = self._postings.get(term)
            if posting is None:
                continue
            rarity = self.inverse_document_frequency(term, hidden=hidden)
            gain = max(1, round(QUERY_SCALE * weight * rarity))
            if posting.slices:
                frequent.append((posting.slices, gain))
            for slot, impact in posting.rare.items():
                rare[slot] = rare.get(slot, 0) + gain * impact
        if rare:
            frequent.append((pack_slices(rare), 1))
        return sum_slices(frequent)
