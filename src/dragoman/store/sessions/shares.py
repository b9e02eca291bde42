"""Shared links of sessions: read by whoever has the token, of which only the hash is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from functools import cached_property

import msgspec
from sqlalchemy import bindparam, delete, func, insert, literal_column, or_, select

from dragoman.errors import Conflict, NotFound
from dragoman.ids import new_id
from dragoman.store.connection import Compiler, DatabaseConnection, select_fields, to_params, to_struct
from dragoman.store.database import Database
from dragoman.store.sessions.branches import BranchRepository
from dragoman.store.tables.core import IS_DELETED, sessions, shares

TOKEN_BYTES = 32
MAX_SHARES = 100  # of a session


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A link to a session as it was. With `tools` it shows the inputs and outputs of tool calls."""

    id: str
    session_id: str
    owner: str
    created_at: float
    expires_at: float | None = None
    tools: bool = False


class ShareStatements:
    """The SQL of `ShareRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        found = select_fields(Share, shares)
        of_session = shares.c.session_id == bindparam("session_id")
        is_valid = or_(shares.c.expires_at.is_(None), shares.c.expires_at > bindparam("now"))
        readable = found.join(sessions, sessions.c.id == shares.c.session_id)
        owned = (sessions.c.owner == shares.c.owner) & ~IS_DELETED
        self.insert = compiler.compile(insert(shares))
        self.find = compiler.compile(
            readable.add_columns(sessions.c.title).where(shares.c.hash == bindparam("hash"), is_valid, owned)
        )
        self.list = compiler.compile(found.where(of_session).order_by(shares.c.created_at, shares.c.id))
        self.count = compiler.compile(select(func.count(literal_column("1"))).where(of_session))
        self.delete = compiler.compile(delete(shares).where(of_session, shares.c.id == bindparam("id")))


class ShareRepository:
    """The shared links of all owners. Access checks are the caller's."""

    def __init__(self, database: Database, *, branches: BranchRepository, clock: Callable[[], float]) -> None:
        self._database = database
        self._branches = branches
        self._clock = clock

    @cached_property
    def _sql(self) -> ShareStatements:
        return self._database.statements(ShareStatements)

    async def create(self, share: Share) -> str:
        """Store a link to the active branch as it is now; return its token, which cannot be read again.

        Raises NotFound for a session without messages, Conflict when it has too many links.
        """
        token = secrets.token_urlsafe(TOKEN_BYTES)

        def job(connection: DatabaseConnection) -> None:
            end = self._branches.end_of(connection, share.session_id)
            if end is None:
                raise NotFound("The session has no messages to share.")
            count = connection.fetch_one(self._sql.count, {"session_id": share.session_id})
            if count is not None and count[0] >= MAX_SHARES:
                raise Conflict(f"the session has {MAX_SHARES} links", hint="revoke one that is not used")
            place = {"branch_session_id": end.session_id, "branch_start": end.start, "position": end.until}
            connection.execute(self._sql.insert, {**to_params(share), **place, "hash": hash_token(token)})

        await self._database.write(job)
        return token

    async def find(self, token: str) -> tuple[Share, str | None] | None:
        """Return the link with this token and the title of its session; None when there is none."""
        params = {"hash": hash_token(token), "now": self._clock()}
        row = await self._database.read(lambda connection: connection.fetch_one(self._sql.find, params))
        return None if row is None else (to_struct(Share, row[:-1]), row[-1])

    async def list(self, session_id: str) -> Sequence[Share]:
        """Return the links of a session, the oldest first."""
        params = {"session_id": session_id}
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, params))
        return [to_struct(Share, row) for row in rows]

    async def delete(self, session_id: str, id: str) -> bool:
        """Revoke a link; False when the session has none with this id."""
        params = {"session_id": session_id, "id": id}
        return await self._database.write(lambda connection: connection.execute(self._sql.delete, params) > 0)


def new_share(session_id: str, *, owner: str, now: float, expires_at: float | None, tools: bool) -> Share:
    """Return a new link."""
    id = new_id("shr")
    return Share(
        id=id, session_id=session_id, owner=owner, created_at=now, expires_at=expires_at, tools=tools
    )


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
