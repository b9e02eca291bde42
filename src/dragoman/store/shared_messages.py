"""What a session leaves behind when it is deleted while others share its messages.

The shared messages move to a session of the kind `ancestor`, once for all forks. It goes with the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Insert,
    Select,
    Table,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    null,
    select,
    update,
)

from dragoman.ids import new_id
from dragoman.store.connection import Compiler, DatabaseConnection
from dragoman.store.tables.core import branches, messages, part_tails, parts, sessions, shares

IS_ANCESTOR = sessions.c.kind == literal_column("'ancestor'")


SESSION: BindParameter[str] = bindparam("id")
NEW_SESSION: BindParameter[str] = bindparam("new_id")
START: BindParameter[int] = bindparam("start")
OF_FORKS = branches.c.parent_session_id == SESSION, branches.c.session_id != SESSION
OF_SHARES = shares.c.branch_session_id == SESSION, shares.c.session_id != SESSION


class AncestorStatements:
    """The SQL of `SharedMessages`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        forked = branches.c.parent_start, func.max(branches.c.parent_position)
        shared = shares.c.branch_start, func.max(shares.c.position)
        is_used = exists().where(
            branches.c.parent_session_id == sessions.c.id, branches.c.session_id != sessions.c.id
        ) | exists().where(shares.c.branch_session_id == sessions.c.id)
        own_parent = select(branches.c.parent_start, branches.c.parent_position).where(
            branches.c.session_id == SESSION,
            branches.c.parent_session_id == SESSION,
            branches.c.start == START,
        )
        unused = update(sessions).where(IS_ANCESTOR, ~is_used)
        this = sessions.c.id == SESSION
        self.list_shared = [
            compiler.compile(select(*forked).where(*OF_FORKS).group_by(branches.c.parent_start)),
            compiler.compile(select(*shared).where(*OF_SHARES).group_by(shares.c.branch_start)),
        ]
        self.own_parent = compiler.compile(own_parent)
        self.insert = compiler.compile(copy_session())
        self.copies = [compiler.compile(statement) for statement in copy_branch()]
        self.move = [
            compiler.compile(update(branches).where(*OF_FORKS).values(parent_session_id=NEW_SESSION)),
            compiler.compile(update(shares).where(*OF_SHARES).values(branch_session_id=NEW_SESSION)),
        ]
        self.list_ancestors = [
            compiler.compile(select(branches.c.parent_session_id).where(branches.c.session_id == SESSION)),
            compiler.compile(select(shares.c.branch_session_id).where(shares.c.session_id == SESSION)),
        ]
        self.delete_unused = compiler.compile(delete(sessions).where(this, IS_ANCESTOR, ~is_used))
        self.hide_unused = compiler.compile(unused.values(owner=literal_column("''"), kind=null()))


def copy_session() -> Insert:
    """Return the statement that creates the ancestor; its owner is that of the forks."""
    fork = sessions.alias("fork")
    joined = branches.join(fork, fork.c.id == branches.c.session_id)
    owner = func.coalesce(
        select(func.max(fork.c.owner)).select_from(joined).where(*OF_FORKS).scalar_subquery(),
        select(func.max(shares.c.owner)).where(*OF_SHARES).scalar_subquery(),
        literal_column("''"),
    )
    kind: ColumnElement[str] = literal_column("'ancestor'")
    found = select(NEW_SESSION, owner, sessions.c.created_at, sessions.c.updated_at, kind)
    found = found.where(sessions.c.id == SESSION)
    return copy_rows(sessions, found, columns=("id", "owner", "created_at", "updated_at", "kind"))


def copy_branch() -> Iterator[Insert]:
    """Yield the statements that copy a branch, up to the position `until`."""
    within = (
        messages.c.session_id == SESSION,
        messages.c.position >= START,
        messages.c.position <= bindparam("until"),
    )
    yield copy_rows(messages, select_copy(messages).where(*within))
    for table in (parts, part_tails):
        on = (table.c.session_id == messages.c.session_id) & (table.c.message_id == messages.c.id)
        yield copy_rows(table, select_copy(table).join(messages, on).where(*within))
    moved = case((branches.c.parent_session_id == SESSION, NEW_SESSION), else_=branches.c.parent_session_id)
    branch = select(NEW_SESSION, branches.c.start, moved, branches.c.parent_start, branches.c.parent_position)
    yield copy_rows(branches, branch.where(branches.c.session_id == SESSION, branches.c.start == START))


def copy_rows(table: Table, rows: Select[Any], *, columns: Sequence[str] = ()) -> Insert:
    """Return the statement that inserts selected rows; all columns unless some are named."""
    return insert(table).from_select(list(columns) or [column.name for column in table.c], rows)


def select_copy(table: Table) -> Select[Any]:
    """Return the query for rows of a table, as those of the session `new_id`."""
    columns = [NEW_SESSION if column.name == "session_id" else column for column in table.c]
    return select(*columns).select_from(table)


class SharedMessages:
    """Keeps what forks share with a session that is deleted, in a job."""

    def __init__(self, connection: DatabaseConnection, sql: AncestorStatements) -> None:
        self._connection = connection
        self._sql = sql

    def keep(self, session_id: str) -> None:
        """Give what forks share with a session, which is locked, to a session that stays."""
        this = {"id": session_id}
        shared: dict[int, int] = {}
        found = [row for query in self._sql.list_shared for row in self._connection.fetch_all(query, this)]
        while found:
            start, until = found.pop()
            if until > shared.get(start, -1):
                shared[start] = until
                found += self._connection.fetch_all(self._sql.own_parent, {**this, "start": start})
        if not shared:
            return
        params = {**this, "new_id": new_id("anc")}
        self._connection.execute(self._sql.insert, params)
        for start, until in sorted(shared.items()):
            for statement in self._sql.copies:
                self._connection.execute(statement, {**params, "start": start, "until": until})
        for statement in self._sql.move:
            self._connection.execute(statement, params)

    def ancestors_of(self, session_id: str) -> Sequence[str]:
        """Return the sessions whose messages a session shares."""
        this = {"id": session_id}
        found = [
            row[0] for query in self._sql.list_ancestors for row in self._connection.fetch_all(query, this)
        ]
        return [id for id in dict.fromkeys(found) if id is not None and id != session_id]

    def delete_unused(self, ids: Sequence[str]) -> None:
        """Delete those of these sessions that are kept for forks, and that none shares any more."""
        waiting = list(ids)
        while waiting:
            id = waiting.pop()
            older = self.ancestors_of(id)
            if self._connection.execute(self._sql.delete_unused, {"id": id}):
                waiting += older
