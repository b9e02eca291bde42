"""The output of a command: its beginning, its end, and how much is left out between them."""

from __future__ import annotations

from collections.abc import Callable


class HeadAndTail:
    """The beginning and the end of an output."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out = 0

    @property
    def size(self) -> int:
        """How many bytes there were."""
        return len(self._head) + len(self._tail) + self.left_out

    def add(self, data: bytes) -> None:
        """Add what comes next."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        over = len(self._tail) - self._half
        if over > 0:
            self.left_out += over
            del self._tail[:over]

    def text(self, seal: Callable[[str], str] | None = None) -> str:
        """Return both, with a line between them if something is left out.

        Then each of them is sealed: at its edge may be the half of a secret.
        """
        if not self.left_out:
            return (self._head + self._tail).decode(errors="replace")
        texts = [each.decode(errors="replace") for each in (self._head, self._tail)]
        head, tail = texts if seal is None else map(seal, texts)
        return f"{head}\n… {self.left_out} bytes are left out …\n{tail}"
