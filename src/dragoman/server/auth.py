"""Authentication: looks up keys by hash and returns the caller's identity, or a 401 with the reason."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from dragoman.errors import StoreError, Unauthorized, Unavailable
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.origin_policy import OriginPolicy
from dragoman.http.url_and_proxy import is_loopback
from dragoman.identity import LOCAL, Identity, SessionBounds
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.revocable_work import ActiveWork
from dragoman.server.token_bounds import beyond_bounds
from dragoman.store.accounts.keys import ApiKey, ApiKeyRepository, KeyRejection, hash_secret, secret_id_of
from dragoman.store.accounts.session_tokens import TOKEN_PREFIX, SessionTokenRepository

# Cached keys: a file of keys seen before, which stay valid while the database is down.

log = logging.getLogger(__name__)

CACHE_FILE = "keys.cache"
MAX_KEYS = 10_000
CONFIRM_INTERVAL = 3600.0
MAX_AGE = 7 * 86_400.0


class CachedKey(msgspec.Struct, frozen=True):
    """A key as last read from the database; `expires_at` None: it never expires."""

    identity: Identity
    confirmed_at: float
    expires_at: float | None = None


class KeyCache:
    """Keys by the hash of their secret. A key is valid for a week after the database last confirmed it."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float]) -> None:
        """Without a path the cache is in memory only. A file that cannot be read counts as empty."""
        self._path = path
        self._clock = clock
        self._keys = read_cache(path) if path else {}
        self._save_lock = asyncio.Lock()
        self._dirty = False

    def get(self, key_hash: str) -> CachedKey | None:
        """Return the key, or None when it is unknown or was last confirmed too long ago."""
        cached = self._keys.get(key_hash)
        if cached is None or self._clock() - cached.confirmed_at > MAX_AGE:
            return None
        return cached

    async def put(self, key_hash: str, identity: Identity, *, expires_at: float | None) -> None:
        """Store a key that the database has confirmed; write the file if the entry changed."""
        now = self._clock()
        cached = self._keys.pop(key_hash, None)
        recent = cached is not None and now - cached.confirmed_at < CONFIRM_INTERVAL
        if cached is not None and recent and (cached.identity, cached.expires_at) == (identity, expires_at):
            self._keys[key_hash] = cached
        else:
            self._keys[key_hash] = CachedKey(identity, now, expires_at)
            self._dirty = True
        while len(self._keys) > MAX_KEYS:
            del self._keys[next(iter(self._keys))]  # the least recently used
        await self._save()

    async def remove(self, key_hash: str) -> None:
        """Remove a key that is not in the database."""
        if self._keys.pop(key_hash, None) is not None:
            self._dirty = True
            await self._save()

    async def _save(self) -> None:
        """Write changes to the file; changes during a write are written together after it."""
        async with self._save_lock:
            if self._path is None or not self._dirty:
                return
            self._dirty = False
            try:
                await asyncio.to_thread(write_private_file, self._path, msgspec.json.encode(self._keys))
            except OSError as error:
                log.warning("%s cannot be written, so keys will not outlive an outage: %s", self._path, error)


def read_cache(path: Path) -> dict[str, CachedKey]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, CachedKey])
    except FileNotFoundError:
        return {}
    except (OSError, *DECODE_ERRORS) as error:
        log.warning("%s cannot be read and is replaced by an empty one: %s", path, error)
        return {}


def write_private_file(path: Path, content: bytes) -> None:
    """Replace the file atomically; only its owner can read it."""
    file, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)  # made with mode 0600
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


RECHECK_INTERVAL = 5.0  # seconds for which a checked key is trusted without another query
MAX_RECENT = 10_000
REJECTIONS: Mapping[KeyRejection, tuple[str, str]] = {
    "unknown": ("this key is unknown to this hub", "`dragoman keys list{data}` shows the valid keys"),
    "revoked": ("this key is revoked", "`dragoman keys create{data} --owner NAME` makes another"),
    "expired": ("this key has expired", "`dragoman keys change ID{data} --expires WHEN` prolongs it"),
    "rotated": ("this key was rotated, and its grace period is over", "use the new key"),
}
TOKEN_HINT = "get another one from the app's server, which makes it with POST /api/tokens"  # noqa: S105
TOKEN_REJECTIONS: Mapping[KeyRejection, tuple[str, str]] = {
    "unknown": ("this session token is revoked, or unknown to this hub", TOKEN_HINT),
    "revoked": ("the key of this session token is revoked", TOKEN_HINT),
    "expired": ("this session token has expired", TOKEN_HINT),
    "rotated": ("the key of this session token was rotated", TOKEN_HINT),
}


NO_KEY = (
    "this hub requires a key",
    "`dragoman keys create{data} --owner NAME` makes one; send it as `Authorization: Bearer dgm_...`",
)
FORWARDING_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
"""Headers of a proxy: a request from a proxy on this machine may come from anywhere."""


class KeyRejected(Exception):
    """A key that is not valid in the database, with the reason."""

    def __init__(self, reason: KeyRejection) -> None:
        super().__init__(reason)
        self.reason = reason


class Auth:
    """Authenticates callers. A key that was checked is trusted for a few seconds without another query.

    While the database is down, keys that were seen before are accepted until they expire, also after a
    restart; see `KeyCache`. Other keys get Unavailable, because they cannot be checked.
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
        """`folder` holds the file of cached keys. `clock` is monotonic, `now` is the time of day.

        `origins` lists the web origins that may call a hub without keys.
        """
        self.work = ActiveWork()
        """Where requests are registered, to end when their key does."""
        self.tokens: SessionTokenRepository | None = None
        """The session tokens; without them none is valid."""
        self._origins = origins or OriginPolicy()
        self._keys = keys
        self._required = required
        self._folder = folder
        self._cache = KeyCache(folder / CACHE_FILE if folder else None, clock=now)
        self._clock = clock
        self._now = now
        self._recent: dict[str, tuple[float, Identity]] = {}

    def forget_tokens(self, covers: Callable[[SessionBounds], bool]) -> None:
        """Drop session tokens with these bounds from the cache, so that their next use is checked."""
        for secret, (_, identity) in list(self._recent.items()):
            if identity.bounds is not None and covers(identity.bounds):
                del self._recent[secret]

    @property
    def is_required(self) -> bool:
        """Whether callers need a key."""
        return self._required

    def identify_request(self, exchange: Exchange, *, admits_tokens: bool) -> Awaitable[Identity]:
        """Return the identity of an HTTP request, as `identify` does."""
        return self.identify(exchange.headers, at=exchange.local_address, admits_tokens=admits_tokens)

    async def identify(
        self, headers: Mapping[str, str], *, at: str | None = None, admits_tokens: bool = False
    ) -> Identity:
        """Return the identity of a request. Unauthorized; Unavailable when it cannot be checked now.

        A hub without keys rejects requests from foreign web pages: `at` is the address of the request.
        Session tokens are admitted only where the endpoint checks their bounds: elsewhere NotFound is raised.
        """
        secret = "" if not self._required else headers.get("x-api-key", "").strip() or _bearer(headers)
        recent = self._recent.get(secret) if secret else None
        if recent is not None and recent[0] > self._clock():
            identity = recent[1]
        else:
            identity = await self._identify(secret, headers=headers, at=at)
        if identity.bounds is not None and not admits_tokens:
            raise beyond_bounds()
        return identity

    async def _identify(self, secret: str | None, *, headers: Mapping[str, str], at: str | None) -> Identity:
        if not self._required:
            self._origins.check(headers, local_address=at)
            return LOCAL
        if not secret:
            raise self._refusal(*NO_KEY, headers=headers, at=at)
        self._recent.pop(secret, None)
        try:
            identity, expires_at = await self._look_up(secret)
        except KeyRejected as error:
            reasons = TOKEN_REJECTIONS if secret.startswith(TOKEN_PREFIX) else REJECTIONS
            raise self._refusal(*reasons[error.reason], headers=headers, at=at) from None
        left = RECHECK_INTERVAL if expires_at is None else min(RECHECK_INTERVAL, expires_at - self._now())
        if len(self._recent) >= MAX_RECENT:
            self._recent.clear()
        self._recent[secret] = (self._clock() + left, identity)
        return identity

    def check_host(self, headers: Mapping[str, str], *, at: str | None = None) -> None:
        """Refuse a host name that is not this hub's where a page could use it: without keys, or by a page.

        MisdirectedRequest. `at` is the address of the request.
        """
        if not self._required or "origin" in headers:
            self._origins.check_host(headers, local_address=at)

    def _refusal(
        self, message: str, hint: str, *, headers: Mapping[str, str], at: str | None
    ) -> Unauthorized:
        """Return the error; its hint names the data folder to callers on this machine only."""
        local = self._folder is not None and at is not None and is_loopback(at)
        named = local and not any(name in headers for name in FORWARDING_HEADERS)
        data = f" --data {shlex.quote(str(self._folder.absolute()))}" if named and self._folder else ""
        return Unauthorized(message, hint=hint.format(data=data))

    async def _look_up(self, secret: str) -> tuple[Identity, float | None]:
        if secret.startswith(TOKEN_PREFIX):
            return await self._look_up_token(secret)
        hashed = hash_secret(secret)
        try:
            key = await self._keys.authenticate(secret)
        except (StoreError, Unavailable) as error:
            return self._look_up_cached(hashed, error)
        if not isinstance(key, ApiKey):
            await self._cache.remove(hashed)
            raise KeyRejected(key)
        identity = msgspec.structs.replace(key.identity, secret_id=secret_id_of(hashed))
        await self._cache.put(hashed, identity, expires_at=key.expires_at)
        return identity, key.expires_at

    async def _look_up_token(self, secret: str) -> tuple[Identity, float]:
        try:
            found = None if self.tokens is None else await self.tokens.authenticate(secret)
        except (StoreError, Unavailable) as error:
            raise Unavailable(
                "the hub's database does not answer, so session tokens cannot be checked",
                hint="try again later",
            ) from error
        if not isinstance(found, tuple):
            raise KeyRejected(found or "unknown")
        return found

    def _look_up_cached(
        self, key_hash: str, error: StoreError | Unavailable
    ) -> tuple[Identity, float | None]:
        cached = self._cache.get(key_hash)
        if cached is None:
            raise Unavailable(
                "the hub's database does not answer, and this key was not seen before", hint="try again later"
            ) from error
        if cached.expires_at is not None and cached.expires_at <= self._now():
            raise KeyRejected("expired")
        log.debug("the database does not answer (%s); using a cached key of %r", error, cached.identity.owner)
        return cached.identity, cached.expires_at


def _bearer(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None
