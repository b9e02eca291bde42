"""Who is asking: keys, looked up by hash; each request gets an identity, or a 401 that says why not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from dragoman.errors import StoreError, Unauthorized, Unavailable
from dragoman.mcp.server.origins import OriginPolicy
from dragoman.operations.identity import LOCAL, Identity
from dragoman.server.known import CACHE_FILE, KeyCache
from dragoman.store.keys import ApiKey, ApiKeyRepository, KeyRejection, hash_secret

log = logging.getLogger(__name__)

RECHECK_INTERVAL = 5.0
MAX_RECENT = 10_000
REJECTIONS: Mapping[KeyRejection, tuple[str, str]] = {
    "unknown": ("this key is unknown", "`dragoman keys list` shows the good ones"),
    "revoked": ("this key is revoked", "`dragoman keys create` makes another"),
    "expired": ("this key has expired", "`dragoman keys change ID --expires WHEN` prolongs it"),
    "rotated": ("this key was replaced by a new one, and its grace is over", "use the new one"),
}


class Auth:
    """Tells who is asking. A key that was seen is believed for a few seconds without another look.

    While the database is down, keys that were seen before are believed until they expire, also after a
    restart; see `KeyCache`. The others are told to come again, for nobody can say whether they are good.
    """

    def __init__(
        self,
        keys: ApiKeyRepository,
        *,
        required: bool,
        folder: Path | None = None,
        origins: OriginPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`folder` is where known keys are kept. `clock` never jumps, `now` is the time of day.

        `origins` says which pages may come to a hub that wants no keys.
        """
        self._origins = origins or OriginPolicy()
        self._keys = keys
        self._required = required
        self._cache = KeyCache(folder / CACHE_FILE if folder else None, clock=now)
        self._clock = clock
        self._now = now
        self._recent: dict[str, tuple[float, Identity]] = {}

    async def identify(self, headers: Mapping[str, str], *, at: str | None = None) -> Identity:
        """The identity behind a request's headers. Unauthorized; Unavailable when it cannot be known now.

        Where no key is wanted, pages of others are kept out: `at` is the address that the request came in by.
        """
        if not self._required:
            self._origins.check(headers, local_address=at)
            return LOCAL
        secret = headers.get("x-api-key", "").strip() or _bearer(headers)
        if not secret:
            raise Unauthorized(
                "this hub wants a key",
                hint="send `Authorization: Bearer dgm_...`; make one with `dragoman keys create`",
            )
        held = self._recent.get(secret)
        if held is not None and held[0] > self._clock():
            return held[1]
        self._recent.pop(secret, None)
        identity, expires_at = await self._look_up(secret)
        left = RECHECK_INTERVAL if expires_at is None else min(RECHECK_INTERVAL, expires_at - self._now())
        if len(self._recent) >= MAX_RECENT:
            self._recent.clear()
        self._recent[secret] = (self._clock() + left, identity)
        return identity

    async def _look_up(self, secret: str) -> tuple[Identity, float | None]:
        hashed = hash_secret(secret)
        try:
            key = await self._keys.authenticate(secret)
        except (StoreError, Unavailable) as error:
            return self._look_up_cached(hashed, error)
        if not isinstance(key, ApiKey):
            await self._cache.remove(hashed)
            _reject(key)
        await self._cache.put(hashed, key.identity, expires_at=key.expires_at)
        return key.identity, key.expires_at

    def _look_up_cached(
        self, key_hash: str, error: StoreError | Unavailable
    ) -> tuple[Identity, float | None]:
        known = self._cache.get(key_hash)
        if known is None:
            raise Unavailable(
                "the hub's database does not answer, and this key was not seen before", hint="try again later"
            ) from error
        if known.expires_at is not None and known.expires_at <= self._now():
            _reject("expired")
        log.debug("the database does not answer (%s); a key of %r is believed", error, known.identity.owner)
        return known.identity, known.expires_at


def _reject(reason: KeyRejection) -> NoReturn:
    message, hint = REJECTIONS[reason]
    raise Unauthorized(message, hint=hint)


def _bearer(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None
