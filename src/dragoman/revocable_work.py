"""Work in progress by API key: what has to end when its key is revoked, expires or is deleted.

It is at the root because requests, runs, MCP sessions and spokes register what they do, each in its own
layer, and the server ends it (`server/accounts/key_monitor.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import msgspec

from dragoman.errors import KeyEnded
from dragoman.identity import Identity

StopWork: TypeAlias = Callable[[KeyEnded], None]


class KeyUse(msgspec.Struct, frozen=True):
    """A key, and which of its secrets was used: a rotated secret ends before its key."""

    key_id: str
    secret_id: str | None = None
    expires_at: float | None = None
    """When the session token expires that was used; None for the key itself."""
    token_id: str | None = None
    """The session token that was used; it may be revoked alone."""


class ActiveWork:
    """What runs for each key of this process."""

    def __init__(self) -> None:
        self._stops: dict[KeyUse, dict[object, StopWork]] = {}

    def add(self, identity: Identity, stop: StopWork) -> Callable[[], None]:
        """Call `stop` when the caller's key ends. Return the function that removes it again.

        Without a key nothing is registered.
        """
        if identity.key_id is None:
            return _nothing
        bounds = identity.bounds
        token = (None, None) if bounds is None else (bounds.expires_at, bounds.token_id)
        key, entry = KeyUse(identity.key_id, identity.secret_id, *token), object()
        self._stops.setdefault(key, {})[entry] = stop

        def remove() -> None:
            entries = self._stops.get(key)
            if entries is not None and entries.pop(entry, None) is not None and not entries:
                del self._stops[key]

        return remove

    @contextmanager
    def track(self, identity: Identity, stop: StopWork) -> Iterator[None]:
        """Call `stop` when the caller's key ends while the block runs."""
        remove = self.add(identity, stop)
        try:
            yield
        finally:
            remove()

    def keys_in_use(self) -> Sequence[KeyUse]:
        """Return the keys that have work in progress."""
        return list(self._stops)

    def stop(self, key: KeyUse, error: KeyEnded) -> int:
        """Stop all work of a key, in the order in which it began. Return how much it was."""
        stops = list(self._stops.pop(key, {}).values())
        for stop in stops:
            stop(error)
        return len(stops)


def _nothing() -> None:
    """Remove nothing."""
