"""Meanings: vectors of the operations that search holds, made in the background, fused with its scores."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from dragoman.operations.operation import Operation
from dragoman.operations.search.embedding import Embedder, describe, needed

BATCH = 128  # operations that are embedded in one go
KEPT = 10_000  # vectors of operations that went, for when they come again
QUESTIONS = 256  # whose vectors are kept
MANY = 500  # operations that are sorted at first; the others only if all of these are not enough
RETRY = 60.0  # seconds after an embedder failed
AKIN = 0.35  # a cosine below which two texts have nothing to do with each other
DIGITS = 5  # of a fused score that count, so that equals are equal
log = logging.getLogger(__name__)


class Meanings:
    """A vector for each place of the index, and how near a question's vector comes to it.

    Until `keep_up` has been through all operations once, it is not `ready`; one that comes later and has no
    vector yet stands at the average. ConfigError when numpy is not installed.
    """

    def __init__(self, embedder: Embedder, *, retry: float = RETRY) -> None:
        self._embedder = embedder
        self._retry = retry
        self._numpy = needed("numpy")
        self._matrix: Any = None  # a row for each place
        self._known: Any = None  # which rows hold a vector
        self._waiting: dict[int, str] = {}
        self._gone: OrderedDict[bytes, Any] = OrderedDict()
        self._questions: OrderedDict[str, Any] = OrderedDict()
        self._news = asyncio.Event()
        self.idle = asyncio.Event()  # nothing waits for its vector
        self.ready = False

    def add(self, place: int, operation: Operation) -> None:
        """Have an operation embedded, or take its vector from when it was here before."""
        text = describe(operation)
        vector = self._gone.pop(digest(text), None)
        if vector is not None:
            self._put(place, vector)
            return
        self._waiting[place] = text
        self.idle.clear()
        self._news.set()

    def remove(self, place: int, operation: Operation) -> None:
        """Forget an operation; its vector is kept for a while."""
        self._waiting.pop(place, None)
        if self._holds(place):
            self._known[place] = False
            self._gone[digest(describe(operation))] = self._matrix[place].copy()
            while len(self._gone) > KEPT:
                self._gone.popitem(last=False)

    async def keep_up(self) -> None:
        """Embed what waits, batch by batch in a thread, until cancelled."""
        while True:
            batch = dict(islice(self._waiting.items(), BATCH))
            if not batch:
                self.ready = True
                self.idle.set()
                self._news.clear()
                await self._news.wait()
                continue
            try:
                vectors = await asyncio.to_thread(self._embedder.embed, list(batch.values()))
                self._take(batch, vectors)
            except Exception:
                log.exception("operations could not be embedded; search goes by words")
                await asyncio.sleep(self._retry)

    def descend(self, q: str, scores: Sequence[int], *, among: int, near: int) -> Iterator[tuple[float, int]]:
        """The places among that fit by words (`near`) or by meaning, with their scores, best first.

        The score is the sum of both z-scores over all places among. Equal scores stand together.
        """
        numpy = self._numpy
        size = max(among.bit_length(), 1)
        visible = self._spread(among, size)
        lexical = sum(
            (self._spread(bits, size) * float(1 << n) for n, bits in enumerate(scores)), numpy.zeros(size)
        )
        akin, known = self._compare(q, size)
        fused = standing(lexical, visible) + numpy.where(known, standing(akin, visible & known), 0.0)
        fits = visible & (self._spread(near, size) | (akin >= AKIN))
        wanted = numpy.flatnonzero(fits)
        rounded = numpy.round(fused[wanted], DIGITS)
        for chosen in self._parts(rounded):
            for index in chosen[numpy.argsort(-rounded[chosen], kind="stable")]:
                yield float(rounded[index]), int(wanted[index])

    def _parts(self, values: Any) -> Iterator[Any]:
        """The indexes of the greatest values, with all that equal the least of them; then the rest."""
        if len(values) <= MANY:
            yield self._numpy.arange(len(values))
            return
        least = self._numpy.partition(values, -MANY)[-MANY]
        yield self._numpy.flatnonzero(values >= least)
        yield self._numpy.flatnonzero(values < least)

    def _compare(self, q: str, size: int) -> tuple[Any, Any]:
        """The cosines of a question and all places, and at which of them there is a vector."""
        akin, known = self._numpy.zeros(size), self._numpy.zeros(size, dtype=bool)
        if self._matrix is not None:
            held = min(size, len(self._matrix))
            known[:held] = self._known[:held]
            akin[:held] = self._matrix[:held] @ self._ask(q)
        return self._numpy.where(known, akin, 0.0), known

    def _ask(self, q: str) -> Any:
        """The vector of a question."""
        vector = self._questions.pop(q, None)
        if vector is None:
            vector = self._numpy.asarray(self._embedder.embed([q])[0], dtype="float32")
        self._questions[q] = vector
        while len(self._questions) > QUESTIONS:
            self._questions.popitem(last=False)
        return vector

    def _spread(self, marked: int, size: int) -> Any:
        """A mask as an array of truths."""
        data = (marked & (1 << size) - 1).to_bytes((size + 7) >> 3, "little")
        bits = self._numpy.unpackbits(self._numpy.frombuffer(data, dtype="uint8"), bitorder="little")
        return bits[:size].astype(bool)

    def _holds(self, place: int) -> bool:
        return self._known is not None and place < len(self._known) and bool(self._known[place])

    def _take(self, batch: dict[int, str], vectors: Sequence[Sequence[float]]) -> None:
        """Put vectors where they belong, but for operations that have gone or changed since."""
        for (place, text), vector in zip(batch.items(), vectors, strict=True):
            if self._waiting.get(place) == text:
                del self._waiting[place]
                self._put(place, vector)

    def _put(self, place: int, vector: Sequence[float]) -> None:
        numpy = self._numpy
        if self._matrix is None:
            self._matrix, self._known = (
                numpy.zeros((0, len(vector)), dtype="float32"),
                numpy.zeros(0, dtype=bool),
            )
        missing = place + 1 - len(self._matrix)
        if missing > 0:
            rows = max(missing, len(self._matrix), BATCH)
            self._matrix = numpy.vstack(
                (self._matrix, numpy.zeros((rows, self._matrix.shape[1]), dtype="float32"))
            )
            self._known = numpy.concatenate((self._known, numpy.zeros(rows, dtype=bool)))
        self._matrix[place] = vector
        self._known[place] = True


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def standing(values: Any, among: Any) -> Any:
    """Each value as its distance from the mean of those among, in their standard deviations."""
    chosen = values[among]
    spread = float(chosen.std()) if len(chosen) else 0.0
    return (values - chosen.mean()) / spread if spread else values * 0.0
