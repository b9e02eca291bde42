"""The interface of stream encoders: batches of events to bytes for one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dragoman.events import Event


class StreamEncoder(Protocol):
    """Encodes the events of one response. Pure; may keep state between batches."""

    headers: Mapping[str, str]

    def encode(self, batch: Sequence[Event]) -> bytes:
        """Return the frames for a batch; empty if the protocol has none for it."""
        ...

    def end(self) -> bytes:
        """Return the frames that end the response."""
        ...


SSE_HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "connection": "keep-alive",
    "x-accel-buffering": "no",
}
KEEP_ALIVE = b": keep-alive\n\n"
