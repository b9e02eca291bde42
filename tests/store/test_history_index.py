"""The history index is built lazily, in pieces, and follows edits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from dragoman.errors import StoreError
from dragoman.messages import Message, TextPart
from dragoman.operations.message_search import IndexingProgress
from dragoman.store.sessions import message_index
from dragoman.store.sessions.full_text import CREATE_SQLITE_INDEX
from dragoman.store.store import DATABASE_FILE, Store
from tests.store.places import Place
from tests.store.samples import FINISHED, assistant, converse, run, session, text, user

INDEXED = "SELECT (SELECT count(*) FROM passages), (SELECT count(*) FROM indexed_messages)"
MOST = 100


async def look(store: Store, query: str, *, owner: str = "ann", session_id: str | None = None) -> list[str]:
    """The messages that are found, with their sessions."""
    found = (await store.history.search(query, owner=owner, session_id=session_id, limit=MOST)).passages
    return sorted(f"{passage.session_id}/{passage.message_id}" for passage in found)


def indexed(place: Place) -> tuple[int, int]:
    """How many passages there are, and of how many messages."""
    [(every, heard)] = place.query(INDEXED)
    return every, heard


def hurry(store: Store) -> None:
    """One piece a search, and one part a piece."""
    store.history.indexing_seconds = 0


async def test_who_does_not_search_keeps_no_index(store: Store, place: Place) -> None:
    await converse(store, "why?", "how?")
    await store.flush()
    assert indexed(place) == (0, 0)
    if place.backend == "sqlite":
        names = {name for (name,) in place.query("SELECT name FROM sqlite_master")}
        assert not {name for name in names if name.startswith(("passage_index", "passages_"))}


async def test_a_search_indexes_what_its_owner_said_and_no_more(store: Store, place: Place) -> None:
    for owner in ("ann", "bob"):
        begun = run(owner, session_id=owner)
        await store.runs.create(begun, session=session(owner, owner=owner), assistant=assistant("a", "x"))
        await store.runs.finish(owner, FINISHED)
    assert await look(store, "x") == ["ann/a"]
    assert indexed(place) == (1, 1)


async def test_what_a_run_has_said_so_far_is_found_and_what_it_says_then(store: Store) -> None:
    await store.runs.create(run(), session=session(), user=user("u", "ask"), assistant=assistant())

    async def say(*texts: str, count: int | None = None) -> None:
        changed = [(position, text(each)) for position, each in enumerate(texts)]
        await store.write(store.messages.write_parts_job("s", "a", changed=changed, count=count))

    for texts in (["one"], ["one", "two"], ["uno", "due", "tre"]):
        await say(*texts)
        assert [await look(store, each) for each in texts] == [["s/a"]] * len(texts)
    assert await look(store, "one") == await look(store, "two") == []
    await say("uno", count=1)
    assert [await look(store, word) for word in ("uno", "due")] == [["s/a"], []]
    last = store.messages.write_parts_job("s", "a", changed=[(1, text("last words"))])
    await store.runs.finish("r", FINISHED, extra_job=last)
    assert await look(store, "last") == ["s/a"]


async def test_an_answer_that_goes_on_in_another_run_is_found_whole(store: Store) -> None:
    await converse(store, "why?")
    assert await look(store, "yes") == ["s/a0"]
    await store.runs.create(run("again", message_id="a0", at=2.0), assistant=assistant("a0"))
    await store.write(store.messages.write_parts_job("s", "a0", changed=[(0, text("well")), (1, text("no"))]))
    assert [await look(store, word) for word in ("yes", "well", "no")] == [[], ["s/a0"], ["s/a0"]]
    await store.runs.finish("again", FINISHED)
    assert await look(store, "well") == ["s/a0"]


async def test_a_message_that_takes_anothers_id_and_place_is_found_as_well(store: Store) -> None:
    await converse(store, "first?", "second?")
    assert await look(store, "second") == ["s/u1"]
    again = run("again", message_id="b1", at=2.0)
    await store.runs.create(again, drop_from="u1", user=user("u1", "third?"), assistant=assistant("b1", "no"))
    await store.runs.finish("again", FINISHED)
    found = [await look(store, word, session_id="s") for word in ("second", "third", "no")]
    assert found == [[], ["s/u1~2"], ["s/b1"]]
    assert await look(store, "second") == ["s/u1"]


async def test_an_earlier_answer_that_is_the_last_again_and_changes_is_found_as_it_is(store: Store) -> None:
    await converse(store, "first?", "second?")
    assert await look(store, "yes") == ["s/a0", "s/a1"]
    again = run("again", message_id="a0", at=2.0)
    await store.runs.create(again, drop_from="u1", assistant=assistant("a0", "changed"))
    await store.runs.finish("again", FINISHED)
    assert [await look(store, word) for word in ("yes", "changed")] == [["s/a1"], ["s/a0"]]
    assert await look(store, "yes", session_id="s") == []


async def test_a_search_that_takes_too_long_answers_with_what_there_is_and_the_next_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_index, "MAX_BATCH_SECONDS", 0)
    hurry(store)
    for at in ("old", "new"):
        begun = run(at, session_id=at, at=float(at == "new"))
        message = Message("m", "user", tuple(TextPart(f"hotel {number}") for number in range(3)))
        await store.runs.create(begun, session=session(at), assistant=message)
        await store.runs.finish(at, FINISHED)
    results = [await store.history.search("hotel", owner="ann") for _ in range(10)]
    steps = [found.indexing for found in results]
    assert steps == [*[IndexingProgress(0, 2)] * 3, *[IndexingProgress(1, 1)] * 5, None, None]
    assert [passage.session_id for passage in results[0].passages] == ["new"]
    assert len(results[-1].passages) == 2


async def test_many_who_search_at_once_all_find_what_is_theirs(store: Store) -> None:
    owners = [f"o{number}" for number in range(20)]
    for owner in owners:
        await store.runs.create(
            run(owner, session_id=owner),
            session=session(owner, owner=owner),
            assistant=assistant("a", *(f"hotel {owner} {number}" for number in range(20))),
        )
        await store.runs.finish(owner, FINISHED)
    found = await asyncio.gather(*(look(store, "hotel", owner=owner) for owner in owners * 3))
    assert found == [[f"{owner}/a"] for owner in owners * 3]


async def test_whatever_is_written_beside_it_the_index_is_right_in_the_end(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_index, "MAX_BATCH_SECONDS", 0)
    hurry(store)

    async def talk(seed: int) -> None:
        random, at = Random(seed), f"s{seed}"
        for number in range(12):
            await turn(store, at, number, random=random)

    async def search(query: str) -> None:
        for _ in range(40):
            await store.history.search(query, owner="ann")

    await asyncio.gather(*(talk(seed) for seed in range(4)), *(search(query) for query in ("w1", "w2")))
    store.history.indexing_seconds = 60
    sessions = [f"s{seed}" for seed in range(4)]
    stored = {f"{at}/{message.id}": message for at in sessions for message in await store.messages.list(at)}
    for word in (f"w{number:02}" for number in range(12)):
        expected = sorted(id for id, message in stored.items() if word in words(message))
        assert sorted([id for at in sessions for id in await look(store, word, session_id=at)]) == expected, (
            word
        )
    place.check_index()


async def turn(store: Store, at: str, number: int, *, random: Random) -> None:
    """A turn that adds to the session, or says something else in the place of an earlier one's end."""
    id, earlier = f"a{number}", f"ua{random.randrange(number + 1)}"
    there = [message.id for message in await store.messages.list(at)]
    begun = run(f"{at}-{number}", session_id=at, message_id=id)
    drop = earlier if earlier in there else None
    message = user(f"u{id}", f"w{random.randrange(12):02}")
    await store.runs.create(begun, session=session(at), user=message, drop_from=drop, assistant=assistant(id))
    for _ in range(3):
        changed = [
            (position, text(f"w{random.randrange(12):02}")) for position in range(random.randrange(1, 4))
        ]
        await store.write(store.messages.write_parts_job(at, id, changed=changed, count=len(changed)))
    await store.runs.finish(begun.id, FINISHED)


def words(message: Message) -> Sequence[str]:
    return [part.text for part in message.parts if isinstance(part, TextPart)]


async def test_a_sqlite_without_full_text_search_keeps_all_else_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.store.database.COMPILED", {})  # what other stores made is kept
    monkeypatch.setattr(
        message_index,
        "CREATE_SQLITE_INDEX",
        [sql.replace("fts5(", "fts_none(") for sql in CREATE_SQLITE_INDEX],
    )
    async with await Store.open(tmp_path) as store:
        await converse(store, "why?")
        for _ in range(2):
            with pytest.raises(StoreError, match="no such module") as refused:
                await store.history.search("why", owner="ann")
            assert "FTS5" in str(refused.value.hint)
        assert (await store.history.read("s", "u0", owner="ann")).text == "why?"
        assert await store.session_deletion.delete("s")


async def test_a_database_that_took_the_place_of_another_is_searched_as_well(tmp_path: Path) -> None:
    async with await Store.open(tmp_path / "other") as other:
        await converse(other, "elsewhere?")
    async with await Store.open(tmp_path / "hub", tolerate_outages=True) as store:
        await converse(store, "here?")
        assert await look(store, "here") == ["s/u0"]
        for journal in (tmp_path / "hub").glob(f"{DATABASE_FILE}-*"):
            journal.unlink()
        (tmp_path / "other" / DATABASE_FILE).replace(tmp_path / "hub" / DATABASE_FILE)
        with pytest.raises(StoreError):
            await store.session_deletion.delete("s")
        up = asyncio.Event()
        store.database.on_recovery(up.set)
        await asyncio.wait_for(up.wait(), 120)
        assert await look(store, "elsewhere") == ["s/u0"]
