"""The recent history of an MCP server: the last lines of its error output, and its last errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

RECENT_LINE_COUNT = 200


class RecentLines:
    """The last lines of a server's error output and of changes of its connection, with their times."""

    def __init__(self, clock: Callable[[], float], *, size: int = RECENT_LINE_COUNT) -> None:
        self._clock = clock
        self._lines: deque[tuple[float, str]] = deque(maxlen=size)

    def add(self, line: str) -> float:
        """Add a line, in which secrets are redacted already; return its time in unix seconds."""
        now = self._clock()
        self._lines.append((now, line))
        return now

    def list(self) -> Sequence[tuple[float, str]]:
        """Return the lines with their unix times, oldest first."""
        return list(self._lines)


class ErrorHistory:
    """The last error of a server, and the first one since it was ready."""

    def __init__(self, lines: RecentLines) -> None:
        """Each reason is added to `lines`."""
        self._lines = lines
        self._first: str | None = None
        self.last: str | None = None
        self.last_at: float | None = None

    @property
    def first(self) -> str | None:
        """The first error since the server was ready, unless it is the last one too."""
        return None if self._first == self.last else self._first

    def add(self, reason: str) -> None:
        self._first = self._first or reason
        self.last, self.last_at = reason, self._lines.add(reason)

    def mark_ready(self) -> None:
        self._first = None
        self._lines.add("the server is ready")
