"""Artifacts: whole and in pieces, by owner, in memory and in the store."""

from __future__ import annotations

import tracemalloc
from itertools import product
from typing import Any

import pytest

from dragoman.errors import BadRequest, Conflict, NotFound
from dragoman.operations.results.artifact import Artifact, ArtifactStore, MemoryArtifactStore
from dragoman.store.store import Store
from tests.store.samples import session

BODY = bytes(range(256)) * 4
OFFSETS = (0, 1, 255, 1_023, 1_024, 1_025, 2**31 - 1, 2**31, 10**12)
LIMITS = (None, 0, 1, 256, 1_024, 2**31, 10**12)


@pytest.fixture(params=["memory", "store"])
def artifacts(request: pytest.FixtureRequest, store: Store) -> ArtifactStore:
    return store.artifacts if request.param == "store" else MemoryArtifactStore()


def described(id: str = "a", *, size: int = len(BODY), **fields: Any) -> Artifact:
    values = {"owner": "ann", "media_type": "text/plain", "created_at": 1_000.0, **fields}
    return Artifact(id=id, size=size, **values)


async def test_an_artifact_comes_back_as_it_was_kept(artifacts: ArtifactStore) -> None:
    full = described(operation="web.fetch", call_id="c", run_id="r", session_id="s")
    await artifacts.save(full, BODY)
    await artifacts.save(described("empty", size=0), b"")
    assert await artifacts.get("a", owner="ann") == full
    assert await artifacts.read("a", owner="ann") == BODY
    assert await artifacts.read("empty", owner="ann") == b""


@pytest.mark.parametrize("id", ["a", "b"])
async def test_anothers_artifact_is_as_one_that_is_not_there(artifacts: ArtifactStore, id: str) -> None:
    await artifacts.save(described("a"), BODY)
    with pytest.raises(NotFound, match=repr(id)):
        await artifacts.get(id, owner="bob")
    with pytest.raises(NotFound, match=repr(id)):
        await artifacts.read(id, owner="bob")


async def test_a_piece_is_the_bytes_between_and_none_past_the_end(artifacts: ArtifactStore) -> None:
    await artifacts.save(described(), BODY)
    for offset, limit in product(OFFSETS, LIMITS):
        end = None if limit is None else offset + limit
        piece = await artifacts.read("a", owner="ann", offset=offset, limit=limit)
        assert piece == BODY[offset:end], (offset, limit)


async def test_a_piece_that_cannot_be_is_refused(artifacts: ArtifactStore) -> None:
    await artifacts.save(described(), BODY)
    for piece in ({"offset": -1}, {"limit": -1}, {"offset": -1, "limit": 3}):
        with pytest.raises(BadRequest):
            await artifacts.read("a", owner="ann", **piece)


async def test_an_id_is_taken_once(store: Store) -> None:
    await store.artifacts.save(described(), BODY)
    with pytest.raises(Conflict):
        await store.artifacts.save(described(), b"other")
    assert await store.artifacts.read("a", owner="ann") == BODY


async def test_a_session_takes_its_artifacts_with_it(store: Store) -> None:
    await store.sessions.create(session())
    await store.artifacts.save(described("mine", session_id="s"), BODY)
    await store.artifacts.save(described("other", session_id="t"), BODY)
    assert await store.session_deletion.delete("s") is True
    assert await store.artifacts.read("other", owner="ann") == BODY
    with pytest.raises(NotFound):
        await store.artifacts.get("mine", owner="ann")


async def test_a_piece_of_a_big_artifact_is_all_that_python_holds(store: Store) -> None:
    size = 30_000_000
    await store.artifacts.save(described(size=size), bytes(size))
    tracemalloc.start()
    try:
        assert len(await store.artifacts.read("a", owner="ann", offset=size - 1_000, limit=65_536)) == 1_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
