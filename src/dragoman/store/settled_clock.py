"""Whether the clock can be trusted to say what is old.

What a wrong clock deletes does not come back when it is set right. So whoever deletes by age asks here first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_DRIFT = 3_600.0  # seconds by which the clock may be set ahead unnoticed
TRUSTED_AFTER = 86_400.0  # seconds after which one that was set ahead is taken for right


class SettledClock:
    """Compares the clock with the time that really passes, since this was made."""

    def __init__(
        self, clock: Callable[[], float] = time.time, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._offset = clock() - monotonic()
        self._ahead_since: float | None = None

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
