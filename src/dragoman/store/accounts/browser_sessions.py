"""Sign-ins of browsers in the database: sessions of the console, and links that open one once.

A browser holds a token, of which only the hash is stored. The token stands for a key, and is valid while the
key's secret that it was made with is.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import cached_property
from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import bindparam, delete, insert, literal_column, select

from dragoman.store.accounts.keys import hash_secret
from dragoman.store.connection import Compiler, DatabaseConnection, select_fields, to_params, to_struct
from dragoman.store.database import Database
from dragoman.store.tables.core import browser_sessions

TOKEN_BYTES = 32
SESSION_SECONDS = 12 * 3_600.0
LINK_SECONDS = 120.0
MAX_ROWS = 20  # of a key; the oldest are deleted above it

BrowserTokenKind: TypeAlias = Literal["session", "link"]


class BrowserSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """What a token stands for. Without `secret_id` it is valid whatever the key's current secret is."""

    kind: BrowserTokenKind
    key_id: str
    secret_id: str | None = None
    created_at: float
    expires_at: float


class BrowserSessionStatements:
    """The SQL of `BrowserSessionRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        rows = browser_sessions.c
        this = (rows.hash == bindparam("hash"), rows.kind == bindparam("kind"))
        valid = rows.expires_at > bindparam("now")
        of_key = rows.key_id == bindparam("key_id")
        newest = (
            select(rows.hash)
            .where(of_key)
            .order_by(rows.created_at.desc(), rows.hash)
            .limit(bindparam("kept"))
            .offset(literal_column("0"))
        )
        self.insert = compiler.compile(insert(browser_sessions))
        self.find = compiler.compile(select_fields(BrowserSignIn, browser_sessions).where(*this, valid))
        self.delete = compiler.compile(delete(browser_sessions).where(*this))
        self.delete_expired = compiler.compile(
            delete(browser_sessions).where(rows.expires_at <= bindparam("now"))
        )
        self.delete_oldest = compiler.compile(
            delete(browser_sessions).where(of_key, rows.hash.not_in(newest))
        )


class BrowserSessionRepository:
    """The sign-ins of all keys. A token is 32 random bytes; it cannot be read again."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    @cached_property
    def _sql(self) -> BrowserSessionStatements:
        return self._database.statements(BrowserSessionStatements)

    async def create(self, key_id: str, *, secret_id: str | None = None) -> tuple[BrowserSignIn, str]:
        """Store a session of a key for 12 hours; return it and its token."""
        session = self._new("session", key_id, secret_id=secret_id)
        return session, await self._database.write(lambda connection: self._insert(connection, session))

    async def create_link(self, key_id: str, *, secret_id: str | None = None) -> tuple[BrowserSignIn, str]:
        """Store a link that opens a session of a key once, within two minutes; return it and its token."""
        link = self._new("link", key_id, secret_id=secret_id)
        return link, await self._database.write(lambda connection: self._insert(connection, link))

    async def redeem(self, link: str) -> tuple[BrowserSignIn, str] | None:
        """Exchange a link for a session; return it and its token, None for a used or expired link."""
        params = {"hash": hash_secret(link), "kind": "link"}

        def job(connection: DatabaseConnection) -> tuple[BrowserSignIn, str] | None:
            row = connection.fetch_one(self._sql.find, {**params, "now": self._clock()})
            # The deletion decides, so that of two hosts that redeem a link only one opens a session.
            if row is None or connection.execute(self._sql.delete, params) == 0:
                return None
            found = to_struct(BrowserSignIn, row)
            session = self._new("session", found.key_id, secret_id=found.secret_id)
            return session, self._insert(connection, session)

        return await self._database.write(job)

    async def find(self, token: str) -> BrowserSignIn | None:
        """Return the session of a token; None when it is unknown, signed out or expired."""
        params = {"hash": hash_secret(token), "kind": "session", "now": self._clock()}
        row = await self._database.read(lambda connection: connection.fetch_one(self._sql.find, params))
        return None if row is None else to_struct(BrowserSignIn, row)

    async def delete(self, token: str) -> bool:
        """Sign out; False when there is no such session."""
        params = {"hash": hash_secret(token), "kind": "session"}
        return await self._database.write(lambda connection: connection.execute(self._sql.delete, params) > 0)

    def _new(self, kind: BrowserTokenKind, key_id: str, *, secret_id: str | None) -> BrowserSignIn:
        now = self._clock()
        expires_at = now + (SESSION_SECONDS if kind == "session" else LINK_SECONDS)
        return BrowserSignIn(
            kind=kind, key_id=key_id, secret_id=secret_id, created_at=now, expires_at=expires_at
        )

    def _insert(self, connection: DatabaseConnection, row: BrowserSignIn) -> str:
        token = secrets.token_urlsafe(TOKEN_BYTES)
        connection.execute(self._sql.delete_expired, {"now": self._clock()})
        connection.execute(self._sql.delete_oldest, {"key_id": row.key_id, "kept": MAX_ROWS - 1})
        connection.execute(self._sql.insert, {**to_params(row), "hash": hash_secret(token)})
        return token
