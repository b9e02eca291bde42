"""Messages and parts in the store."""

from __future__ import annotations

import pytest

from dragoman import messages as m
from dragoman.errors import NotFound
from dragoman.store.store import Store
from tests.store.samples import FINISHED, assistant, converse, run, session, text, user

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
    await store.sessions.delete("s")
    with pytest.raises(NotFound):
        await store.write(store.messages.write_parts_job("s", "a0", changed=[(1, text("late"))]))


async def test_the_last_parts_are_written_with_the_runs_end(store: Store) -> None:
    await store.runs.create(run(), session=session(), assistant=assistant())
    last = store.messages.write_parts_job("s", "a", changed=[(0, text("end"))], count=1)
    assert await store.runs.finish("r", FINISHED, extra_job=last) is True
    assert await store.messages.get("s", "a") == assistant("a", "end")
