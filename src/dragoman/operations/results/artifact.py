"""Artifacts: stored results that are too big for a model, readable in pieces."""

from __future__ import annotations

from typing import Protocol

import msgspec

from dragoman.errors import BadRequest, NotFound


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A stored result; `size` is in bytes, `created_at` in unix seconds."""

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
    """Stores artifacts."""

    async def save(self, artifact: Artifact, body: bytes) -> None:
        """Store one artifact."""
        ...

    async def get(self, id: str, *, owner: str) -> Artifact:
        """Return an artifact of the owner. Raises NotFound, also for another owner's."""
        ...

    async def read(self, id: str, *, owner: str, offset: int = 0, limit: int | None = None) -> bytes:
        """Return a range of its bytes, empty past its end.

        Raises NotFound; BadRequest for a negative offset or limit.
        """
        ...


def validate_range(offset: int, limit: int | None) -> None:
    """Raise BadRequest for a negative offset or limit."""
    if offset < 0 or (limit is not None and limit < 0):
        raise BadRequest("`offset` and `limit` must be 0 or more bytes.")


class MemoryArtifactStore:
    """Artifacts in memory; the oldest are dropped past `max_count`."""

    def __init__(self, *, max_count: int = 100) -> None:
        self._artifacts: dict[str, tuple[Artifact, bytes]] = {}
        self._max_count = max_count

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

    def _get_owned(self, id: str, owner: str) -> tuple[Artifact, bytes]:
        entry = self._artifacts.get(id)
        if entry is None or entry[0].owner != owner:
            raise NotFound(f"There is no artifact {id!r}.")
        return entry
