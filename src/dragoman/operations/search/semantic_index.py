"""The semantic index: vectors of operations, computed in the background and fused with the word scores."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from dragoman.json_decoding import well_formed
from dragoman.operations.operation import Operation
from dragoman.operations.search.embedder import Embedder, embedding_text, import_extra

BATCH_SIZE = 128  # operations embedded in one call
MAX_REMOVED_VECTORS = 10_000  # cached vectors of removed operations, which often come back
MAX_QUERY_VECTORS = 256  # queries whose vectors are cached
SORT_FIRST = 500  # sorted first; the rest only if these are not enough
RETRY_SECONDS = 60.0  # seconds after an embedder failed
MIN_SIMILARITY = 0.35  # cosine below which two texts are unrelated
MAX_PARTS = 8  # parts of a query that are compared by themselves
MIN_PART_WORDS = 3
MAX_SLOTS_FOR_PARTS = 25_000  # above, only the whole query is compared: a search blocks the event loop
PART_END = re.compile(r"(?<=[.!?;:,])\s+|\n+|(?<=\S)\s+(?:and|then|also)\s+")
SCORE_DIGITS = 5  # of a fused score, so that ties are ties
log = logging.getLogger(__name__)


class SemanticIndex:
    """A vector for each slot of the search, and its similarity to a query.

    It is `ready` after `run` has embedded all operations once; an operation added later counts as average
    until it has a vector. Raises ConfigError without numpy.
    """

    def __init__(self, embedder: Embedder, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self.embedder = embedder
        self._retry_seconds = retry_seconds
        self._numpy = import_extra("numpy")
        self._matrix: Any = None  # one row a slot
        self._has_vector: Any = None  # rows with a vector
        self._pending: dict[int, str] = {}
        self._removed_vectors: OrderedDict[bytes, Any] = OrderedDict()
        self._query_vectors: OrderedDict[str, Any] = OrderedDict()
        self._failed_query: str | None = None  # it is not tried again on the event loop
        self._work_available = asyncio.Event()
        self.idle = asyncio.Event()  # set while no operation waits for its vector
        self.ready = False

    def add(self, slot: int, operation: Operation) -> None:
        """Queue an operation for embedding, or reuse its vector from before its removal."""
        text = embedding_text(operation)
        vector = self._removed_vectors.pop(text_digest(text), None)
        if vector is not None:
            self._store_vector(slot, vector)
            return
        self._pending[slot] = text
        self.idle.clear()
        self._work_available.set()

    def remove(self, slot: int, operation: Operation) -> None:
        """Remove an operation; its vector stays in a cache."""
        self._pending.pop(slot, None)
        if self._contains(slot):
            self._has_vector[slot] = False
            self._removed_vectors[text_digest(embedding_text(operation))] = self._matrix[slot].copy()
            while len(self._removed_vectors) > MAX_REMOVED_VECTORS:
                self._removed_vectors.popitem(last=False)

    async def run(self) -> None:
        """Embed queued operations, batch by batch in a thread, until cancelled."""
        while True:
            batch = dict(islice(self._pending.items(), BATCH_SIZE))
            if not batch:
                self.ready = True
                self.idle.set()
                self._work_available.clear()
                await self._work_available.wait()
                continue
            try:
                vectors = await asyncio.to_thread(self.embedder.embed, list(batch.values()))
                self._store_batch(batch, vectors)
            except Exception:
                log.exception("Operations could not be embedded; search uses words only")
                await asyncio.sleep(self._retry_seconds)

    def rank(
        self, query: str, scores: Sequence[int], *, candidates: int, matches: int
    ) -> Iterator[tuple[float, int]]:
        """Return the candidates that match by words (`matches`) or by meaning with their scores, best first.

        The score is the sum of z-scores over all candidates: of the words, of the similarity to the query,
        and of that to the most similar part of it, since a request may be for several things. Equal scores
        are adjacent.
        """
        numpy = self._numpy
        size = max(candidates.bit_length(), 1)
        visible = self._to_bool_array(candidates, size)
        lexical = sum(
            (self._to_bool_array(bits, size) * float(1 << n) for n, bits in enumerate(scores)),
            numpy.zeros(size),
        )
        similarities, has_vector = self._similarities(query, size)
        fused = z_scores(lexical, visible)
        for each in similarities:
            fused += numpy.where(has_vector, z_scores(each, visible & has_vector), 0.0)
        is_similar = numpy.max(similarities, axis=0) >= MIN_SIMILARITY
        is_match = visible & (self._to_bool_array(matches, size) | is_similar)
        slots = numpy.flatnonzero(is_match)
        rounded = numpy.round(fused[slots], SCORE_DIGITS)
        for chosen in self._split_best(rounded):
            for index in chosen[numpy.argsort(-rounded[chosen], kind="stable")]:
                yield float(rounded[index]), int(slots[index])

    def _split_best(self, values: Any) -> Iterator[Any]:
        """Return the indexes of the greatest values, with all that tie; then the rest."""
        if len(values) <= SORT_FIRST:
            yield self._numpy.arange(len(values))
            return
        least = self._numpy.partition(values, -SORT_FIRST)[-SORT_FIRST]
        yield self._numpy.flatnonzero(values >= least)
        yield self._numpy.flatnonzero(values < least)

    def _similarities(self, query: str, size: int) -> tuple[Sequence[Any], Any]:
        """Return the cosines of all slots with the query and, if it has parts, the greatest with one of them.

        Also return which slots have a vector; the cosines of others are 0.
        """
        numpy = self._numpy
        vectors = None if self._matrix is None else self._find_vectors(query)
        has_vector = numpy.zeros(size, dtype=bool)
        if vectors is None:
            return [numpy.zeros(size)], has_vector
        filled = min(size, len(self._matrix))
        has_vector[:filled] = self._has_vector[:filled]
        rows = [self._matrix[:filled] @ vectors[0]]
        if len(vectors) > 1 and filled <= MAX_SLOTS_FOR_PARTS:
            rows.append(numpy.max(self._matrix[:filled] @ vectors[1:].T, axis=1))
        padded = [numpy.pad(row.astype(float), (0, size - filled)) for row in rows]
        return [numpy.where(has_vector, row, 0.0) for row in padded], has_vector

    async def prepare(self, query: str) -> None:
        """Embed a query that is about to be ranked in a thread: a model may take 100 ms."""
        if self.ready and self._matrix is not None and query not in self._query_vectors:
            vectors = await asyncio.to_thread(self._embed_query, query)
            self._failed_query = query if vectors is None else None
            if vectors is not None:
                self._query_vectors[query] = vectors

    def _embed_query(self, query: str) -> Any:
        """Return the vectors of a query and of its parts, None if the embedder fails."""
        text = well_formed(query)
        try:
            return self._numpy.asarray(self.embedder.embed([text, *query_parts(text)]), dtype="float32")
        except Exception:  # an embedder may raise anything; the words still find operations
            log.exception("A query could not be embedded; it is searched by words only")
            return None

    def _find_vectors(self, query: str) -> Any:
        """Return the vectors of a query and of its parts, None if the embedder fails. Cached."""
        vectors = self._query_vectors.pop(query, None)
        if vectors is None and query != self._failed_query:
            vectors = self._embed_query(query)
        if vectors is None:
            return None
        self._query_vectors[query] = vectors
        while len(self._query_vectors) > MAX_QUERY_VECTORS:
            self._query_vectors.popitem(last=False)
        return vectors

    def _to_bool_array(self, mask: int, size: int) -> Any:
        """Return a mask as a boolean array."""
        data = (mask & (1 << size) - 1).to_bytes((size + 7) >> 3, "little")
        bits = self._numpy.unpackbits(self._numpy.frombuffer(data, dtype="uint8"), bitorder="little")
        return bits[:size].astype(bool)

    def _contains(self, slot: int) -> bool:
        return self._has_vector is not None and slot < len(self._has_vector) and bool(self._has_vector[slot])

    def _store_batch(self, batch: dict[int, str], vectors: Sequence[Sequence[float]]) -> None:
        """Store vectors, except of operations that were removed or changed since."""
        for (slot, text), vector in zip(batch.items(), vectors, strict=True):
            if self._pending.get(slot) == text:
                del self._pending[slot]
                self._store_vector(slot, vector)

    def _store_vector(self, slot: int, vector: Sequence[float]) -> None:
        numpy = self._numpy
        if self._matrix is None:
            self._matrix, self._has_vector = (
                numpy.zeros((0, len(vector)), dtype="float32"),
                numpy.zeros(0, dtype=bool),
            )
        missing = slot + 1 - len(self._matrix)
        if missing > 0:
            rows = max(missing, len(self._matrix), BATCH_SIZE)
            self._matrix = numpy.vstack(
                (self._matrix, numpy.zeros((rows, self._matrix.shape[1]), dtype="float32"))
            )
            self._has_vector = numpy.concatenate((self._has_vector, numpy.zeros(rows, dtype=bool)))
        self._matrix[slot] = vector
        self._has_vector[slot] = True


def query_parts(query: str) -> Sequence[str]:
    """Return the sentences and clauses of a query; none if it is only one."""
    parts = [part for part in PART_END.split(query) if len(part.split()) >= MIN_PART_WORDS]
    return parts[:MAX_PARTS] if len(parts) > 1 else ()


def text_digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def z_scores(values: Any, mask: Any) -> Any:
    """Return each value's distance from the mean of the masked ones, in standard deviations."""
    chosen = values[mask]
    spread = float(chosen.std()) if len(chosen) else 0.0
    return (values - chosen.mean()) / spread if spread else values * 0.0
