"""A chat request is skimmed: however it is cut, the new message and all around it stay; old ones may go."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import TooLarge
from dragoman.wire.ui.history_skimmer import HistorySkimmer

TEXTS = st.text(alphabet='"\\[]{},:ab\n☃', max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers(-9, 9) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
REST = st.dictionaries(TEXTS.filter(lambda key: key != "messages"), VALUES, max_size=3)


def skimmed(raw: bytes, *, limit: int, size: int = 7) -> Any:
    """The body as a value after it was fed in pieces of `size` bytes."""
    skimmer = HistorySkimmer(limit)
    for at in range(0, len(raw), size):
        skimmer.feed(raw[at : at + size])
    return msgspec.json.decode(skimmer.body())


@given(REST, st.lists(VALUES, max_size=5), REST, st.integers(1, 20), st.booleans())
def test_what_fits_is_kept_as_it_is_however_it_is_cut(
    before: dict[str, Any], messages: list[Any], after: dict[str, Any], size: int, spaced: bool
) -> None:
    body = {**before, "messages": messages, **after}
    raw = msgspec.json.encode(body)
    raw = msgspec.json.format(raw, indent=2) if spaced else raw
    assert skimmed(raw, limit=1_000_000, size=size) == body


@given(st.lists(VALUES, min_size=1, max_size=8), st.integers(1, 20))
def test_of_too_many_messages_the_last_ones_that_fit_are_kept(messages: list[Any], size: int) -> None:
    wrapped = [{"id": str(number), "parts": message} for number, message in enumerate(messages)]
    raw = msgspec.json.encode({"id": "s", "messages": wrapped, "trigger": "submit-message"})
    limit = max(60, len(msgspec.json.encode(wrapped[-1])))
    body = skimmed(raw, limit=limit, size=size)
    assert (body["id"], body["trigger"]) == ("s", "submit-message")
    count = len(body["messages"])
    assert count >= 1
    assert body["messages"] == wrapped[-count:]


def test_a_long_message_of_the_history_is_skipped_and_a_long_new_one_is_refused() -> None:
    long, short = {"id": "a", "text": "x" * 10_000}, {"id": "b", "text": "y"}
    body = skimmed(msgspec.json.encode({"messages": [short, long, short]}), limit=1_000)
    assert body == {"messages": [short]}
    with pytest.raises(TooLarge, match=r"the last message has more than 1000 bytes"):
        skimmed(msgspec.json.encode({"messages": [short, long]}), limit=1_000)
    with pytest.raises(TooLarge, match=r"without its messages has more than 1000 bytes"):
        skimmed(msgspec.json.encode({"tools": "z" * 2_000, "messages": [short]}), limit=1_000)


def test_what_is_kept_is_bounded_while_a_long_history_goes_by() -> None:
    skimmer = HistorySkimmer(100_000)
    skimmer.feed(b'{"id":"s","messages":[')
    for number in range(300):
        skimmer.feed(b'{"id":"%d","url":"' % number + b"A" * 50_000 + b'"},')
    skimmer.feed(b'{"id":"new"}]}')
    raw = skimmer.body()
    assert len(raw) < 110_000
    assert msgspec.json.decode(raw)["messages"][-1] == {"id": "new"}
