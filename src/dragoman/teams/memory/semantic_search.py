"""Memories found by meaning: their vectors beside the words, for teams with `memory: {semantic: true}`.

Vectors are kept in memory and made again after a restart: a team has at most a few hundred memories.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from dragoman.json_decoding import well_formed
from dragoman.operations.context import Context
from dragoman.operations.search.embedder import MAX_TEXT_LENGTH, Embedder
from dragoman.store.teams.memories import Memory, MemoryRepository
from dragoman.teams.spec import TeamSpec

log = logging.getLogger(__name__)
MAX_VECTORS = 5_000
MIN_SIMILARITY = 0.35  # cosine below which two texts are unrelated
RANK_OFFSET = 20  # `k` of reciprocal rank fusion: the first ranks count much more than the later ones
MAX_FOUND = 50


class MemorySearch:
    """Searches memories by words, and by meaning where a team wants it and the hub has an embedder."""

    def __init__(self, memories: MemoryRepository, embedder: Embedder | None) -> None:
        self._memories = memories
        self._embedder = embedder
        self._vectors: OrderedDict[bytes, Sequence[float]] = OrderedDict()

    async def search(self, team: TeamSpec, query: str, *, limit: int, context: Context) -> Sequence[Memory]:
        """Return memories of a team for the owner of a call, the best first."""
        owner, embedder = context.identity.owner, self._embedder
        by_words = await self._memories.search(team.name, owner, query=query, limit=MAX_FOUND)
        if embedder is None or not team.memory.semantic:
            return by_words[:limit]
        memories = await self._memories.list(team.name, owner)
        try:
            by_meaning = await context.offload(lambda: self._rank(query, memories, embedder=embedder))
        except Exception:  # an embedder may raise anything; the words still find memories
            log.exception("Memories could not be embedded; they are searched by words only")
            return by_words[:limit]
        return fuse(by_words, by_meaning)[:limit]

    def _rank(self, query: str, memories: Sequence[Memory], *, embedder: Embedder) -> Sequence[Memory]:
        """Return the memories that are similar to a query in meaning, the most similar first."""
        texts = [query, *(f"{memory.key}: {memory.content}" for memory in memories)]
        wanted, *others = self._embed([well_formed(text[:MAX_TEXT_LENGTH]) for text in texts], embedder)
        scored = [
            (sum(one * other for one, other in zip(wanted, vector, strict=True)), place)
            for place, vector in enumerate(others)
        ]
        similar = sorted((-score, place) for score, place in scored if score >= MIN_SIMILARITY)
        return [memories[place] for _, place in similar[:MAX_FOUND]]

    def _embed(self, texts: Sequence[str], embedder: Embedder) -> Sequence[Sequence[float]]:
        """Return the vectors of texts. Vectors of earlier searches are reused."""
        keys = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._vectors}
        embedded: Any = embedder.embed(list(missing.values())) if missing else ()
        new = {key: [float(each) for each in vector] for key, vector in zip(missing, embedded, strict=True)}
        vectors = [new.get(key) or self._vectors.get(key) or () for key in keys]
        self._vectors.update(new)
        while len(self._vectors) > MAX_VECTORS:
            self._vectors.popitem(last=False)
        return vectors


def fuse(by_words: Sequence[Memory], by_meaning: Sequence[Memory]) -> Sequence[Memory]:
    """Return the memories of both lists, those that are early in them first."""
    scores: dict[str, float] = {}
    memories: dict[str, Memory] = {}
    for ranked in (by_words, by_meaning):
        for place, memory in enumerate(ranked):
            memories[memory.id] = memory
            scores[memory.id] = scores.get(memory.id, 0.0) + 1 / (RANK_OFFSET + place)
    best = sorted(memories, key=lambda each: -scores[each])  # equal ones: those found by words first
    return [memories[id] for id in best]
