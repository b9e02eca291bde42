"""The keys of one provider: the least busy one is taken, and one that fails repeatedly rests for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from dragoman.errors import ProviderError


class ProviderKey(msgspec.Struct, frozen=True):
    """A secret that a provider knows us by, and the name under which people may see it."""

    name: str
    secret: str | None = None

    def __repr__(self) -> str:
        return f"ProviderKey({self.name!r})"


class Cooldown(msgspec.Struct, frozen=True, kw_only=True):
    """After `failures` in a row within `window` seconds a key rests for `seconds`, or as long as asked."""

    failures: int = 3
    window: float = 60.0
    seconds: float = 30.0
    longest: float = 3600.0


NO_KEY = ProviderKey("none")
DEFAULT_COOLDOWN = Cooldown()


class _KeyState:
    """A key and how it fares."""

    def __init__(self, key: ProviderKey) -> None:
        self.key = key
        self.busy = 0
        self.last_used = 0  # when it was taken, as a count
        self.failures: list[float] = []
        self.cooldown_until = 0.0

    def rank(self, now: float) -> tuple[float, int, int]:
        return max(0.0, self.cooldown_until - now), self.busy, self.last_used


class KeyLease:
    """A key while a request uses it. End it with `release`, or with `mark_failed`, which says why; once."""

    def __init__(self, pool: KeyPool, state: _KeyState) -> None:
        self.key = state.key
        self._pool = pool
        self._state: _KeyState | None = state

    def release(self) -> None:
        """The request is over."""
        place, self._state = self._state, None
        if place is not None:
            place.busy -= 1

    def mark_succeeded(self) -> None:
        """The provider has begun to answer: what went wrong before is forgotten."""
        if self._state is not None and self._state.failures:
            self._state.failures.clear()

    def mark_failed(self, error: ProviderError) -> None:
        """The request is over, and failed."""
        if self._state is not None:
            self._pool.record_failure(self._state, error)
        self.release()


class KeyPool:
    """All keys of one provider. A provider without keys has one that is empty.

    Resting only turns requests to other keys, or to other providers: where there is nothing else, the key
    that has rested longest is used all the same.
    """

    def __init__(
        self,
        keys: Sequence[ProviderKey] = (),
        *,
        cooldown: Cooldown = DEFAULT_COOLDOWN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._states = [_KeyState(key) for key in keys or (NO_KEY,)]
        self._cooldown = cooldown
        self._clock = clock
        self._counter = 0

    def __repr__(self) -> str:
        return f"KeyRing({[place.key.name for place in self._states]!r})"

    @property
    def secrets(self) -> list[str]:
        """What must never be shown."""
        return [place.key.secret for place in self._states if place.key.secret]

    @property
    def busy(self) -> int:
        """How many requests are under way."""
        return sum(place.busy for place in self._states)

    @property
    def cooling_down(self) -> int:
        """How many of the keys rest."""
        now = self._clock()
        return sum(place.cooldown_until > now for place in self._states)

    @property
    def exhausted(self) -> bool:
        """Whether all keys rest, so that another provider had better be asked."""
        return self.cooling_down == len(self._states)

    def acquire(self, *, exclude: Collection[ProviderKey] = ()) -> KeyLease:
        """The least busy key among those that do not rest; none of `but`, if there are others."""
        places = self._states
        if len(places) == 1:
            place = places[0]
        else:
            now = self._clock()
            left = [place for place in places if place.key not in exclude] or places
            place = min(left, key=lambda place: place.rank(now))
        self._counter += 1
        place.busy += 1
        place.last_used = self._counter
        return KeyLease(self, place)

    def has_untried(self, tried: Collection[ProviderKey]) -> bool:
        """Whether there is a key that was not tried and does not rest."""
        now = self._clock()
        return any(place.key not in tried and place.cooldown_until <= now for place in self._states)

    def record_failure(self, state: _KeyState, error: ProviderError) -> None:
        """A request with this key failed."""
        status = error.upstream_status or 0
        if error.category == "auth" or (error.category == "rate_limit" and not error.transient):
            self._cool_down(
                state, error
            )  # a bad key, or one without money: waiting for more failures helps nobody
        elif error.category in ("rate_limit", "overloaded") or status >= 500:
            now = self._clock()
            since = now - self._cooldown.window
            state.failures = [moment for moment in state.failures if moment > since] + [now]
            if len(state.failures) >= self._cooldown.failures:
                self._cool_down(state, error)

    def _cool_down(self, state: _KeyState, error: ProviderError) -> None:
        seconds = min(max(self._cooldown.seconds, error.retry_after or 0.0), self._cooldown.longest)
        state.cooldown_until = self._clock() + seconds
        state.failures.clear()
