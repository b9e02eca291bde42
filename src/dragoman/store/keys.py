"""Keys in the store: who may ask."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence

import msgspec
from sqlalchemy import bindparam, insert, update

from dragoman.store.connection import Connection, Row
from dragoman.store.database import Database
from dragoman.store.rows import from_text, select_all, to_fields, to_params, to_text
from dragoman.store.tables import keys

START = "dgm_"
SECRET_BYTES = 32
PREFIX = len(START) + 6
USED_SECONDS = 60.0


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret; `prefix` is how the secret starts, so that people can tell theirs apart."""

    id: str
    prefix: str
    owner: str
    name: str | None = None
    scopes: frozenset[str] = frozenset()
    created_at: float
    revoked_at: float | None = None
    last_used_at: float | None = None


class Keys:
    """All keys.

    A secret holds 32 random bytes, and only its SHA-256 is kept. A slow password hash would add nothing:
    no one can try 2**256 secrets, however fast the hash. The look-up by hash leaks at most how the hash of
    a guess compares to those kept, which tells nothing about a secret.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        found = select_all(Key, keys)
        this = keys.c.id == bindparam("id")
        valid = keys.c.revoked_at.is_(None)
        revoked = update(keys).where(this, valid).values(revoked_at=bindparam("now"))
        self._insert = database.compile(insert(keys))
        self._find = database.compile(found.where(keys.c.hash == bindparam("hash"), valid))
        self._list = database.compile(found.order_by(keys.c.created_at, keys.c.id))
        self._revoke = database.compile(revoked)
        self._use = database.compile(update(keys).where(this).values(last_used_at=bindparam("now")))

    async def create(
        self, owner: str, *, name: str | None = None, scopes: Iterable[str] = ()
    ) -> tuple[Key, str]:
        """A new key and its secret, which cannot be read again."""
        secret = START + secrets.token_urlsafe(SECRET_BYTES)
        key = Key(
            id=f"key_{secrets.token_hex(8)}",
            prefix=secret[:PREFIX],
            owner=owner,
            name=name,
            scopes=frozenset(scopes),
            created_at=self._clock(),
        )
        params = to_params(key) | {"hash": digest(secret), "scopes": to_text(sorted(key.scopes))}
        await self._database.write(lambda connection: connection.run(self._insert, params))
        return key, secret

    async def find(self, secret: str) -> Key | None:
        """The valid key of this secret, or None. That it was used is noted once a minute."""
        params = {"hash": digest(secret)}
        row = await self._database.read(lambda connection: connection.one(self._find, params))
        if row is None:
            return None
        key = to_key(row)
        now = self._clock()
        if key.last_used_at is None or now - key.last_used_at >= USED_SECONDS:
            self._database.post(lambda connection: connection.run(self._use, {"id": key.id, "now": now}))
        return key

    async def list(self) -> Sequence[Key]:
        """All keys, the oldest first, revoked ones too."""
        return [to_key(row) for row in await self._database.read(self._all)]

    async def revoke(self, id: str) -> bool:
        """False when there is no such key, or it was revoked before."""
        params = {"id": id, "now": self._clock()}
        return await self._database.write(lambda connection: connection.run(self._revoke, params) > 0)

    def _all(self, connection: Connection) -> Sequence[Row]:
        return connection.all(self._list, {})


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def to_key(row: Row) -> Key:
    fields = to_fields(Key, row)
    return Key(**fields | {"scopes": from_text(fields["scopes"], frozenset[str])})
