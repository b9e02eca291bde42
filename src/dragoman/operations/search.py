"""Search: which operations fit a few words, ranked by name and by BM25, answered under a byte budget."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from dragoman.operations.index import Index, Names
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from dragoman.operations.summary import signature, summarise
from dragoman.operations.words import normalise, synonyms, terms

HITS = 8
LISTED = 40  # operations that the listing of a namespace shows at most
BUDGET = 6_000  # bytes of the operations in an answer
NAMESPACES = 20  # that an answer names
QUERY_LIMIT = 400
SHORTEST_PREFIX = 2
SYNONYM_WEIGHT = 0.3
WEAK = 0.5  # a hit that has less of the query, by rarity of its words, is a guess
Allow: TypeAlias = Callable[[Operation], bool]

NOTHING = (
    "Nothing fits. Try other words (verb + object + service), or pass one of the namespaces with an empty q."
)
GUESS = "These fit only in part. Try other words (verb + object + service), or pass a namespace."
NO_QUERY = "Say what you look for in q (verb + object + service), or pass one of the namespaces to list it."
UNKNOWN = "There is no such namespace. Pass one of these, or none."
CUT = "There are more. Pass q as well, to find some of them."


class Hit(msgspec.Struct, frozen=True):
    """An operation that fits, in short: what it is called, does and takes."""

    tool: str
    summary: str
    signature: str
    namespace: str


class Answer(msgspec.Struct, frozen=True):
    """The best hits, how many more there are, how many in each namespace, and how to ask better."""

    tools: tuple[Hit, ...]
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


class Search:
    """Finds operations of a registry, and keeps up with it."""

    def __init__(self, registry: Registry) -> None:
        self._operations: dict[str, Operation] = {}
        self._index = Index()
        self._names = Names()
        registry.watch(self)

    def add(self, operation: Operation) -> None:
        """Make an operation findable."""
        self._operations[operation.id] = operation
        self._index.add(operation)
        self._names.add(operation)

    def remove(self, operation: Operation) -> None:
        """Make it findable no more."""
        if self._operations.pop(operation.id, None) is not None:
            self._index.remove(operation)
            self._names.remove(operation)

    def find(self, q: str = "", *, namespace: str | None = None, allow: Allow | None = None) -> Answer:
        """The operations that fit `q` best, of those that `allow` lets through; without `q`, the namespace.

        Names that are `q` stand first, then names that begin with it, then the rest by score; equals by id.
        """
        wanted = q[:QUERY_LIMIT].strip()
        visible = self._visible(namespace, allow)
        if namespace is not None and not visible:
            return Answer((), 0, count(self._visible(None, allow).values()), UNKNOWN)
        if not wanted:
            return self._list(visible, namespace)
        query = weigh(wanted)
        scores = self._index.score(query, None if visible is self._operations else visible.keys())
        named = self._names.match(name) if len(name := normalise(wanted)) >= SHORTEST_PREFIX else {}
        for key in named.keys() & visible.keys():
            scores.setdefault(key, 0.0)
        ranked = ((RANKS[named.get(key)], -score, key) for key, score in scores.items())
        best = [key for _, _, key in heapq.nsmallest(HITS, ranked)]
        if not best:
            return Answer((), 0, count(self._visible(None, allow).values()), NOTHING)
        hits = fit(self._operations[key] for key in best)
        strong = best[0] in named or self._share(best[0], query) >= WEAK
        counts = count(self._operations[key] for key in scores)
        return Answer(hits, len(scores) - len(hits), counts, None if strong else GUESS)

    def _visible(self, namespace: str | None, allow: Allow | None) -> Mapping[str, Operation]:
        """The operations that may be found."""
        if namespace is None and allow is None:
            return self._operations
        return {
            key: operation
            for key, operation in self._operations.items()
            if namespace in (None, operation.namespace) and (allow is None or allow(operation))
        }

    def _list(self, visible: Mapping[str, Operation], namespace: str | None) -> Answer:
        if namespace is None:
            return Answer((), 0, count(visible.values()), NO_QUERY)
        hits = fit(visible[key] for key in islice(sorted(visible), LISTED))
        more = len(visible) - len(hits)
        return Answer(hits, more, count(visible.values()), CUT if more else None)

    def _share(self, id: str, query: Mapping[str, float]) -> float:
        """How much of the query's own words, weighed by rarity, an operation has."""
        own = {term: self._index.rarity(term) for term, weight in query.items() if weight == 1.0}
        had = sum(rarity for term, rarity in own.items() if self._index.has(id, term))
        return had / (sum(own.values()) or 1.0)


RANKS = {True: 0, False: 1, None: 2}  # the exact name, the beginning of a name, anything else


def weigh(q: str) -> dict[str, float]:
    """The terms of a query, and their synonyms at a lower weight."""
    query = dict.fromkeys(terms(q), 1.0)
    for term in list(query):
        for other in sorted(synonyms(term)):
            query.setdefault(other, SYNONYM_WEIGHT)
    return query


def fit(operations: Iterable[Operation]) -> tuple[Hit, ...]:
    """The operations as hits, as many as the byte budget holds; at least one."""
    hits: list[Hit] = []
    left = BUDGET
    for each in operations:
        hit = Hit(each.id, summarise(each), signature(each.input_schema), each.namespace)
        left -= len(msgspec.json.encode(hit))
        if left < 0 and hits:
            break
        hits.append(hit)
    return tuple(hits)


def count(operations: Iterable[Operation]) -> dict[str, int]:
    """How many operations the namespaces have; the fullest namespaces only."""
    counts = Counter(operation.namespace for operation in operations)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NAMESPACES])
