"""Limits on what an MCP server sends without being asked: notifications, requests, junk, error output.

A server that floods its connection must cost the hub little: messages above the rate are dropped before they
are decoded, the reader pauses so that the pipe or socket pushes back, and a server that continues is
quarantined.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec

from dragoman.mcp.client.server_log import RecentLines
from dragoman.operations.call_limiter import Rate
from dragoman.operations.sanitize import sanitize_text

log = logging.getLogger(__name__)

BURST_SECONDS = 10.0  # seconds of the rate that may come at once
PAUSE_SECONDS = 0.05
PAUSE_COST = 2_000  # cost of dropped messages between two pauses; a line costs 1
DECODED_COST = 25  # cost of a dropped message that was decoded already
LINE_BYTES = 100  # bytes of a line that add 1 to its cost
FLOOD_FACTOR = 5  # a server that sends so many times its rate is quarantined
GAP_SECONDS = 2.0  # a flood is over after so long without a dropped message
REPORT_SECONDS = 60.0


class TrafficLimits(msgspec.Struct, frozen=True):
    """Limits on the unrequested messages of a server.

    A server whose flood lasts `quarantine_after` seconds is quarantined for `quarantine` seconds.
    """

    rate: Rate = Rate(200, 1.0)
    quarantine_after: float = 30.0
    quarantine: float = 600.0


class FloodMeter:
    """Counts the unrequested messages of one server. `on_flood` gets the reason for its quarantine."""

    def __init__(
        self,
        name: str,
        limits: TrafficLimits,
        *,
        on_flood: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._limits = limits
        self._on_flood = on_flood
        self._clock = clock
        self._per_second = limits.rate.calls / limits.rate.seconds
        self._burst = max(1.0, self._per_second * BURST_SECONDS)
        self._tokens = self._burst
        self._filled_at = clock()
        self._cost = 0.0
        self._dropped: Counter[str] = Counter()
        self._flood_since = self._dropped_at = self._reported_at = float("-inf")
        self._flood_count = 0

    @property
    def summary(self) -> str | None:
        """A text about what was dropped since the server was started; None if nothing was."""
        if not self._dropped:
            return None
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self._dropped.most_common(3))
        rate = f"{self._limits.rate.calls:,} in {self._limits.rate.seconds:g} s"
        return f"{self._dropped.total():,} messages were dropped, since it sent more than {rate}: {kinds}"

    def is_exhausted(self) -> bool:
        """Return whether the next unrequested message is above the rate."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        return self._tokens < 1

    def admit(self, kind: str) -> bool:
        """Count a decoded message; return False if it has to be dropped."""
        if self.is_exhausted():
            self.drop(kind, cost=DECODED_COST)
            return False
        self._tokens -= 1
        return True

    def drop(self, kind: str, *, size: int = 0, cost: float = 1.0) -> None:
        """Count a dropped message; `size` is in bytes."""
        now = self._filled_at
        if now - self._dropped_at > GAP_SECONDS:
            self._flood_since, self._flood_count = now, 0
        self._dropped_at = now
        self._dropped[kind] += 1
        self._flood_count += 1
        self._cost += cost + size / LINE_BYTES
        if now - self._reported_at > REPORT_SECONDS:
            self._reported_at = now
            log.warning("MCP server %s: %s", self._name, self.summary)
        seconds = now - self._flood_since
        if seconds >= self._limits.quarantine_after and self._flood_count >= (
            (FLOOD_FACTOR - 1) * self._per_second * seconds
        ):
            self._on_flood(
                f"it sent {self._flood_count:,} messages too many in {seconds:.0f} seconds, most of them"
                f" {self._dropped.most_common(1)[0][0]}"
            )

    async def pause(self) -> None:
        """Stop reading for a moment if much was dropped since the last pause."""
        if self._cost >= PAUSE_COST:
            self._cost = 0.0
            await asyncio.sleep(PAUSE_SECONDS)


# ---- Error output: what a program writes to stderr, line by line, and no more than so many bytes a minute.

MAX_LINE_BYTES = 8_192  # bytes of a line that are read; the rest of it is dropped
LINE_CHARS = 2_000
LAST_LINE_COUNT = 5


class ErrorOutput:
    """Logs the error output of a program, up to a number of bytes a minute; counts what is above it."""

    def __init__(
        self,
        name: str,
        *,
        bytes_per_minute: int,
        redact: Callable[[str], str],
        recent: RecentLines | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`recent` gets the lines that are logged."""
        self._name = name
        self._recent = recent
        self._limit = bytes_per_minute
        self._redact = redact
        self._clock = clock
        self._minute_began = clock()
        self._logged = 0
        self._dropped_lines = self._dropped_bytes = 0
        self._partial = b""
        self._last_lines: deque[str] = deque(maxlen=LAST_LINE_COUNT)

    @property
    def last_lines(self) -> str:
        """The last lines, separated by ` / `, with secrets redacted."""
        return sanitize_text(" / ".join(self._last_lines), 500)

    def feed(self, data: bytes) -> bool:
        """Take a chunk of output. Return whether the limit of this minute is reached."""
        if self._clock() - self._minute_began >= REPORT_SECONDS:
            self.report_dropped()
            self._minute_began, self._logged = self._clock(), 0
        *lines, rest = data.replace(b"\r", b"\n").split(b"\n")
        if lines:
            lines[0], self._partial = self._partial + lines[0], b""
        if len(self._partial) < MAX_LINE_BYTES:
            self._partial += rest[:MAX_LINE_BYTES]
        self._log_lines([line for line in lines if line.strip()])
        return self._logged >= self._limit

    def close(self) -> None:
        """Log the unfinished last line, and report what was dropped."""
        last, self._partial = self._partial, b""
        self._log_lines([last] if last.strip() else [])
        self.report_dropped()

    def report_dropped(self) -> None:
        """Log how much was dropped since the last report."""
        if self._dropped_lines:
            log.warning(
                "MCP server %s: %d lines (%d bytes) of its error output were dropped; %d bytes a minute are"
                " logged",
                self._name,
                self._dropped_lines,
                self._dropped_bytes,
                self._limit,
            )
        self._dropped_lines = self._dropped_bytes = 0

    def _log_lines(self, lines: Sequence[bytes]) -> None:
        for index, line in enumerate(lines):
            if self._logged >= self._limit:
                self._drop(lines[index:])
                return
            self._logged += len(line)
            text = self._clean(line)
            if text:
                self._last_lines.append(text)
                log.info("MCP server %s, stderr: %s", self._name, text)
                if self._recent is not None:
                    self._recent.add(text)

    def _drop(self, lines: Sequence[bytes]) -> None:
        self._dropped_lines += len(lines)
        self._dropped_bytes += sum(map(len, lines))
        self._last_lines += filter(None, map(self._clean, lines[-LAST_LINE_COUNT:]))

    def _clean(self, line: bytes) -> str:
        return sanitize_text(self._redact(line[:MAX_LINE_BYTES].decode(errors="replace")), LINE_CHARS)
