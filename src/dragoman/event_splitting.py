"""Cut batches of events so that none has more than the event loop folds, encodes and sends at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from dragoman import events as e
from dragoman.spilled_text import TextRange


class DeltaOnDisk(NamedTuple):
    """A delta of a text whose characters are read on demand."""

    delta: type[e.TextDelta | e.ReasoningDelta]
    block_id: str
    text: TextRange

    def read(self) -> e.Event:
        """Return the delta. Raises OSError."""
        return self.delta(self.block_id, self.text.read())


CompactEvent: TypeAlias = e.Event | DeltaOnDisk
T = TypeVar("T", bound=CompactEvent)
MAX_EVENTS = 500  # of a batch; some 30 µs each


def split_events(events: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the events in batches of at most `MAX_EVENTS`, with at most `size` characters of deltas.

    A longer delta is cut.
    """
    batch: list[T] = []
    total = 0
    for event in events:
        length = delta_length(event)
        if (total and total + length > size) or len(batch) >= MAX_EVENTS:
            yield batch
            batch, total = [], 0
        if length <= size:
            batch.append(event)
            total += length
            continue
        for start in range(0, length, size):
            yield [*batch, cast("T", cut_delta(event, start, size=size))]
            batch = []
    if batch:
        yield batch


def delta_length(event: CompactEvent) -> int:
    """Return the number of characters of a delta; 0 for any other event."""
    match event:
        case e.TextDelta(delta=text) | e.ReasoningDelta(delta=text) | e.ToolInputDelta(input_text_delta=text):
            return len(text)
        case DeltaOnDisk(text=where):
            return where.end - where.start
        case _:
            return 0


def cut_delta(event: CompactEvent, start: int, *, size: int) -> CompactEvent:
    """Return the delta with `size` characters of its text from `start` on."""
    match event:
        case e.TextDelta(delta=text) | e.ReasoningDelta(delta=text):
            return replace(event, delta=text[start : start + size])
        case e.ToolInputDelta(input_text_delta=text):
            return replace(event, input_text_delta=text[start : start + size])
        case DeltaOnDisk(text=where):
            first = where.start + start
            return event._replace(text=TextRange(where.spilled, first, min(where.end, first + size)))
        case _:
            return event
