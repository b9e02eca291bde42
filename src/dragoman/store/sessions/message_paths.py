"""Which messages a session has: paths through branches, which share their common messages.

The messages of a session have positions, in the order in which they were written. A branch starts at a
position, and its first message follows the branch's parent: a message of an earlier branch or, in a fork, of
the session that it was forked from. A path goes from the last branch, which is the active one, back to the
first message. Most sessions have no rows of branches: their path is one segment from position 0 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    bindparam,
    cast,
    func,
    literal_column,
    select,
)
from sqlalchemy.sql.selectable import CTE

from dragoman.errors import Conflict
from dragoman.store.connection import Compiler, DatabaseConnection
from dragoman.store.tables.core import INTEGER, TEXT, branches, messages, sessions, shares

MAX_POSITION = 2**62
MAX_BRANCHES = 1_000
FIRST_VERSION = "~1"
PARENT = branches.c.parent_session_id, branches.c.parent_start, branches.c.parent_position


class Segment(NamedTuple):
    """The messages of a session from position `start` up to `until`. A branch begins at `start`."""

    session_id: str
    start: int
    until: int


class MessagePlace(NamedTuple):
    """A stored message: its session, its branch and its position in it, and the id of its row.

    `id` is the row's, which is another than the client's for an edited message.
    """

    session_id: str
    start: int
    position: int
    id: str

    @property
    def segment(self) -> Segment:
        """The branch up to the message."""
        return Segment(self.session_id, self.start, self.position)


MessagePath: TypeAlias = Sequence[Segment]
"""Segments, the oldest first. The last one is the active branch, which may have no message yet."""


def contains(path: MessagePath, session_id: str, *, position: int) -> bool:
    """Return whether a message is in a path."""
    return any(each.session_id == session_id and each.start <= position <= each.until for each in path)


def path_before(path: MessagePath, place: MessagePlace) -> MessagePath:
    """Return the part of a path that ends before one of its messages."""
    at = next(index for index, each in enumerate(path) if each[:2] == place[:2])
    if place.position == place.start:
        return path[:at]
    return [*path[:at], Segment(place.session_id, place.start, place.position - 1)]


def path_until(path: MessagePath, end: Segment) -> MessagePath:
    """Return the part of a path that ends with a segment of it, or with the beginning of one."""
    at = next(index for index, each in enumerate(path) if each[:2] == end[:2])
    return [*path[:at], end]


def path_from(cte: CTE) -> CTE:
    """Return the recursive query that follows the parents of a branch up to the first message."""
    parent = branches.alias("parent")
    following = select(
        cte.c.depth + literal_column("1"),
        parent.c.parent_session_id,
        parent.c.parent_start,
        parent.c.parent_position,
    ).select_from(
        cte.join(parent, (parent.c.session_id == cte.c.session_id) & (parent.c.start == cte.c.start))
    )
    return cte.union_all(following.where(parent.c.parent_session_id.is_not(None)))


def active_path() -> CTE:
    """Return the path of the session `session_id`, as a recursive query."""
    last = select(func.max(branches.c.start)).where(branches.c.session_id == sessions.c.id).scalar_subquery()
    first = select(
        literal_column("0", Integer).label("depth"),
        sessions.c.id.label("session_id"),
        func.coalesce(last, literal_column("0", branches.c.start.type)).label("start"),
        cast(literal_column(str(MAX_POSITION)), BigInteger).label("until"),
    ).where(sessions.c.id == bindparam("session_id"))
    return path_from(first.cte("path", recursive=True))


def shared_path() -> CTE:
    """Return the path of the share `share_id`, as a recursive query."""
    first = select(
        literal_column("0", Integer).label("depth"),
        shares.c.branch_session_id.label("session_id"),
        shares.c.branch_start.label("start"),
        cast(shares.c.position, BigInteger).label("until"),
    ).where(shares.c.id == bindparam("share_id"))
    return path_from(first.cte("path", recursive=True))


def one_segment() -> CTE:
    """Return the path of one segment: `session_id`, `start` and `until`."""
    only = select(
        literal_column("0", Integer).label("depth"),
        bindparam("session_id", type_=TEXT).label("session_id"),
        bindparam("start", type_=INTEGER).label("start"),
        bindparam("until", type_=INTEGER).label("until"),
    )
    return only.cte("path")


def in_path(path: CTE) -> ColumnElement[bool]:
    """Return the condition that a message is in a path."""
    return (
        (messages.c.session_id == path.c.session_id)
        & (messages.c.position >= path.c.start)
        & (messages.c.position <= path.c.until)
    )


class MessagePathStatements:
    """The SQL of paths; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        path = active_path()
        here = messages.c.session_id == bindparam("session_id")
        place = select(messages.c.position, messages.c.id).where(here)
        within = messages.c.position.between(bindparam("start"), bindparam("until"))
        this_branch = branches.c.session_id == bindparam("session_id"), branches.c.start == bindparam("start")
        put = compiler.insert(branches)
        parent = {column.name: put.excluded[column.name] for column in PARENT}
        put = put.on_conflict_do_update(index_elements=branches.primary_key, set_=parent)
        self.path = compiler.compile(
            select(path.c.session_id, path.c.start, path.c.until).order_by(path.c.depth.desc())
        )
        # The sum keeps SQLite from reading the whole segment by the index on positions.
        position = messages.c.position + literal_column("0", INTEGER)
        within_segment = position.between(
            bindparam("start", type_=INTEGER), bindparam("until", type_=INTEGER)
        )
        self.by_client_id = compiler.compile(
            place.where(messages.c.client_id == bindparam("id"), within_segment)
        )
        self.by_id = compiler.compile(place.where(messages.c.id == bindparam("id"), within))
        self.by_row_id = compiler.compile(place.where(messages.c.id == bindparam("id")))
        self.versions = compiler.compile(
            place.where(
                (messages.c.id == bindparam("id")) | (messages.c.client_id == bindparam("id"))
            ).order_by(messages.c.position.desc())
        )
        self.at_position = compiler.compile(place.where(messages.c.position == bindparam("position")))
        self.ids_at_position = compiler.compile(
            select(messages.c.id, messages.c.client_id).where(
                here, messages.c.position == bindparam("position")
            )
        )
        self.last_position = compiler.compile(select(func.max(messages.c.position)).where(here))
        self.count_versions = compiler.compile(
            select(func.count()).where(here, messages.c.client_id == bindparam("id"))
        )
        self.put_branch = compiler.compile(put)
        of_session = branches.c.session_id == bindparam("session_id")
        listed = select(branches.c.start, *PARENT).where(of_session).order_by(branches.c.start)
        self.list_branches = compiler.compile(listed)
        self.branch_parent = compiler.compile(select(*PARENT).where(*this_branch))
        self.count_branches = compiler.compile(
            select(func.count()).where(branches.c.session_id == bindparam("session_id"))
        )


class MessagePaths:
    """Reads paths, and begins branches, in a job."""

    def __init__(self, connection: DatabaseConnection, sql: MessagePathStatements) -> None:
        self._connection = connection
        self._sql = sql

    def read(self, session_id: str) -> MessagePath:
        """Return the path of a session; empty when it does not exist."""
        rows = self._connection.fetch_all(self._sql.path, {"session_id": session_id})
        return [Segment(*row) for row in rows]

    def read_written(self, session_id: str) -> MessagePath:
        """Return the path of a session up to its last message, without a branch that has none yet."""
        *before, last = self.read(session_id) or [Segment(session_id, 0, -1)]
        until = min(last.until, self.last_position(session_id))
        return [*before, last._replace(until=until)] if last.start <= until else before

    def find(self, path: MessagePath, id: str) -> MessagePlace | None:
        """Return the message of a path with this id: the one that clients know it by, or the row's."""
        for statement in (self._sql.by_client_id, self._sql.by_id):
            for segment in reversed(path):
                row = self._connection.fetch_one(statement, {**segment._asdict(), "id": id})
                if row is not None:
                    return MessagePlace(segment.session_id, segment.start, *row)
        return None

    def last_position(self, session_id: str) -> int:
        """Return the position of the message that was added last to a session; -1 for none."""
        row = self._connection.fetch_one(self._sql.last_position, {"session_id": session_id})
        return -1 if row is None or row[0] is None else int(row[0])

    def put_branch(self, session_id: str, *, parent: MessagePath) -> None:
        """Begin a branch after the last message of a path.

        One without messages is replaced. The session is locked. Conflict when it has too many.
        """
        this = {"session_id": session_id}
        count = self._connection.fetch_one(self._sql.count_branches, this)
        if count is not None and count[0] >= MAX_BRANCHES:
            raise Conflict(
                f"the session has {MAX_BRANCHES} branches, the maximum",
                hint="fork it at the message to continue from",
            )
        end = parent[-1] if parent else None
        self._connection.execute(
            self._sql.put_branch,
            {
                **this,
                "start": self.last_position(session_id) + 1,
                "parent_session_id": None if end is None else end.session_id,
                "parent_start": None if end is None else end.start,
                "parent_position": None if end is None else end.until,
            },
        )

    def version_id(self, session_id: str, id: str) -> str:
        """Return an id for the row of another version of an edited message."""
        row = self._connection.fetch_one(self._sql.count_versions, {"session_id": session_id, "id": id})
        number = 2 + (row[0] if row else 0)
        while self._is_taken(session_id, f"{id}~{number}"):
            number += 1
        return f"{id}~{number}"

    def _is_taken(self, session_id: str, id: str) -> bool:
        this = {"session_id": session_id, "id": id}
        return self._connection.fetch_one(self._sql.by_row_id, this) is not None
