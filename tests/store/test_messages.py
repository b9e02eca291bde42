"""Messages and parts in the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from dragoman import messages as m
from dragoman.errors import NotFound
from dragoman.store.connection import DatabaseConnection, DatabaseJob, Params, Row
from dragoman.store.store import Store
from tests.store.samples import FINISHED, assistant, converse, run, session, text, user
from tests.store.test_branches import ask, fork

EVERY_PART: tuple[m.Part, ...] = (
    m.StepStartPart(),
    m.ReasoningPart(text="hm", state="done", provider_metadata={"up": {"signature": "x"}}),
    m.TextPart(text="null \u0000, quote ', emoji 🜁", state="streaming"),
    m.ToolPart("tool-hub_call", "c1", "output-available", input={"a": [1, None]}, output=None),
    m.ToolPart("dynamic-tool", "c2", "approval-requested", tool_name="x", approval=m.Approval("q")),
    m.FilePart(media_type="image/png", url="data:image/png;base64,AA=="),
    m.SourceUrlPart(source_id="1", url="https://example.org"),
    m.SourceDocumentPart(source_id="2", media_type="text/plain", title="t"),
    m.DataPart(type="data-plot", data={"x": 1.5}, id="d"),
)


async def test_a_message_comes_back_with_every_kind_of_part_and_its_metadata(store: Store) -> None:
    full = m.Message(id="a", role="assistant", parts=EVERY_PART, metadata={"cost": 0.1, "list": [1]})
    await store.runs.create(run(), session=session(), assistant=full)
    assert await store.messages.get("s", "a") == full
    assert await store.messages.list("s") == [full]


async def test_messages_are_listed_in_the_order_in_which_they_were_said(store: Store) -> None:
    await converse(store, "z?", "a?", "m?")
    assert await store.messages.list("s") == [
        user("u0", "z?"),
        assistant("a0", "yes"),
        user("u1", "a?"),
        assistant("a1", "yes"),
        user("u2", "m?"),
        assistant("a2", "yes"),
    ]


async def test_a_message_that_is_not_there_is_none_and_an_unknown_session_is_empty(store: Store) -> None:
    await converse(store, "why?")
    assert await store.messages.get("s", "other") is None
    assert await store.messages.get("other", "u0") is None
    assert await store.messages.list("other") == []


async def test_the_same_message_id_may_stand_in_two_sessions(store: Store) -> None:
    await converse(store, "one?", session_id="s1")
    await converse(store, "two?", session_id="s2")
    assert await store.messages.get("s1", "u0") == user("u0", "one?")
    assert await store.messages.get("s2", "u0") == user("u0", "two?")


async def test_parts_are_added_replaced_and_cut_by_position(store: Store) -> None:
    await store.runs.create(run(), session=session(), assistant=assistant())
    await store.write(
        store.messages.write_parts_job("s", "a", changed=[(0, text("a")), (1, text("b")), (2, text("c"))])
    )
    assert await store.messages.get("s", "a") == assistant("a", "a", "b", "c")
    await store.write(store.messages.write_parts_job("s", "a", changed=[(1, text("B"))], count=2))
    assert await store.messages.get("s", "a") == assistant("a", "a", "B")


async def test_metadata_is_replaced_when_it_is_given_and_else_kept(store: Store) -> None:
    await store.runs.create(run(), session=session(), assistant=assistant())
    await store.write(store.messages.write_parts_job("s", "a", changed=[], metadata=b'{"step":1}'))
    await store.write(store.messages.write_parts_job("s", "a", changed=[(0, text("x"))]))
    found = await store.messages.get("s", "a")
    assert found == m.Message(id="a", role="assistant", parts=(m.TextPart(text="x"),), metadata={"step": 1})


async def test_posted_parts_are_there_after_a_flush_in_the_order_of_posting(store: Store) -> None:
    await store.runs.create(run(), session=session(), assistant=assistant())
    for number in range(100):
        store.enqueue(store.messages.write_parts_job("s", "a", changed=[(0, text(str(number)))]))
    await store.flush()
    assert await store.messages.get("s", "a") == assistant("a", "99")


async def test_parts_of_a_message_that_is_gone_are_refused(store: Store) -> None:
    await converse(store, "why?")
    await store.session_deletion.delete("s")
    with pytest.raises(NotFound):
        await store.write(store.messages.write_parts_job("s", "a0", changed=[(1, text("late"))]))


async def test_the_last_parts_are_written_with_the_runs_end(store: Store) -> None:
    await store.runs.create(run(), session=session(), assistant=assistant())
    last = store.messages.write_parts_job("s", "a", changed=[(0, text("end"))], count=1)
    assert await store.runs.finish("r", FINISHED, extra_job=last) is True
    assert await store.messages.get("s", "a") == assistant("a", "end")


async def test_a_page_of_a_long_session_reads_the_rows_that_it_shows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fork with an edited message, whose messages are those of three branches of two sessions."""
    await store.sessions.create(session())
    imported = [m.Message(f"m{n}", "user", (m.TextPart(f"text {n}"),)) for n in range(1_000)]
    await store.messages.import_messages("s", imported, start=0)
    await fork(store, "m900")
    await ask(store, user("v", "else?"), assistant("b", "no"), session_id="f")
    await ask(store, user("v", "edited?"), assistant("c", "yes"), session_id="f", drop_from="v")
    whole = [message.id for message in await store.messages.list("f")]
    assert (len(whole), whole[-3:]) == (903, ["m900", "v", "c"])
    read, rows = store.database.read, list[int]()

    async def counting_read(query: DatabaseJob[Any]) -> Any:
        def counted(connection: DatabaseConnection) -> Any:
            return query(cast(DatabaseConnection, CountedRows(connection, rows)))

        return await read(counted)

    monkeypatch.setattr(store.database, "read", counting_read)
    for limit in (1, 2, 7, 50):
        before, found = None, list[str]()
        while before is None or found[0] != whole[0]:
            rows.clear()
            page, earlier = await store.messages.last("f", limit=limit, size=10**6, before=before)
            assert len(page) == min(limit, len(whole) - len(found))
            assert earlier == len(whole) - len(found) - len(page)
            assert sum(rows) <= 2 * limit + 12, "two of each message, and those of the branches"
            found = [*(message.id for message in page), *found]
            before = found[0]
            if limit < 50 and len(found) > 20:
                break
        assert found == whole[-len(found) :]
    assert await store.messages.last("f", limit=9, size=10**6, before="m0") == ([], 0)
    assert await store.messages.last("none", limit=9, size=10**6) == ([], 0)
    with pytest.raises(NotFound, match="no message 'm950'"):
        await store.messages.last("f", limit=9, size=10**6, before="m950")


class CountedRows:
    """A connection that notes how many rows its queries return."""

    def __init__(self, connection: DatabaseConnection, rows: list[int]) -> None:
        self._connection = connection
        self._rows = rows

    def fetch_one(self, sql: str, params: Params) -> Row | None:
        self._rows.append(1)
        return self._connection.fetch_one(sql, params)

    def fetch_all(self, sql: str, params: Params) -> Sequence[Row]:
        found = self._connection.fetch_all(sql, params)
        self._rows.append(len(found))
        return found
