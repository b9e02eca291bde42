"""Sessions in the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import (
    ColumnElement,
    Integer,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    null,
    select,
    tuple_,
    update,
)

from dragoman.errors import BadRequest, Conflict, Forbidden, NotFound, RunActive, SessionDeleted
from dragoman.identity import Identity
from dragoman.operations.authorization import SessionRole, require_owner
from dragoman.session_ids import client_session_id, hub_session_id, owner_prefix
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
from dragoman.store.hub_events import HubEventRepository, NewEvent
from dragoman.store.sessions.grants import GrantRepository
from dragoman.store.sessions.run_statuses import read_run_statuses
from dragoman.store.tables.core import (
    DELETED_OWNER,
    INTEGER,
    IS_DELETED,
    IS_RUNNING,
    TEXT,
    runs,
    sessions,
)

SessionKind: TypeAlias = Literal["ancestor", "importing", "deleting"]
MAX_NAMED = 10  # sessions in an error
CLOCK_STEP = 1e-6  # seconds from a change of a session to one by a clock that is behind: each one is later
UPDATABLE = frozenset({"title", "agent", "model", "max_steps", "labels", "archived_at"})
JSON_NAMES = {"max_steps": "maxSteps", "archived_at": "archivedAt"}


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation with an owner. None in agent, model or max_steps means the hub's configured default.

    `id` is the hub's id of it, see `session_ids.py`. One with a `kind` is not shown: it is being imported or
    deleted, or has the messages of a deleted one that its forks share. `runner` is 1 if a runner answers in
    it; `runner_host` is the host that the runner is connected to, if several share the database.
    """

    id: str
    owner: str
    title: str | None = None
    agent: str | None = None
    model: str | None = None
    max_steps: int | None = None
    created_at: float
    updated_at: float
    kind: SessionKind | None = None
    labels: tuple[str, ...] = ()
    archived_at: float | None = None
    runner: int | None = None
    runner_host: str | None = None

    @property
    def is_deleted(self) -> bool:
        """Whether it is being deleted, and has no owner any more."""
        return self.owner == DELETED_OWNER

    def is_cut_off(self, at: float) -> bool:
        """Return whether its import began before that time and has not ended."""
        return self.kind == "importing" and self.updated_at < at

    def change_time(self, now: float) -> float:
        """Return the time of a change `now`: later than the last one, also by a clock that is behind."""
        return now if now >= self.updated_at else self.updated_at + CLOCK_STEP


class SessionFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions are listed: archived ones or not (None: both), with a label, with words in the title."""

    archived: bool | None = None
    label: str | None = None
    title: str = ""
    id_prefix: str = ""  # of the hub's ids

    def params(self) -> dict[str, Any]:
        """Return these as parameters."""
        label = None if self.label is None else msgspec.json.encode(self.label).decode()
        return {
            "archived_from": 1 if self.archived else 0,
            "archived_to": 0 if self.archived is False else 1,
            "label": "%" if label is None else like_pattern(label),
            "title": like_pattern(self.title),
            "id_prefix": self.id_prefix,
            "id_prefix_length": len(self.id_prefix),
        }


def like_pattern(text: str) -> str:
    """Return the LIKE pattern (escape `!`) of texts that contain another one."""
    for sign in "!%_":
        text = text.replace(sign, f"!{sign}")
    return f"%{text}%"


def session_params(session: Session) -> dict[str, Any]:
    """Return a session's fields as parameters."""
    return {**to_params(session), "labels": encode_json(session.labels or None)}


def to_session(row: Row) -> Session:
    """Return the session in a row; one that is being deleted has no owner, also while forks still read it."""
    fields = to_fields(Session, row)
    if fields["kind"] == "deleting":
        fields["owner"] = DELETED_OWNER
    return Session(**fields | {"labels": decode_json(fields["labels"], tuple[str, ...]) or ()})


def session_not_found(id: str) -> NotFound:
    """Return the error of a session that does not exist, and of one that the caller may not know of."""
    return NotFound(f"There is no session {id!r}.", hint="`dragoman sessions list` shows them")


def require_unchanged_owner(session: Session, stored: Session) -> None:
    """Raise SessionDeleted when the stored session is being deleted, Forbidden when it is another owner's."""
    if stored.is_deleted:
        raise SessionDeleted(client_session_id(session.id))
    require_owner(session.owner, stored.owner, resource=f"session {session.id!r}")


def ambiguous_session(id: str, found: Sequence[Session]) -> BadRequest:
    """Return the error of a client's id that several owners use, for a caller who may read all of theirs."""
    named = ", ".join(f"{session.id!r} of {session.owner!r}" for session in found[:MAX_NAMED])
    return BadRequest(
        f"{len(found)} owners have a session {id!r}: {named}{', …' if len(found) > MAX_NAMED else ''}",
        field="id",
        hint="use the hub's id of the one that you mean",
    )


def listed_conditions() -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of `SessionFilters`."""
    is_archived = case((sessions.c.archived_at.is_(None), literal_column("0")), else_=literal_column("1"))
    empty: ColumnElement[str] = literal_column("''")
    yield is_archived.between(bindparam("archived_from"), bindparam("archived_to"))
    yield func.coalesce(sessions.c.labels, empty).like(bindparam("label"), escape="!")
    yield func.coalesce(sessions.c.title, empty).ilike(bindparam("title"), escape="!")
    length = cast(bindparam("id_prefix_length", type_=INTEGER), Integer)  # Postgres takes no bigint there
    beginning = func.substr(sessions.c.id, literal_column("1"), length)
    yield beginning == bindparam("id_prefix", type_=TEXT)  # exact: LIKE ignores case in SQLite


class SessionStatements:
    """The SQL of `SessionRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        this = sessions.c.id == bindparam("id")
        latest = sessions.c.updated_at, sessions.c.id
        visible = sessions.c.kind.is_(None) & ~IS_DELETED
        every = select_fields(Session, sessions).where(visible, *listed_conditions())
        every = every.order_by(*(column.desc() for column in latest))
        every = every.limit(bindparam("limit")).offset(literal_column("0"))
        page = every.where(sessions.c.owner == bindparam("owner"))
        earlier = tuple_(*latest) < tuple_(bindparam("updated_at"), bindparam("before"))
        changes: dict[str, Any] = {name: bindparam(name) for name in (*UPDATABLE, "updated_at")}
        active = select(runs.c.id, runs.c.message_id).where(runs.c.session_id == bindparam("id"), IS_RUNNING)
        unless_there = compiler.insert(sessions).on_conflict_do_nothing(index_elements=["id"])
        found = select_fields(Session, sessions).where(this)
        self.insert = compiler.compile(unless_there)
        self.get = compiler.compile(found.where(~IS_DELETED))
        either = sessions.c.id.in_((bindparam("id"), bindparam("client_id")))
        self.get_either = compiler.compile(select_fields(Session, sessions).where(either, ~IS_DELETED))
        self.get_locked = compiler.compile(found.with_for_update(key_share=True))
        self.page = compiler.compile(page)
        self.next_page = compiler.compile(page.where(earlier))
        self.page_of_all = compiler.compile(every)
        self.next_page_of_all = compiler.compile(every.where(earlier))
        self.owners = compiler.compile(
            select(sessions.c.owner).where(visible).distinct().order_by(sessions.c.owner)
        )
        changed = update(sessions).where(this)
        runner_host: ColumnElement[str] = bindparam("runner_host")
        self.update = compiler.compile(changed.values(changes))
        now: ColumnElement[float] = bindparam("updated_at")
        step: ColumnElement[float] = literal_column(str(CLOCK_STEP))
        later = case((latest[0] <= now, now), else_=latest[0] + step)
        self.touch = compiler.compile(changed.values(updated_at=later))
        self.set_runner_host = compiler.compile(changed.values(runner_host=runner_host))
        unset = changed.where(sessions.c.runner_host.is_(None))
        self.restore_runner_host = compiler.compile(unset.values(runner_host=runner_host))
        set_to_it = changed.where(sessions.c.runner_host == runner_host)
        self.clear_runner_host = compiler.compile(set_to_it.values(runner_host=null()))
        self.end_import = compiler.compile(changed.values(kind=null(), updated_at=now))
        self.active = compiler.compile(active)


class SessionRepository:
    """The sessions of all owners. Access checks are the caller's (`operations/authorization.py`)."""

    def __init__(self, database: Database, *, clock: Callable[[], float], events: HubEventRepository) -> None:
        self._database = database
        self._clock = clock
        self.events = events
        self.grants = GrantRepository(database, clock=clock, events=events)

    @cached_property
    def _sql(self) -> SessionStatements:
        return self._database.statements(SessionStatements)

    async def create(self, session: Session, *, by: Identity | None = None) -> None:
        """Insert a session. Raises Conflict when its id is taken."""

        def job(connection: DatabaseConnection) -> None:
            is_taken = self.find_own(connection, session.id, owner=session.owner)
            if is_taken or not self.insert(connection, session):
                raise Conflict(f"session {client_session_id(session.id)!r} already exists")
            self.events.insert(connection, session_event("session.created", session, by=by))

        await self._database.write(job)
        self.events.on_stored()

    async def run_statuses(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Return the status of the newest run of each of these sessions that has one."""
        return await read_run_statuses(self._database, ids)

    async def get(self, id: str) -> Session | None:
        """Return the session with this id of the hub's, or None."""
        return await self._database.read_by_key(lambda connection: self.find(connection, id))

    async def get_own(self, id: str, *, owner: str) -> Session | None:
        """Return the owner's session that its client or the hub calls `id`, or None."""
        return await self._database.read_by_key(lambda connection: self.find_own(connection, id, owner=owner))

    async def get_accessible(
        self, id: str, *, caller: Identity, role: SessionRole = "read"
    ) -> Session | None:
        """Return the caller's session of this id, or one that is shared with it; else None.

        A shared session is named by the hub's id. Raises Forbidden when the caller's role does not suffice.
        """
        if not caller.covers(id):
            return None
        if caller.bounds is not None and caller.bounds.role == "read" and role != "read":
            raise Forbidden("this session token may read only", hint="make one with the role `write`")
        return await self._database.read_by_key(
            lambda connection: (
                self.find_own(connection, id, owner=caller.owner)
                or self.find_shared(connection, id, caller=caller, role=role)
            )
        )

    async def get_shared(self, id: str, *, caller: Identity, role: SessionRole = "read") -> Session | None:
        """Return the session of another owner that is shared with the caller, or None. Raises Forbidden."""
        if not is_of_others(id, caller.owner):
            return None
        return await self._database.read_by_key(
            lambda connection: self.find_shared(connection, id, caller=caller, role=role)
        )

    def find_shared(
        self, connection: DatabaseConnection, id: str, *, caller: Identity, role: SessionRole
    ) -> Session | None:
        """In a job: see `get_shared`."""
        session = self.find(connection, id) if is_of_others(id, caller.owner) else None
        if session is None or not self.grants.allows(connection, id, caller=caller, role="read"):
            return None
        if not self.grants.allows(connection, id, caller=caller, role=role):
            raise Forbidden(
                f"session {id!r} is shared with you, and this needs the role {role!r}",
                hint=f"its owner, {session.owner!r}, can grant it",
            )
        return session

    async def get_of_any_owner(self, id: str) -> Session | None:
        """Return the session that the hub calls `id`, or the only one that a client calls so; or None.

        BadRequest when the clients of several owners have such a session.
        """

        def query(connection: DatabaseConnection) -> Session | None:
            session = self.find(connection, id)
            if session is not None and session.kind is None:
                return session
            ids = [hub_session_id(id, owner=owner) for (owner,) in connection.fetch_all(self._sql.owners, {})]
            found = [session for each in ids if (session := self.find(connection, each))]
            if len(found) > 1:
                raise ambiguous_session(id, found)
            return found[0] if found else None

        return await self._database.read(query)

    async def list(
        self,
        owner: str | None,
        *,
        limit: int = 50,
        before: str | None = None,
        filters: SessionFilters | None = None,
    ) -> Sequence[Session]:
        """Return the owner's sessions, or all sessions for None, the last changed first.

        With `before`, a session's id, return those that follow it. NotFound when it does not exist.
        """
        sql = self._sql
        first, following = (
            (sql.page_of_all, sql.next_page_of_all) if owner is None else (sql.page, sql.next_page)
        )
        params: dict[str, Any] = {"limit": limit, **({} if owner is None else {"owner": owner})}
        params |= (filters or SessionFilters()).params()

        def query(connection: DatabaseConnection) -> Sequence[Session]:
            if before is None:
                return [to_session(row) for row in connection.fetch_all(first, params)]
            last = self.find(connection, before)
            if last is None:
                raise NotFound(f"There is no session {before!r} to continue the list from.")
            bounds = {"updated_at": last.updated_at, "before": before}
            return [to_session(row) for row in connection.fetch_all(following, params | bounds)]

        return await self._database.read(query)

    async def owners(self) -> Sequence[str]:
        """Return all owners of sessions, in alphabetical order."""
        return await self._database.read(
            lambda connection: [owner for (owner,) in connection.fetch_all(self._sql.owners, {})]
        )

    async def update(
        self, id: str, *, by: Identity | None = None, **fields: str | float | tuple[str, ...] | None
    ) -> Session:
        """Change a session's title, agent, model or max_steps; return it. Raises NotFound."""
        if unknown := fields.keys() - UPDATABLE:
            raise TypeError(f"{min(unknown)!r} of a session cannot be changed")

        def job(connection: DatabaseConnection) -> Session:
            session = self.lock(connection, id)
            if session is None:
                raise NotFound(f"there is no session {id!r}")
            now = session.change_time(self._clock())
            changed = msgspec.structs.replace(session, **fields, updated_at=now)
            connection.execute(self._sql.update, session_params(changed))
            event = session_event("session.updated", changed, by=by, fields=fields)
            self.events.insert(connection, event)
            return changed

        changed = await self._database.write(job)
        self.events.on_stored()
        return changed

    async def replace_title(self, id: str, *, old: str | None, new: str) -> bool:
        """Replace a session's title if it is still `old`; return whether it was.

        `updated_at` stays the same, so the session keeps its place in lists.
        """

        def job(connection: DatabaseConnection) -> bool:
            session = self.lock(connection, id)
            if session is None or session.title != old:
                return False
            changed = msgspec.structs.replace(session, title=new)
            connection.execute(self._sql.update, session_params(changed))
            event = session_event("session.updated", changed, by=None, fields={"title": new})
            self.events.insert(connection, event)
            return True

        has_changed = await self._database.write(job)
        self.events.on_stored()
        return has_changed

    async def set_runner_host(self, id: str, host: str) -> None:
        """Write that the session's runner is connected to a host."""
        params = {"id": id, "runner_host": host}
        await self._database.write(lambda connection: connection.execute(self._sql.set_runner_host, params))

    async def restore_runner_host(self, id: str, host: str) -> None:
        """Write that the session's runner is connected to a host, unless it is at another one."""
        params = {"id": id, "runner_host": host}
        sql = self._sql.restore_runner_host
        await self._database.write(lambda connection: connection.execute(sql, params))

    async def clear_runner_host(self, id: str, host: str) -> None:
        """Write that the session's runner is no longer connected to a host, unless it is at another one."""
        params = {"id": id, "runner_host": host}
        await self._database.write(lambda connection: connection.execute(self._sql.clear_runner_host, params))

    async def end_import(self, id: str) -> None:
        """Make a session visible whose messages have been imported."""
        params = {"id": id, "updated_at": self._clock()}
        await self._database.write(lambda connection: connection.execute(self._sql.end_import, params))

    def now(self) -> float:
        """Return the time of the clock that sessions are stamped by."""
        return self._clock()

    def find_own(self, connection: DatabaseConnection, id: str, *, owner: str) -> Session | None:
        """In a job: return the owner's session that its client or the hub calls `id`, or None."""
        hub_id = hub_session_id(id, owner=owner)
        ids = {"id": hub_id, "client_id": client_session_id(hub_id)}  # some have only one id
        found = map(to_session, connection.fetch_all(self._sql.get_either, ids))
        own = {each.id: each for each in found if each.owner == owner and each.kind is None}
        return own.get(hub_id) or own.get(ids["client_id"])

    def find(self, connection: DatabaseConnection, id: str) -> Session | None:
        """In a job: return the session, or None; also for one that is being deleted."""
        row = connection.fetch_one(self._sql.get, {"id": id})
        return to_session(row) if row else None

    def lock(self, connection: DatabaseConnection, id: str) -> Session | None:
        """In a job: do what `find` does. Other transactions cannot change it until this one ends."""
        session = self.lock_any(connection, id)
        return None if session is None or session.is_deleted else session

    def lock_any(self, connection: DatabaseConnection, id: str) -> Session | None:
        """In a job: do what `lock` does, also for a session that is being deleted, which has no owner."""
        row = connection.fetch_one(self._sql.get_locked, {"id": id})
        return to_session(row) if row else None

    def refuse_active(
        self, connection: DatabaseConnection, id: str, *, message_id: str | None = None
    ) -> None:
        """In a job: raise RunActive when the session has an active run, or one that writes this message."""
        active = connection.fetch_one(self._sql.active, {"id": id})
        if active is not None and message_id in (None, active[1]):
            raise RunActive(client_session_id(id), active[0])

    def note_branch(
        self, connection: DatabaseConnection, id: str, *, message_id: str, by: Identity | None
    ) -> None:
        """In a job: note that another branch of the session is active, the one with this message."""
        connection.execute(self._sql.touch, {"id": id, "updated_at": self._clock()})
        session = self.find(connection, id)
        if session is not None:
            event = session_event("session.updated", session, by=by, fields={"branch": message_id})
            self.events.insert(connection, event)

    def insert(self, connection: DatabaseConnection, session: Session) -> bool:
        """In a job: insert a session; False when its id is taken."""
        return connection.execute(self._sql.insert, session_params(session)) > 0


def is_of_others(id: str, owner: str) -> bool:
    """Return whether an id may be the hub's id of another owner's session."""
    return id.startswith("ses_") and not id.startswith(owner_prefix(owner))


def session_event(
    name: str, session: Session, *, by: Identity | None, fields: Mapping[str, Any] | None = None
) -> NewEvent:
    """Return the event of a change of a session; `fields` are what has changed."""
    values = (
        {name: getattr(session, name) for name in ("title", "agent", "model")} if fields is None else fields
    )
    body = {JSON_NAMES.get(name, name): value for name, value in values.items()}
    return NewEvent(
        name=name,
        owner=session.owner,
        session_id=session.id,
        data=msgspec.json.encode(body).decode(),
        actor=None if by is None else by.owner,
        key_id=None if by is None else by.key_id,
    )
