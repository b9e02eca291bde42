"""Search: which operations fit a few words, ranked by name and by BM25, answered under a byte budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from dragoman.operations.search.bit_slices import at_least_mask, mask_slots, read_numbers, to_mask, top_mask
from dragoman.operations.search.bm25_index import InvertedIndex
from dragoman.operations.search.name_index import NameIndex
from dragoman.operations.search.semantic_index import SemanticIndex
from dragoman.operations.search.summary import signature, summarise
from dragoman.operations.search.tokenizer import synonyms, terms

MAX_HITS = 8
MAX_RANKED = 200  # operations that are looked at, and counted, for one answer
MAX_LISTED = 40  # operations that the listing of a namespace shows at most
MAX_RESULT_BYTES = 6_000  # bytes of the operations in an answer
MAX_NAMESPACES = 20  # that an answer names
MAX_QUERY_LENGTH = 400
MIN_RELATIVE_SCORE = 0.25  # of the best score: what has less is no match
SYNONYM_WEIGHT = 0.3
MIN_COVERAGE = 0.5  # a hit that has less of the query, by rarity of its words, is a guess
OperationFilter: TypeAlias = Callable[[Operation], bool]

NO_MATCH_HINT = (
    "Nothing fits. Try other words (verb + object + service), or pass one of the namespaces with an empty q."
)
PARTIAL_MATCH_HINT = "These fit only in part. Try other words (verb + object + service), or pass a namespace."
NO_QUERY_HINT = (
    "Say what you look for in q (verb + object + service), or pass one of the namespaces to list it."
)
UNKNOWN_NAMESPACE_HINT = "There is no such namespace. Pass one of these, or none."
MORE_HINT = "There are more. Pass q as well, to find some of them."


class OperationHit(msgspec.Struct, frozen=True):
    """An operation that fits, in short: what it is called, does and takes."""

    tool: str
    summary: str
    signature: str
    namespace: str


class OperationSearchResult(msgspec.Struct, frozen=True):
    """The best hits, how many more there are, how many in each namespace, and how to ask better."""

    tools: tuple[OperationHit, ...]
    more: int
    namespaces: Mapping[str, int]
    hint: str | None = None

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "tools": [msgspec.structs.asdict(hit) for hit in self.tools],
            "more": self.more,
            "namespaces": dict(self.namespaces),
        }
        return body if self.hint is None else {**body, "hint": self.hint}


class OperationSearch:
    """Finds operations of a registry, and keeps up with it.

    With meanings it weighs those as much as the words, as soon as they are ready.
    """

    def __init__(self, registry: Registry, *, semantic_index: SemanticIndex | None = None) -> None:
        self._slots: dict[str, int] = {}  # by id
        self._operations: list[Operation | None] = []  # by place
        self._free_slots: list[int] = []
        self._used_mask = 0  # a mask of the places that hold one
        self._namespaces: dict[str, set[int]] = {}
        self._index = InvertedIndex()
        self._names = NameIndex()
        self._semantic_index = semantic_index
        registry.add_listener(self)

    def add(self, operation: Operation) -> None:
        """Make an operation findable, in the place of one with its id."""
        id = operation.id
        if id in self._slots:
            self.remove(operation)
        place = self._free_slots.pop() if self._free_slots else len(self._operations)
        if place == len(self._operations):
            self._operations.append(None)
        self._operations[place] = operation
        self._used_mask |= 1 << place
        self._slots[id] = place
        self._namespaces.setdefault(operation.namespace, set()).add(place)
        self._index.add(place, operation)
        self._names.add(operation)
        if self._semantic_index:
            self._semantic_index.add(place, operation)

    def remove(self, operation: Operation) -> None:
        """Make it findable no more."""
        place = self._slots.pop(operation.id, None)
        if place is None:
            return
        self._free_slots.append(place)
        self._used_mask ^= 1 << place
        space = self._namespaces[operation.namespace]
        space.discard(place)
        if not space:
            del self._namespaces[operation.namespace]
        self._index.remove(place)
        self._names.remove(operation)
        if self._semantic_index:
            self._semantic_index.remove(place, self._operations[place] or operation)
        self._operations[place] = None

    def search(
        self, q: str = "", *, namespace: str | None = None, allow: OperationFilter | None = None
    ) -> OperationSearchResult:
        """The operations that fit `q` best, of those that `allow` lets through; without `q`, the namespace.

        The best RANKED that are allowed are looked at: `more` and the counts by namespace tell of these.
        What is not allowed has no part in the answer. `allow` is asked about what fits, in order, until there
        are enough; about all operations only when nothing fits.
        """
        wanted = q[:MAX_QUERY_LENGTH].strip()
        if not wanted:
            return self._list_namespace(namespace, allow)
        query = query_weights(wanted)
        best = list(islice(self._rank(wanted, query, namespace=namespace, allow=allow), MAX_RANKED))
        if not best:
            unknown = namespace is not None and not any(self._allowed_operations(namespace, allow))
            return OperationSearchResult(
                (), 0, self._count_namespaces(allow), UNKNOWN_NAMESPACE_HINT if unknown else NO_MATCH_HINT
            )
        hits = make_hits(best[:MAX_HITS])
        strong = best[0].id in self._names.match(wanted) or self._coverage(best[0], query) >= MIN_COVERAGE
        return OperationSearchResult(
            hits, len(best) - len(hits), count_by_namespace(best), None if strong else PARTIAL_MATCH_HINT
        )

    def rank(
        self, q: str, limit: int, *, namespace: str | None = None, allow: OperationFilter | None = None
    ) -> Sequence[Operation]:
        """The operations that fit best, the best first.

        Ids and names that are `q` stand first, then names that begin with it, then the rest by score; equals
        by id.
        """
        wanted = q[:MAX_QUERY_LENGTH].strip()
        return list(
            islice(self._rank(wanted, query_weights(wanted), namespace=namespace, allow=allow), limit)
        )

    def _rank(
        self, text: str, query: Mapping[str, float], *, namespace: str | None, allow: OperationFilter | None
    ) -> Iterator[Operation]:
        space = None if namespace is None else self._namespaces.get(namespace, set())
        scores = self._index.score(query)
        named = {self._slots[id]: match for id, match in self._names.match(text).items()}
        if space is not None:
            named = {place: match for place, match in named.items() if place in space}
        points = read_numbers(scores, named)
        first = sorted(named, key=lambda place: (named[place], -points[place], self._operation_at(place).id))
        visible = self._used_mask if space is None else to_mask(space)
        rest = self._rank_slots(text, scores, visible=visible)
        for place in chain(first, (place for place in rest if place not in named)):
            operation = self._operation_at(place)
            if allow is None or allow(operation):
                yield operation

    def _rank_slots(self, text: str, scores: Sequence[int], *, visible: int) -> Iterator[int]:
        """The visible places that fit, best first, equals by id; found as far as they are asked for."""
        near = matching_slots(scores, visible)
        if self._semantic_index and self._semantic_index.ready:
            yield from self._order_ties(
                self._semantic_index.rank(text, scores, candidates=visible, matches=near)
            )
            return
        count = MAX_RANKED
        while near:
            points = read_numbers(scores, mask_slots(top_mask(scores, near, count=count)))
            yield from sorted(points, key=lambda place: (-points[place], self._operation_at(place).id))
            near &= ~to_mask(points)
            count *= 4

    def _order_ties(self, ranked: Iterable[tuple[float, int]]) -> Iterator[int]:
        """The places in their order, equals by id."""
        for _, group in groupby(ranked, key=itemgetter(0)):
            yield from sorted((place for _, place in group), key=lambda place: self._operation_at(place).id)

    def _operation_at(self, slot: int) -> Operation:
        operation = self._operations[slot]
        if operation is None:
            raise LookupError(f"nothing is at {slot}")
        return operation

    def _allowed_operations(
        self, namespace: str | None, allow: OperationFilter | None
    ) -> Iterator[Operation]:
        """The operations that may be found, of a namespace or of all."""
        held = (
            self._operations
            if namespace is None
            else map(self._operation_at, self._namespaces.get(namespace, ()))
        )
        return (each for each in held if each is not None and (allow is None or allow(each)))

    def _count_namespaces(self, allow: OperationFilter | None) -> dict[str, int]:
        """How many operations each namespace has, as far as may be known."""
        if allow is None:
            return largest_namespaces({name: len(space) for name, space in self._namespaces.items()})
        return count_by_namespace(self._allowed_operations(None, allow))

    def _list_namespace(self, namespace: str | None, allow: OperationFilter | None) -> OperationSearchResult:
        if namespace is None:
            return OperationSearchResult((), 0, self._count_namespaces(allow), NO_QUERY_HINT)
        held = sorted(self._allowed_operations(namespace, allow), key=lambda each: each.id)
        if not held:
            return OperationSearchResult((), 0, self._count_namespaces(allow), UNKNOWN_NAMESPACE_HINT)
        hits = make_hits(held[:MAX_LISTED])
        more = len(held) - len(hits)
        return OperationSearchResult(hits, more, {namespace: len(held)}, MORE_HINT if more else None)

    def _coverage(self, operation: Operation, query: Mapping[str, float]) -> float:
        own = {term for term, weight in query.items() if weight == 1.0}
        return self._index.coverage(self._slots[operation.id], own)


def matching_slots(scores: Sequence[int], candidates: int) -> int:
    """The places among that have a score near the best."""
    some = 0
    for bits in scores:
        some |= bits
    some &= candidates
    best = max(
        read_numbers(scores, islice(mask_slots(top_mask(scores, some, count=1)), 1)).values(), default=0
    )
    return at_least_mask(scores, some, floor=max(1, round(MIN_RELATIVE_SCORE * best)))


def query_weights(q: str) -> dict[str, float]:
    """The terms of a query, and their synonyms at a lower weight."""
    query = dict.fromkeys(terms(q), 1.0)
    for term in list(query):
        for other in sorted(synonyms(term)):
            query.setdefault(other, SYNONYM_WEIGHT)
    return query


def make_hits(operations: Iterable[Operation]) -> tuple[OperationHit, ...]:
    """The operations as hits, as many as the byte budget holds; at least one."""
    hits: list[OperationHit] = []
    left = MAX_RESULT_BYTES
    for each in operations:
        hit = OperationHit(each.id, summarise(each), signature(each.input_schema), each.namespace)
        left -= len(msgspec.json.encode(hit))
        if left < 0 and hits:
            break
        hits.append(hit)
    return tuple(hits)


def count_by_namespace(operations: Iterable[Operation]) -> dict[str, int]:
    """How many operations the namespaces have; the fullest namespaces only."""
    return largest_namespaces(Counter(operation.namespace for operation in operations))


def largest_namespaces(counts: Mapping[str, int]) -> dict[str, int]:
    """The fullest namespaces of these."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_NAMESPACES])
