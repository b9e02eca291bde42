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

NAME = "keys.cache"
MOST = 10_000
CONFIRMED_AGAIN = 3600.0
BELIEVED_FOR = 7 * 86_400.0


class Known(msgspec.Struct, frozen=True):
    """A key as the database last told of it; `expires_at` None: never."""

    identity: Identity
    confirmed_at: float
    expires_at: float | None = None


class KnownKeys:
    """Keys by the hash of their secret. A key counts for a week after the database has last confirmed it."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float]) -> None:
        """Without a path nothing outlives the process. A file that cannot be read counts as empty."""
        self._path = path
        self._clock = clock
        self._keys = read(path) if path else {}
        self._saving = asyncio.Lock()
        self._changed = False

    def get(self, hashed: str) -> Known | None:
        """The key, or None when it is not known or was not confirmed for too long."""
        known = self._keys.get(hashed)
        if known is None or self._clock() - known.confirmed_at > BELIEVED_FOR:
            return None
        return known

    async def keep(self, hashed: str, identity: Identity, *, expires_at: float | None) -> None:
        """The database has confirmed this key; written down when that says something new."""
        now = self._clock()
        held = self._keys.pop(hashed, None)
        recent = held is not None and now - held.confirmed_at < CONFIRMED_AGAIN
        if held is not None and recent and (held.identity, held.expires_at) == (identity, expires_at):
            self._keys[hashed] = held
        else:
            self._keys[hashed] = Known(identity, now, expires_at)
            self._changed = True
        while len(self._keys) > MOST:
            del self._keys[next(iter(self._keys))]  # who has not asked for longest
        await self._save()

    async def drop(self, hashed: str) -> None:
        """The database does not know this key, or not any more."""
        if self._keys.pop(hashed, None) is not None:
            self._changed = True
            await self._save()

    async def _save(self) -> None:
        """Write down what has changed; those who come while it is written wait and then go together."""
        async with self._saving:
            if self._path is None or not self._changed:
                return
            self._changed = False
            try:
                await asyncio.to_thread(write, self._path, msgspec.json.encode(self._keys))
            except OSError as error:
                log.warning("%s cannot be written, so keys will not outlive an outage: %s", self._path, error)


def read(path: Path) -> dict[str, Known]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Known])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s cannot be read and begins anew: %s", path, error)
        return {}


def write(path: Path, content: bytes) -> None:
    """Put the content in the file's place at once, for nobody else to read."""
    file, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)  # made with mode 0600
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
