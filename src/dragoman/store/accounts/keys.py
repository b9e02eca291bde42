"""API keys in the database."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from sqlalchemy import ColumnElement, bindparam, insert, select, update

from dragoman.errors import BadRequest, NotFound, Unavailable
from dragoman.identity import Identity, Scope
from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    Row,
    decode_json,
    encode_json,
    select_fields,
    to_fields,
    to_params,
)
from dragoman.store.database import Database
from dragoman.store.tables.core import former_secrets, keys
from dragoman.usage_limits import NO_LIMITS, Limits, limit_problems

KEY_PREFIX = "dgm_"
SECRET_BYTES = 32
SHOWN_PREFIX_LENGTH = len(KEY_PREFIX) + 6
LAST_USED_INTERVAL = 60.0
MAX_EXPIRY = 100_000_000_000.0  # in the year 5138; the present in milliseconds is more
SCOPES: tuple[Scope, ...] = get_args(Scope)
UPDATABLE = frozenset({"name", "scopes", "models", "limits", "expires_at"})

SECRET_ID_LENGTH = 16  # of 64 characters of the hash: enough to tell secrets apart

KeyRejection: TypeAlias = Literal["unknown", "revoked", "expired", "rotated"]
"""Why a secret is rejected. "expired": the key has expired; "rotated": a newer secret has replaced it."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret; `prefix` is the start of the secret, to recognise it by.

    `models` are patterns of the models it may use, None for all; `limits` None means the hub's defaults.
    """

    id: str
    prefix: str
    owner: str
    name: str | None = None
    scopes: frozenset[str] = frozenset()
    models: tuple[str, ...] | None = None
    limits: Limits | None = None
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None

    @property
    def identity(self) -> Identity:
        """The identity of a caller with this key."""
        return Identity(
            owner=self.owner, key_id=self.id, scopes=self.scopes, models=self.models, limits=self.limits
        )

    def is_valid(self, now: float) -> bool:
        """Whether the key is neither revoked nor expired at the unix time `now`."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


class KeyStatements:
    """The SQL of `ApiKeyRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        found, this = select_fields(ApiKey, keys), keys.c.id == bindparam("id")
        now: ColumnElement[float] = bindparam("now")
        digested: ColumnElement[str] = bindparam("hash")
        former = former_secrets.c
        revoked = update(keys).where(this, keys.c.revoked_at.is_(None)).values(revoked_at=now)
        replaced = found.add_columns(former.valid_until).join_from(former_secrets, keys)
        self.insert = compiler.compile(insert(keys))
        stored = found.add_columns(keys.c.hash).where(this)
        self.get = compiler.compile(stored)
        self.get_locked = compiler.compile(stored.with_for_update(key_share=True))
        self.find = compiler.compile(found.where(keys.c.hash == digested))
        self.find_former = compiler.compile(replaced.where(former.hash == digested))
        self.list_former = compiler.compile(
            select(former.hash, former.valid_until).where(former.key_id == bindparam("id"))
        )
        self.list = compiler.compile(found.order_by(keys.c.created_at, keys.c.id))
        self.revoke = compiler.compile(revoked)
        self.update_last_used = compiler.compile(update(keys).where(this).values(last_used_at=now))
        changes: dict[str, Any] = {name: bindparam(name) for name in ("hash", "prefix", *UPDATABLE)}
        self.update = compiler.compile(update(keys).where(this).values(changes))
        self.insert_former = compiler.compile(insert(former_secrets))


class ApiKeyRepository:
    """All API keys.

    A secret has 32 random bytes, and only its SHA-256 is stored. A slow password hash would add nothing:
    nobody can try 2**256 secrets, however fast the hash is. The look-up by hash leaks at most how the hash of
    a guess compares to stored hashes, which reveals nothing about a secret.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    @cached_property
    def _sql(self) -> KeyStatements:
        return self._database.statements(KeyStatements)

    async def create(
        self,
        owner: str,
        *,
        name: str | None = None,
        scopes: Iterable[str] = (),
        models: Sequence[str] | None = None,
        limits: Limits | None = None,
        expires_at: float | None = None,
    ) -> tuple[ApiKey, str]:
        """Create a key; return it and its secret, which cannot be read again. Raises BadRequest."""
        secret = new_secret()
        key = ApiKey(
            id=f"key_{secrets.token_hex(8)}",
            prefix=secret[:SHOWN_PREFIX_LENGTH],
            owner=owner,
            name=name,
            scopes=frozenset(scopes),
            models=None if models is None else tuple(models),
            limits=limits,
            created_at=self._clock(),
            expires_at=expires_at,
        )
        params = key_params(check_key(key), hash_secret(secret))
        await self._database.write(lambda connection: connection.execute(self._sql.insert, params))
        return key, secret

    async def authenticate(self, secret: str) -> ApiKey | KeyRejection:
        """Return the key of a secret, or why the secret is rejected. Updates `last_used_at` once a minute.

        A replaced secret is valid until its grace period ends; its key carries that time as `expires_at`.
        """
        now = self._clock()
        key = await self._database.read_by_key(
            lambda connection: self._find_by_hash(connection, hash_secret(secret))
        )
        if not isinstance(key, ApiKey):
            return key
        if key.revoked_at is not None:
            return "revoked"
        if key.expires_at is not None and key.expires_at <= now:
            return "expired"
        if key.last_used_at is None or now - key.last_used_at >= LAST_USED_INTERVAL:
            with suppress(Unavailable):  # not worth failing a request for
                self._database.enqueue(
                    lambda connection: connection.execute(
                        self._sql.update_last_used, {"id": key.id, "now": now}
                    )
                )
        return key

    async def get(self, id: str) -> ApiKey | None:
        """Return the key with this id, revoked or not."""
        row = await self._database.read_by_key(
            lambda connection: connection.fetch_one(self._sql.get, {"id": id})
        )
        return None if row is None else to_key(row[:-1])

    async def check_uses(
        self, uses: Sequence[tuple[str, str | None]]
    ) -> Sequence[KeyRejection | float | None]:
        """Return why a key in use is no longer valid, or when it expires (None: never), for each.

        A use is the key's id and the `Identity.secret_id` of its secret; None checks the key only.
        """
        return await self._database.read(
            lambda connection: [
                self._check_use(connection, id, secret_id=secret_id) for id, secret_id in uses
            ]
        )

    async def list(self) -> Sequence[ApiKey]:
        """Return all keys, oldest first, including revoked ones."""
        return [to_key(row) for row in await self._database.read(self._select_all)]

    async def update(self, id: str, **fields: Any) -> ApiKey:
        """Change a key's name, scopes, models, limits or expires_at; return the key. Raises NotFound."""
        if unknown := fields.keys() - UPDATABLE:
            raise TypeError(f"{min(unknown)!r} of a key cannot be changed")

        def job(connection: DatabaseConnection) -> ApiKey:
            key, hashed = self._lock_valid(connection, id)
            changed = check_key(msgspec.structs.replace(key, **fields))
            connection.execute(self._sql.update, key_params(changed, hashed))
            return changed

        return await self._database.write(job)

    async def rotate(self, id: str, grace: float) -> tuple[ApiKey, str]:
        """Replace a key's secret; the old one stays valid for `grace` seconds. Raises NotFound."""
        secret, now = new_secret(), self._clock()

        def job(connection: DatabaseConnection) -> ApiKey:
            key, hashed = self._lock_valid(connection, id)
            changed = msgspec.structs.replace(key, prefix=secret[:SHOWN_PREFIX_LENGTH])
            connection.execute(
                self._sql.insert_former, {"hash": hashed, "key_id": id, "valid_until": now + grace}
            )
            connection.execute(self._sql.update, key_params(changed, hash_secret(secret)))
            return changed

        return await self._database.write(job), secret

    async def revoke(self, id: str) -> bool:
        """Revoke a key; return False when it does not exist or is already revoked."""
        params = {"id": id, "now": self._clock()}
        return await self._database.write(lambda connection: connection.execute(self._sql.revoke, params) > 0)

    def _check_use(
        self, connection: DatabaseConnection, id: str, *, secret_id: str | None
    ) -> KeyRejection | float | None:
        now, row = self._clock(), connection.fetch_one(self._sql.get, {"id": id})
        if row is None:
            return "unknown"
        key, hashed = to_key(row[:-1]), str(row[-1])
        if not key.is_valid(now):
            return "expired" if key.revoked_at is None else "revoked"
        if secret_id is None or hashed.startswith(secret_id):
            return key.expires_at
        former = connection.fetch_all(self._sql.list_former, {"id": id})
        until = max((until for hash, until in former if hash.startswith(secret_id)), default=now)
        if until <= now:
            return "rotated"
        return until if key.expires_at is None else min(until, key.expires_at)

    def _find_by_hash(self, connection: DatabaseConnection, digest: str) -> ApiKey | KeyRejection:
        if row := connection.fetch_one(self._sql.find, {"hash": digest}):
            return to_key(row)
        row = connection.fetch_one(self._sql.find_former, {"hash": digest})
        if row is None:
            return "unknown"
        key, until = to_key(row[:-1]), row[-1]
        if key.revoked_at is None and until <= self._clock():
            return "rotated"
        expires_at = until if key.expires_at is None else min(until, key.expires_at)
        return msgspec.structs.replace(key, expires_at=expires_at)

    def _lock_valid(self, connection: DatabaseConnection, id: str) -> tuple[ApiKey, str]:
        """Return a key that is not revoked, and the hash of its secret; no other host changes it now."""
        row = connection.fetch_one(self._sql.get_locked, {"id": id})
        if row is None or to_key(row[:-1]).revoked_at is not None:
            raise NotFound(
                f"there is no valid key with the id {id!r}", hint="`dragoman keys list` shows them"
            )
        return to_key(row[:-1]), row[-1]

    def _select_all(self, connection: DatabaseConnection) -> Sequence[Row]:
        return connection.fetch_all(self._sql.list, {})


def new_secret() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def hash_secret(secret: str) -> str:
    """Return the hash under which a secret is stored."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def secret_id_of(digest: str) -> str:
    """Return the start of a secret's hash, which names the secret without disclosing it."""
    return digest[:SECRET_ID_LENGTH]


def check_key(key: ApiKey) -> ApiKey:
    """Return a key. BadRequest for an unknown scope, an empty pattern, an impossible limit or time."""
    if unknown := key.scopes.difference(SCOPES):
        raise BadRequest(
            f"unknown scope {min(unknown)!r}", field="scopes", hint=f"the scopes are {', '.join(SCOPES)}"
        )
    if key.models is not None and not all(key.models):
        raise BadRequest("a model pattern is empty", field="models", hint="write patterns such as openai/*")
    if key.expires_at is not None and not 0 <= key.expires_at <= MAX_EXPIRY:
        raise BadRequest(
            f"expiresAt must be a unix time in seconds, not {key.expires_at:g}",
            field="expiresAt",
            hint="milliseconds, as of JavaScript's Date.now(), are a thousand times too many",
        )
    for name, problem in limit_problems(key.limits or NO_LIMITS):
        raise BadRequest(f"limits.{name}: {problem}", field=f"limits.{name}")
    return key


def key_params(key: ApiKey, digest: str) -> dict[str, Any]:
    return to_params(key) | {
        "hash": digest,
        "scopes": encode_json(sorted(key.scopes)),
        "models": encode_json(key.models),
        "limits": encode_json(key.limits),
    }


def to_key(row: Row) -> ApiKey:
    fields = to_fields(ApiKey, row)
    fields["scopes"] = decode_json(fields["scopes"], frozenset[str])
    fields["models"] = decode_json(fields["models"], tuple[str, ...])
    fields["limits"] = decode_json(fields["limits"], Limits)
    return ApiKey(**fields)
