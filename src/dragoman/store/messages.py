"""Messages and their parts in the database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import bindparam, delete, func, insert, select, update

from dragoman.errors import Conflict, NotFound
from dragoman.messages import Message, Part, decode_part, encode_part
from dragoman.offload import offload
from dragoman.session_ids import client_session_id
from dragoman.store.connection import Compiler, DatabaseConnection, DatabaseJob, Row, decode_json, encode_json
from dragoman.store.database import Database
from dragoman.store.part_tails import PartKey, PartTail, PartTailStatements, read_tails, with_tail
from dragoman.store.tables import messages, parts

ROW_SIZE = 100  # bytes that reading a row takes as much time as


class MessageStatements:
    """The SQL of `MessageRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        here = messages.c.session_id == bindparam("session_id")
        this = here, messages.c.id == bindparam("id")
        from_here = here, messages.c.position >= bindparam("position")
        parts_here = parts.c.session_id == bindparam("session_id")
        parts_of = parts_here, parts.c.message_id == bindparam("id")
        of_user, of_assistant = (
            select(messages.c.position).where(here, messages.c.id == bindparam(name)).scalar_subquery()
            for name in ("user", "assistant")
        )
        last = select(func.max(messages.c.position)).where(here).scalar_subquery()
        heads = select(messages.c.id, messages.c.role, messages.c.metadata).order_by(messages.c.position)
        bodies = select(parts.c.message_id, parts.c.position, parts.c.body)
        bodies = bodies.order_by(parts.c.message_id, parts.c.position)
        part = compiler.insert(parts)
        part = part.on_conflict_do_update(index_elements=parts.primary_key, set_={"body": part.excluded.body})
        described = update(messages).where(*this).values(metadata=bindparam("metadata"))
        self.heads = compiler.compile(heads.where(here))
        self.head = compiler.compile(heads.where(*this))
        self.bodies = compiler.compile(bodies.where(parts_here))
        self.message_bodies = compiler.compile(bodies.where(*parts_of))
        self.position = compiler.compile(select(messages.c.position).where(*this))
        self.positions = compiler.compile(select(of_user, of_assistant, last))
        self.insert_head = compiler.compile(insert(messages))
        self.update_metadata = compiler.compile(described)
        self.delete_from = compiler.compile(delete(messages).where(*from_here))
        self.upsert_part = compiler.compile(part)
        self.delete_parts_from = compiler.compile(
            delete(parts).where(*parts_of, parts.c.position >= bindparam("count"))
        )


class PartChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a stored message: whole parts by position, and `tails`, which are appended to parts.

    A part in `changed` loses its tails; `tailed` names those that may have any, where the caller knows.
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
    def _tails_sql(self) -> PartTailStatements:
        return self._database.statements(PartTailStatements)

    async def list(self, session_id: str) -> Sequence[Message]:
        """Return the session's messages in order; none when the session does not exist."""
        queries = MessageQueries(self._sql.heads, self._sql.bodies, self._tails_sql.of_session)
        return await self._read({"session_id": session_id}, queries)

    async def get(self, session_id: str, id: str) -> Message | None:
        """Return the message, or None."""
        queries = MessageQueries(self._sql.head, self._sql.message_bodies, self._tails_sql.of_message)
        found = await self._read({"session_id": session_id, "id": id}, queries)
        return found[0] if found else None

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

    def delete_from(self, connection: DatabaseConnection, session_id: str, *, start: int | str) -> None:
        """In a job: delete the message at a position or with an id, and all after it. Raises NotFound."""
        found: int | None = start if isinstance(start, int) else None
        if isinstance(start, str):
            row = connection.fetch_one(self._sql.position, {"session_id": session_id, "id": start})
            found = row[0] if row else None
        if found is None:
            raise NotFound(f"there is no message {start!r} in session {client_session_id(session_id)!r}")
        connection.execute(self._sql.delete_from, {"session_id": session_id, "position": found})

    def append_turn(
        self, connection: DatabaseConnection, session_id: str, *, user: Message | None, assistant: Message
    ) -> None:
        """In a job: append a user's message, if any, and the assistant's with their parts.

        If the assistant's is already the last one, its parts are replaced when it has any. The session is
        locked. Raises Conflict when an id is taken.
        """
        ids = {"user": None if user is None else user.id, "assistant": assistant.id}
        row = connection.fetch_one(self._sql.positions, {"session_id": session_id, **ids})
        user_position, position, last = row or (None, None, None)
        end = 0 if last is None else last + 1
        inserted = [] if user is None else [user]
        if user is not None and user_position is not None:
            raise Conflict(f"session {client_session_id(session_id)!r} already has a message {user.id!r}")
        if position is None:
            inserted.append(assistant)
        elif position == end - 1 and user is None:
            self._replace(connection, session_id, message=assistant)
        else:
            raise Conflict(
                f"message {assistant.id!r} is not the last of session {client_session_id(session_id)!r}"
            )
        self._insert(connection, session_id, inserted=inserted, start=end)

    def _insert(
        self, connection: DatabaseConnection, session_id: str, *, inserted: Sequence[Message], start: int
    ) -> None:
        """Insert messages from a position on."""
        heads = [
            {
                "session_id": session_id,
                "id": message.id,
                "position": position,
                "role": message.role,
                "metadata": encode_json(message.metadata),
                "created_at": self._clock(),
            }
            for position, message in enumerate(inserted, start)
        ]
        connection.execute_many(self._sql.insert_head, heads)
        for message in inserted:
            changes = PartChanges(changed=encode_parts(message.parts), tailed=())
            self.write_changes_job(session_id, message.id, changes=changes)(connection)

    def _replace(self, connection: DatabaseConnection, session_id: str, *, message: Message) -> None:
        """Replace the stored parts and metadata by those that the message has."""
        if message.parts:
            self.replace_job(session_id, message)(connection)
        elif message.metadata is not None:
            this = {"session_id": session_id, "id": message.id}
            connection.execute_batched(
                self._sql.update_metadata, this | {"metadata": encode_json(message.metadata)}
            )

    async def _read(self, params: dict[str, Any], queries: MessageQueries) -> Sequence[Message]:
        def query(
            connection: DatabaseConnection,
        ) -> tuple[Sequence[Row], Sequence[Row], Mapping[PartKey, str]]:
            heads, bodies = (connection.fetch_all(sql, params) for sql in queries[:2])
            return heads, bodies, read_tails(connection, queries.tails, params=params)

        head_rows, body_rows, tails = await self._database.read(query)

        def build() -> Sequence[Message]:
            parts: dict[str, list[Part]] = {}
            for message_id, position, body in body_rows:
                part = with_tail(decode_part(body), tails.get((message_id, position)))
                parts.setdefault(message_id, []).append(part)
            return [to_message(head, parts.get(head[0], ())) for head in head_rows]

        size = sum(len(row[2]) + ROW_SIZE for row in body_rows) + sum(map(len, tails.values()))
        return await offload(size, build)


class MessageQueries(NamedTuple):
    """The SQL that reads messages: their rows, their parts, and the tails of these."""

    heads: str
    bodies: str
    tails: str


def encode_parts(parts: Sequence[Part]) -> list[tuple[int, bytes]]:
    """Return all parts of a message with their positions, for `write_parts_job`."""
    return [(position, encode_part(part)) for position, part in enumerate(parts)]


def to_message(head: Row, parts: Sequence[Part]) -> Message:
    message_id, role, metadata = head
    return Message(id=message_id, role=role, parts=tuple(parts), metadata=decode_json(metadata))
