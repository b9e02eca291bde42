"""Grants: which other owners and keys may use a session, and for what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import and_, bindparam, delete, literal_column, or_, select

from dragoman.errors import Conflict
from dragoman.identity import Identity
from dragoman.operations.authorization import SessionRole, roles_with
from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    Params,
    select_fields,
    to_params,
    to_struct,
)
from dragoman.store.database import Database
from dragoman.store.hub_events import HubEventRepository, NewEvent
from dragoman.store.tables.events import session_grants

GranteeKind: TypeAlias = Literal["owner", "key"]
MAX_GRANTS = 200  # of a session


class SessionGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner, or one key, may do in a session of another owner."""

    session_id: str
    kind: GranteeKind
    grantee: str
    role: SessionRole
    created_at: float
    created_by: str


class GrantStatements:
    """The SQL of `GrantRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        table = session_grants.c
        found = select_fields(SessionGrant, session_grants)
        of_session = table.session_id == bindparam("session_id")
        this = and_(of_session, table.kind == bindparam("kind"), table.grantee == bindparam("grantee"))
        of_caller = or_(
            and_(table.kind == literal_column("'owner'"), table.grantee == bindparam("caller")),
            and_(table.kind == literal_column("'key'"), table.grantee == bindparam("caller_key")),
        )
        insert = compiler.insert(session_grants)
        values = {name: insert.excluded[name] for name in ("role", "created_at", "created_by")}
        upsert = insert.on_conflict_do_update(index_elements=["session_id", "kind", "grantee"], set_=values)
        self.put = compiler.compile(upsert)
        self.list = compiler.compile(found.where(of_session).order_by(table.kind, table.grantee))
        self.remove = compiler.compile(delete(session_grants).where(this))
        self.roles = compiler.compile(select(table.role).where(of_session, of_caller))


class GrantRepository:
    """The grants of all sessions. The caller checks who may change them."""

    def __init__(self, database: Database, *, clock: Callable[[], float], events: HubEventRepository) -> None:
        self._database = database
        self._clock = clock
        self._events = events

    @cached_property
    def _sql(self) -> GrantStatements:
        return self._database.statements(GrantStatements)

    async def put(
        self, session_id: str, kind: GranteeKind, *, grantee: str, role: SessionRole, by: Identity
    ) -> None:
        """Grant a role, in place of an earlier one. Raises Conflict when there are too many grants."""
        grant = SessionGrant(
            session_id=session_id,
            kind=kind,
            grantee=grantee,
            role=role,
            created_at=self._clock(),
            created_by=by.owner,
        )

        def job(connection: DatabaseConnection) -> None:
            others = [
                each
                for each in self._list(connection, session_id)
                if not is_for(each, kind=kind, grantee=grantee)
            ]
            if len(others) >= MAX_GRANTS:
                raise Conflict(f"the session has {MAX_GRANTS} grants, the maximum")
            connection.execute(self._sql.put, to_params(grant))
            self._events.insert(connection, grant_event("grant.added", grant, by=by))

        await self._database.write(job)
        self._events.on_stored()

    async def remove(self, session_id: str, kind: GranteeKind, *, grantee: str, by: Identity) -> bool:
        """Revoke a grant; False when there is none."""
        params = {"session_id": session_id, "kind": kind, "grantee": grantee}

        def job(connection: DatabaseConnection) -> bool:
            grants = self._list(connection, session_id)
            grant = next((each for each in grants if is_for(each, kind=kind, grantee=grantee)), None)
            if grant is None:
                return False
            connection.execute(self._sql.remove, params)
            self._events.insert(connection, grant_event("grant.removed", grant, by=by))
            return True

        is_removed = await self._database.write(job)
        self._events.on_stored()
        return is_removed

    async def list(self, session_id: str) -> Sequence[SessionGrant]:
        """Return the grants of a session."""
        return await self._database.read(lambda connection: self._list(connection, session_id))

    def allows(
        self, connection: DatabaseConnection, session_id: str, *, caller: Identity, role: SessionRole
    ) -> bool:
        """In a job: return whether a grant gives the caller the role, or one that includes it."""
        params = {"session_id": session_id, **caller_params(caller)}
        allowed = roles_with(role)
        return any(found in allowed for (found,) in connection.fetch_all(self._sql.roles, params))

    def _list(self, connection: DatabaseConnection, session_id: str) -> Sequence[SessionGrant]:
        rows = connection.fetch_all(self._sql.list, {"session_id": session_id})
        return [to_struct(SessionGrant, row) for row in rows]


def is_for(grant: SessionGrant, *, kind: GranteeKind, grantee: str) -> bool:
    return (grant.kind, grant.grantee) == (kind, grantee)


def caller_params(caller: Identity) -> Params:
    return {"caller": caller.owner, "caller_key": caller.key_id or ""}


def grant_event(name: str, grant: SessionGrant, *, by: Identity) -> NewEvent:
    """Return the event of a grant that was added or removed."""
    body: dict[str, Any] = {grant.kind: grant.grantee, "role": grant.role}
    return NewEvent(
        name=name,
        owner=by.owner,
        session_id=grant.session_id,
        data=msgspec.json.encode(body).decode(),
        actor=by.owner,
        key_id=by.key_id,
    )
