"""Tails of long parts: what was appended is read back wherever a message is read, and goes with its part."""

from __future__ import annotations

from typing import Any

from dragoman.messages import TextPart, ToolPart, encode_part
from dragoman.store.connection import DatabaseJob
from dragoman.store.sessions.messages import PartChanges
from dragoman.store.sessions.part_tails import PartTail
from dragoman.store.store import Store
from tests.store.samples import FINISHED, assistant, run, session, user

HEAD = "once "
TAILS = [PartTail(0, 5, "upon "), PartTail(0, 10, "a time in Zanzibar")]
WHOLE = "once upon a time in Zanzibar"


async def begin(store: Store) -> None:
    """A run of the answer "a" of session "s"."""
    await store.runs.create(run(), session=session(), user=user("u", "q"), assistant=assistant("a"))


def write(store: Store, **changes: Any) -> DatabaseJob[None]:
    """A job with these changes of the answer."""
    return store.messages.write_changes_job("s", "a", changes=PartChanges(**changes))


async def write_tailed(store: Store) -> None:
    """A part of three pieces in the answer "a" of session "s"."""
    await begin(store)
    head = [(0, encode_part(TextPart(HEAD, "done")))]
    await store.write(store.messages.write_parts_job("s", "a", changed=head))
    for tail in reversed(TAILS):  # they are read in the order of their text
        await store.write(write(store, tails=[tail]))


async def texts(store: Store) -> list[str]:
    """The texts of the answer's parts."""
    message = await store.messages.get("s", "a")
    assert message is not None
    return [part.text for part in message.parts if isinstance(part, TextPart)]


async def test_a_part_is_read_with_its_tails_by_every_reader(store: Store) -> None:
    await write_tailed(store)
    assert await texts(store) == [WHOLE]
    assert (await store.messages.list("s"))[-1].text == WHOLE
    assert WHOLE in (await store.history.read("s", "a", owner="ann")).text
    await store.runs.finish("r", FINISHED)
    found = await store.history.search("zanzibar", owner="ann")
    assert [passage.message_id for passage in found.passages] == ["a"]


async def test_a_tail_that_is_written_twice_counts_once(store: Store) -> None:
    await write_tailed(store)
    longer = PartTail(0, 10, "a time in Zanzibar, far away")
    await store.write(write(store, tails=[longer]))
    assert await texts(store) == [WHOLE + ", far away"]


async def test_a_part_that_is_written_whole_loses_its_tails_unless_they_are_still_its_text(
    store: Store,
) -> None:
    await write_tailed(store)
    ended = [(0, encode_part(TextPart(HEAD, "done")))]
    await store.write(write(store, changed=ended, tailed=()))
    assert await texts(store) == [WHOLE]
    await store.write(store.messages.write_parts_job("s", "a", changed=ended))
    assert await texts(store) == [HEAD]


async def test_tails_go_with_their_part(store: Store) -> None:
    await write_tailed(store)
    await store.write(store.messages.write_parts_job("s", "a", changed=[], count=0))
    first = [(0, encode_part(TextPart("new")))]
    await store.write(write(store, changed=first, tailed=()))
    assert await texts(store) == ["new"]


async def test_the_arguments_of_a_call_grow_by_tails_too(store: Store) -> None:
    await begin(store)
    call = ToolPart(type="tool-x", tool_call_id="c", state="input-streaming", raw_input='{"a":')
    await store.write(write(store, changed=[(0, encode_part(call))], tails=[PartTail(0, 5, "1}")]))
    message = await store.messages.get("s", "a")
    assert message is not None
    assert [part.raw_input for part in message.tool_calls] == ['{"a":1}']
