"""The output of a command: its beginning, its end, and how much is left out between them."""

from __future__ import annotations

from collections.abc import Callable


class HeadAndTail:
    """The beginning and the end of an output, each of up to half of `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out = 0

    @property
    def size(self) -> int:
        """The number of bytes that were added."""
        return len(self._head) + len(self._tail) + self.left_out

    def add(self, data: bytes) -> None:
        """Add the next bytes of the output."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        over = len(self._tail) - self._half
        if over > 0:
            self.left_out += over
            del self._tail[:over]

    def text(self, seal: Callable[[str], str] | None = None) -> str:
        """Return both as text, with a line between them if bytes are left out.

        In that case each part is passed to `seal`: the cut may go through a secret.
        """
        if not self.left_out:
            return (self._head + self._tail).decode(errors="replace")
        texts = [part.decode(errors="replace") for part in (self._head, self._tail)]
        head, tail = texts if seal is None else map(seal, texts)
        return f"{head}\n… {self.left_out} bytes are left out …\n{tail}"
