"""Messages and their parts in the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import msgspec
from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.sql.selectable import CTE

from dragoman.errors import Conflict, NotFound
from dragoman.large_json import SMALL
from dragoman.messages import Message, Part, decode_part, encode_part
from dragoman.offload import offload
from dragoman.session_ids import client_session_id
from dragoman.store.connection import Compiler, DatabaseConnection, DatabaseJob, Row, decode_json, encode_json
from dragoman.store.database import Database
from dragoman.store.sessions.message_paths import (
    MessagePath,
    MessagePaths,
    MessagePathStatements,
    active_path,
    contains,
    in_path,
    one_segment,
    path_before,
    shared_path,
)
from dragoman.store.sessions.part_tails import PartKey, PartTail, PartTailStatements, read_tails, with_tail
from dragoman.store.tables.core import branches, messages, part_tails, parts

PAGE = 32  # messages that are read at once for an export
ROW_SIZE = 100  # bytes whose decoding takes as long as reading a row


class MessageStatements:
    """The SQL of `MessageRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        here = messages.c.session_id == bindparam("session_id")
        this = here, messages.c.id == bindparam("id")
        parts_here = parts.c.session_id == bindparam("session_id")
        parts_of = parts_here, parts.c.message_id == bindparam("id")
        of_user, of_assistant = (
            select(messages.c.position).where(here, messages.c.id == bindparam(name)).scalar_subquery()
            for name in ("user", "assistant")
        )
        last = select(func.max(messages.c.position)).where(here).scalar_subquery()
        branch = select(func.max(branches.c.start)).where(branches.c.session_id == bindparam("session_id"))
        head = select(
            messages.c.id, messages.c.role, messages.c.metadata, messages.c.session_id, messages.c.client_id
        )
        bodies = select(parts.c.message_id, parts.c.position, parts.c.body, parts.c.session_id)
        bodies = bodies.order_by(parts.c.message_id, parts.c.position)
        part = compiler.insert(parts)
        part = part.on_conflict_do_update(index_elements=parts.primary_key, set_={"body": part.excluded.body})
        described = update(messages).where(*this).values(metadata=bindparam("metadata"))
        self.active = PathQueries(active_path(), compiler)
        self.shared = PathQueries(shared_path(), compiler)
        self.segment = PathQueries(one_segment(), compiler)
        self.head = compiler.compile(head.where(*this))
        self.bodies = compiler.compile(bodies.where(parts_here))
        self.message_bodies = compiler.compile(bodies.where(*parts_of))
        self.positions = compiler.compile(select(of_user, of_assistant, last, branch.scalar_subquery()))
        self.insert_head = compiler.compile(insert(messages))
        self.update_metadata = compiler.compile(described)
        self.upsert_part = compiler.compile(part)
        self.delete_parts_from = compiler.compile(
            delete(parts).where(*parts_of, parts.c.position >= bindparam("count"))
        )


class PathQueries:
    """The SQL that reads the messages of a path: their rows, parts and tails, joined with it."""

    def __init__(self, path: CTE, compiler: Compiler) -> None:
        here = in_path(path)
        order = path.c.depth.desc(), messages.c.position
        parts_here = (parts.c.session_id == messages.c.session_id) & (parts.c.message_id == messages.c.id)
        tails_here = (part_tails.c.session_id == messages.c.session_id) & (
            part_tails.c.message_id == messages.c.id
        )
        heads = select(
            messages.c.id,
            messages.c.role,
            messages.c.metadata,
            messages.c.session_id,
            messages.c.client_id,
            path.c.depth + path.c.start,
            messages.c.position,
            messages.c.created_at,
        ).select_from(path.join(messages, here))
        bodies = select(parts.c.message_id, parts.c.position, parts.c.body, parts.c.session_id)
        bodies = bodies.select_from(path.join(messages, here).join(parts, parts_here))
        tails = select(part_tails.c.message_id, part_tails.c.position, part_tails.c.text)
        tails = tails.select_from(path.join(messages, here).join(part_tails, tails_here))
        self.heads = compiler.compile(heads.order_by(*order))
        self.bodies = compiler.compile(bodies.order_by(*order, parts.c.position))
        self.tails = compiler.compile(
            tails.order_by(part_tails.c.message_id, part_tails.c.position, part_tails.c.start)
        )


class PartChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a stored message: whole parts by position, and `tails`, which are appended to parts.

    A part in `changed` loses its tails; `tailed` are the positions that may have tails, None if unknown.
    `count` deletes parts from that position on; `metadata` replaces the message's, as JSON.
    """

    changed: Sequence[tuple[int, bytes]] = ()
    tails: Sequence[PartTail] = ()
    tailed: Collection[int] | None = None
    count: int | None = None
    metadata: bytes | None = None


class MessageRepository:
    """The messages of all sessions, with their parts, in order."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    @cached_property
    def _sql(self) -> MessageStatements:
        return self._database.statements(MessageStatements)

    @cached_property
    def _paths_sql(self) -> MessagePathStatements:
        return self._database.statements(MessagePathStatements)

    @cached_property
    def _tails_sql(self) -> PartTailStatements:
        return self._database.statements(PartTailStatements)

    async def list(self, session_id: str) -> Sequence[Message]:
        """Return the messages of the session's active branch in order; none when it does not exist."""
        params = {"session_id": session_id}

        def query(connection: DatabaseConnection) -> MessageRows:
            heads = connection.fetch_all(self._sql.active.heads, params)
            is_whole = all(head[3] == session_id and not head[5] for head in heads)
            bodies, tails = (
                (self._sql.bodies, self._tails_sql.of_session)
                if is_whole
                else (self._sql.active.bodies, self._sql.active.tails)
            )
            return heads, connection.fetch_all(bodies, params), read_tails(connection, tails, params=params)

        return await self._read(query)

    async def get(self, session_id: str, id: str) -> Message | None:
        """Return the message, or None."""
        params = {"session_id": session_id, "id": id}

        def query(connection: DatabaseConnection) -> MessageRows:
            heads, bodies = (
                connection.fetch_all(sql, params) for sql in (self._sql.head, self._sql.message_bodies)
            )
            return heads, bodies, read_tails(connection, self._tails_sql.of_message, params=params)

        found = await self._read(query)
        return found[0] if found else None

    async def last(
        self, session_id: str, *, limit: int, size: int, before: str | None = None
    ) -> tuple[Sequence[Message], int]:
        """Return the last messages of a session's active branch, and how many are before them.

        They are at most `limit`; no more are read when these have `size` bytes. With `before`, the id of a
        message, they are those before it. It reads no rows of the others. NotFound.
        """

        def query(connection: DatabaseConnection) -> tuple[MessageRows, int]:
            paths = MessagePaths(connection, self._paths_sql)
            path = paths.read_written(session_id)
            if before is not None:
                place = paths.find(path, before)
                if place is None:
                    text = f"session {client_session_id(session_id)!r} has no message {before!r:.100}"
                    raise NotFound(text)
                path = path_before(path, place)
            return self._read_end(connection, path, limit=limit, size=size)

        rows, earlier = await self._database.read(query)
        return await build_messages(rows), earlier if rows[0] else 0

    def _read_end(
        self, connection: DatabaseConnection, path: MessagePath, *, limit: int, size: int
    ) -> tuple[MessageRows, int]:
        """Read messages from the end of a path; return their rows, and how many messages are before them.

        Positions follow each other without gaps, so that they are counted without being read.
        """
        left, heads, bodies = list(path), list[Row](), list[Row]()
        tails: dict[PartKey, str] = {}
        count = 1
        while left and size >= 0 and len(heads) < limit:
            segment = left.pop()
            start = max(segment.start, segment.until + 1 - min(count, limit - len(heads)))
            params = segment._replace(start=start)._asdict()
            heads[:0] = connection.fetch_all(self._sql.segment.heads, params)
            found = connection.fetch_all(self._sql.segment.bodies, params)
            bodies += found
            tails |= read_tails(connection, self._sql.segment.tails, params=params)
            size -= sum(len(row[2]) for row in found)
            count = min(2 * count, PAGE)
            if start > segment.start:
                left.append(segment._replace(until=start - 1))
        return (heads, bodies, tails), sum(each.until + 1 - each.start for each in left)

    async def pages(
        self, *, session_id: str | None = None, share_id: str | None = None
    ) -> AsyncIterator[Sequence[Message]]:
        """Yield the messages of a session's active branch, or those of a shared link, some at a time."""
        queries = self._sql.active if share_id is None else self._sql.shared
        params = {"session_id": session_id} if share_id is None else {"share_id": share_id}

        async def read_heads() -> Sequence[Row]:
            return await self._database.read(lambda connection: connection.fetch_all(queries.heads, params))

        heads = await read_heads()
        for at in range(0, len(heads), PAGE):
            page = heads[at : at + PAGE]
            found = await self._get_all(page)
            if None in found:  # moved, as the session that had them was deleted
                moved = {head[0]: head for head in await read_heads()}
                found = await self._get_all([moved.get(head[0], head) for head in page])
            yield [message for message in found if message is not None]

    async def _get_all(self, heads: Sequence[Row]) -> Sequence[Message | None]:
        return await asyncio.gather(*(self.get(head[3], head[0]) for head in heads))

    async def import_messages(self, session_id: str, messages: Sequence[Message], *, start: int) -> None:
        """Insert messages from a position on into a session that is being imported."""
        by_id = {message.id: message for message in messages}
        await self._database.submit(
            lambda connection: self.insert(connection, session_id, inserted=by_id, start=start), is_long=True
        )

    def write_parts_job(
        self,
        session_id: str,
        message_id: str,
        *,
        changed: Sequence[tuple[int, bytes]],
        count: int | None = None,
        metadata: bytes | None = None,
    ) -> DatabaseJob[None]:
        """Return a job that writes parts, encoded by `encode_part`, at their positions.

        `count` deletes parts from that position on; `metadata` replaces the message's, as JSON. Pass the job
        to `Store.enqueue`, `Store.write` or `RunRepository.finish`; it raises NotFound when the message was
        deleted. Use it only for the message of an active run: the search index misses later changes.
        """
        return self.write_changes_job(
            session_id, message_id, changes=PartChanges(changed=changed, count=count, metadata=metadata)
        )

    def write_changes_job(
        self, session_id: str, message_id: str, *, changes: PartChanges
    ) -> DatabaseJob[None]:
        """Return a job that writes changes of a message, as `write_parts_job` does."""
        this = {"session_id": session_id, "id": message_id}
        part = {"session_id": session_id, "message_id": message_id}
        rows = [{**part, "position": position, "body": body.decode()} for position, body in changes.changed]
        outdated = [
            {**this, "position": position}
            for position, _ in changes.changed
            if changes.tailed is None or position in changes.tailed
        ]
        appended = [{**part, **tail._asdict()} for tail in changes.tails]

        def job(connection: DatabaseConnection) -> None:
            if rows:
                connection.execute_many(self._sql.upsert_part, rows)
            if outdated:
                connection.execute_many(self._tails_sql.delete, outdated)
            if appended:
                connection.execute_many(self._tails_sql.upsert, appended)
            if changes.count is not None:
                connection.execute_batched(self._sql.delete_parts_from, {**this, "count": changes.count})
            if changes.metadata is not None:
                connection.execute_batched(
                    self._sql.update_metadata, {**this, "metadata": changes.metadata.decode()}
                )

        return job

    def replace_job(self, session_id: str, message: Message) -> DatabaseJob[None]:
        """Return a job that writes the whole message: parts that it no longer has are deleted."""
        return self.write_parts_job(
            session_id,
            message.id,
            changed=encode_parts(message.parts),
            count=len(message.parts),
            metadata=None if message.metadata is None else msgspec.json.encode(message.metadata),
        )

    def append_turn(
        self,
        connection: DatabaseConnection,
        session_id: str,
        *,
        user: Message | None,
        assistant: Message,
        drop_from: int | str | None = None,
        is_first: bool = False,
    ) -> None:
        """In a job: append a user's message, if any, and the assistant's with their parts.

        If the assistant's is already the last one, its parts are replaced when it has any. With `drop_from`,
        the position or id of a message, that one and all after it stay in an earlier branch. The
        session is locked; it has no messages where these are the `is_first` turn of one that was inserted in
        this transaction. Raises NotFound (`drop_from`), Conflict when an id is taken.
        """
        ids = {"user": None if user is None else user.id, "assistant": assistant.id}
        params = {"session_id": session_id, **ids}
        row = None if is_first else connection.fetch_one(self._sql.positions, params)
        user_position, position, last, branch = row or (None, None, None, None)
        end = tip = -1 if last is None else last
        user_id = None if user is None else user.id
        if drop_from is not None or branch is not None:
            paths = MessagePaths(connection, self._paths_sql)
            path = paths.read(session_id)
            if drop_from is not None:
                path = self._begin_branch(connection, session_id, path=path, start=drop_from)
            tip = path_end(path, session_id, last=end)
            is_here = user_position is None or contains(path, session_id, position=user_position)
            if user is not None and not is_here:
                user_id, user_position = paths.version_id(session_id, user.id), None
        if user is not None and user_position is not None:
            raise Conflict(f"session {client_session_id(session_id)!r} already has a message {user.id!r}")
        inserted = {} if user is None or user_id is None else {user_id: user}
        if position is None:
            inserted[assistant.id] = assistant
        elif position == tip and user is None:
            self._replace(connection, session_id, message=assistant)
        else:
            raise Conflict(
                f"message {assistant.id!r} is not the last of session {client_session_id(session_id)!r}"
            )
        self.insert(connection, session_id, inserted=inserted, start=end + 1)

    def _begin_branch(
        self, connection: DatabaseConnection, session_id: str, *, path: MessagePath, start: int | str
    ) -> MessagePath:
        """Begin a branch before the message with this position or id; return the path up to there."""
        id = start
        if isinstance(start, int):
            row = connection.fetch_one(
                self._paths_sql.at_position, {"session_id": session_id, "position": start}
            )
            id = "" if row is None else row[1]
        place = MessagePaths(connection, self._paths_sql).find(path, str(id))
        if place is None:
            raise NotFound(f"there is no message {start!r} in session {client_session_id(session_id)!r}")
        before = path_before(path, place)
        MessagePaths(connection, self._paths_sql).put_branch(session_id, parent=before)
        return before

    def insert(
        self,
        connection: DatabaseConnection,
        session_id: str,
        *,
        inserted: Mapping[str, Message],
        start: int,
    ) -> None:
        """In a job: insert messages from a position on, by the ids of their rows."""
        heads = [
            {
                "session_id": session_id,
                "id": id,
                "position": position,
                "role": message.role,
                "metadata": encode_json(message.metadata),
                "created_at": self._clock(),
                "client_id": None if id == message.id else message.id,
            }
            for position, (id, message) in enumerate(inserted.items(), start)
        ]
        connection.execute_many(self._sql.insert_head, heads)
        for id, message in inserted.items():
            changes = PartChanges(changed=encode_parts(message.parts), tailed=())
            self.write_changes_job(session_id, id, changes=changes)(connection)

    def _replace(self, connection: DatabaseConnection, session_id: str, *, message: Message) -> None:
        """Replace the stored parts and metadata by those that the message has."""
        if message.parts:
            self.replace_job(session_id, message)(connection)
        elif message.metadata is not None:
            this = {"session_id": session_id, "id": message.id}
            connection.execute_batched(
                self._sql.update_metadata, this | {"metadata": encode_json(message.metadata)}
            )

    async def _read(self, query: DatabaseJob[MessageRows]) -> Sequence[Message]:
        return await build_messages(await self._database.read(query))


MessageRows: TypeAlias = tuple[Sequence[Row], Sequence[Row], Mapping[PartKey, str]]
"""The rows of messages, of their parts, and the tails of these."""


async def build_messages(rows: MessageRows) -> Sequence[Message]:
    """Return the messages in rows, many of them decoded in a thread."""
    head_rows, body_rows, tails = rows

    def build() -> Sequence[Message]:
        parts: dict[tuple[str, str], list[Part]] = {}
        for message_id, position, body, session_id in body_rows:
            part = with_tail(decode_part(body), tails.get((message_id, position)))
            parts.setdefault((session_id, message_id), []).append(part)
        return [to_message(head, parts.get((head[3], head[0]), ())) for head in head_rows]

    size = ROW_SIZE * (len(head_rows) + len(body_rows))
    if size <= SMALL:
        size += sum(len(row[2]) for row in body_rows) + sum(map(len, tails.values()))
    return await offload(size, build)


def path_end(path: MessagePath, session_id: str, *, last: int) -> int:
    """Return the position of the last message of a path, if it is the session's; else -1.

    `last` is the position of the message that was added last.
    """
    if not path:
        return -1
    end = path[-1]
    if end.start > last and len(path) > 1 and end.session_id == session_id:  # a branch without messages yet
        end = path[-2]
    return min(end.until, last) if end.session_id == session_id and end.start <= last else -1


def encode_parts(parts: Sequence[Part]) -> list[tuple[int, bytes]]:
    """Return all parts of a message with their positions, for `write_parts_job`."""
    return [(position, encode_part(part)) for position, part in enumerate(parts)]


def to_message(head: Row, parts: Sequence[Part]) -> Message:
    message_id, role, metadata, _, client_id, *_ = head
    return Message(id=client_id or message_id, role=role, parts=tuple(parts), metadata=decode_json(metadata))
