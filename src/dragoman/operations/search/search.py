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
from dragoman.operations.search.index import Index
from dragoman.operations.search.meanings import Meanings
from dragoman.operations.search.names import Names
from dragoman.operations.search.slices import at_least, mark, places, read, top
from dragoman.operations.search.summary import signature, summarise
from dragoman.operations.search.words import synonyms, terms

HITS = 8
RANKED = 200  # operations that are looked at, and counted, for one answer
LISTED = 40  # operations that the listing of a namespace shows at most
BUDGET = 6_000  # bytes of the operations in an answer
NAMESPACES = 20  # that an answer names
QUERY_LIMIT = 400
NEAR = 0.25  # of the best score: what has less is no match
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
    """Finds operations of a registry, and keeps up with it.

    With meanings it weighs those as much as the words, as soon as they are ready.
    """

    def __init__(self, registry: Registry, *, meanings: Meanings | None = None) -> None:
        self._places: dict[str, int] = {}  # by id
        self._held: list[Operation | None] = []  # by place
        self._free: list[int] = []
        self._filled = 0  # a mask of the places that hold one
        self._spaces: dict[str, set[int]] = {}
        self._index = Index()
        self._names = Names()
        self._meanings = meanings
        registry.watch(self)

    def add(self, operation: Operation) -> None:
        """Make an operation findable, in the place of one with its id."""
        id = operation.id
        if id in self._places:
            self.remove(operation)
        place = self._free.pop() if self._free else len(self._held)
        if place == len(self._held):
            self._held.append(None)
        self._held[place] = operation
        self._filled |= 1 << place
        self._places[id] = place
        self._spaces.setdefault(operation.namespace, set()).add(place)
        self._index.add(place, operation)
        self._names.add(operation)
        if self._meanings:
            self._meanings.add(place, operation)

    def remove(self, operation: Operation) -> None:
        """Make it findable no more."""
        place = self._places.pop(operation.id, None)
        if place is None:
            return
        self._free.append(place)
        self._filled ^= 1 << place
        space = self._spaces[operation.namespace]
        space.discard(place)
        if not space:
            del self._spaces[operation.namespace]
        self._index.remove(place)
        self._names.remove(operation)
        if self._meanings:
            self._meanings.remove(place, self._held[place] or operation)
        self._held[place] = None

    def find(self, q: str = "", *, namespace: str | None = None, allow: Allow | None = None) -> Answer:
        """The operations that fit `q` best, of those that `allow` lets through; without `q`, the namespace.

        The best RANKED that are allowed are looked at: `more` and the counts by namespace tell of these.
        What is not allowed has no part in the answer. `allow` is asked about what fits, in order, until there
        are enough; about all operations only when nothing fits.
        """
        wanted = q[:QUERY_LIMIT].strip()
        if not wanted:
            return self._list(namespace, allow)
        query = weigh(wanted)
        best = list(islice(self._rank(wanted, query, namespace=namespace, allow=allow), RANKED))
        if not best:
            unknown = namespace is not None and not any(self._allowed(namespace, allow))
            return Answer((), 0, self._count(allow), UNKNOWN if unknown else NOTHING)
        hits = fit(best[:HITS])
        strong = best[0].id in self._names.match(wanted) or self._share(best[0], query) >= WEAK
        return Answer(hits, len(best) - len(hits), count(best), None if strong else GUESS)

    def rank(
        self, q: str, limit: int, *, namespace: str | None = None, allow: Allow | None = None
    ) -> Sequence[Operation]:
        """The operations that fit best, the best first.

        Ids and names that are `q` stand first, then names that begin with it, then the rest by score; equals
        by id.
        """
        wanted = q[:QUERY_LIMIT].strip()
        return list(islice(self._rank(wanted, weigh(wanted), namespace=namespace, allow=allow), limit))

    def _rank(
        self, wanted: str, query: Mapping[str, float], *, namespace: str | None, allow: Allow | None
    ) -> Iterator[Operation]:
        space = None if namespace is None else self._spaces.get(namespace, set())
        scores = self._index.score(query)
        named = {self._places[id]: match for id, match in self._names.match(wanted).items()}
        if space is not None:
            named = {place: match for place, match in named.items() if place in space}
        points = read(scores, named)
        first = sorted(named, key=lambda place: (named[place], -points[place], self._at(place).id))
        visible = self._filled if space is None else mark(space)
        rest = self._descend(wanted, scores, visible=visible)
        for place in chain(first, (place for place in rest if place not in named)):
            operation = self._at(place)
            if allow is None or allow(operation):
                yield operation

    def _descend(self, wanted: str, scores: Sequence[int], *, visible: int) -> Iterator[int]:
        """The visible places that fit, best first, equals by id; found as far as they are asked for."""
        near = matching(scores, visible)
        if self._meanings and self._meanings.ready:
            yield from self._in_groups(self._meanings.descend(wanted, scores, among=visible, near=near))
            return
        count = RANKED
        while near:
            points = read(scores, places(top(scores, near, count=count)))
            yield from sorted(points, key=lambda place: (-points[place], self._at(place).id))
            near &= ~mark(points)
            count *= 4

    def _in_groups(self, ranked: Iterable[tuple[float, int]]) -> Iterator[int]:
        """The places in their order, equals by id."""
        for _, group in groupby(ranked, key=itemgetter(0)):
            yield from sorted((place for _, place in group), key=lambda place: self._at(place).id)

    def _at(self, place: int) -> Operation:
        operation = self._held[place]
        if operation is None:
            raise LookupError(f"nothing is at {place}")
        return operation

    def _allowed(self, namespace: str | None, allow: Allow | None) -> Iterator[Operation]:
        """The operations that may be found, of a namespace or of all."""
        held = self._held if namespace is None else map(self._at, self._spaces.get(namespace, ()))
        return (each for each in held if each is not None and (allow is None or allow(each)))

    def _count(self, allow: Allow | None) -> dict[str, int]:
        """How many operations each namespace has, as far as may be known."""
        if allow is None:
            return fullest({name: len(space) for name, space in self._spaces.items()})
        return count(self._allowed(None, allow))

    def _list(self, namespace: str | None, allow: Allow | None) -> Answer:
        if namespace is None:
            return Answer((), 0, self._count(allow), NO_QUERY)
        held = sorted(self._allowed(namespace, allow), key=lambda each: each.id)
        if not held:
            return Answer((), 0, self._count(allow), UNKNOWN)
        hits = fit(held[:LISTED])
        more = len(held) - len(hits)
        return Answer(hits, more, {namespace: len(held)}, CUT if more else None)

    def _share(self, operation: Operation, query: Mapping[str, float]) -> float:
        own = {term for term, weight in query.items() if weight == 1.0}
        return self._index.share(self._places[operation.id], own)


def matching(scores: Sequence[int], among: int) -> int:
    """The places among that have a score near the best."""
    some = 0
    for bits in scores:
        some |= bits
    some &= among
    best = max(read(scores, islice(places(top(scores, some, count=1)), 1)).values(), default=0)
    return at_least(scores, some, floor=max(1, round(NEAR * best)))


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
    return fullest(Counter(operation.namespace for operation in operations))


def fullest(counts: Mapping[str, int]) -> dict[str, int]:
    """The fullest namespaces of these."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NAMESPACES])
