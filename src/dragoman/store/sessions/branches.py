"""Forks of sessions, and the branches within one: the versions of a message, and which branch is active.

A fork shares the messages before the one that it was made at, since a message that others follow never
changes, and has a copy of that one. When a session is deleted while forks share its messages, these stay in a
session of the kind `ancestor`, which no client sees and which is deleted with the last fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from dragoman.errors import Conflict, NotFound
from dragoman.identity import Identity
from dragoman.messages import Message
from dragoman.session_ids import client_session_id
from dragoman.store.connection import DatabaseConnection
from dragoman.store.database import Database
from dragoman.store.sessions.message_paths import (
    FIRST_VERSION,
    MessagePath,
    MessagePaths,
    MessagePathStatements,
    MessagePlace,
    Segment,
    contains,
    path_before,
    path_until,
)
from dragoman.store.sessions.messages import MessageRepository
from dragoman.store.sessions.sessions import Session, SessionRepository, session_event, session_not_found


class Siblings(msgspec.Struct, frozen=True):
    """The versions of a message, in the order in which they were written; `index` is the active one's."""

    ids: tuple[str, ...]
    index: int


class BranchRow(NamedTuple):
    """Where a branch starts in its session, and the end of the path that it follows."""

    start: int
    parent: Segment | None


class BranchTree(NamedTuple):
    """All branches of a session. `shared` is the path that a fork has of another session, `last` the position
    of the message that was added last.
    """

    session_id: str
    rows: Sequence[BranchRow]
    shared: MessagePath
    last: int

    def starts(self) -> Sequence[int]:
        """Return where the branches with messages start, the oldest first."""
        starts = sorted({0, *(row.start for row in self.rows)})
        return [start for start in starts if start <= self.last]

    def branch_of(self, position: int) -> Segment:
        """Return the whole branch that has a message of the session."""
        starts = self.starts()
        at = max(index for index, start in enumerate(starts) if start <= position)
        end = starts[at + 1] - 1 if at + 1 < len(starts) else self.last
        return Segment(self.session_id, starts[at], end)

    def path_to(self, end: Segment) -> MessagePath:
        """Return the path that ends with a segment of the session, or of the shared path."""
        parents = {row.start: row.parent for row in self.rows}
        path: list[Segment] = []
        following: Segment | None = end
        while following is not None and following.session_id == self.session_id:
            path.insert(0, following)
            following = parents.get(following.start)
        return path if following is None else [*path_until(self.shared, following), *path]

    def active_path(self) -> MessagePath:
        """Return the path of the active branch, without one that has no message yet."""
        newest = self.rows[-1] if self.rows else BranchRow(0, None)
        if newest.start <= self.last:
            return self.path_to(self.branch_of(self.last))
        return [] if newest.parent is None else self.path_to(newest.parent)

    def first_place(self) -> Segment | None:
        """Return the place of the message that the session began with."""
        path = [*self.shared, *([self.branch_of(0)] if self.last >= 0 else [])]
        return path[0]._replace(until=path[0].start) if path else None

    def place_after(self, parent: Segment) -> Segment | None:
        """Return the place of the message that follows another one in its branch; None at its end."""
        position = parent.until + 1
        if parent.session_id == self.session_id:
            is_end = position > self.branch_of(parent.until).until
            return None if is_end else Segment(parent.session_id, position, position)
        at = next((index for index, each in enumerate(self.shared) if each[:2] == parent[:2]), None)
        if at is None:
            return None
        if position <= self.shared[at].until:
            return Segment(parent.session_id, position, position)
        following = self.shared[at + 1 : at + 2]
        return following[0]._replace(until=following[0].start) if following else None


def message_not_found(id: str, session_id: str) -> NotFound:
    """Return the error of a message that is in no branch of a session."""
    return NotFound(f"There is no message {id!r} in session {client_session_id(session_id)!r}.")


class BranchRepository:
    """Forks and branches. Access checks are the caller's."""

    def __init__(
        self, database: Database, *, sessions: SessionRepository, messages: MessageRepository
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._messages = messages

    @cached_property
    def _sql(self) -> MessagePathStatements:
        return self._database.statements(MessagePathStatements)

    async def find(self, session_id: str, message_id: str) -> MessagePlace:
        """Return the message of a session with this id, in the active branch or another. NotFound."""

        def query(connection: DatabaseConnection) -> MessagePlace:
            return self._find(connection, self._read_tree(connection, session_id), id=message_id)

        return await self._database.read(query)

    async def fork(
        self, source_id: str, message_id: str, *, fork: Session, last: Message, by: Identity | None = None
    ) -> None:
        """Create a session with the messages of another one up to a message, and `last` in place of that one.

        Takes the same time for a long session as for a short one. Raises NotFound, Conflict when the id is
        taken, RunActive while the message is being written.
        """

        def job(connection: DatabaseConnection) -> None:
            if self._sessions.lock(connection, source_id) is None:
                raise session_not_found(client_session_id(source_id))
            tree = self._read_tree(connection, source_id)
            place = self._find(connection, tree, id=message_id)
            self._sessions.refuse_active(connection, source_id, message_id=place.id)
            taken = self._sessions.find_own(connection, fork.id, owner=fork.owner)
            if taken or not self._sessions.insert(connection, fork):
                raise Conflict(f"session {client_session_id(fork.id)!r} already exists")
            before = path_before(tree.path_to(place.segment), place)
            if before:
                MessagePaths(connection, self._sql).put_branch(fork.id, parent=before)
            self._messages.insert(connection, fork.id, inserted={last.id: last}, start=0)
            self._sessions.events.insert(connection, session_event("session.created", fork, by=by))

        await self._database.write(job)
        self._sessions.events.on_stored()

    async def rewind(self, session_id: str, message_id: str, *, by: Identity | None = None) -> str | None:
        """Make a message the last one of the active branch; what follows it stays in an earlier branch.

        Return the id of the message that was the last one, by which `switch` undoes it; None when it still
        is. Raises NotFound, RunActive.
        """

        def job(connection: DatabaseConnection) -> str | None:
            tree = self._lock(connection, session_id)
            path = tree.active_path()
            place = MessagePaths(connection, self._sql).find(path, message_id)
            if place is None:
                raise message_not_found(message_id, session_id)
            if place.segment == path[-1]:
                return None
            MessagePaths(connection, self._sql).put_branch(session_id, parent=path_until(path, place.segment))
            self._sessions.note_branch(connection, session_id, message_id=message_id, by=by)
            end = self._row_at(connection, path[-1])
            return end[0] if end else None

        undo = await self._database.write(job)
        self._sessions.events.on_stored()
        return undo

    async def switch(self, session_id: str, message_id: str, *, by: Identity | None = None) -> None:
        """Make the newest branch with this message the active one. Raises NotFound, RunActive."""

        def job(connection: DatabaseConnection) -> None:
            tree = self._lock(connection, session_id)
            if MessagePaths(connection, self._sql).find(tree.active_path(), message_id) is not None:
                return
            place = self._find(connection, tree, id=message_id)
            ends = [tree.branch_of(start) for start in reversed(tree.starts())]
            paths = (tree.path_to(end) for end in ends)
            path = next(each for each in paths if contains(each, place.session_id, position=place.position))
            MessagePaths(connection, self._sql).put_branch(session_id, parent=path)
            self._sessions.note_branch(connection, session_id, message_id=message_id, by=by)

        await self._database.write(job)
        self._sessions.events.on_stored()

    def end_of(self, connection: DatabaseConnection, session_id: str) -> Segment | None:
        """In a job: lock a session, and return the last segment of its active branch; None without messages.

        None also for a session that is gone. Without the lock, what it shares might move (`lock_forks`).
        """
        if self._sessions.lock(connection, session_id) is None:
            return None
        path = self._read_tree(connection, session_id).active_path()
        return path[-1] if path else None

    async def versions(self, session_id: str, message_id: str) -> Sequence[tuple[str, str]]:
        """Return the row ids of all versions of a message, newest first, each with its newest answer's."""

        def query(connection: DatabaseConnection) -> Sequence[tuple[str, str]]:
            params = {"session_id": session_id, "id": message_id}
            rows = connection.fetch_all(self._sql.versions, params)
            if not rows:
                return []
            tree = self._read_tree(connection, session_id)
            places = [(id, tree.branch_of(position)._replace(until=position)) for position, id in rows]
            found = [(id, self._newest_after(connection, tree, place=place)) for id, place in places]
            return [(id, following) for id, following in found if following is not None]

        return await self._database.read(query)

    def _newest_after(
        self, connection: DatabaseConnection, tree: BranchTree, *, place: Segment
    ) -> str | None:
        """In a job: return the id of the newest message that follows another one; None without one."""
        starts = [Segment(tree.session_id, row.start, row.start) for row in tree.rows if row.parent == place]
        for following in [*reversed(starts), tree.place_after(place)]:
            ids = None if following is None else self._row_at(connection, following)
            if ids is not None:
                return ids[0]
        return None

    async def siblings(self, session_id: str) -> Mapping[str, Siblings]:
        """Return the versions of those messages in the active branch that have several, by their ids."""

        def query(connection: DatabaseConnection) -> Mapping[str, Siblings]:
            tree = self._read_tree(connection, session_id)
            return dict(self._list_siblings(connection, tree)) if tree.rows else {}

        return await self._database.read(query)

    def _list_siblings(
        self, connection: DatabaseConnection, tree: BranchTree
    ) -> Iterator[tuple[str, Siblings]]:
        path = tree.active_path()
        by_parent: dict[Segment | None, list[int]] = {}
        for row in tree.rows:
            by_parent.setdefault(row.parent, []).append(row.start)
        for parent, starts in by_parent.items():
            first = tree.first_place() if parent is None else tree.place_after(parent)
            places = [Segment(tree.session_id, start, start) for start in starts]
            if first is not None and first not in places:
                places.insert(0, first)
            found = [(place, ids) for place in places if (ids := self._row_at(connection, place))]
            active = [contains(path, place.session_id, position=place.until) for place, _ in found]
            if len(found) > 1 and any(active):
                index = active.index(True)
                row_id, client_id = found[index][1]
                shown = client_id or row_id
                versions = [id + FIRST_VERSION if id == shown else id for _, (id, _) in found]
                versions[index] = shown
                yield shown, Siblings(tuple(versions), index)

    def _find(self, connection: DatabaseConnection, tree: BranchTree, *, id: str) -> MessagePlace:
        """In a job: return the message with this id, in the active branch or another. NotFound."""
        place = MessagePaths(connection, self._sql).find(tree.active_path(), id)
        if place is not None:
            return place
        for row_id in (id, id.removesuffix(FIRST_VERSION)):
            row = connection.fetch_one(self._sql.by_row_id, {"session_id": tree.session_id, "id": row_id})
            if row is not None and not contains(tree.active_path(), tree.session_id, position=row[0]):
                return MessagePlace(tree.session_id, tree.branch_of(row[0]).start, *row)
            place = MessagePaths(connection, self._sql).find(tree.shared, row_id)
            if place is not None:
                return place
        raise message_not_found(id, tree.session_id)

    def _lock(self, connection: DatabaseConnection, session_id: str) -> BranchTree:
        """In a job: lock a session that has no active run, and return its branches."""
        if self._sessions.lock(connection, session_id) is None:
            raise session_not_found(client_session_id(session_id))
        self._sessions.refuse_active(connection, session_id)
        return self._read_tree(connection, session_id)

    def _read_tree(self, connection: DatabaseConnection, session_id: str) -> BranchTree:
        found = connection.fetch_all(self._sql.list_branches, {"session_id": session_id})
        rows = [BranchRow(start, to_parent(parent)) for start, *parent in found]
        shared: list[Segment] = []
        base = rows[0].parent if rows and rows[0].start == 0 else None
        while base is not None:
            shared.insert(0, base)
            found_parent = connection.fetch_one(
                self._sql.branch_parent, {"session_id": base.session_id, "start": base.start}
            )
            base = to_parent(found_parent) if found_parent else None
        return BranchTree(
            session_id, rows, shared, MessagePaths(connection, self._sql).last_position(session_id)
        )

    def _row_at(self, connection: DatabaseConnection, place: Segment) -> tuple[str, str | None] | None:
        """In a job: return the ids of the message at the end of a segment, the row's and the client's."""
        params = {"session_id": place.session_id, "position": place.until}
        row = connection.fetch_one(self._sql.ids_at_position, params)
        return None if row is None else (row[0], row[1])


def to_parent(row: Sequence[Any]) -> Segment | None:
    return None if row[0] is None else Segment(*row)
