"""Artifacts: results that are too big to be told whole; kept, and read piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from dragoman.errors import BadRequest, NotFound


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a kept result; `size` is in bytes, `created_at` in unix seconds."""

    id: str
    owner: str
    media_type: str
    size: int
    created_at: float
    operation: str | None = None
    call_id: str | None = None
    run_id: str | None = None
    session_id: str | None = None


class ArtifactStore(Protocol):
    """Where artifacts are kept."""

    async def save(self, artifact: Artifact, body: bytes) -> None:
        """Keep one."""
        ...

    async def get(self, id: str, *, owner: str) -> Artifact:
        """One of the owner's. NotFound, also for another's."""
        ...

    async def read(self, id: str, *, owner: str, offset: int = 0, limit: int | None = None) -> bytes:
        """A piece of its bytes: none past its end. NotFound; BadRequest for a negative offset or limit."""
        ...

    async def purge(self, older_than: float) -> int:
        """Forget those that were kept so many seconds ago, or longer; how many."""
        ...


def validate_range(offset: int, limit: int | None) -> None:
    """BadRequest for a piece that cannot be."""
    if offset < 0 or (limit is not None and limit < 0):
        raise BadRequest("the offset and the limit of a piece are 0 bytes or more")


class MemoryArtifactStore:
    """Artifacts that are forgotten with the process, and the oldest past `keep`."""

    def __init__(self, *, max_count: int = 100, clock: Callable[[], float] = time.time) -> None:
        self._artifacts: dict[str, tuple[Artifact, bytes]] = {}
        self._max_count = max_count
        self._clock = clock

    async def save(self, artifact: Artifact, body: bytes) -> None:
        self._artifacts[artifact.id] = (artifact, body)
        if len(self._artifacts) > self._max_count:
            del self._artifacts[next(iter(self._artifacts))]

    async def get(self, id: str, *, owner: str) -> Artifact:
        return self._get_owned(id, owner)[0]

    async def read(self, id: str, *, owner: str, offset: int = 0, limit: int | None = None) -> bytes:
        validate_range(offset, limit)
        body = self._get_owned(id, owner)[1]
        return body[offset : None if limit is None else offset + limit]

    async def purge(self, older_than: float) -> int:
        since = self._clock() - older_than
        gone = [id for id, (artifact, _) in self._artifacts.items() if artifact.created_at < since]
        for id in gone:
            del self._artifacts[id]
        return len(gone)

    def _get_owned(self, id: str, owner: str) -> tuple[Artifact, bytes]:
        held = self._artifacts.get(id)
        if held is None or held[0].owner != owner:
            raise NotFound(f"no artifact {id!r}")
        return held
