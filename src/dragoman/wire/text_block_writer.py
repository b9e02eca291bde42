"""Turn streamed text and reasoning into block events (start, delta, end).

Adjacent text of one block between two calls of `take_events` becomes one delta. Block ids count up within an
answer: text-1, reasoning-1, text-2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from dragoman.events import (
    Event,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
)
from dragoman.json_decoding import is_well_formed, well_formed
from dragoman.messages import ProviderMetadata

BlockKind = Literal["text", "refusal", "reasoning"]

REFUSAL_METADATA: ProviderMetadata = {"openai": {"refusal": True}}


class TextBlockWriter:
    """Collects the events of one answer; at most one block is open.

    `reasoning_metadata` returns the provider metadata for a reasoning block when it ends. `pending_text` is
    the text of the open block since the last event; a caller may append to it what `write` would.
    """

    def __init__(self, reasoning_metadata: Callable[[], ProviderMetadata | None]) -> None:
        self.kind: BlockKind | None = None  # of the open block
        self._reasoning_metadata = reasoning_metadata
        self._events: list[Event] = []
        self.pending_text: list[str] = []
        self._block_id = ""
        self._text_count = 0
        self._reasoning_count = 0
        self._surrogates = SurrogateJoiner()

    def write(self, kind: BlockKind, text: str) -> None:
        """Append text to the open block. A block of another kind is closed first and a new one opened."""
        if kind != self.kind:
            self.open(kind)
        self.pending_text.append(text)

    def open(self, kind: BlockKind) -> None:
        """Open a new block without text."""
        self.close()
        self.kind = kind
        if kind == "reasoning":
            self._reasoning_count += 1
            self._block_id = f"reasoning-{self._reasoning_count}"
            self._events.append(ReasoningStart(self._block_id))
        else:
            self._text_count += 1
            self._block_id = f"text-{self._text_count}"
            self._events.append(TextStart(self._block_id, REFUSAL_METADATA if kind == "refusal" else None))

    def close(self) -> None:
        """Close the open block, if any."""
        if self.kind is None:
            return
        self._flush(last=True)
        if self.kind == "reasoning":
            self._events.append(ReasoningEnd(self._block_id, self._reasoning_metadata()))
        else:
            self._events.append(TextEnd(self._block_id, REFUSAL_METADATA if self.kind == "refusal" else None))
        self.kind = None

    def insert(self, events: Sequence[Event]) -> None:
        """Insert other events after the text written so far."""
        if events:
            self._flush()
            self._events += events

    def extend(self, text: str) -> TextDelta | None:
        """Return the delta by which the open text grows; None unless it is the only event to be taken."""
        if self.kind != "text" or self.pending_text or self._events or self._surrogates.pending:
            return None
        return TextDelta(self._block_id, text)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        if self.pending_text:
            self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self, *, last: bool = False) -> None:
        pieces = self.pending_text
        if not pieces and not (last and self._surrogates.pending):
            return
        text = "".join(pieces)
        if self._surrogates.pending or not text.isascii():
            text = self._surrogates.join(text, last=last)
        self.pending_text = []
        if not text:
            return
        if self.kind == "reasoning":
            self._events.append(ReasoningDelta(self._block_id, text))
        else:
            self._events.append(TextDelta(self._block_id, text))


class SurrogateJoiner:
    """Joins text that was cut inside a surrogate pair.

    Some gateways cut by UTF-16 units and escape each half. A half without its counterpart becomes U+FFFD.
    """

    def __init__(self) -> None:
        self.pending = ""

    def join(self, text: str, *, last: bool = False) -> str:
        """Return the text with the pending half before it; keep back a half at its end unless `last`."""
        if not self.pending and is_well_formed(text):
            return text
        text = self.pending + text
        self.pending = ""
        if not last and "\ud800" <= text[-1:] <= "\udbff":
            text, self.pending = text[:-1], text[-1]
        return well_formed(text)
