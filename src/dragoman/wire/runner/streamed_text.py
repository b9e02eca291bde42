"""Text that arrives in deltas: characters that were cut between two of them, and digests of what has come."""

from __future__ import annotations

import hashlib

from dragoman.wire.runner.frames import REPLACEMENT, PartTextDelta


class DeltaJoiner:
    """Joins the halves of a character that was cut between two deltas."""

    def __init__(self) -> None:
        self._half: int | None = None

    def add(self, frame: PartTextDelta) -> str:
        """Return the text of a delta. A lone surrogate at its end is returned with the next delta."""
        text, high, low = frame.delta, self._half, frame.first_half
        if high is not None and text:
            self._half = None
            text = REPLACEMENT + text if low is None else join_surrogates(high, low) + text[1:]
        if frame.last_half is not None:
            text, self._half = text[:-1], frame.last_half
        return text

    def end(self) -> str:
        """Return U+FFFD for a pending surrogate that no other half followed, else an empty text."""
        rest, self._half = "" if self._half is None else REPLACEMENT, None
        return rest


def join_surrogates(high: int, low: int) -> str:
    """Return the character that two UTF-16 units encode."""
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


class TextDigest:
    """The length and a hash of a text that is not kept."""

    def __init__(self) -> None:
        self.length = 0
        self._hash = hashlib.sha256()

    def add(self, text: str) -> None:
        """Add text at the end."""
        self.length += len(text)
        self._hash.update(text.encode())

    def copy(self) -> TextDigest:
        """Return a digest of the same text that can be extended independently."""
        copied = TextDigest()
        copied.length, copied._hash = self.length, self._hash.copy()
        return copied

    def begins(self, text: str) -> bool:
        """Return whether `text` begins with this text."""
        start = text[: self.length]
        return len(start) == self.length and hashlib.sha256(start.encode()).digest() == self._hash.digest()
