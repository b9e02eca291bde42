"""Runs in the database: one transaction creates a run, and a session has one active run at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace
from sqlalchemy import Select, bindparam, func, literal_column, or_, tuple_, update

from dragoman.errors import Conflict, HostFenced, NotFound, RunActive, StoreError, Unavailable
from dragoman.events import Usage
from dragoman.identity import door
from dragoman.messages import Message
from dragoman.model_request import Tool
from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    DatabaseJob,
    Params,
    Row,
    decode_json,
    encode_json,
    select_fields,
    to_fields,
    to_params,
)
from dragoman.store.database import Database
from dragoman.store.hub_events import NewEvent
from dragoman.store.sessions.messages import MessageRepository
from dragoman.store.sessions.run_ends import EndedRun, FinalStatus, RunEnding, run_ended
from dragoman.store.sessions.sessions import (
    Session,
    SessionRepository,
    require_unchanged_owner,
    session_event,
)
from dragoman.store.tables.core import IS_RUNNING, runs, sessions
from dragoman.store.webhook_deliveries import WebhookDelivery, WebhookDeliveryRepository

RunStatus: TypeAlias = Literal["running", FinalStatus]
FILTERS = frozenset({"owner", "session_id", "status"})


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run, active or ended. `message_id` is the assistant message; `cost` is in US dollars.

    `key_id` is the key that it runs for, `tools` are those of the front end. `crashes` counts the crashes
    without progress in between; None for a run of an earlier version. `settled_parts` is how
    many parts of its message were complete when it began, or last continued after a crash. `host` is the host
    that executes it, None without hosts and for a run that is released; `epoch` counts the hosts it has had.
    One in the `background` continues without followers; its end is posted to the URL `webhook`. `door` is the
    endpoint that it was requested at, as the repository records it. A conversation of more than
    `compact_threshold` tokens is summarised before the model is asked, where the request says so, and the
    answer is in its `output_format` (JSON) with at most `max_tool_calls`.
    """

    id: str
    session_id: str
    message_id: str
    owner: str
    status: RunStatus = "running"
    finish_reason: str | None = None
    error: str | None = None
    agent: str | None = None
    model: str | None = None
    started_at: float
    finished_at: float | None = None
    steps: int = 0
    usage: Usage | None = None
    cost: float | None = None
    key_id: str | None = None
    tools: tuple[Tool, ...] = ()
    crashes: int | None = 0
    settled_parts: int | None = 0
    host: str | None = None
    epoch: int | None = 1
    background: bool = False
    webhook: str | None = None
    door: str | None = None
    compact_threshold: int | None = None
    max_tool_calls: int | None = None
    output_format: str | None = None


class RunStatements:
    """The SQL of `RunRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        found = select_fields(RunRecord, runs)
        this = runs.c.id == bindparam("id")
        here = runs.c.session_id == bindparam("session_id")
        unless_busy = compiler.insert(runs).on_conflict_do_nothing(
            index_elements=[runs.c.session_id], index_where=IS_RUNNING
        )
        ended: dict[str, Any] = {name: bindparam(name) for name in RunEnding.__struct_fields__}
        self.insert = compiler.compile(unless_busy)
        self.get = compiler.compile(found.where(this))
        self.get_locked = compiler.compile(found.where(this).with_for_update(key_share=True))
        self.active = compiler.compile(found.where(here, IS_RUNNING))
        self.list = compiler.compile(found.where(here).order_by(runs.c.started_at, runs.c.id))
        newest = found.where(here).order_by(runs.c.started_at.desc(), runs.c.id.desc())
        newest = newest.limit(bindparam("limit")).offset(literal_column("0"))
        self.last = compiler.compile(newest)
        self.last_of_message = compiler.compile(newest.where(runs.c.message_id == bindparam("message_id")))
        finished = update(runs).where(this, IS_RUNNING)
        returned = [runs.c[name] for name in EndedRun._fields]
        self.finish = compiler.compile(finished.values(ended).returning(*returned))
        epoch = func.coalesce(runs.c.epoch, literal_column("1"))
        moved = update(runs).where(this, IS_RUNNING, epoch == bindparam("at_epoch"))
        of_epoch = finished.where(epoch == bindparam("at_epoch"))
        self.finish_epoch = compiler.compile(of_epoch.values(ended).returning(*returned))
        self.lock_epoch = compiler.compile(moved.values(epoch=epoch))
        next_host = {"host": bindparam("host"), "epoch": epoch + literal_column("1")}
        self.move = compiler.compile(moved.values(next_host))
        resumed: dict[str, Any] = {name: bindparam(name) for name in ("crashes", "settled_parts")}
        self.resume = compiler.compile(update(runs).where(this, IS_RUNNING).values(resumed))
        touched = update(sessions).where(sessions.c.id == bindparam("id"))
        self.touch_session = compiler.compile(touched.values(updated_at=bindparam("updated_at")))


class ActiveRunStatements:
    """The SQL of `RunRepository.list_running`, which a hub needs when it starts."""

    def __init__(self, compiler: Compiler) -> None:
        found = select_fields(RunRecord, runs).where(IS_RUNNING).order_by(runs.c.started_at, runs.c.id)
        self.all = compiler.compile(found)
        self.of_host = compiler.compile(found.where(runs.c.host == bindparam("host")))


class RunRepository:
    """The runs of all sessions."""

    def __init__(
        self,
        database: Database,
        *,
        sessions: SessionRepository,
        messages: MessageRepository,
        host_id: str | None = None,
    ) -> None:
        """`host_id` is the host that executes the runs created here, if several share the database."""
        self._database = database
        self._events = sessions.events
        self._host_id = host_id
        self._webhooks = WebhookDeliveryRepository(database)
        self._sessions = sessions
        self._messages = messages

    @cached_property
    def _sql(self) -> RunStatements:
        return self._database.statements(RunStatements)

    async def create(
        self,
        run: RunRecord,
        *,
        assistant: Message,
        user: Message | None = None,
        session: Session | None = None,
        drop_from: int | str | None = None,
        extra_job: DatabaseJob[None] | None = None,
    ) -> None:
        """Insert a run and its messages in one transaction, in which `extra_job` is run as well.

        `session` is created if it does not exist; without it, the session must exist. `drop_from` is the
        position or id of a message: an earlier branch keeps it with all after it. `user` is appended, then
        `assistant`; if the assistant message is already the last one, its parts are replaced when it has any.
        Where hosts share the database, `session` must be as it is stored: RunActive says that another host
        was faster. Raises RunActive, NotFound (session or message), SessionDeleted, Forbidden (another
        owner's session), Conflict (a message id is taken, or the assistant message is not the last).
        """
        await self.submit_create(
            run, assistant=assistant, user=user, session=session, drop_from=drop_from, extra_job=extra_job
        )
        self.note_created()

    def note_created(self) -> None:
        """Make followers of events read those of a new run."""
        self._events.on_stored()

    def submit_create(
        self,
        run: RunRecord,
        *,
        assistant: Message,
        user: Message | None = None,
        session: Session | None = None,
        drop_from: int | str | None = None,
        extra_job: DatabaseJob[None] | None = None,
    ) -> asyncio.Future[None]:
        """Do what `create` does; return a future that is done once it is stored. Call `note_created` then."""
        run = replace(run, door=run.door or door.get())
        started = run_started(run, user=user)

        def job(connection: DatabaseConnection) -> None:
            is_new, began_at = self._insert_run(
                connection, run, session=session, is_claimed=extra_job is not None
            )
            if extra_job is not None:
                extra_job(connection)
            self._messages.append_turn(
                connection,
                run.session_id,
                user=user,
                assistant=assistant,
                drop_from=drop_from,
                is_first=is_new,
            )
            # Last: queries send what waits.
            if is_new and session is not None:
                self._events.insert(connection, session_event("session.created", session, by=None))
            self._events.insert(connection, started)
            if not is_new:
                touched = {"id": run.session_id, "updated_at": began_at}
                connection.execute_batched(self._sql.touch_session, touched)

        return self._database.submit(job)

    async def resume(self, run: RunRecord, message: Message) -> None:
        """Write that a run continues after a crash, and its message as it continues, in one transaction.

        Raises Conflict when it has ended.
        """
        params = {"id": run.id, "crashes": run.crashes, "settled_parts": run.settled_parts}
        rewrite = self._messages.replace_job(run.session_id, message)

        def job(connection: DatabaseConnection) -> None:
            if not connection.execute(self._sql.resume, params):
                raise Conflict(f"run {run.id!r} has ended")
            rewrite(connection)

        await self._database.write(job)

    async def finish(
        self,
        id: str,
        ending: RunEnding,
        *,
        extra_job: DatabaseJob[None] | None = None,
        last_job: DatabaseJob[None] | None = None,
        epoch: int | None = None,
    ) -> bool:
        """Write how it ended, and with it run `extra_job` (the last parts). False if it had ended before.

        Nothing is written of a run that had ended before, since a later run may have continued its message,
        or that is no longer in this `epoch`. While the database is down this raises, and is written once it
        is up again, without the `last_job`, which is run after all else in the transaction.
        """
        params = run_params(ending) | {"id": id}
        if epoch is not None:
            params["at_epoch"] = epoch

        def job(connection: DatabaseConnection, last_job: DatabaseJob[None] | None = None) -> bool:
            statement = self._sql.finish if epoch is None else self._sql.finish_epoch
            row = connection.fetch_one(statement, params)
            if row is None:
                return False
            if extra_job is not None:
                extra_job(connection)
            self._insert_end(connection, id, ended=EndedRun(*row), ending=ending)
            if last_job is not None:
                last_job(connection)
            return True

        try:
            has_ended = await self._database.write(partial(job, last_job=last_job))
        except HostFenced:
            raise
        except (StoreError, Unavailable):
            self._database.defer(job)
            raise
        self._events.on_stored()
        return has_ended

    def _insert_end(
        self, connection: DatabaseConnection, id: str, *, ended: EndedRun, ending: RunEnding
    ) -> None:
        self._events.insert(connection, run_ended(id, ended, ending=ending))
        if ended.webhook is not None:
            delivery = WebhookDelivery.of_run(
                id, ended.webhook, session_id=ended.session_id, owner=ended.owner, at=ending.finished_at
            )
            self._webhooks.insert(connection, delivery)

    async def write_running(self, id: str, job: DatabaseJob[None], *, epoch: int | None = None) -> bool:
        """Run a job for the message of a run, unless it has ended or left this `epoch`. False if it has."""

        def write(connection: DatabaseConnection) -> bool:
            row = connection.fetch_one(self._sql.get_locked, {"id": id})
            if row is None or to_run(row).status != "running":
                return False
            if epoch is not None and not connection.execute(
                self._sql.lock_epoch, {"id": id, "at_epoch": epoch}
            ):
                return False
            job(connection)
            return True

        return await self._database.write(write)

    async def write_unless_running(self, session_id: str, job: DatabaseJob[None]) -> bool:
        """Run a job for a session, unless it has an active run. False if it has."""

        def write(connection: DatabaseConnection) -> bool:
            self._sessions.lock(connection, session_id)
            if connection.fetch_one(self._sql.active, {"session_id": session_id}):
                return False
            job(connection)
            return True

        return await self._database.write(write)

    async def get(self, id: str) -> RunRecord | None:
        """Return the run, or None."""
        found = await self._read(self._sql.get, {"id": id})
        return found[0] if found else None

    async def get_active(self, session_id: str) -> RunRecord | None:
        """Return the session's active run, or None."""
        found = await self._read(self._sql.active, {"session_id": session_id})
        return found[0] if found else None

    async def get_last(self, session_id: str, *, message_id: str | None = None) -> RunRecord | None:
        """Return the session's last run, or the last one of an assistant message."""
        params: dict[str, Any] = {"session_id": session_id, "limit": 1}
        if message_id is None:
            found = await self._read_by_key(self._sql.last, params)
        else:
            found = await self._read_by_key(self._sql.last_of_message, {**params, "message_id": message_id})
        return found[0] if found else None

    async def list(self, session_id: str) -> Sequence[RunRecord]:
        """Return the session's runs, oldest first."""
        return await self._read(self._sql.list, {"session_id": session_id})

    async def list_page(
        self, filters: Mapping[str, str], *, before: RunRecord | None = None, limit: int = 50
    ) -> Sequence[RunRecord]:
        """Return the runs that match `FILTERS`, newest first; `before` is the last one of the previous page.

        `old_session_id` is an alternative to `session_id`.
        """
        params: dict[str, Any] = {**filters, "limit": limit}
        if before is not None:
            params |= {"before_at": before.started_at, "before_id": before.id}
        return await self._read(self._database.query_sql(select_page, frozenset(params)), params)

    async def list_running(self, *, host: str | None = None) -> Sequence[RunRecord]:
        """Return the runs marked as running, oldest first: all, or those of a host."""
        active = self._database.statements(ActiveRunStatements)
        if host is None:
            return await self._read(active.all, {})
        return await self._read(active.of_host, {"host": host})

    async def move(
        self, run: RunRecord, *, to: str | None, extra_job: DatabaseJob[None] | None = None
    ) -> RunRecord | None:
        """Assign a run to another host, or with None to whichever takes it next; return its new record.

        `extra_job` is run in the same transaction. None when the run has ended, or has been moved since `run`
        was read: only one of several hosts gets it.
        """
        epoch = run.epoch or 1
        params = {"id": run.id, "at_epoch": epoch, "host": to}

        def job(connection: DatabaseConnection) -> bool:
            is_moved = connection.execute(self._sql.move, params) > 0
            if is_moved and extra_job is not None:
                extra_job(connection)
            return is_moved

        return replace(run, host=to, epoch=epoch + 1) if await self._database.write(job) else None

    def release_job(self, run: RunRecord) -> DatabaseJob[None]:
        """Return a job that releases a run from its host, after it was inserted in the same transaction."""
        params = {"id": run.id, "at_epoch": run.epoch or 1, "host": None}

        def job(connection: DatabaseConnection) -> None:
            connection.execute(self._sql.move, params)

        return job

    def _insert_run(
        self, connection: DatabaseConnection, run: RunRecord, *, session: Session | None, is_claimed: bool
    ) -> tuple[bool, float]:
        """Insert the run's row, and its session if need be; return whether that is new, and the run's start.

        It is inserted at once where it seems new. What is claimed, such as a task, has a session. The runs of
        a session are in the order of their starts: one is never before the last change of its session, by
        whichever clock that was.
        """
        seems_new = session is not None and session.updated_at == session.created_at and not is_claimed
        is_new = seems_new and self._insert_session(connection, run, session=session)
        stored = None if is_new else self._sessions.lock_any(connection, run.session_id)
        if stored is None and not is_new:
            is_new = self._insert_session(connection, run, session=session)
            if not is_new:  # another host has, a moment ago
                stored = self._sessions.lock_any(connection, run.session_id)
        if stored is not None and session is not None:
            require_unchanged_owner(session, stored)
            # Each run touches its session. One of another host may have begun, and ended, since `session` was
            # read: this run would continue from messages that are no longer the last.
            if self._host_id is not None and stored.updated_at != session.updated_at:
                raise RunActive(run.session_id, "unknown")
        began_at = run.started_at if stored is None else stored.change_time(run.started_at)
        params = run_params(run) | {"host": self._host_id, "started_at": began_at}
        if not connection.execute(self._sql.insert, params):
            active = connection.fetch_one(self._sql.active, {"session_id": run.session_id})
            raise RunActive(run.session_id, str(active[0]) if active else "unknown")
        return is_new, began_at

    def _insert_session(
        self, connection: DatabaseConnection, run: RunRecord, *, session: Session | None
    ) -> bool:
        """Insert the session as its first run leaves it; False if it exists. NotFound without one."""
        if session is None:
            raise NotFound(f"there is no session {run.session_id!r}")
        return self._sessions.insert(connection, replace(session, updated_at=run.started_at))

    async def _read_by_key(self, sql: str, params: Params) -> Sequence[RunRecord]:
        rows = await self._database.read_by_key(lambda connection: connection.fetch_all(sql, params))
        return [to_run(row) for row in rows]

    async def _read(self, sql: str, params: Params) -> Sequence[RunRecord]:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_run(row) for row in rows]


def select_page(names: frozenset[str]) -> Select[Any]:
    """Return the query for a page of runs with these parameters."""
    place = (runs.c.started_at, runs.c.id)
    found = select_fields(RunRecord, runs)
    for name in names & FILTERS:
        matches = runs.c[name] == bindparam(name)
        if name == "session_id" and "old_session_id" in names:
            matches = or_(matches, runs.c.session_id == bindparam("old_session_id"))
        found = found.where(matches)
    if "before_at" in names:
        found = found.where(tuple_(*place) < tuple_(bindparam("before_at"), bindparam("before_id")))
    newest = found.order_by(*(column.desc() for column in place))
    return newest.limit(bindparam("limit")).offset(literal_column("0"))


def run_started(run: RunRecord, *, user: Message | None) -> NewEvent:
    """Return the event of a run that begins, and of the user's message that it answers."""
    body = {
        "runId": run.id,
        "messageId": run.message_id,
        "userMessageId": None if user is None else user.id,
        "agent": run.agent,
        "model": run.model,
    }
    return NewEvent(
        name="run.started",
        owner=run.owner,
        session_id=run.session_id,
        data=msgspec.json.encode(body).decode(),
        actor=run.owner,
        key_id=run.key_id,
    )


def run_params(run: RunRecord | RunEnding) -> dict[str, Any]:
    encoded = {"usage": encode_json(run.usage)}
    if isinstance(run, RunRecord):
        encoded["tools"] = encode_json(run.tools or None)
    return to_params(run) | encoded


def to_run(row: Row) -> RunRecord:
    fields = to_fields(RunRecord, row)
    tools = decode_json(fields["tools"], tuple[Tool, ...]) or ()
    decoded = {"usage": decode_json(fields["usage"], Usage), "tools": tools}
    return RunRecord(**fields | decoded | {"background": bool(fields["background"])})
