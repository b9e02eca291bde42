"""A session that others share messages of is deleted in small steps; they read the same after each one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from dragoman.errors import Conflict, NotFound
from dragoman.identity import Identity
from dragoman.messages import Message, TextPart
from dragoman.store import retention, shared_messages
from dragoman.store.hub_events import EventPosition
from dragoman.store.sessions.shares import new_share
from dragoman.store.store import Store
from tests.effort import rows
from tests.store.places import Place
from tests.store.samples import assistant, session, user
from tests.store.test_branches import ask, fork, found

ANN = Identity("ann")
MESSAGES = 50
SHARED = 49 + 51  # of the first branch and the second one
FORKS = ("f", "g", "h")
TABLES = ("sessions", "messages", "parts", "branches", "shares")
COPIES = "SELECT count(*) FROM messages WHERE session_id LIKE 'anc%'"
AFTER = (1, 2, 4, 6, 7, 8, 9, 12)  # steps after which something else takes place


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each transaction do as little as it can."""
    monkeypatch.setattr(shared_messages, "COPIED_MESSAGES", 20)
    monkeypatch.setattr(retention, "MAX_BATCH_SECONDS", 0.0)
    monkeypatch.setattr(retention, "PAUSE_SECONDS", 0.0)


async def make_forks(store: Store) -> None:
    """A session with two long branches; forks of both, one that was edited, and one of a fork."""
    await store.sessions.create(session())
    await store.messages.import_messages("s", messages("m", "first"), start=0)
    await fork(store, f"m{MESSAGES - 1}")
    await ask(store, user("m30", "edited?"), assistant("b", "yes"), drop_from="m30")
    await store.messages.import_messages("s", messages("n", "second"), start=MESSAGES + 2)
    await fork(store, f"n{MESSAGES - 1}", id="g")
    await ask(store, user("m25", "else?"), assistant("c", "no"), session_id="f", drop_from="m25")
    await fork(store, "m20", source="f", id="h")


def messages(prefix: str, text: str) -> list[Message]:
    return [Message(f"{prefix}{n}", "user", (TextPart(f"{text} {n}"),)) for n in range(MESSAGES)]


async def read(store: Store, *ids: str) -> dict[str, Any]:
    """What is read of sessions: their messages, which of them have versions, and what a search finds."""
    return {
        id: (
            [(message.id, message.text) for message in await store.messages.list(id)],
            await store.branches.siblings(id),
            await found(store, "first 17", session_id=id),
        )
        for id in ids
    }


def after_each_step(
    store: Store, monkeypatch: pytest.MonkeyPatch, do: Callable[[int], Awaitable[None]]
) -> None:
    """Call `do` with the number of each transaction of a deletion, after it."""
    submit, count = store.retention._submit, 0

    async def submit_and_do(job: Any) -> Any:
        nonlocal count
        result, count = await submit(job), count + 1
        await do(count)
        return result

    monkeypatch.setattr(store.retention, "_submit", submit_and_do)


async def test_forks_and_links_read_the_same_after_each_step(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_forks(store)
    await store.branches.rewind("h", "m5")
    token = await store.shares.create(new_share("h", owner="ann", now=1.0, expires_at=None, tools=False))
    share = await store.shares.find(token)
    assert share is not None
    whole, copies = await read(store, *FORKS), [0]
    assert all(texts and passages for texts, _, passages in whole.values())

    async def check(_: int) -> None:
        assert await read(store, *FORKS) == whole
        pages = [page async for page in store.messages.pages(share_id=share[0].id)]
        assert [message.id for page in pages for message in page] == [f"m{n}" for n in range(6)]
        assert (await store.history.read("f", "m3", owner="ann")).text == "first 3"
        copies.append(place.query(COPIES)[0][0])

    after_each_step(store, monkeypatch, check)
    export = store.messages.pages(session_id="g")
    exported = list(await anext(export))
    assert await store.session_deletion.delete("s", by=ANN)
    exported += [message async for page in export for message in page]
    assert [(message.id, message.text) for message in exported] == whole["g"][0]
    assert max(after - before for before, after in pairwise(copies)) == 20
    assert copies[-1] == SHARED
    assert await store.sessions.get("s") is None
    events = (await store.events.list(EventPosition(), session_id="s")).events
    assert [event.name for event in events] == ["session.deleted"]


@pytest.mark.parametrize("step", rows(AFTER, quick=3))
async def test_a_deletion_that_a_crash_cuts_off_is_finished_and_was_told(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    await make_forks(store)
    whole = await read(store, *FORKS)

    async def crash(number: int) -> None:
        if number == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        after_each_step(store, patched, crash)
        with pytest.raises(KeyboardInterrupt):
            await store.session_deletion.delete("s", by=ANN)
    events = (await store.events.list(EventPosition(), session_id="s")).events
    assert events[-1].name == "session.deleted"
    assert await read(store, *FORKS) == whole
    assert await store.session_deletion.delete("s") is False
    assert {each.id for each in await store.sessions.list("ann")} == set(FORKS)
    assert await store.sessions.get_own("s", owner="ann") is None
    await store.retention.purge({})
    assert await read(store, *FORKS) == whole
    assert place.query(COPIES) == [(SHARED,)]
    await store.sessions.create(session())
    assert await read(store, "s") == {"s": ([], {}, [])}
    for id in ("s", *FORKS):
        assert await store.session_deletion.delete(id)
    assert [row for table in TABLES for row in place.query(f"SELECT * FROM {table}")] == []


@pytest.mark.parametrize("step", rows(AFTER, quick=3))
async def test_forks_change_and_the_id_is_used_while_a_session_is_deleted(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    await make_forks(store)
    whole = await read(store, "f", "h")

    async def change(number: int) -> None:
        if number != step:
            return
        monkeypatch.undo()  # what follows goes through its own steps
        assert await store.session_deletion.delete("g")
        await fork(store, "m22", source="f", id="new")
        await store.branches.rewind("h", "m7")
        with pytest.raises(NotFound):
            await store.branches.fork("s", "m3", fork=session("x"), last=user("m3"))
        await store.session_deletion.make_room("s", lambda: store.sessions.create(session()))
        await store.messages.import_messages("s", messages("z", "third"), start=0)

    after_each_step(store, monkeypatch, change)
    assert await store.session_deletion.delete("s", by=ANN)
    assert (await read(store, "f"))["f"] == whole["f"]
    assert [each.id for each in await store.messages.list("new")] == [f"m{n}" for n in range(23)]
    assert [each.id for each in await store.messages.list("h")] == [f"m{n}" for n in range(8)]
    assert [each.id for each in await store.messages.list("s")] == [f"z{n}" for n in range(MESSAGES)]
    for id in ("s", "f", "h", "new"):
        assert await store.session_deletion.delete(id)
    assert [row for table in TABLES for row in place.query(f"SELECT * FROM {table}")] == []


async def test_an_id_is_used_again_also_when_its_deletion_ends_just_after_it_was_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_forks(store)

    async def create() -> None:
        try:
            await store.sessions.create(session())
        except Conflict:
            assert await store.session_deletion.finish("s")
            raise

    async def use_again(number: int) -> None:
        if number == 1:
            monkeypatch.undo()  # what follows goes through its own steps
            await store.session_deletion.make_room("s", create)

    after_each_step(store, monkeypatch, use_again)
    assert await store.session_deletion.delete("s", by=ANN)
    assert await store.messages.list("s") == []
    with pytest.raises(Conflict):
        await store.session_deletion.make_room("s", lambda: store.sessions.create(session()))


async def test_an_expired_session_keeps_what_forks_share(store: Store, place: Place) -> None:
    await make_forks(store)
    place.query("UPDATE sessions SET updated_at = 1e12 WHERE id <> 's'")
    whole = await read(store, *FORKS)
    assert (await store.retention.purge({"sessions": 100.0}))["sessions"] == 1
    assert await read(store, *FORKS) == whole
    assert place.query(COPIES) == [(SHARED,)]
