"""Conversations of the Responses API in the database: ordered items, to which responses add theirs.

A conversation of one owner is not found by another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, func, insert, literal_column, select, update

from dragoman.errors import ResponseNotFound, TooLarge
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
from dragoman.store.tables.responses import conversation_items, conversations

MAX_POSITION = 2**31 - 1
MAX_CONVERSATIONS = 10_000  # of an owner; the ones that were used longest ago are deleted above it
TRIMMED_ROWS = 100  # conversations that are deleted at once


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. `size` is that of its items in bytes; times are unix seconds."""

    id: str
    owner: str
    metadata: Mapping[str, str]
    created_at: float
    updated_at: float
    size: int = 0


class ConversationItem(msgspec.Struct, frozen=True):
    """An item, as JSON with its id."""

    id: str
    body: msgspec.Raw


def conversation_not_found(id: str) -> ResponseNotFound:
    """Return the error of a conversation that does not exist, and of another owner's."""
    return ResponseNotFound(f"there is no conversation {id[:100]!r}", code="conversation_not_found")


def item_not_found(id: str) -> ResponseNotFound:
    """Return the error of an item that a conversation does not have."""
    return ResponseNotFound(f"there is no item {id[:100]!r}", code="item_not_found")


class ConversationStatements:
    """The SQL of `ConversationRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        table, item = conversations.c, conversation_items.c
        this = table.id == bindparam("id"), table.owner == bindparam("owner")
        of_this = item.conversation_id == bindparam("id")
        first: ColumnElement[int] = literal_column("0")
        self.insert = compiler.compile(insert(conversations))
        self.insert_item = compiler.compile(insert(conversation_items))
        self.get = compiler.compile(select_fields(Conversation, conversations).where(*this))
        self.get_locked = compiler.compile(
            select_fields(Conversation, conversations).where(*this).with_for_update()
        )
        self.delete = compiler.compile(delete(conversations).where(*this))
        changes: dict[str, Any] = {
            name: bindparam(f"new_{name}") for name in ("updated_at", "metadata", "size")
        }
        self.update = compiler.compile(update(conversations).where(*this).values(**changes))
        self.list_items = compiler.compile(select(item.id, item.body).where(of_this).order_by(item.position))
        behind = item.position > bindparam("position"), item.position < bindparam("position")
        self.page, self.page_from_end = (
            compiler.compile(
                select(item.id, item.body)
                .where(of_this, following)
                .order_by(item.position if following is behind[0] else item.position.desc())
                .limit(bindparam("limit"))
                .offset(first)
            )
            for following in behind
        )
        self.find_position = compiler.compile(
            select(item.position).where(of_this, item.id == bindparam("item_id"))
        )
        self.find_item = compiler.compile(
            select(item.id, item.body).where(of_this, item.id == bindparam("item_id"))
        )
        self.delete_item = compiler.compile(
            delete(conversation_items).where(of_this, item.id == bindparam("item_id"))
        )
        self.last_position = compiler.compile(select(func.max(item.position)).where(of_this))
        self.totals = compiler.compile(
            select(func.count(), func.sum(table.size)).where(table.owner == bindparam("owner"))
        )
        self.oldest = compiler.compile(
            select(table.id, table.size)
            .where(table.owner == bindparam("owner"))
            .order_by(table.updated_at, table.id)
            .limit(bindparam("limit"))
            .offset(first)
        )


class ConversationRepository:
    """The conversations of all owners."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self.clock = clock

    @cached_property
    def _sql(self) -> ConversationStatements:
        return self._database.statements(ConversationStatements)

    async def create(
        self, conversation: Conversation, items: Sequence[ConversationItem], *, max_size: int
    ) -> None:
        """Insert a conversation with items; above `max_size` bytes delete the owner's least recently used."""

        def job(connection: DatabaseConnection) -> None:
            connection.execute(self._sql.insert, to_row(conversation))
            self._append(connection, conversation, items=items)
            self._trim(connection, conversation, max_size=max_size)

        await self._database.write(job)

    async def get(self, id: str, *, owner: str) -> Conversation:
        """Return a conversation. Raises ResponseNotFound, also for another owner's."""
        return await self._database.read(lambda connection: self._load(connection, id, owner=owner))

    async def set_metadata(self, id: str, metadata: Mapping[str, str], *, owner: str) -> Conversation:
        """Replace the metadata of a conversation; return it. Raises ResponseNotFound."""

        def job(connection: DatabaseConnection) -> Conversation:
            found = self._load(connection, id, owner=owner, locked=True)
            changed = msgspec.structs.replace(found, metadata=metadata)
            self._update(connection, changed)
            return changed

        return await self._database.write(job)

    async def delete(self, id: str, *, owner: str) -> None:
        """Delete a conversation with its items. Raises ResponseNotFound."""
        params = {"id": id, "owner": owner}
        if not await self._database.write(lambda connection: connection.execute(self._sql.delete, params)):
            raise conversation_not_found(id)

    async def append(self, id: str, items: Sequence[ConversationItem], *, owner: str, max_size: int) -> None:
        """Add items that the conversation does not have yet. See `create`. Raises ResponseNotFound."""

        def job(connection: DatabaseConnection) -> None:
            found = self._load(connection, id, owner=owner, locked=True)
            self._append(connection, found, items=items)
            self._trim(connection, found, max_size=max_size)

        await self._database.write(job)

    async def items(self, id: str, *, owner: str, max_size: int | None = None) -> Sequence[ConversationItem]:
        """Return the items in their order. Raises ResponseNotFound, TooLarge above `max_size` bytes."""

        def query(connection: DatabaseConnection) -> Sequence[ConversationItem]:
            found = self._load(connection, id, owner=owner)
            if max_size is not None and found.size > max_size:
                text = f"the conversation has {found.size} bytes; {max_size} are allowed"
                raise TooLarge(text, hint="delete items of it, or begin another one")
            return [to_item(row) for row in connection.fetch_all(self._sql.list_items, {"id": id})]

        return await self._database.read(query)

    async def page(
        self, id: str, *, owner: str, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[ConversationItem]:
        """Return the first items after the item `after`. Raises ResponseNotFound."""

        def query(connection: DatabaseConnection) -> Sequence[ConversationItem]:
            self._load(connection, id, owner=owner)
            position = MAX_POSITION if newest_first else -1
            if after is not None:
                row = connection.fetch_one(self._sql.find_position, {"id": id, "item_id": after})
                if row is None:
                    raise item_not_found(after)
                position = int(row[0])
            sql = self._sql.page_from_end if newest_first else self._sql.page
            rows = connection.fetch_all(sql, {"id": id, "position": position, "limit": limit})
            return [to_item(row) for row in rows]

        return await self._database.read(query)

    async def item(self, id: str, item_id: str, *, owner: str) -> ConversationItem:
        """Return one item. Raises ResponseNotFound."""

        def query(connection: DatabaseConnection) -> ConversationItem:
            self._load(connection, id, owner=owner)
            return self._item(connection, id, item_id=item_id)

        return await self._database.read(query)

    async def delete_item(self, id: str, item_id: str, *, owner: str) -> Conversation:
        """Delete one item; return its conversation. Raises ResponseNotFound."""

        def job(connection: DatabaseConnection) -> Conversation:
            found = self._load(connection, id, owner=owner, locked=True)
            item = self._item(connection, id, item_id=item_id)
            connection.execute(self._sql.delete_item, {"id": id, "item_id": item_id})
            changed = msgspec.structs.replace(found, size=found.size - len(bytes(item.body)))
            self._update(connection, changed)
            return changed

        return await self._database.write(job)

    # ---- in a job

    def _load(
        self, connection: DatabaseConnection, id: str, *, owner: str, locked: bool = False
    ) -> Conversation:
        sql = self._sql.get_locked if locked else self._sql.get
        row = connection.fetch_one(sql, {"id": id, "owner": owner})
        if row is None:
            raise conversation_not_found(id)
        fields = to_fields(Conversation, row)
        return Conversation(**fields | {"metadata": decode_json(fields["metadata"]) or {}})

    def _item(self, connection: DatabaseConnection, id: str, *, item_id: str) -> ConversationItem:
        row = connection.fetch_one(self._sql.find_item, {"id": id, "item_id": item_id})
        if row is None:
            raise item_not_found(item_id)
        return to_item(row)

    def _append(
        self, connection: DatabaseConnection, found: Conversation, *, items: Sequence[ConversationItem]
    ) -> None:
        row = connection.fetch_one(self._sql.last_position, {"id": found.id})
        position = -1 if row is None or row[0] is None else int(row[0])
        size = found.size
        for item in items:
            place = {"id": found.id, "item_id": item.id}
            if connection.fetch_one(self._sql.find_item, place) is not None:
                continue
            position += 1
            body = bytes(item.body).decode()
            size += len(bytes(item.body))
            params = {"conversation_id": found.id, "position": position, "id": item.id, "body": body}
            connection.execute(self._sql.insert_item, params)
        self._update(connection, msgspec.structs.replace(found, size=size))

    def _update(self, connection: DatabaseConnection, changed: Conversation) -> None:
        row = to_row(msgspec.structs.replace(changed, updated_at=self.clock()))
        new = {f"new_{name}": row[name] for name in ("updated_at", "metadata", "size")}
        connection.execute(self._sql.update, {"id": changed.id, "owner": changed.owner, **new})

    def _trim(self, connection: DatabaseConnection, current: Conversation, *, max_size: int) -> None:
        owner = {"owner": current.owner}
        count, size = connection.fetch_one(self._sql.totals, owner) or (0, 0)
        excess, excess_size = int(count) - MAX_CONVERSATIONS, int(size or 0) - max_size
        if excess <= 0 and excess_size <= 0:
            return
        for id, freed in connection.fetch_all(self._sql.oldest, {**owner, "limit": TRIMMED_ROWS}):
            if (excess <= 0 and excess_size <= 0) or id == current.id:
                return
            connection.execute(self._sql.delete, {"id": id, **owner})
            excess, excess_size = excess - 1, excess_size - int(freed)


def to_row(conversation: Conversation) -> dict[str, Any]:
    """Return a conversation as statement parameters."""
    return to_params(conversation) | {"metadata": encode_json(conversation.metadata)}


def to_item(row: Row) -> ConversationItem:
    """Return the item in a row."""
    return ConversationItem(str(row[0]), msgspec.Raw(str(row[1]).encode()))
