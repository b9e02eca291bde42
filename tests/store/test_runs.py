"""Runs in the store: begun whole or not at all, one at a time in a session."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from dragoman.errors import Conflict, DragomanError, Forbidden, NotFound, RunActive
from dragoman.events import Usage
from dragoman.messages import Message, TextPart
from dragoman.store.sessions.run_ends import RunEnding
from dragoman.store.store import Store
from tests.store.conftest import Clock
from tests.store.samples import FINISHED, assistant, converse, run, session, user, without_host


class RecordingConnection:
    """A connection that notes the statements that a job runs."""

    def __init__(self, connection: Any, statements: list[str]) -> None:
        self._connection = connection
        self._statements = statements

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._connection, name)

        def recorded(*values: Any) -> Any:
            self._statements.append(" ".join(values[0].split()))
            return method(*values)

        return recorded


async def test_beginning_a_run_writes_session_messages_and_run(store: Store) -> None:
    await store.runs.create(run(at=5.0), session=session(), user=user("u", "why?"), assistant=assistant())
    assert without_host(await store.runs.get("r")) == run(at=5.0)
    assert without_host(await store.runs.get_active("s")) == run(at=5.0)
    assert await store.messages.list("s") == [user("u", "why?"), assistant()]
    assert await store.sessions.get("s") == msgspec.structs.replace(session(), updated_at=5.0)


async def test_runs_are_in_the_order_in_which_they_began_also_by_clocks_that_differ(
    store: Store, clock: Clock
) -> None:
    """Two hosts answer in turn; the clock of the first is five minutes ahead."""
    await store.sessions.create(session())
    ids = [f"r{number}" for number in range(6)]
    for number, id in enumerate(ids):
        clock.now = 1_000.0 + number + (300.0 if number % 2 == 0 else 0.0)
        if number == 3:
            await store.sessions.update("s", title="renamed")
        await store.runs.create(
            run(id, message_id=f"a{number}", at=clock.now),
            session=await store.sessions.get("s"),
            assistant=assistant(f"a{number}"),
        )
        await store.runs.finish(id, FINISHED)
        last = await store.runs.get_last("s")
        assert last is not None
        assert last.id == id
    assert [each.id for each in await store.runs.list("s")] == ids


async def test_the_session_of_a_first_run_is_written_once_and_not_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    submit = store.database.submit

    def submit_recorded(job: Any, **options: Any) -> asyncio.Future[Any]:
        return submit(lambda connection: job(RecordingConnection(connection, statements)), **options)

    monkeypatch.setattr(store.database, "submit", submit_recorded)
    await store.runs.create(run(at=5.0), session=session(), user=user("u", "why?"), assistant=assistant())
    of_sessions = [sql.split()[0] for sql in statements if re.search(r"(INTO|UPDATE|FROM) sessions\b", sql)]
    assert of_sessions == ["INSERT", "INSERT", "INSERT"]  # the session, and its owner in two events
    statements.clear()
    await store.runs.finish("r", RunEnding(status="finished", finished_at=6.0))
    touched = msgspec.structs.replace(session(), updated_at=5.0)
    await store.runs.create(run("r2", message_id="a2"), session=touched, assistant=assistant("a2"))
    assert any(sql.startswith("UPDATE sessions") for sql in statements)


async def test_a_session_that_is_there_is_used_as_it_is(store: Store) -> None:
    await store.sessions.create(session(title="mine"))
    await store.runs.create(run(), session=session(title="other"), assistant=assistant())
    assert await store.sessions.get("s") == session(title="mine")


async def test_of_fifty_runs_begun_at_once_in_one_session_one_begins(store: Store) -> None:
    beginnings = [
        store.runs.create(
            run(f"r{number}", message_id=f"a{number}"),
            session=session(),
            user=user(f"u{number}", "why?"),
            assistant=assistant(f"a{number}"),
        )
        for number in range(50)
    ]
    results = await asyncio.gather(*beginnings, return_exceptions=True)
    refused = [result for result in results if isinstance(result, RunActive)]
    winner = results.index(None)
    assert len(refused) == 49
    assert {error.run_id for error in refused} == {f"r{winner}"}
    assert await store.messages.list("s") == [user(f"u{winner}", "why?"), assistant(f"a{winner}")]
    assert [found.id for found in await store.runs.list("s")] == [f"r{winner}"]


async def test_runs_of_different_sessions_do_not_stand_in_each_others_way(store: Store) -> None:
    ids = [f"s{number}" for number in range(20)]
    beginnings = [
        store.runs.create(run(f"r-{id}", session_id=id), session=session(id), assistant=assistant())
        for id in ids
    ]
    await asyncio.gather(*beginnings)
    assert {found.session_id for found in await store.runs.list_running()} == set(ids)


async def test_a_run_that_has_ended_makes_room_for_the_next(store: Store) -> None:
    await store.runs.create(run("r1"), session=session(), assistant=assistant("a1"))
    assert await store.runs.finish("r1", FINISHED) is True
    await store.runs.create(run("r2", message_id="a2"), assistant=assistant("a2"))
    assert [found.id for found in await store.runs.list("s")] == ["r1", "r2"]


async def test_how_a_run_ended_is_kept_with_its_usage(store: Store) -> None:
    ending = RunEnding(
        status="failed", finished_at=7.5, finish_reason="error", error="the model is gone", steps=3,
        usage=Usage(input_tokens=10, cached_input_tokens=0, estimated=True), cost=0.25,
    )  # fmt: skip
    await store.runs.create(run(), session=session(), assistant=assistant())
    await store.runs.finish("r", ending)
    expected = msgspec.structs.replace(run(), **msgspec.structs.asdict(ending))
    assert without_host(await store.runs.get("r")) == expected
    assert await store.runs.get_active("s") is None


async def test_a_run_ends_once(store: Store) -> None:
    await store.runs.create(run(), session=session(), assistant=assistant())
    assert await store.runs.finish("r", FINISHED) is True
    assert await store.runs.finish("r", RunEnding(status="interrupted", finished_at=99.0)) is False
    found = await store.runs.get("r")
    assert found is not None
    assert (found.status, found.finished_at) == ("finished", 9.0)


async def test_runs_that_a_crash_cut_off_are_found(store: Store) -> None:
    await converse(store, "why?")
    await store.runs.create(run("cut", session_id="s2"), session=session("s2"), assistant=assistant())
    assert [found.id for found in await store.runs.list_running()] == ["cut"]


@pytest.mark.parametrize("start", ["u1", 2])
async def test_messages_are_dropped_from_an_id_or_a_position_on(store: Store, start: int | str) -> None:
    await converse(store, "one?", "two?", "three?")
    await store.runs.create(
        run("r", message_id="b"), user=user("u1", "edited"), assistant=assistant("b"), drop_from=start
    )
    assert await store.messages.list("s") == [
        user("u0", "one?"), assistant("a0", "yes"), user("u1", "edited"), assistant("b"),
    ]  # fmt: skip


async def test_a_message_that_goes_on_is_kept_where_it_stands(store: Store) -> None:
    await converse(store, "why?")
    await store.runs.create(run("r", message_id="a0"), assistant=assistant("a0"))
    assert await store.messages.get("s", "a0") == assistant("a0", "yes")


async def test_a_message_that_goes_on_with_parts_gets_them(store: Store) -> None:
    await converse(store, "why?")
    answered = Message(id="a0", role="assistant", parts=(TextPart(text="so"),), metadata={"n": 1})
    await store.runs.create(run("r", message_id="a0"), assistant=answered)
    assert await store.messages.list("s") == [user("u0", "why?"), answered]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"assistant": assistant("b"), "drop_from": "gone"}, NotFound),
        ({"assistant": assistant("b"), "user": user("u0", "again")}, Conflict),
        ({"assistant": assistant("a0")}, Conflict),
        ({"assistant": assistant("b"), "session": session(owner="eve")}, Forbidden),
    ],
    ids=["unknown message", "id is taken", "not the last", "of another owner"],
)
async def test_a_run_that_cannot_begin_leaves_no_trace(
    store: Store, arguments: dict[str, Any], error: type[DragomanError]
) -> None:
    await converse(store, "one?", "two?")
    before = await store.messages.list("s"), await store.runs.list("s"), await store.sessions.get("s")
    with pytest.raises(error):
        await store.runs.create(run("r", message_id="b", at=50.0), **arguments)
    after = await store.messages.list("s"), await store.runs.list("s"), await store.sessions.get("s")
    assert after == before


async def test_a_run_needs_a_session(store: Store) -> None:
    with pytest.raises(NotFound, match="'s'"):
        await store.runs.create(run(), assistant=assistant())
