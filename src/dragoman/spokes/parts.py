"""Parts: a message over the size of a frame, cut into frames and joined again."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.errors import FrameTooLong, TooLarge
from dragoman.spokes.protocol import Frame, Part, encode

ENVELOPE = 64
WIDEST = 4  # bytes of a character of JSON text inside a JSON string
SHOWN = 200


class Sizes:
    """How big frames and whole messages may be, in bytes."""

    __slots__ = ("frame", "message")

    def __init__(self, *, frame: int, message: int) -> None:
        self.frame = frame
        self.message = message

    def cut(self, frame: Frame) -> list[str]:
        """The texts to be sent for a frame: itself, or its parts. TooLarge when the other side takes none."""
        whole = encode(frame)
        if len(whole) > self.message:
            raise TooLarge(f"the message has {len(whole)} bytes, and the other side takes {self.message}")
        if len(whole) <= self.frame:
            return [whole.decode()]
        return list(self._parts(whole.decode()))

    def _parts(self, text: str) -> Iterator[str]:
        step = max(1, (self.frame - ENVELOPE) // WIDEST)
        for start in range(0, len(text), step):
            piece = text[start : start + step]
            yield encode(Part(text=piece, last=start + step >= len(text))).decode()


class Joiner:
    """Joins the parts of one message after the other."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: list[str] = []
        self._size = 0

    def add(self, part: Part) -> str | None:
        """The whole message once its last part has come. FrameTooLong when it is over the limit."""
        self._size += len(part.text)
        if self._size > self._limit:
            self._held.clear()
            raise FrameTooLong(f"a message in parts is over {self._limit} bytes")
        self._held.append(part.text)
        if not part.last:
            return None
        whole, self._held, self._size = "".join(self._held), [], 0
        return whole
