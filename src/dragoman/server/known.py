"""Known keys: who asked before, kept in a file, so that they may go on while the database is down."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from dragoman.operations.identity import Identity

log = logging.getLogger(__name__)

CACHE_FILE = "keys.cache"
MAX_KEYS = 10_000
CONFIRM_INTERVAL = 3600.0
MAX_AGE = 7 * 86_400.0


class CachedKey(msgspec.Struct, frozen=True):
    """A key as the database last told of it; `expires_at` None: never."""

    identity: Identity
    confirmed_at: float
    expires_at: float | None = None


class KeyCache:
    """Keys by the hash of their secret. A key counts for a week after the database has last confirmed it."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float]) -> None:
        """Without a path nothing outlives the process. A file that cannot be read counts as empty."""
        self._path = path
        self._clock = clock
        self._keys = read_cache(path) if path else {}
        self._save_lock = asyncio.Lock()
        self._dirty = False

    def get(self, key_hash: str) -> CachedKey | None:
        """The key, or None when it is not known or was not confirmed for too long."""
        known = self._keys.get(key_hash)
        if known is None or self._clock() - known.confirmed_at > MAX_AGE:
            return None
        return known

    async def put(self, key_hash: str, identity: Identity, *, expires_at: float | None) -> None:
        """The database has confirmed this key; written down when that says something new."""
        now = self._clock()
        held = self._keys.pop(key_hash, None)
        recent = held is not None and now - held.confirmed_at < CONFIRM_INTERVAL
        if held is not None and recent and (held.identity, held.expires_at) == (identity, expires_at):
            self._keys[key_hash] = held
        else:
            self._keys[key_hash] = CachedKey(identity, now, expires_at)
            self._dirty = True
        while len(self._keys) > MAX_KEYS:
            del self._keys[next(iter(self._keys))]  # who has not asked for longest
        await self._save()

    async def remove(self, key_hash: str) -> None:
        """The database does not know this key, or not any more."""
        if self._keys.pop(key_hash, None) is not None:
            self._dirty = True
            await self._save()

    async def _save(self) -> None:
        """Write down what has changed; those who come while it is written wait and then go together."""
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
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s cannot be read and begins anew: %s", path, error)
        return {}


def write_private_file(path: Path, content: bytes) -> None:
    """Put the content in the file's place at once, for nobody else to read."""
    file, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)  # made with mode 0600
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
