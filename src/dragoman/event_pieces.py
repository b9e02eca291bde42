"""Cut batches of events so that none has more text than the event loop folds, encodes and sends at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from dragoman import events as e
from dragoman.events import Event


def split_events(events: Iterable[Event], size: int) -> Iterator[list[Event]]:
    """Yield the events in batches with at most `size` characters of deltas; a longer delta is cut."""
    batch: list[Event] = []
    total = 0
    for event in events:
        length = delta_length(event)
        if total and total + length > size:
            yield batch
            batch, total = [], 0
        if length <= size:
            batch.append(event)
            total += length
            continue
        for start in range(0, length, size):
            yield [*batch, cut_delta(event, start, size=size)]
            batch = []
    if batch:
        yield batch


def delta_length(event: Event) -> int:
    """Return the number of characters of a delta; 0 for any other event."""
    match event:
        case e.TextDelta(delta=text) | e.ReasoningDelta(delta=text) | e.ToolInputDelta(input_text_delta=text):
            return len(text)
        case _:
            return 0


def cut_delta(event: Event, start: int, *, size: int) -> Event:
    """Return the delta with `size` characters of its text from `start` on."""
    match event:
        case e.TextDelta(delta=text) | e.ReasoningDelta(delta=text):
            return replace(event, delta=text[start : start + size])
        case e.ToolInputDelta(input_text_delta=text):
            return replace(event, input_text_delta=text[start : start + size])
        case _:
            return event
