"""Forks of sessions, and the branches that edits and new answers make."""

from __future__ import annotations

import pytest

from dragoman.errors import Conflict, NotFound, RunActive
from dragoman.messages import Message
from dragoman.store.connection import DatabaseConnection, Row
from dragoman.store.sessions.branches import Siblings
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from tests.store.samples import FINISHED, assistant, converse, run, session, text, user

EMPTIED = ("sessions", "messages", "parts", "branches")


async def listed(store: Store, id: str = "s") -> str:
    return " ".join(f"{message.id}:{message.text}" for message in await store.messages.list(id))


async def fork(store: Store, message_id: str, *, source: str = "s", id: str = "f") -> None:
    last = None
    while last is None:  # what it shares moves when its session is deleted
        place = await store.branches.find(source, message_id)
        last = await store.messages.get(place.session_id, place.id)
    await store.branches.fork(source, message_id, fork=session(id), last=last)


async def ask(
    store: Store, question: Message, answer: Message, *, session_id: str = "s", drop_from: str | None = None
) -> None:
    """A run that is begun and has ended."""
    id = f"{session_id}-{answer.id}"
    begun = run(id, session_id=session_id, message_id=answer.id)
    stored = await store.sessions.get(session_id)
    await store.runs.create(begun, session=stored, user=question, assistant=answer, drop_from=drop_from)
    await store.runs.finish(id, FINISHED)


async def found(store: Store, word: str, *, session_id: str | None = None) -> list[str]:
    result = await store.history.search(word, owner="ann", session_id=session_id)
    return sorted(f"{each.session_id}/{each.message_id}" for each in result.passages)


async def test_a_fork_shares_what_is_before_and_goes_on_by_itself(store: Store) -> None:
    await converse(store, "one?", "two?", "three?")
    await fork(store, "a1")
    before = await listed(store)
    assert await listed(store, "f") == "u0:one? a0:yes u1:two? a1:yes"
    await ask(store, user("v", "else?"), assistant("b", "no"), session_id="f")
    assert await listed(store, "f") == "u0:one? a0:yes u1:two? a1:yes v:else? b:no"
    assert await listed(store) == before
    await ask(store, user("u1", "changed?"), assistant("c", "hm"), drop_from="u1")
    assert await listed(store) == "u0:one? a0:yes u1:changed? c:hm"
    assert await listed(store, "f") == "u0:one? a0:yes u1:two? a1:yes v:else? b:no"


async def test_a_fork_of_a_fork_and_of_the_first_message(store: Store) -> None:
    await converse(store, "one?", "two?")
    await fork(store, "u1")
    await ask(store, user("v", "else?"), assistant("b", "no"), session_id="f")
    await fork(store, "b", source="f", id="g")
    await fork(store, "a0", source="g", id="h")
    await fork(store, "u0", source="h", id="i")
    assert await listed(store, "g") == "u0:one? a0:yes u1:two? v:else? b:no"
    assert await listed(store, "h") == "u0:one? a0:yes"
    assert await listed(store, "i") == "u0:one?"


async def test_edits_and_new_answers_keep_the_earlier_versions_as_siblings(store: Store) -> None:
    await converse(store, "one?", "two?")
    await store.runs.create(run("again", message_id="b"), assistant=assistant("b", "no"), drop_from="a1")
    await store.runs.finish("again", FINISHED)
    assert await listed(store) == "u0:one? a0:yes u1:two? b:no"
    assert await store.branches.siblings("s") == {"b": Siblings(("a1", "b"), 1)}
    await ask(store, user("u0", "uno?"), assistant("c", "si"), drop_from="u0")
    assert await listed(store) == "u0:uno? c:si"
    assert await store.branches.siblings("s") == {"u0": Siblings(("u0~1", "u0"), 1)}
    await store.branches.switch("s", "u0~1")
    assert await listed(store) == "u0:one? a0:yes u1:two? b:no"
    assert await store.branches.siblings("s") == {
        "u0": Siblings(("u0", "u0~2"), 0),
        "b": Siblings(("a1", "b"), 1),
    }
    await store.branches.switch("s", "a1")
    assert await listed(store) == "u0:one? a0:yes u1:two? a1:yes"
    await ask(store, user("u2", "three?"), assistant("d", "yo"))
    assert await listed(store) == "u0:one? a0:yes u1:two? a1:yes u2:three? d:yo"
    await store.branches.switch("s", "b")
    await store.branches.switch("s", "a1")
    assert await listed(store) == "u0:one? a0:yes u1:two? a1:yes u2:three? d:yo"
    await ask(store, user("u0", "tres?"), assistant("e", "si"), drop_from="u0")
    assert await store.branches.siblings("s") == {"u0": Siblings(("u0~1", "u0~2", "u0"), 2)}
    await store.branches.switch("s", "u0~2")
    assert await listed(store) == "u0:uno? c:si"


async def test_a_rewound_session_goes_on_from_there_and_can_be_brought_back(store: Store) -> None:
    await converse(store, "one?", "two?", "three?")
    assert await store.branches.rewind("s", "a2") is None
    assert await store.branches.rewind("s", "a0") == "a2"
    assert await listed(store) == "u0:one? a0:yes"
    assert await store.branches.siblings("s") == {}
    await store.branches.switch("s", "a2")
    assert await listed(store) == "u0:one? a0:yes u1:two? a1:yes u2:three? a2:yes"
    await store.branches.rewind("s", "a1")
    await store.branches.rewind("s", "a0")
    await ask(store, user("v", "else?"), assistant("b", "no"))
    assert await listed(store) == "u0:one? a0:yes v:else? b:no"
    assert await store.branches.siblings("s") == {"v": Siblings(("u1", "v"), 1)}
    with pytest.raises(NotFound):
        await store.branches.rewind("s", "a2")
    await store.branches.switch("s", "a2")
    assert await listed(store) == "u0:one? a0:yes u1:two? a1:yes u2:three? a2:yes"


async def test_an_answer_that_is_the_last_again_can_go_on(store: Store) -> None:
    await converse(store, "one?", "two?")
    await store.branches.rewind("s", "a0")
    await store.runs.create(run("on", message_id="a0"), assistant=assistant("a0", "yes", "and"))
    await store.runs.finish("on", FINISHED)
    assert await listed(store) == "u0:one? a0:yesand"
    with pytest.raises(Conflict):
        await store.runs.create(run("off", message_id="a1"), assistant=assistant("a1", "yes"))


async def test_a_fork_is_edited_in_what_it_shares(store: Store) -> None:
    await converse(store, "one?", "two?", "three?")
    await fork(store, "a1")
    await ask(store, user("u1", "dos?"), assistant("b", "no"), session_id="f", drop_from="u1")
    assert await listed(store, "f") == "u0:one? a0:yes u1:dos? b:no"
    assert await store.branches.siblings("f") == {"u1": Siblings(("u1~1", "u1"), 1)}
    await store.branches.switch("f", "u1~1")
    assert await listed(store, "f") == "u0:one? a0:yes u1:two? a1:yes"
    await store.branches.rewind("f", "u0")
    assert await listed(store, "f") == "u0:one?"
    await store.branches.switch("f", "b")
    assert await listed(store, "f") == "u0:one? a0:yes u1:dos? b:no"
    assert await store.branches.siblings("s") == {}


async def test_no_branch_changes_while_a_run_is_active(store: Store) -> None:
    await converse(store, "one?", "two?")
    await store.runs.create(run("now", message_id="b"), user=user("v", "more?"), assistant=assistant("b"))
    for change in (store.branches.rewind("s", "a0"), store.branches.switch("s", "zz")):
        with pytest.raises(RunActive):
            await change
    with pytest.raises(RunActive):
        await fork(store, "b")
    assert await store.sessions.get("f") is None
    await fork(store, "v")
    assert await listed(store, "f") == "u0:one? a0:yes u1:two? a1:yes v:more?"


async def test_what_does_not_exist_cannot_be_forked_or_switched_to(store: Store) -> None:
    await converse(store, "one?")
    for change in (
        store.branches.find("s", "zz"),
        store.branches.switch("s", "zz"),
        store.branches.rewind("x", "u0"),
    ):
        with pytest.raises(NotFound):
            await change
    with pytest.raises(Conflict, match="already exists"):
        await fork(store, "a0", id="s")


async def test_a_fork_outlives_its_source_and_its_id_is_free_again(store: Store) -> None:
    await converse(store, "one?", "two?", "three?")
    await store.branches.rewind("s", "a0")
    await ask(store, user("v", "else?"), assistant("b", "no"))
    await fork(store, "b")
    await fork(store, "a2", id="g")
    await fork(store, "v", source="f", id="h")
    whole = {id: await listed(store, id) for id in "fgh"}
    await store.session_deletion.delete("s")
    assert {id: await listed(store, id) for id in "fgh"} == whole
    assert {each.id for each in await store.sessions.list("ann")} == {"f", "g", "h"}
    await store.sessions.create(session("s"))
    assert await listed(store) == ""
    await store.session_deletion.delete("f")
    assert (await listed(store, "g"), await listed(store, "h")) == (whole["g"], whole["h"])
    await store.session_deletion.delete("h")
    await store.session_deletion.delete("g")
    await store.session_deletion.delete("s")

    def count(connection: DatabaseConnection) -> list[Row]:
        return [row for table in EMPTIED for row in connection.fetch_all(f"SELECT 1 FROM {table}", {})]

    assert await store.database.read(count) == []


async def test_what_a_fork_shares_is_found_also_when_its_source_is_gone(store: Store) -> None:
    await converse(store, "hotel?", "river?", "later?")
    await fork(store, "a1")
    assert await found(store, "hotel") == ["s/u0"]
    assert await found(store, "hotel", session_id="f") == ["f/u0"]
    assert await found(store, "later", session_id="f") == []
    assert await found(store, "yes", session_id="f") == ["f/a0", "f/a1"]
    await store.session_deletion.delete("s")
    assert await found(store, "hotel") == await found(store, "hotel", session_id="f") == ["f/u0"]
    assert await found(store, "later") == []
    message = await store.history.read("f", "u0", owner="ann")
    assert message.text == "hotel?"
    with pytest.raises(NotFound):
        await store.history.read("f", "u0", owner="eve")


async def test_a_search_of_one_session_finds_its_active_branch(store: Store) -> None:
    await converse(store, "hotel?", "river?")
    await ask(store, user("u1", "lake?"), assistant("b", "no"), drop_from="u1")
    assert await found(store, "river") == ["s/u1"]
    assert await found(store, "river", session_id="s") == []
    assert await found(store, "lake", session_id="s") == ["s/u1~2"]
    await store.branches.switch("s", "u1~1")
    assert await found(store, "river", session_id="s") == ["s/u1"]


async def test_retention_deletes_a_session_and_leaves_its_forks_what_they_share(store: Store) -> None:
    await converse(store, "one?", "two?", at=1.0)
    place = await store.branches.find("s", "a1")
    last = await store.messages.get("s", place.id)
    assert last is not None
    new = Session(id="f", owner="ann", created_at=1e12, updated_at=1e12)
    await store.branches.fork("s", "a1", fork=new, last=last)
    assert (await store.retention.purge({"sessions": 100.0}))["sessions"] == 1
    assert await store.sessions.get("s") is None
    assert await listed(store, "f") == "u0:one? a0:yes u1:two? a1:yes"
    assert (await store.retention.purge({"sessions": 100.0}))["sessions"] == 0
    assert await found(store, "one") == ["f/u0"]


async def test_open_texts_of_shared_messages_are_whole(store: Store) -> None:
    await converse(store, "one?", "two?")
    await store.write(store.messages.write_parts_job("s", "a0", changed=[(0, text("yes")), (1, text("sir"))]))
    await fork(store, "a1")
    assert (await store.messages.list("f"))[1] == assistant("a0", "yes", "sir")
