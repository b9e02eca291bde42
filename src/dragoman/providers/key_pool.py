"""The API keys of one provider: use the least busy one, and cool down those that fail repeatedly."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from dragoman.errors import ProviderError


class ProviderKey(msgspec.Struct, frozen=True):
    """An API key, and the name that is shown instead of it."""

    name: str
    secret: str | None = None

    def __repr__(self) -> str:
        return f"ProviderKey({self.name!r})"


class Cooldown(msgspec.Struct, frozen=True, kw_only=True):
    """After `failures` in a row within `window` seconds, a key is not used for `seconds`.

    A longer `retry_after` of the provider is honoured up to `longest` seconds.
    """

    failures: int = 3
    window: float = 60.0
    seconds: float = 30.0
    longest: float = 3600.0


NO_KEY = ProviderKey("none")
DEFAULT_COOLDOWN = Cooldown()


class _KeyState:
    """A key, its load and its recent failures."""

    def __init__(self, key: ProviderKey) -> None:
        self.key = key
        self.busy = 0
        self.last_used = 0  # the pool's counter when it was last acquired
        self.failures: list[float] = []
        self.cooldown_until = 0.0

    def rank(self, now: float) -> tuple[float, int, int]:
        return max(0.0, self.cooldown_until - now), self.busy, self.last_used


class KeyLease:
    """A key in use by one request. End the lease with `release` or `mark_failed`."""

    def __init__(self, pool: KeyPool, state: _KeyState) -> None:
        self.key = state.key
        self._pool = pool
        self._state: _KeyState | None = state

    def release(self) -> None:
        """End the lease."""
        state, self._state = self._state, None
        if state is not None:
            state.busy -= 1

    def mark_succeeded(self) -> None:
        """Reset the key's failures: the provider has started to answer."""
        if self._state is not None and self._state.failures:
            self._state.failures.clear()

    def mark_failed(self, error: ProviderError) -> None:
        """Record the failure, and end the lease."""
        if self._state is not None:
            self._pool.record_failure(self._state, error)
        self.release()


class KeyStatus(msgspec.Struct, frozen=True):
    """A key of a provider at a moment: its name, its requests in flight, and its cooldown in seconds."""

    name: str
    busy: int
    cooldown: float


class KeyPool:
    """All keys of one provider. A provider without keys has one that is empty.

    `cooldown` says when a failing key is not used. That only redirects requests to other keys or providers:
    if there are none, the key whose cooldown ends first is used.
    """

    def __init__(
        self,
        keys: Sequence[ProviderKey] = (),
        *,
        cooldown: Cooldown = DEFAULT_COOLDOWN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._states = [_KeyState(key) for key in keys or (NO_KEY,)]
        self.cooldown = cooldown
        self._clock = clock
        self._counter = 0

    def __repr__(self) -> str:
        return f"KeyPool({[state.key.name for state in self._states]!r})"

    @property
    def secrets(self) -> list[str]:
        """The values of the keys, for redaction."""
        return [state.key.secret for state in self._states if state.key.secret]

    @property
    def busy(self) -> int:
        """The number of requests in flight."""
        return sum(state.busy for state in self._states)

    @property
    def cooling_down(self) -> int:
        """The number of keys that are cooling down."""
        now = self._clock()
        return sum(state.cooldown_until > now for state in self._states)

    def statuses(self) -> Sequence[KeyStatus]:
        """Return the current state of each key."""
        now = self._clock()
        return [
            KeyStatus(state.key.name, state.busy, max(0.0, state.cooldown_until - now))
            for state in self._states
        ]

    @property
    def exhausted(self) -> bool:
        """Whether all keys are cooling down, so that another provider should be preferred."""
        return self.cooling_down == len(self._states)

    def acquire(self, *, exclude: Collection[ProviderKey] = ()) -> KeyLease:
        """Lease the least busy key that is not cooling down, outside of `exclude` if there are others."""
        states = self._states
        if len(states) == 1:
            state = states[0]
        else:
            now = self._clock()
            candidates = [state for state in states if state.key not in exclude] or states
            state = min(candidates, key=lambda state: state.rank(now))
        self._counter += 1
        state.busy += 1
        state.last_used = self._counter
        return KeyLease(self, state)

    def has_untried(self, tried: Collection[ProviderKey]) -> bool:
        """Return whether a key is left that was not tried and is not cooling down."""
        now = self._clock()
        return any(state.key not in tried and state.cooldown_until <= now for state in self._states)

    def record_failure(self, state: _KeyState, error: ProviderError) -> None:
        """Count a failure of a key, and start its cooldown if needed."""
        status = error.upstream_status or 0
        if error.category == "auth" or (error.category == "rate_limit" and not error.transient):
            self._cool_down(
                state, error
            )  # an invalid key or an exhausted quota: more attempts would fail, too
        elif error.category in ("rate_limit", "overloaded") or status >= 500:
            now = self._clock()
            since = now - self.cooldown.window
            state.failures = [failed_at for failed_at in state.failures if failed_at > since] + [now]
            if len(state.failures) >= self.cooldown.failures:
                self._cool_down(state, error)

    def _cool_down(self, state: _KeyState, error: ProviderError) -> None:
        seconds = min(max(self.cooldown.seconds, error.retry_after or 0.0), self.cooldown.longest)
        state.cooldown_until = self._clock() + seconds
        state.failures.clear()
