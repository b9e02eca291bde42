"""Operation search: ranked by name, BM25 and optionally embeddings, within a byte budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec

from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry
from dragoman.operations.search.bit_slices import at_least_mask, mask_slots, read_numbers, to_mask, top_mask
from dragoman.operations.search.bm25_index import InvertedIndex
from dragoman.operations.search.name_index import NameIndex, NameMatch
from dragoman.operations.search.semantic_index import SemanticIndex
from dragoman.operations.search.summary import signature, summarise
from dragoman.operations.search.tokenizer import request_terms, synonyms, terms

MAX_HITS = 8
MAX_RANKED = 200  # operations that are ranked and counted for one query
MAX_LISTED = 40  # operations in the listing of a namespace
MAX_CACHED_HITS = 1_000
MAX_RESULT_BYTES = 6_000  # bytes of the operations in one result
MAX_NAMESPACES = 20  # namespaces in one result
MAX_QUERY_LENGTH = 400
MIN_RELATIVE_SCORE = 0.25  # of the best score: less is not a match
SYNONYM_WEIGHT = 0.3
REQUEST_WORD_WEIGHT = 0.1
MIN_COVERAGE = 0.5  # share of the query's terms, by rarity: less is a partial match
NAME_MATCHES: Mapping[NameMatch, Literal["id", "name", "prefix"]] = {
    NameMatch.ID: "id",
    NameMatch.NAME: "name",
    NameMatch.PREFIX: "prefix",
}
OperationFilter: TypeAlias = Callable[[Operation], bool]
SlotFilter: TypeAlias = Callable[[int], bool]

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
    """A matching operation: id, summary and signature."""

    tool: str
    summary: str
    signature: str
    namespace: str


class OperationSearchResult(msgspec.Struct, frozen=True):
    """The best hits, how many more match, counts by namespace, and a hint for a better query."""

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


class SearchScore(msgspec.Struct, frozen=True):
    """Why an operation was found. `words` is its score by words, as a fraction of the best one's.

    `coverage` is the share of the query's words that it has, weighted by their rarity; `name` says that the
    query is its id, its name, or the beginning of them.
    """

    words: float
    coverage: float
    name: Literal["id", "name", "prefix"] | None = None


class SearchQuery(NamedTuple):
    """A query: its text, its weighted terms, the operations that it names, and the mask of hidden slots."""

    text: str
    weights: Mapping[str, float]
    names: Mapping[str, NameMatch]
    hidden: int


class OperationSearch:
    """Searches the operations of a registry and follows its changes.

    A semantic index has as much weight as the words, as soon as it is ready.
    """

    def __init__(self, registry: Registry, *, semantic_index: SemanticIndex | None = None) -> None:
        self._slots: dict[str, int] = {}  # by id
        self._operations: list[Operation | None] = []  # by slot
        self._ids: list[str] = []  # by slot, as of the last operation in it
        self._free_slots: list[int] = []
        self._used_mask = 0  # mask of used slots
        self._namespaces: dict[str, set[int]] = {}
        self._private_masks: dict[str | None, int] = {}  # slots of private operations by owner
        self._index = InvertedIndex()
        self._names = NameIndex()
        self._semantic_index = semantic_index
        self._hits = HitCache()
        registry.add_listener(self)

    def add(self, operation: Operation) -> None:
        """Add an operation, or replace the one with its id."""
        id = operation.id
        if id in self._slots:
            self.remove(operation)
        slot = self._free_slots.pop() if self._free_slots else len(self._operations)
        if slot == len(self._operations):
            self._operations.append(None)
            self._ids.append(id)
        self._operations[slot] = operation
        self._ids[slot] = id
        self._used_mask |= 1 << slot
        self._slots[id] = slot
        self._namespaces.setdefault(operation.namespace, set()).add(slot)
        if operation.private:
            self._private_masks[operation.owner] = self._private_masks.get(operation.owner, 0) | 1 << slot
        self._index.add(slot, operation)
        self._names.add(operation)
        if self._semantic_index:
            self._semantic_index.add(slot, operation)

    def remove(self, operation: Operation) -> None:
        """Remove an operation."""
        slot = self._slots.pop(operation.id, None)
        if slot is None:
            return
        self._free_slots.append(slot)
        self._hits.remove(operation)
        self._remove_private(slot)
        self._used_mask ^= 1 << slot
        slots = self._namespaces[operation.namespace]
        slots.discard(slot)
        if not slots:
            del self._namespaces[operation.namespace]
        self._index.remove(slot)
        self._names.remove(operation)
        if self._semantic_index:
            self._semantic_index.remove(slot, self._operations[slot] or operation)
        self._operations[slot] = None

    def search(
        self,
        q: str = "",
        *,
        namespace: str | None = None,
        allow: OperationFilter | None = None,
        owner: str | None = None,
    ) -> OperationSearchResult:
        """Return the operations that match `q` best and that `allow` accepts.

        Without `q`, list the namespace. The best MAX_RANKED accepted ones are examined; `more` and the
        counts are about these. `allow` is called on matches in order, until there are enough, and on all
        operations only if nothing matches.

        For an `owner` the result is that of a hub without other owners' private operations. Operations that
        `allow` rejects are left out, and count only for how rare a word is.
        """
        text = query_text(q)
        if not text:
            return self._list_namespace(namespace, allow)
        query, hidden = query_weights(text), self._hidden_from(owner)
        names = self._match_names(text, hidden)
        ranked = self._rank(SearchQuery(text, query, names, hidden), namespace=namespace, allow=allow)
        best = list(islice(ranked, MAX_RANKED))
        if not best:
            is_unknown = namespace is not None and not any(self._allowed_operations(namespace, allow))
            return OperationSearchResult(
                (), 0, self._count_namespaces(allow), UNKNOWN_NAMESPACE_HINT if is_unknown else NO_MATCH_HINT
            )
        hits = self._hits.make_hits(best[:MAX_HITS])
        is_named = best[0].id in names
        is_strong = is_named or self._coverage(best[0], query, hidden=hidden) >= MIN_COVERAGE
        return OperationSearchResult(
            hits, len(best) - len(hits), count_by_namespace(best), None if is_strong else PARTIAL_MATCH_HINT
        )

    def score(self, q: str, ids: Iterable[str], *, owner: str | None = None) -> Mapping[str, SearchScore]:
        """Return the scores of found operations, which a search orders by name, then words and meaning."""
        text, hidden = query_text(q), self._hidden_from(owner)
        if not text:
            return {}
        query, names = query_weights(text), self._match_names(text, hidden)
        slots = {id: slot for id in ids if (slot := self._slots.get(id)) is not None}
        points = read_numbers(self._index.score(query, hidden=hidden), slots.values())
        best = max(points.values(), default=0) or 1
        return {
            id: SearchScore(
                words=round(points.get(slot, 0) / best, 4),
                coverage=round(self._coverage(self._operation_at(slot), query, hidden=hidden), 4),
                name=NAME_MATCHES[names[id]] if id in names else None,
            )
            for id, slot in slots.items()
        }

    async def prepare(self, q: str) -> None:
        """Do the slow part of a search for `q`, in slices or in a thread; the search itself is then quick."""
        text = query_text(q)
        if text:
            await self._index.prepare()
        if text and self._semantic_index:
            await self._semantic_index.prepare(text)

    def rank(
        self,
        q: str,
        limit: int,
        *,
        namespace: str | None = None,
        allow: OperationFilter | None = None,
        owner: str | None = None,
    ) -> Sequence[Operation]:
        """Return the best matches in order.

        First ids and names that equal `q`, then names that start with it, then the rest by score; ties by
        id. Otherwise as search().
        """
        text, hidden = query_text(q), self._hidden_from(owner)
        query = SearchQuery(text, query_weights(text), self._match_names(text, hidden), hidden)
        return list(islice(self._rank(query, namespace=namespace, allow=allow), limit))

    def _rank(
        self, query: SearchQuery, *, namespace: str | None, allow: OperationFilter | None
    ) -> Iterator[Operation]:
        verdicts: dict[int, bool] = {}

        def accepts(slot: int) -> bool:
            if slot not in verdicts:
                verdicts[slot] = allow is None or allow(self._operation_at(slot))
            return verdicts[slot]

        slots = None if namespace is None else self._namespaces.get(namespace, set())
        scores = self._index.score(query.weights, hidden=query.hidden)
        name_matches = {self._slots[id]: match for id, match in query.names.items()}
        if slots is not None:
            name_matches = {slot: match for slot, match in name_matches.items() if slot in slots}
        visible = (self._used_mask if slots is None else to_mask(slots)) & ~query.hidden
        ranked = self._rank_slots(query.text, scores, visible=visible, accepts=accepts)
        if name_matches:
            points = read_numbers(scores, name_matches)
            first = sorted(
                name_matches, key=lambda slot: (name_matches[slot], -points[slot], self._ids[slot])
            )
            ranked = chain(first, (slot for slot in ranked if slot not in name_matches))
        # Only iterators that are implemented in C, so that no Python frame runs for each operation.
        operations = map(self._operations.__getitem__, ranked if allow is None else filter(accepts, ranked))
        return cast("Iterator[Operation]", operations)

    def _rank_slots(
        self, text: str, scores: Sequence[int], *, visible: int, accepts: SlotFilter
    ) -> Iterator[int]:
        """Return the visible matching slots, best first, ties by id; computed lazily."""
        matching = matching_slots(scores, visible, accepts=accepts)
        if self._semantic_index and self._semantic_index.ready:
            yield from self._order_ties(
                self._semantic_index.rank(text, scores, candidates=visible, matches=matching)
            )
            return
        count = MAX_RANKED
        while matching:
            points = read_numbers(scores, mask_slots(top_mask(scores, matching, count=count)))
            ids = self._ids
            ordered = sorted([(-score, ids[slot], slot) for slot, score in points.items()])
            yield from [slot for _, _, slot in ordered]
            matching &= ~to_mask(points)
            count *= 4

    def _match_names(self, text: str, hidden: int) -> Mapping[str, NameMatch]:
        """Return the ids of visible operations that the text equals or is a prefix of."""
        if not hidden:
            return self._names.match(text)
        return self._names.match(text, allow=lambda name: not hidden >> self._slots[name] & 1)

    def _hidden_from(self, owner: str | None) -> int:
        """Return the mask of other owners' private operations."""
        hidden = 0
        if owner is not None:
            for other, mask in self._private_masks.items():
                hidden |= mask if other != owner else 0
        return hidden

    def _remove_private(self, slot: int) -> None:
        for owner, mask in list(self._private_masks.items()):
            if mask >> slot & 1:
                self._private_masks[owner] = mask ^ (1 << slot)
                if not self._private_masks[owner]:
                    del self._private_masks[owner]

    def _order_ties(self, ranked: Iterable[tuple[float, int]]) -> Iterator[int]:
        """Return the slots in their order, ties by id."""
        for _, group in groupby(ranked, key=itemgetter(0)):
            yield from sorted((slot for _, slot in group), key=self._ids.__getitem__)

    def _operation_at(self, slot: int) -> Operation:
        operation = self._operations[slot]
        if operation is None:
            raise LookupError(f"slot {slot} is empty")
        return operation

    def _allowed_operations(
        self, namespace: str | None, allow: OperationFilter | None
    ) -> Iterator[Operation]:
        """Return the accepted operations of a namespace or of all."""
        operations = (
            self._operations
            if namespace is None
            else map(self._operation_at, self._namespaces.get(namespace, ()))
        )
        return (
            operation
            for operation in operations
            if operation is not None and (allow is None or allow(operation))
        )

    def _count_namespaces(self, allow: OperationFilter | None) -> dict[str, int]:
        """Return how many accepted operations each namespace has."""
        if allow is None:
            return largest_namespaces({name: len(space) for name, space in self._namespaces.items()})
        return count_by_namespace(self._allowed_operations(None, allow))

    def _list_namespace(self, namespace: str | None, allow: OperationFilter | None) -> OperationSearchResult:
        if namespace is None:
            return OperationSearchResult((), 0, self._count_namespaces(allow), NO_QUERY_HINT)
        operations = sorted(self._allowed_operations(namespace, allow), key=lambda operation: operation.id)
        if not operations:
            return OperationSearchResult((), 0, self._count_namespaces(allow), UNKNOWN_NAMESPACE_HINT)
        hits = self._hits.make_hits(operations[:MAX_LISTED])
        more = len(operations) - len(hits)
        return OperationSearchResult(hits, more, {namespace: len(operations)}, MORE_HINT if more else None)

    def _coverage(self, operation: Operation, query: Mapping[str, float], *, hidden: int) -> float:
        query_terms = {term for term, weight in query.items() if weight == 1.0}
        return self._index.coverage(self._slots[operation.id], query_terms, hidden=hidden)


def matching_slots(scores: Sequence[int], candidates: int, *, accepts: SlotFilter) -> int:
    """Return the candidates whose score is near the best accepted one's."""
    scored = 0
    for bits in scores:
        scored |= bits
    scored &= candidates
    rest, count = scored, 1
    while rest:
        top = top_mask(scores, rest, count=count)
        slots: Iterable[int] = mask_slots(top)
        if count > 1:  # else all have the same score
            points = read_numbers(scores, slots)
            slots = sorted(points, key=points.__getitem__, reverse=True)
        best = read_numbers(scores, islice(filter(accepts, slots), 1))
        if best:
            floor = max(1, round(MIN_RELATIVE_SCORE * max(best.values())))
            return at_least_mask(scores, scored, floor=floor)
        rest &= ~top
        count *= 4
    return 0


def query_text(q: str) -> str:
    """Return the part of a query that is searched: at most MAX_QUERY_LENGTH characters."""
    return q[:MAX_QUERY_LENGTH].strip()


def query_weights(q: str) -> dict[str, float]:
    """Return the terms of a query; their synonyms and the words around a request at a lower weight."""
    query = dict.fromkeys(terms(q), 1.0)
    wanted = [term for term in query if term not in request_terms()]
    if wanted:
        query |= dict.fromkeys(request_terms() & query.keys(), REQUEST_WORD_WEIGHT)
    for term in wanted or list(query):
        for synonym in sorted(synonyms(term)):
            query.setdefault(synonym, SYNONYM_WEIGHT)
    return query


class HitCache:
    """A cache of hits by operation."""

    def __init__(self) -> None:
        self._hits: dict[str, tuple[Operation, OperationHit, int]] = {}

    def remove(self, operation: Operation) -> None:
        """Forget an operation."""
        self._hits.pop(operation.id, None)

    def make_hits(self, operations: Iterable[Operation]) -> tuple[OperationHit, ...]:
        """Return the operations as hits, as many as fit the byte budget; at least one."""
        hits: list[OperationHit] = []
        bytes_left = MAX_RESULT_BYTES
        for operation in operations:
            hit, size = self._find(operation)
            bytes_left -= size
            if bytes_left < 0 and hits:
                break
            hits.append(hit)
        return tuple(hits)

    def _find(self, operation: Operation) -> tuple[OperationHit, int]:
        """Return an operation's hit, and how many bytes it has as JSON."""
        cached = self._hits.get(operation.id)
        if cached is not None and cached[0] is operation:
            return cached[1], cached[2]
        hit = OperationHit(
            operation.id, summarise(operation), signature(operation.input_schema), operation.namespace
        )
        if len(self._hits) >= MAX_CACHED_HITS:
            self._hits.clear()
        size = len(msgspec.json.encode(hit))
        self._hits[operation.id] = operation, hit, size
        return hit, size


def count_by_namespace(operations: Iterable[Operation]) -> dict[str, int]:
    """Return how many of the operations each namespace has; the largest namespaces only."""
    return largest_namespaces(Counter([operation.namespace for operation in operations]))


def largest_namespaces(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the largest namespaces."""
    largest = sorted(sorted(counts), key=counts.__getitem__, reverse=True)[:MAX_NAMESPACES]
    return {name: counts[name] for name in largest}
