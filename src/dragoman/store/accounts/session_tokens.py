"""Session tokens in the database: short-lived stand-ins of a key, each for one session or a prefix of ids.

An app's server makes them with its key and gives them to the browsers of its users. Only the hash of a token
is stored. A token is valid while the secret is that it was made with, and on every host of the database.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import and_, bindparam, delete, func, insert, literal_column, or_, select

from dragoman.errors import NotFound, RateLimited
from dragoman.identity import Identity, SessionBounds
from dragoman.store.accounts.keys import ApiKeyRepository, KeyRejection, hash_secret
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
from dragoman.store.tables.core import session_tokens

TOKEN_PREFIX = "dgt_"  # noqa: S105 - how a token begins
TOKEN_BYTES = 32
MAX_TOKENS = 10_000  # of a key that have not expired
TokenCursor: TypeAlias = tuple[float, str]  # when a token was made, and its id
FIRST_PAGE: TokenCursor = (1e15, "")


class SessionToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret. `models` None: those of the key."""

    id: str
    key_id: str
    secret_id: str | None = None
    session: str | None = None
    prefix: str | None = None
    role: Literal["read", "write"] = "write"
    models: tuple[str, ...] | None = None
    created_at: float
    expires_at: float

    @property
    def bounds(self) -> SessionBounds:
        """What the token may reach."""
        return SessionBounds(
            token_id=self.id,
            expires_at=self.expires_at,
            session=self.session,
            prefix=self.prefix,
            role=self.role,
        )


class SessionTokenStatements:
    """The SQL of `SessionTokenRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        rows = session_tokens.c
        of_key, now = rows.key_id == bindparam("key_id"), bindparam("now", type_=rows.expires_at.type)
        self.insert = compiler.compile(insert(session_tokens))
        self.find = compiler.compile(
            select_fields(SessionToken, session_tokens).where(rows.hash == bindparam("hash"))
        )
        self.count = compiler.compile(
            select(func.count()).select_from(session_tokens).where(of_key, rows.expires_at > now)
        )
        created = bindparam("created_at", type_=rows.created_at.type)
        older = or_(rows.created_at < created, and_(rows.created_at == created, rows.id < bindparam("id")))
        page = select_fields(SessionToken, session_tokens).where(rows.expires_at > now, older)
        page = page.order_by(rows.created_at.desc(), rows.id.desc()).limit(bindparam("limit"))
        page = page.offset(literal_column("0"))
        self.list = compiler.compile(page)
        self.list_of_key = compiler.compile(page.where(of_key))
        self.find_id = compiler.compile(select(rows.id).where(rows.id == bindparam("id")))
        self.delete = compiler.compile(delete(session_tokens).where(rows.id == bindparam("id")))
        self.delete_of_key = compiler.compile(
            delete(session_tokens).where(of_key, rows.id == bindparam("id"))
        )
        self.delete_prefix = compiler.compile(
            delete(session_tokens).where(of_key, rows.prefix == bindparam("prefix"))
        )
        self.delete_expired = compiler.compile(delete(session_tokens).where(of_key, rows.expires_at <= now))


class SessionTokenRepository:
    """The session tokens of all keys. A token has 32 random bytes and cannot be read again."""

    def __init__(self, database: Database, keys: ApiKeyRepository, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._keys = keys
        self._clock = clock

    @cached_property
    def _sql(self) -> SessionTokenStatements:
        return self._database.statements(SessionTokenStatements)

    async def create(
        self,
        maker: Identity,
        *,
        seconds: float,
        session: str | None = None,
        prefix: str | None = None,
        role: Literal["read", "write"] = "write",
        models: Sequence[str] | None = None,
    ) -> tuple[SessionToken, str]:
        """Store a token that stands for a caller's key; return it and its secret. Raises RateLimited."""
        now = self._clock()
        token = SessionToken(
            id=f"tok_{secrets.token_hex(8)}",
            key_id=maker.key_id or "",
            secret_id=maker.secret_id,
            session=session,
            prefix=prefix,
            role=role,
            models=None if models is None else tuple(models),
            created_at=now,
            expires_at=now + seconds,
        )
        secret = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        params = {**to_params(token), "models": encode_json(token.models), "hash": hash_secret(secret)}

        def job(connection: DatabaseConnection) -> None:
            used = {"key_id": token.key_id, "now": now}
            connection.execute(self._sql.delete_expired, used)
            row = connection.fetch_one(self._sql.count, used)
            if row is not None and row[0] >= MAX_TOKENS:
                raise RateLimited(
                    f"this key has {MAX_TOKENS} session tokens that have not expired",
                    hint="reuse a token until it expires, or make tokens of fewer minutes",
                )
            connection.execute(self._sql.insert, params)

        await self._database.write(job)
        return token, secret

    async def list(
        self, key_id: str | None, *, before: TokenCursor = FIRST_PAGE, limit: int
    ) -> Sequence[SessionToken]:
        """Return the tokens that have not expired, of a key or of all, the newest first."""
        created_at, id = before
        params: dict[str, Any] = {"now": self._clock(), "created_at": created_at, "id": id, "limit": limit}
        sql = self._sql.list if key_id is None else self._sql.list_of_key
        params |= {} if key_id is None else {"key_id": key_id}
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [token_of_row(row) for row in rows]

    async def revoke(self, id: str, *, key_id: str | None) -> None:
        """Delete a token, of a key or of any. NotFound."""
        params = {"id": id} if key_id is None else {"id": id, "key_id": key_id}
        sql = self._sql.delete if key_id is None else self._sql.delete_of_key
        if not await self._database.write(lambda connection: connection.execute(sql, params)):
            whose = "there is" if key_id is None else "this key has"
            raise NotFound(f"{whose} no session token {id!r:.100}", hint="it may have expired")

    async def revoke_prefix(self, prefix: str, *, key_id: str) -> int:
        """Delete the tokens of a key that are for the sessions of a prefix; return how many there were."""
        params = {"prefix": prefix, "key_id": key_id}
        return await self._database.write(
            lambda connection: connection.execute(self._sql.delete_prefix, params)
        )

    async def find_revoked(self, ids: Sequence[str]) -> frozenset[str]:
        """Return which of these tokens are no longer stored."""
        return await self._database.read(
            lambda connection: frozenset(
                id for id in ids if connection.fetch_one(self._sql.find_id, {"id": id}) is None
            )
        )

    async def authenticate(self, secret: str) -> tuple[Identity, float] | KeyRejection:
        """Return the identity of a token and when it expires, or why it is rejected."""
        params = {"hash": hash_secret(secret)}
        row = await self._database.read(lambda connection: connection.fetch_one(self._sql.find, params))
        if row is None:
            return "unknown"
        token = token_of_row(row)
        if token.expires_at <= self._clock():
            return "expired"
        [use] = await self._keys.check_uses([(token.key_id, token.secret_id)])
        key = None if isinstance(use, str) else await self._keys.get(token.key_id)
        if isinstance(use, str) or key is None:
            return use if isinstance(use, str) else "unknown"
        if not key.identity.may("chat"):  # the key has lost it since
            return "revoked"
        identity = Identity(
            owner=key.owner,
            key_id=key.id,
            scopes=frozenset({"chat"}),
            models=key.models if token.models is None else models_within(token.models, key.models),
            limits=key.limits,
            secret_id=token.secret_id,
            bounds=token.bounds,
        )
        return identity, token.expires_at if use is None else min(use, token.expires_at)


def token_of_row(row: Row) -> SessionToken:
    """Return the token in a row of `select_fields`."""
    fields = to_fields(SessionToken, row)
    fields["models"] = decode_json(fields["models"], tuple[str, ...])
    return SessionToken(**fields)


def models_within(wanted: Sequence[str], allowed: Sequence[str] | None) -> tuple[str, ...]:
    """Return those patterns of models that a key with the patterns `allowed` may use.

    A pattern that is not the key's own counts only if it names one model.
    """
    if allowed is None:
        return tuple(wanted)
    return tuple(
        each
        for each in wanted
        if each in allowed
        or (not set(each) & set("*?[") and any(fnmatchcase(each, pattern) for pattern in allowed))
    )
