"""Conversations: items in their order, once each, apart by owner, and the oldest deleted above a limit."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.errors import ResponseNotFound, TooLarge
from dragoman.store.sessions import conversations as module
from dragoman.store.sessions.conversations import Conversation, ConversationItem
from dragoman.store.store import Store
from tests.store.conftest import Clock

LARGE = 1_000_000


def conversation(id: str = "conv_a", owner: str = "ann") -> Conversation:
    return Conversation(id=id, owner=owner, metadata={"topic": "tea"}, created_at=1.0, updated_at=1.0)


def items(*ids: str) -> list[ConversationItem]:
    return [ConversationItem(id, msgspec.Raw(msgspec.json.encode({"id": id}))) for id in ids]


async def test_items_stand_in_their_order_and_once_each(store: Store) -> None:
    repository = store.conversations
    await repository.create(conversation(), items("a", "b"), max_size=LARGE)
    await repository.append("conv_a", items("b", "c"), owner="ann", max_size=LARGE)
    assert await repository.items("conv_a", owner="ann") == items("a", "b", "c")
    found = await repository.get("conv_a", owner="ann")
    assert (found.size, found.metadata) == (3 * len(b'{"id":"a"}'), {"topic": "tea"})
    left = await repository.delete_item("conv_a", "b", owner="ann")
    assert left.size == 2 * len(b'{"id":"a"}')
    await repository.append("conv_a", items("d"), owner="ann", max_size=LARGE)
    assert [each.id for each in await repository.items("conv_a", owner="ann")] == ["a", "c", "d"]
    assert await repository.item("conv_a", "d", owner="ann") == items("d")[0]
    with pytest.raises(TooLarge):
        await repository.items("conv_a", owner="ann", max_size=10)


async def test_a_conversation_is_its_owners(store: Store) -> None:
    repository = store.conversations
    await repository.create(conversation(), items("a"), max_size=LARGE)
    for attempt in (
        repository.get("conv_a", owner="bob"),
        repository.items("conv_a", owner="bob"),
        repository.item("conv_a", "a", owner="bob"),
        repository.delete_item("conv_a", "a", owner="bob"),
        repository.append("conv_a", items("x"), owner="bob", max_size=LARGE),
        repository.set_metadata("conv_a", {}, owner="bob"),
        repository.delete("conv_a", owner="bob"),
        repository.item("conv_a", "gone", owner="ann"),
    ):
        with pytest.raises(ResponseNotFound):
            await attempt
    changed = await repository.set_metadata("conv_a", {"x": "y"}, owner="ann")
    assert await repository.get("conv_a", owner="ann") == msgspec.structs.replace(
        changed, updated_at=repository.clock()
    )
    await repository.delete("conv_a", owner="ann")
    with pytest.raises(ResponseNotFound):
        await repository.get("conv_a", owner="ann")


async def test_the_ones_used_longest_ago_are_deleted_above_a_limit(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = store.conversations
    monkeypatch.setattr(module, "MAX_CONVERSATIONS", 2)
    for id in ("conv_a", "conv_b", "conv_c"):
        clock.now += 1
        await repository.create(conversation(id), items("a"), max_size=LARGE)
    await repository.create(conversation("conv_d", "bob"), (), max_size=LARGE)
    with pytest.raises(ResponseNotFound):
        await repository.get("conv_a", owner="ann")
    clock.now += 1
    await repository.append("conv_b", items("b"), owner="ann", max_size=25)
    with pytest.raises(ResponseNotFound):
        await repository.get("conv_c", owner="ann")
    assert len(await repository.items("conv_b", owner="ann")) == 2
