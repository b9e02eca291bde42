"""A stream dialect: batches of events out as bytes for one client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dragoman.events import Event


class StreamEncoder(Protocol):
    """Spells events for one response; pure, may remember what it said before."""

    headers: Mapping[str, str]

    def encode(self, batch: Sequence[Event]) -> bytes:
        """The frames for a batch; empty when the client has no words for it."""
        ...

    def end(self) -> bytes:
        """The frames that close the response."""
        ...


SSE_HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "connection": "keep-alive",
    "x-accel-buffering": "no",
}
KEEP_ALIVE = b": keep-alive\n\n"
DONE_FRAME = b"data: [DONE]\n\n"
