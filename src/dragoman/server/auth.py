"""Who is asking: bearer keys, looked up by hash; each request gets an identity or a 401."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dragoman.errors import Unauthorized
from dragoman.operations.identity import LOCAL, Identity
from dragoman.store.keys import Keys

FRESH_FOR = 5.0
REMEMBERED = 10_000


class Auth:
    """Tells who is asking. A key that was seen is believed for a few seconds without another look."""

    def __init__(self, keys: Keys, *, required: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._required = required
        self._clock = clock
        self._seen: dict[str, tuple[float, Identity]] = {}

    async def identify(self, headers: Mapping[str, str]) -> Identity:
        """The identity behind a request's headers. Raises Unauthorized."""
        if not self._required:
            return LOCAL
        secret = _secret(headers)
        if not secret:
            raise Unauthorized(
                "this hub wants a key",
                hint="send `Authorization: Bearer dgm_...`; make one with `dragoman keys create`",
            )
        held = self._seen.get(secret)
        if held is not None and held[0] > self._clock():
            return held[1]
        key = await self._keys.find(secret)
        if key is None:
            self._seen.pop(secret, None)
            raise Unauthorized(
                "this key is unknown or revoked", hint="`dragoman keys list` shows the good ones"
            )
        identity = Identity(owner=key.owner, key_id=key.id, scopes=key.scopes)
        if len(self._seen) >= REMEMBERED:
            self._seen.clear()
        self._seen[secret] = (self._clock() + FRESH_FOR, identity)
        return identity


def _secret(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key")
