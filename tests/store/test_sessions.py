"""Sessions in the store."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.errors import Conflict, NotFound, RunActive
from dragoman.events import Usage
from dragoman.operations.ledger import CallRecord
from dragoman.session_ids import hub_session_id
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.store.conftest import Clock
from tests.store.samples import assistant, converse, run, session, without_host


async def test_a_session_comes_back_as_it_was_created(store: Store) -> None:
    full = session(title="Title – ß", agent="guide", model="up/any", max_steps=7)
    await store.sessions.create(full)
    assert await store.sessions.get("s") == full
    assert await store.sessions.get("other") is None


@pytest.mark.parametrize("stored_id", ["s", hub_session_id("s", owner="ann")])
async def test_an_owners_session_is_found_by_either_id(store: Store, stored_id: str) -> None:
    stored = session(stored_id)
    await store.sessions.create(stored)
    for id in ("s", hub_session_id("s", owner="ann")):
        assert await store.sessions.get_own(id, owner="ann") == stored
        assert await store.sessions.get_own(id, owner="bob") is None


async def test_a_second_session_of_the_same_id_is_a_conflict(store: Store) -> None:
    await store.sessions.create(session())
    with pytest.raises(Conflict, match="'s'"):
        await store.sessions.create(session(owner="bob"))
    assert await store.sessions.get("s") == session()


async def test_sessions_are_listed_by_owner_with_the_last_changed_first(store: Store) -> None:
    for id, owner, at in [("a", "ann", 1.0), ("b", "ann", 3.0), ("c", "bob", 4.0), ("d", "ann", 2.0)]:
        await store.sessions.create(session(id, owner=owner, at=at))
    assert [found.id for found in await store.sessions.list("ann")] == ["b", "d", "a"]
    assert [found.id for found in await store.sessions.list("bob")] == ["c"]
    assert await store.sessions.list("eve") == []


async def test_pages_of_sessions_neither_repeat_nor_skip_any_even_of_the_same_moment(store: Store) -> None:
    for number in range(7):
        await store.sessions.create(session(f"s{number}", at=float(number // 3)))
    pages, last = [], None
    while page := await store.sessions.list("ann", limit=2, before=last):
        pages.append([found.id for found in page])
        last = page[-1].id
    assert pages == [["s6", "s5"], ["s4", "s3"], ["s2", "s1"], ["s0"]]


async def test_a_page_after_an_unknown_session_is_refused(store: Store) -> None:
    with pytest.raises(NotFound, match="'gone'"):
        await store.sessions.list("ann", before="gone")


async def test_changing_a_session_sets_what_is_given_and_its_time(store: Store, clock: Clock) -> None:
    await store.sessions.create(session(title="old", model="up/any"))
    changed = await store.sessions.update("s", title="new", model=None)
    assert changed == msgspec.structs.replace(session(), title="new", updated_at=clock.now)
    assert await store.sessions.get("s") == changed


async def test_changing_a_session_that_is_not_there_or_a_field_that_may_not_is_refused(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.sessions.update("s", title="new")
    await store.sessions.create(session())
    with pytest.raises(TypeError, match="'owner'"):
        await store.sessions.update("s", owner="eve")


async def test_deleting_a_session_takes_messages_runs_and_calls_but_leaves_usage(store: Store) -> None:
    await converse(store, "why?")
    call = CallRecord(
        id="c", operation="a.b", effect="read", owner="ann", input={}, input_hash="h", idempotency_key="k",
        started_at=1.0, run_id="s-r0", session_id="s",
    )  # fmt: skip
    await store.calls.record_start(call)
    used = UsageRecord(
        id="u", owner="ann", status="finished", started_at=1.0, session_id="s", tokens=Usage(3)
    )
    await store.usage.add(used)
    assert await store.session_deletion.delete("s") is True
    assert await store.session_deletion.delete("s") is False
    assert await store.messages.list("s") == []
    assert await store.runs.list("s") == []
    assert await store.calls.list_for_run("s-r0") == []
    assert (await store.usage.totals(session_id="s")).tokens == Usage(3)
    await converse(store, "again?")
    assert len(await store.messages.list("s")) == 2


async def test_a_session_that_is_answering_is_not_deleted(store: Store) -> None:
    await store.runs.create(run(), session=session(), assistant=assistant())
    with pytest.raises(RunActive):
        await store.session_deletion.delete("s")
    assert without_host(await store.runs.get_active("s")) == run()
