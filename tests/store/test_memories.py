"""Memories: replaced with a reason, deleted with their history, found by their words, apart by owner."""

from __future__ import annotations

import pytest

from dragoman.errors import Conflict, NotFound
from dragoman.store.store import Store
from dragoman.store.teams import memories as module
from dragoman.store.teams.memories import Memory, MemoryKind
from tests.store.conftest import Clock


def memory(
    key: str,
    content: str,
    *,
    kind: MemoryKind = "lesson",
    team: str = "press",
    owner: str = "ann",
    reason: str | None = None,
) -> Memory:
    id = f"mem_{team}{owner}{key}{content}"
    return Memory(
        id=id,
        team=team,
        owner=owner,
        key=key,
        kind=kind,
        content=content,
        reason=reason,
        created_at=0.0,
    )


async def test_a_memory_replaced_with_a_reason_stays_in_the_history(store: Store, clock: Clock) -> None:
    first = await store.memories.save(memory("deploy", "Deploy on Fridays."))
    clock.now += 1
    assert await store.memories.save(memory("deploy", "Deploy on Fridays.")) == first
    with pytest.raises(Conflict, match="'deploy' that says something else"):
        await store.memories.save(memory("deploy", "Never on Fridays."))
    second = await store.memories.save(memory("deploy", "Never on Fridays.", reason="it broke"))
    assert (second.supersedes, second.created_at) == (first.id, 1_001.0)
    assert await store.memories.list("press", "ann") == [second]
    assert [each.content for each in await store.memories.history("press", "ann", key="deploy")] == [
        "Never on Fridays.",
        "Deploy on Fridays.",
    ]


async def test_a_deleted_memory_is_not_listed_and_stays_in_the_history(store: Store) -> None:
    await store.memories.save(memory("deploy", "Deploy on Fridays."))
    await store.memories.delete("press", "ann", key="deploy", reason="wrong")
    assert await store.memories.list("press", "ann") == []
    assert await store.memories.search("press", "ann", query="fridays") == []
    (ended,) = await store.memories.history("press", "ann", key="deploy")
    assert (ended.is_active, ended.ended_at, ended.reason) == (False, 1_000.0, "wrong")
    with pytest.raises(NotFound, match="no memory 'deploy'"):
        await store.memories.delete("press", "ann", key="deploy")
    await store.memories.save(memory("deploy", "On Mondays."))
    assert len(await store.memories.list("press", "ann")) == 1


async def test_a_search_finds_words_prefixes_and_rare_words_first(store: Store, clock: Clock) -> None:
    for key, content in (("a", "The release needs a release note."), ("b", "A note on the café: closed.")):
        clock.now += 1
        await store.memories.save(memory(key, content))
    assert [each.key for each in await store.memories.search("press", "ann", query="note rel")] == ["a", "b"]
    assert [each.key for each in await store.memories.search("press", "ann", query="CAFE")] == ["b"]
    assert await store.memories.search("press", "ann", query="!!") == []
    assert await store.memories.search("press", "ann", query="nothing' OR 1=1 --") == []


async def test_kinds_are_filtered(store: Store) -> None:
    await store.memories.save(memory("a", "one note"))
    await store.memories.save(memory("b", "two note", kind="reference"))
    assert [each.key for each in await store.memories.list("press", "ann", kinds=["reference"])] == ["b"]
    found = await store.memories.search("press", "ann", query="note", kinds=["lesson", "identity"])
    assert [each.key for each in found] == ["a"]


async def test_teams_and_owners_do_not_see_each_other(store: Store) -> None:
    await store.memories.save(memory("k", "of ann"))
    await store.memories.save(memory("k", "of bob", owner="bob"))
    await store.memories.save(memory("k", "of desk", team="desk"))
    assert [each.content for each in await store.memories.list("press", "bob")] == ["of bob"]
    assert [each.content for each in await store.memories.search("desk", "ann", query="of")] == ["of desk"]
    with pytest.raises(NotFound):
        await store.memories.delete("desk", "bob", key="k")


async def test_memories_and_their_history_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ACTIVE", 2)
    monkeypatch.setattr(module, "MAX_ROWS", 3)
    for key in ("a", "b"):
        await store.memories.save(memory(key, "x"))
    with pytest.raises(Conflict, match="has 2 memories"):
        await store.memories.save(memory("c", "x"))
    for number in range(4):
        await store.memories.save(memory("a", f"x{number}", reason="new"))
    assert len(await store.memories.history("press", "ann", key="a")) == 2
    assert {each.content for each in await store.memories.list("press", "ann")} == {"x", "x3"}


async def test_more_memories_than_are_read_at_once_are_all_listed_newest_first(
    store: Store, clock: Clock
) -> None:
    for number in range(module.FEW + 3):
        clock.now += 1
        await store.memories.save(memory(f"k{number}", "x"))
    newest_first = [f"k{number}" for number in reversed(range(module.FEW + 3))]
    assert [each.key for each in await store.memories.list("press", "ann")] == newest_first
    for limit in (module.FEW - 1, module.FEW, module.FEW + 1):
        found = await store.memories.list("press", "ann", limit=limit)
        assert [each.key for each in found] == newest_first[:limit]
