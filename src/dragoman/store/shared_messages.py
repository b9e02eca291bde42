"""Keeps the messages of a deleted session that other sessions share.

They move to a session of the kind `ancestor`, once for all forks, which is deleted with the last fork.

They move in small transactions: first they are copied, then each fork is pointed to the copy, and only then
does the session lose anything. Until then it is of the kind `deleting`: forks and their search still read it,
and nobody else does. What is done is in the database, so that any process can go on with it: the session
has a branch that names the ancestor (`ANCESTOR_START`), which is of the kind `importing` until it is whole,
and has a branch for each one that is copied.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Insert,
    Select,
    Table,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    union,
    update,
)

from dragoman.ids import new_id
from dragoman.store.connection import Compiler, DatabaseConnection
from dragoman.store.tables.core import (
    DELETED_OWNER,
    INTEGER,
    IS_DELETED,
    branches,
    messages,
    part_tails,
    parts,
    sessions,
    shares,
)

IS_ANCESTOR = sessions.c.kind == literal_column("'ancestor'")
ANCESTOR_START = -1  # of the branch that names the ancestor of a session that is being deleted
COPIED_MESSAGES = 100  # that are copied between two checks of the time
MOVED_FORKS = 20  # that are locked at once
NO_PARENT = None, None, None

SESSION: BindParameter[str] = bindparam("id")
NEW_SESSION: BindParameter[str] = bindparam("new_id")
START: BindParameter[int] = bindparam("start")
LINK: ColumnElement[int] = literal_column(str(ANCESTOR_START))
ONE: ColumnElement[int] = literal_column("1")
ZERO: ColumnElement[int] = literal_column("0")
OF_FORKS = branches.c.parent_session_id == SESSION, branches.c.session_id != SESSION
OF_SHARES = shares.c.branch_session_id == SESSION, shares.c.session_id != SESSION
IS_SHARED = or_(
    exists().where(branches.c.parent_session_id == sessions.c.id, branches.c.session_id != sessions.c.id),
    exists().where(shares.c.branch_session_id == sessions.c.id, shares.c.session_id != sessions.c.id),
)
"""The condition that others share messages of a session."""


class SharedBranch(NamedTuple):
    """A branch that others share, up to a position, and what it follows."""

    start: int
    until: int
    parent: Sequence[Any]


class AncestorStatements:
    """The SQL of `SharedMessages`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        forked = branches.c.parent_start, func.max(branches.c.parent_position)
        shared = shares.c.branch_start, func.max(shares.c.position)
        this = sessions.c.id == SESSION
        ancestor = sessions.c.id == NEW_SESSION
        parent = branches.c.parent_session_id, branches.c.parent_start, branches.c.parent_position
        of_this = branches.c.session_id == SESSION
        fork: BindParameter[str] = bindparam("fork")
        unused = update(sessions).where(IS_ANCESTOR, ~IS_SHARED)
        unused = unused.values(owner=literal_column(f"'{DELETED_OWNER}'"), kind=null())
        self.is_shared = compiler.compile(select(sessions.c.id).where(this, IS_SHARED))
        self.list_shared = [
            compiler.compile(select(*forked).where(*OF_FORKS).group_by(branches.c.parent_start)),
            compiler.compile(select(*shared).where(*OF_SHARES).group_by(shares.c.branch_start)),
        ]
        self.list_branches = compiler.compile(select(branches.c.start, *parent).where(of_this))
        self.find_ancestor = compiler.compile(
            select(sessions.c.id, sessions.c.kind)
            .select_from(branches.join(sessions, sessions.c.id == branches.c.parent_session_id))
            .where(of_this, branches.c.start == LINK, sessions.c.kind.is_not(None), ~IS_DELETED)
        )
        self.insert = compiler.compile(copy_session())
        put = compiler.insert(branches)
        changed = {column.name: put.excluded[column.name] for column in parent}
        put = put.on_conflict_do_update(index_elements=branches.primary_key, set_=changed)
        self.put_branch = compiler.compile(put)
        last = select(func.max(messages.c.position)).where(messages.c.session_id == NEW_SESSION)
        self.last_copied = compiler.compile(last)
        self.next_copied = compiler.compile(next_positions())
        self.copies = [compiler.compile(statement) for statement in copy_messages()]
        whole = update(sessions).where(ancestor).values(kind=literal_column("'ancestor'"))
        self.end_copy = compiler.compile(whole)
        self.lock_forks = compiler.compile(lock_forks())
        of_fork = (*OF_FORKS, branches.c.session_id == fork), (*OF_SHARES, shares.c.session_id == fork)
        self.move = [
            compiler.compile(update(branches).where(*of_fork[0]).values(parent_session_id=NEW_SESSION)),
            compiler.compile(update(shares).where(*of_fork[1]).values(branch_session_id=NEW_SESSION)),
        ]
        self.list_ancestors = [
            compiler.compile(select(branches.c.parent_session_id).where(branches.c.session_id == SESSION)),
            compiler.compile(select(shares.c.branch_session_id).where(shares.c.session_id == SESSION)),
        ]
        self.list_unused = compiler.compile(select(sessions.c.id).where(IS_ANCESTOR, ~IS_SHARED))
        self.hide_unused = compiler.compile(unused.where(this))


def copy_session() -> Insert:
    """Return the statement that creates the ancestor; its owner is that of the forks."""
    fork = sessions.alias("fork")
    joined = branches.join(fork, fork.c.id == branches.c.session_id)
    owner = func.coalesce(
        select(func.max(fork.c.owner)).select_from(joined).where(*OF_FORKS).scalar_subquery(),
        select(func.max(shares.c.owner)).where(*OF_SHARES).scalar_subquery(),
        literal_column("''"),
    )
    kind: ColumnElement[str] = literal_column("'importing'")
    now: ColumnElement[float] = bindparam("now")
    found = select(NEW_SESSION, owner, sessions.c.created_at, now, kind)
    found = found.where(sessions.c.id == SESSION)
    return copy_rows(sessions, found, columns=("id", "owner", "created_at", "updated_at", "kind"))


def next_positions() -> Select[Any]:
    """Return the query for the last position of the next messages of a branch."""
    position = messages.c.position
    following = select(position).where(
        messages.c.session_id == SESSION, position >= START, position <= bindparam("until")
    )
    following = following.order_by(position).limit(bindparam("most", type_=INTEGER)).offset(ZERO)
    return select(func.max(following.subquery().c.position))


def copy_messages() -> Iterator[Insert]:
    """Yield the statements that copy messages, from the position `start` to `until`."""
    within = (
        messages.c.session_id == SESSION,
        messages.c.position >= START,
        messages.c.position <= bindparam("until"),
    )
    yield copy_rows(messages, select_copy(messages).where(*within))
    for table in (parts, part_tails):
        on = (table.c.session_id == messages.c.session_id) & (table.c.message_id == messages.c.id)
        yield copy_rows(table, select_copy(table).join(messages, on).where(*within))


def lock_forks() -> Select[Any]:
    """Return the query that locks some sessions that share messages, but none that is locked already.

    Whoever makes another reference to these messages has locked a session that has one (`MessagePaths`): when
    there is no reference any more, none can be made. To wait for such a lock could be a deadlock.
    """
    sharing = union(
        select(branches.c.session_id).where(*OF_FORKS), select(shares.c.session_id).where(*OF_SHARES)
    )
    found = select(sessions.c.id).where(sessions.c.id.in_(sharing))
    found = found.limit(literal_column(str(MOVED_FORKS))).offset(ZERO)
    return found.with_for_update(of=sessions, key_share=True, skip_locked=True)


def copy_rows(table: Table, rows: Select[Any], *, columns: Sequence[str] = ()) -> Insert:
    """Return the statement that inserts selected rows; all columns unless some are named."""
    return insert(table).from_select(list(columns) or [column.name for column in table.c], rows)


def select_copy(table: Table) -> Select[Any]:
    """Return the query for rows of a table, as those of the session `new_id`."""
    columns = [NEW_SESSION if column.name == "session_id" else column for column in table.c]
    return select(*columns).select_from(table)


class SharedMessages:
    """In a job: keeps the messages that forks share with a session that is deleted. The session is locked."""

    def __init__(
        self, connection: DatabaseConnection, sql: AncestorStatements, *, session_id: str, now: float
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._id = session_id
        self._this = {"id": session_id}
        self._now = now

    def is_shared(self) -> bool:
        """Return whether others share messages of the session."""
        return self._connection.fetch_one(self._sql.is_shared, self._this) is not None

    def keep(self, *, until: float) -> bool:
        """Move a part of the shared messages to the ancestor; return whether nothing is left.

        It ends at the time `until` of the monotonic clock, or when other transactions have locked all forks
        that are left.
        """
        if not self.is_shared():
            return True
        ancestor, kind = self._connection.fetch_one(self._sql.find_ancestor, self._this) or self._begin()
        params = {**self._this, "new_id": ancestor}
        if kind == "importing":
            if not self._copy(params, until=until):
                return False
            self._connection.execute(self._sql.end_copy, params)
        return self._move(params, until=until)

    def ancestors(self) -> Sequence[str]:
        """Return the sessions whose messages the session shares."""
        found = [
            row[0]
            for query in self._sql.list_ancestors
            for row in self._connection.fetch_all(query, self._this)
        ]
        return [id for id in dict.fromkeys(found) if id is not None and id != self._id]

    def _begin(self) -> tuple[str, str]:
        """Create the ancestor, without messages; return its id and kind."""
        id = new_id("anc")
        self._connection.execute(self._sql.insert, {**self._this, "new_id": id, "now": self._now})
        self._put_branch(self._id, start=ANCESTOR_START, parent=(id, None, None))
        return id, "importing"

    def _copy(self, params: Mapping[str, Any], *, until: float) -> bool:
        """Copy messages; return whether all that are shared have been."""
        copied = {
            row[0] for row in self._connection.fetch_all(self._sql.list_branches, {"id": params["new_id"]})
        }
        last = self._connection.fetch_one(self._sql.last_copied, params)
        position = -1 if last is None or last[0] is None else last[0]
        for branch in self._shared_branches():
            if branch.start in copied:
                continue
            if not self._copy_branch(params, branch, after=position, until=until):
                return False
            session_id, *place = branch.parent
            moved = params["new_id"] if session_id == self._id else session_id
            self._put_branch(params["new_id"], start=branch.start, parent=(moved, *place))
        return True

    def _copy_branch(
        self, params: Mapping[str, Any], branch: SharedBranch, *, after: int, until: float
    ) -> bool:
        """Copy messages of a branch after a position; return whether all have been."""
        start = max(branch.start, after + 1)
        while True:
            rest = {**params, "start": start, "until": branch.until, "most": COPIED_MESSAGES}
            found = self._connection.fetch_one(self._sql.next_copied, rest)
            if found is None or found[0] is None:
                return True
            for statement in self._sql.copies:
                self._connection.execute(statement, {**rest, "until": found[0]})
            start = found[0] + 1
            if time.monotonic() > until:
                return False

    def _shared_branches(self) -> Sequence[SharedBranch]:
        """Return the shared branches with their parents, in the order of the positions."""
        parents = {row[0]: row[1:] for row in self._connection.fetch_all(self._sql.list_branches, self._this)}
        shared: dict[int, int] = {}
        found = [
            row for query in self._sql.list_shared for row in self._connection.fetch_all(query, self._this)
        ]
        while found:
            start, until = found.pop()
            if until > shared.get(start, -1):
                shared[start] = until
                session_id, *place = parents.get(start, NO_PARENT)
                found += [tuple(place)] if session_id == self._id else []
        return [
            SharedBranch(start, until, parents.get(start, NO_PARENT))
            for start, until in sorted(shared.items())
        ]

    def _move(self, params: Mapping[str, Any], *, until: float) -> bool:
        """Make forks share the messages of the ancestor instead; return whether all do."""
        while self.is_shared():
            forks = self._connection.fetch_all(self._sql.lock_forks, params)
            for (fork,) in forks:
                for statement in self._sql.move:
                    self._connection.execute(statement, {**params, "fork": fork})
            if not forks or time.monotonic() > until:
                return not self.is_shared()
        return True

    def _put_branch(self, session_id: str, *, start: int, parent: Sequence[Any]) -> None:
        place = dict(zip(("parent_session_id", "parent_start", "parent_position"), parent, strict=True))
        self._connection.execute(self._sql.put_branch, {"session_id": session_id, "start": start, **place})
