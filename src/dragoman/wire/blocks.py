"""Blocks: text and reasoning as they come from a model become blocks that open, grow and close.

Neighbouring pieces of one block that arrive before `take` leave as one delta. Block ids count up within an
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
from dragoman.messages import ProviderMetadata

Kind = Literal["text", "refusal", "reasoning"]

REFUSAL: ProviderMetadata = {"openai": {"refusal": True}}


class Blocks:
    """Writes one answer's blocks, one open at a time, into a list of events.

    `seal` gives the provider metadata of a reasoning block when it ends.
    """

    def __init__(self, seal: Callable[[], ProviderMetadata | None]) -> None:
        self.kind: Kind | None = None  # of the open block
        self.used = False
        self._seal = seal
        self._events: list[Event] = []
        self._pieces: list[str] = []
        self._id = ""
        self._texts = 0
        self._reasonings = 0
        self._seam = Seam()

    def write(self, kind: Kind, piece: str) -> None:
        """Add a piece to the open block; one of another kind is closed and a new one opened first."""
        if kind != self.kind:
            self.open(kind)
        self._pieces.append(piece)

    def open(self, kind: Kind) -> None:
        """Have a new block open, without a piece yet."""
        self.close()
        self.kind = kind
        self.used = True
        if kind == "reasoning":
            self._reasonings += 1
            self._id = f"reasoning-{self._reasonings}"
            self._events.append(ReasoningStart(self._id))
        else:
            self._texts += 1
            self._id = f"text-{self._texts}"
            self._events.append(TextStart(self._id, REFUSAL if kind == "refusal" else None))

    def close(self) -> None:
        """Close the open block, if any."""
        if self.kind is None:
            return
        self._flush(last=True)
        if self.kind == "reasoning":
            self._events.append(ReasoningEnd(self._id, self._seal()))
        else:
            self._events.append(TextEnd(self._id, REFUSAL if self.kind == "refusal" else None))
        self.kind = None

    def add(self, events: Sequence[Event]) -> None:
        """Put other events in their place after what was written so far."""
        if events:
            self._flush()
            self._events += events

    def take(self) -> list[Event]:
        """The events since the last time."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self, *, last: bool = False) -> None:
        pieces = self._pieces
        if not pieces and not (last and self._seam.half):
            return
        text = self._seam.join("".join(pieces), last=last)
        self._pieces = []
        if not text:
            return
        if self.kind == "reasoning":
            self._events.append(ReasoningDelta(self._id, text))
        else:
            self._events.append(TextDelta(self._id, text))


class Seam:
    """Joins text that was cut inside a surrogate pair, so that whole characters come out.

    Some gateways cut by UTF-16 units and escape each half. A half without its other becomes U+FFFD.
    """

    def __init__(self) -> None:
        self.half = ""

    def join(self, text: str, *, last: bool = False) -> str:
        """The text with the half held back before; a half at its end is held back unless it is the last."""
        if not self.half and (text.isascii() or _is_whole(text)):
            return text
        text = self.half + text
        self.half = ""
        if not last and "\ud800" <= text[-1:] <= "\udbff":
            text, self.half = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
