"""Whether the system clock can be trusted to tell what is old.

What is deleted or declined by a wrong clock does not come back when the clock is corrected. So code that acts
by age checks here first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_DRIFT = 3_600.0  # seconds by which the clock may be set ahead unnoticed
UPTIME_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
TRUSTED_AFTER = 86_400.0  # seconds after which a clock that was set ahead is trusted again


def uptime() -> float:
    """Return seconds of the machine, with those for which it was suspended where the system counts them."""
    return time.clock_gettime(UPTIME_CLOCK)


class SettledClock:
    """Compares the clock with the time that really passes, since this was made."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        monotonic: Callable[[], float] = uptime,
        ahead: float = 0.0,
    ) -> None:
        """`ahead` is by how many seconds the clock is known to be ahead of the correct time."""
        self._clock = clock
        self._monotonic = monotonic
        self._offset = clock() - monotonic() - (ahead if abs(ahead) > MAX_DRIFT else 0.0)
        self._ahead_since: float | None = None

    def passed(self) -> float:
        """Return the seconds that have really passed since an arbitrary moment."""
        return self._monotonic()

    def seconds_back(self) -> float:
        """Return by how much the clock was set back since `is_settled` was asked last; 0 for a small step."""
        back = self._offset - (self._clock() - self._monotonic())
        return back if back > MAX_DRIFT else 0.0

    def steady_time(self) -> float:
        """Return the time of the clock; while that is not settled, minus what it was set ahead by."""
        return self._clock() if self.is_settled() else self._offset + self._monotonic()

    def settled_time(self) -> float:
        """Return the time of the clock; 0, when nothing is old, while it is not settled."""
        return self._clock() if self.is_settled() else 0.0

    def is_settled(self) -> bool:
        """Return whether the clock was not set ahead during the last day."""
        passed = self._monotonic()
        offset = self._clock() - passed
        is_ahead = offset - self._offset > MAX_DRIFT
        if is_ahead and self._ahead_since is None:
            self._ahead_since = passed
        if is_ahead and self._ahead_since is not None and passed - self._ahead_since < TRUSTED_AFTER:
            return False
        self._offset, self._ahead_since = offset, None
        return True


class RemainingTimes:
    """Ends things after the time that they had left when the clock was set back, whatever it shows."""

    def __init__(self, clock: SettledClock) -> None:
        self._clock = clock
        self._ends: dict[str, float] = {}  # of the machine's uptime, by id

    def add(self, id: str, *, left: float) -> None:
        """Add something with the seconds that it had left, unless it is known."""
        self._ends.setdefault(id, self._clock.passed() + max(0.0, left))

    def over(self) -> list[str]:
        """Return the ids of what has no time left."""
        passed = self._clock.passed()
        return [id for id, end in self._ends.items() if end <= passed]

    def remove(self, id: str) -> None:
        """Forget something that has ended."""
        del self._ends[id]


def approval_clock(clock: Callable[[], float], *, ahead: float = 0.0) -> Callable[[], float]:
    """Return the clock by which requests expire: for a day, it ignores that it was set ahead.

    So they can still be answered. A clock other than the system's is returned. `ahead`: see `SettledClock`.
    """
    return SettledClock(ahead=ahead).steady_time if clock is time.time else clock
