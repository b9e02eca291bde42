"""Responses of the Responses API in the database: what clients refer to by response and item ids.

A response stores the items that its own request added, and its answer; earlier items are found through
`previous_id`. A response of one owner is not found by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, bindparam, case, delete, func, insert, literal_column, select, update

from dragoman.errors import ResponseNotFound, TooLarge
from dragoman.store.connection import Compiler, DatabaseConnection, select_fields, to_params, to_struct
from dragoman.store.database import Database
from dragoman.store.tables.responses import response_events, response_items, responses

ACTIVE_STATUSES = ("queued", "in_progress")
MAX_CHAIN = 10_000  # responses that lead back to the first one
TRIMMED_ROWS = 100  # responses that are deleted at once where an owner has too many bytes
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response. `body` is the response object and `input` the items that its request added, as JSON.

    `size` is that of both in bytes; times are unix seconds.
    """

    id: str
    owner: str
    root_id: str
    previous_id: str | None = None
    status: str
    background: bool = False
    cancel_requested: bool = False
    created_at: float
    updated_at: float
    size: int
    body: str
    input: str

    @property
    def is_active(self) -> bool:
        """Whether the response is still being made."""
        return self.status in ACTIVE_STATUSES

    @property
    def input_items(self) -> list[msgspec.Raw]:
        """The items that its request added."""
        return _decode_list(self.input)

    @property
    def output_items(self) -> list[msgspec.Raw]:
        """The items of its answer."""
        return msgspec.json.decode(self.body, type=ResponseOutput).output

    @property
    def items(self) -> list[msgspec.Raw]:
        """All of its items."""
        return [*self.input_items, *self.output_items]


class ResponseOutput(msgspec.Struct):
    """The output of a response object."""

    output: list[msgspec.Raw] = []


class ItemPlace(msgspec.Struct, frozen=True):
    """An item of a response: its id, and its place among the input and the output."""

    id: str
    position: int


class ResponseStatements:
    """The SQL of `ResponseRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        table = responses.c
        owner: ColumnElement[str] = bindparam("owner")
        this = table.id == bindparam("id"), table.owner == owner
        put = compiler.insert(responses)
        self.insert = compiler.compile(
            put.on_conflict_do_update(
                index_elements=["id"],
                set_={
                    name: put.excluded[name]
                    for name in ("status", "updated_at", "size", "body", "input", "previous_id")
                },
                where=table.owner == put.excluded.owner,
            )
        )
        self.get = compiler.compile(select_fields(StoredResponse, responses).where(*this))
        self.progress = compiler.compile(select(table.status, table.updated_at).where(*this))
        self.delete = compiler.compile(delete(responses).where(*this))
        link = select(table.id, table.previous_id, table.size, literal_column("0").label("depth"))
        chain = link.where(*this).cte("chain", recursive=True)
        before = select(table.id, table.previous_id, table.size, chain.c.depth + literal_column("1"))
        chain = chain.union_all(
            before.where(
                table.id == chain.c.previous_id,
                table.owner == owner,
                chain.c.depth < literal_column(str(MAX_CHAIN)),
            )
        )
        root = case((chain.c.previous_id.is_(None), literal_column("1")), else_=literal_column("0"))
        self.chain_size = compiler.compile(select(func.sum(chain.c.size), func.count(), func.sum(root)))
        self.chain = compiler.compile(
            select_fields(StoredResponse, responses)
            .join(chain, chain.c.id == table.id)
            .order_by(chain.c.depth.desc())
        )
        self.chain_sizes = compiler.compile(select(chain.c.size).order_by(chain.c.depth))
        self.newest = compiler.compile(
            select_fields(StoredResponse, responses)
            .join(chain, chain.c.id == table.id)
            .where(chain.c.depth < bindparam("count"))
            .order_by(chain.c.depth.desc())
        )
        self._compile_items(compiler)
        self._compile_changes(compiler)

    def _compile_items(self, compiler: Compiler) -> None:
        table = responses.c
        owner: ColumnElement[str] = bindparam("owner")
        item = compiler.insert(response_items)
        self.insert_item = compiler.compile(
            item.on_conflict_do_update(
                index_elements=["owner", "id"],
                set_={name: item.excluded[name] for name in ("response_id", "position")},
            )
        )
        self.find_item = compiler.compile(
            select(response_items.c.response_id, response_items.c.position, table.size)
            .join(responses, responses.c.id == response_items.c.response_id)
            .where(response_items.c.owner == owner, response_items.c.id == bindparam("id"))
        )

    def _compile_changes(self, compiler: Compiler) -> None:
        table = responses.c
        owner: ColumnElement[str] = bindparam("owner")
        this = table.id == bindparam("id"), table.owner == owner
        active = table.status.in_([literal_column(f"'{status}'") for status in ACTIVE_STATUSES])
        changed: dict[str, ColumnElement[Any]] = {
            name: bindparam(f"new_{name}") for name in ("status", "updated_at", "size", "body")
        }
        self.finish = compiler.compile(update(responses).where(*this, active).values(**changed))
        self.touch = compiler.compile(
            update(responses).where(*this, active).values(updated_at=bindparam("new_updated_at"))
        )
        self.cancel = compiler.compile(
            update(responses).where(*this, active).values(cancel_requested=literal_column("TRUE"))
        )
        self.is_cancelled = compiler.compile(select(table.cancel_requested).where(*this))
        self.insert_events = compiler.compile(insert(response_events))
        self.delete_events = compiler.compile(
            delete(response_events).where(
                response_events.c.response_id == bindparam("id"), response_events.c.first >= bindparam("from")
            )
        )
        self.list_events = compiler.compile(
            select(response_events.c.first, response_events.c.last, response_events.c.body)
            .where(
                response_events.c.response_id == bindparam("id"), response_events.c.last > bindparam("after")
            )
            .order_by(response_events.c.first)
            .limit(bindparam("limit"))
            .offset(literal_column("0"))
        )
        self.last_events = compiler.compile(
            select(response_events.c.last, response_events.c.body)
            .where(response_events.c.response_id == bindparam("id"))
            .order_by(response_events.c.first.desc())
            .limit(literal_column("1"))
            .offset(literal_column("0"))
        )
        self.owner_size = compiler.compile(select(func.sum(table.size)).where(table.owner == owner))
        self.oldest = compiler.compile(
            select(table.id, table.size)
            .where(table.owner == owner, ~active)
            .order_by(table.created_at, table.id)
            .limit(bindparam("limit"))
            .offset(literal_column("0"))
        )


class ResponseRepository:
    """The responses of all owners."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self.clock = clock

    @cached_property
    def _sql(self) -> ResponseStatements:
        return self._database.statements(ResponseStatements)

    @property
    def is_up(self) -> bool:
        """Whether the database accepts writes."""
        return self._database.is_up

    async def save(self, response: StoredResponse, items: Sequence[ItemPlace]) -> None:
        """Insert a response, or replace one of the same owner; its items are found by their ids then."""
        sql, params = self._sql, to_params(response)
        rows = [
            {"owner": response.owner, "id": item.id, "response_id": response.id, "position": item.position}
            for item in items
        ]

        def job(connection: DatabaseConnection) -> None:
            if connection.execute(sql.insert, params):
                connection.execute_many(sql.insert_item, rows)

        await self._database.write(job)

    async def get(self, id: str, *, owner: str) -> StoredResponse:
        """Return a response. Raises ResponseNotFound, also for another owner's."""
        row = await self._database.read(
            lambda connection: connection.fetch_one(self._sql.get, {"id": id, "owner": owner})
        )
        if row is None:
            raise ResponseNotFound(f"there is no response {id[:100]!r}")
        return to_struct(StoredResponse, row)

    async def progress(self, id: str, *, owner: str) -> tuple[str, float]:
        """Return the status of a response, and when it was written last. Raises ResponseNotFound."""
        row = await self._database.read(
            lambda connection: connection.fetch_one(self._sql.progress, {"id": id, "owner": owner})
        )
        if row is None:
            raise ResponseNotFound(f"there is no response {id[:100]!r}")
        return str(row[0]), float(row[1])

    async def delete(self, id: str, *, owner: str) -> None:
        """Delete a response with its items and events. Raises ResponseNotFound."""
        deleted = await self._database.write(
            lambda connection: connection.execute(self._sql.delete, {"id": id, "owner": owner})
        )
        if not deleted:
            raise ResponseNotFound(f"there is no response {id[:100]!r}")

    async def chain(
        self, id: str, *, owner: str, max_size: int, trims: bool = False
    ) -> Sequence[StoredResponse]:
        """Return a response and all before it, the first one first.

        Raises ResponseNotFound when one of them is gone, TooLarge above `max_size` bytes; with `trims` the
        first ones are left out instead.
        """
        params = {"id": id, "owner": owner}

        def query(connection: DatabaseConnection) -> Sequence[StoredResponse]:
            size, count, roots = connection.fetch_one(self._sql.chain_size, params) or (0, 0, 0)
            if not count or not roots:
                raise ResponseNotFound(f"there is no response {id[:100]!r}, or one before it is gone")
            if int(size) > max_size and trims:
                sizes = [int(size) for (size,) in connection.fetch_all(self._sql.chain_sizes, params)]
                newest = {**params, "count": count_within(sizes, max_size)}
                return [
                    to_struct(StoredResponse, row) for row in connection.fetch_all(self._sql.newest, newest)
                ]
            if int(size) > max_size:
                raise TooLarge(f"the responses before this one have {size} bytes; {max_size} are allowed")
            return [to_struct(StoredResponse, row) for row in connection.fetch_all(self._sql.chain, params)]

        return await self._database.read(query)

    async def find_items(self, ids: Iterable[str], *, owner: str, max_size: int) -> Mapping[str, msgspec.Raw]:
        """Return those of the items that exist, by id.

        Raises TooLarge when the responses that have them are more than `max_size` bytes together.
        """

        def find(connection: DatabaseConnection) -> Mapping[str, list[ItemPlace]]:
            found: dict[str, list[ItemPlace]] = {}
            total = 0
            for id in dict.fromkeys(ids):
                row = connection.fetch_one(self._sql.find_item, {"owner": owner, "id": id})
                if row is None:
                    continue
                response_id, position, size = str(row[0]), int(row[1]), int(row[2])
                total += 0 if response_id in found else size
                found.setdefault(response_id, []).append(ItemPlace(id, position))
            if total > max_size:
                text = f"the responses whose items are referred to have {total} bytes; {max_size} are allowed"
                raise TooLarge(text, hint="continue the last response by previous_response_id")
            return found

        items: dict[str, msgspec.Raw] = {}
        for response_id, places in (await self._database.read(find)).items():
            items |= await self._items_of(response_id, places, owner=owner)
        return items

    async def _items_of(
        self, id: str, places: Sequence[ItemPlace], *, owner: str
    ) -> Mapping[str, msgspec.Raw]:
        """Return items of one response, by id; those of a response that is gone by now are left out."""

        def query(connection: DatabaseConnection) -> Mapping[str, msgspec.Raw]:
            row = connection.fetch_one(self._sql.get, {"id": id, "owner": owner})
            items = [] if row is None else to_struct(StoredResponse, row).items
            # Copies: each of the items would keep the whole response in memory.
            return {place.id: items[place.position].copy() for place in places if place.position < len(items)}

        return await self._database.read(query)

    async def finish(
        self,
        response: StoredResponse,
        items: Sequence[ItemPlace],
        *,
        events: Mapping[str, Any] | None = None,
    ) -> bool:
        """Write how an active response has ended, with its last events; False if it had ended, or is gone."""
        sql = self._sql
        fields = {name: getattr(response, name) for name in ("status", "updated_at", "size", "body")}
        params = {"id": response.id, "owner": response.owner}
        rows = [
            {"owner": response.owner, "id": item.id, "response_id": response.id, "position": item.position}
            for item in items
        ]

        def job(connection: DatabaseConnection) -> bool:
            new = {f"new_{name}": value for name, value in fields.items()}
            changed = connection.execute(sql.finish, {**params, **new})
            if changed:
                connection.execute_many(sql.insert_item, rows)
            if changed and events is not None:
                connection.execute(sql.insert_events, {"response_id": response.id, **events})
            return bool(changed)

        return await self._database.write(job)

    async def touch(self, id: str, *, owner: str, events: Mapping[str, Any] | None = None) -> bool:
        """Record that an active response is still being made, and add events of it.

        They replace stored events from their first number on: a write that failed may have stored them.
        Return whether it continues: False once it was cancelled or deleted, or counts as failed.
        """
        sql, params = self._sql, {"id": id, "owner": owner}

        def job(connection: DatabaseConnection) -> bool:
            if not connection.execute(sql.touch, {**params, "new_updated_at": self.clock()}):
                return False
            if events is not None:
                connection.execute(sql.delete_events, {"id": id, "from": events["first"]})
                connection.execute(sql.insert_events, {"response_id": id, **events})
            row = connection.fetch_one(sql.is_cancelled, params)
            return row is not None and not row[0]

        return await self._database.write(job)

    async def request_cancel(self, id: str, *, owner: str) -> None:
        """Ask the process that makes a response to end it."""
        await self._database.write(
            lambda connection: connection.execute(self._sql.cancel, {"id": id, "owner": owner})
        )

    async def events(self, id: str, *, after: int, limit: int = 50) -> Sequence[tuple[int, int, str]]:
        """Return rows of events that end after a sequence number: first, last, frames."""
        params = {"id": id, "after": after, "limit": limit}
        rows = await self._database.read(
            lambda connection: connection.fetch_all(self._sql.list_events, params)
        )
        return [(int(first), int(last), str(body)) for first, last, body in rows]

    async def last_events(self, id: str) -> tuple[int, str] | None:
        """Return the last row of events: the number of its last one, and its frames; None without any."""
        row = await self._database.read(
            lambda connection: connection.fetch_one(self._sql.last_events, {"id": id})
        )
        return None if row is None else (int(row[0]), str(row[1]))

    async def trim(self, owner: str, *, max_size: int) -> int:
        """Delete an owner's oldest responses above `max_size` bytes; return how many."""
        sql = self._sql

        def job(connection: DatabaseConnection) -> int:
            row = connection.fetch_one(sql.owner_size, {"owner": owner})
            excess, count = int((row and row[0]) or 0) - max_size, 0
            for id, size in connection.fetch_all(sql.oldest, {"owner": owner, "limit": TRIMMED_ROWS}):
                if excess <= 0:
                    break
                count += connection.execute(sql.delete, {"id": id, "owner": owner})
                excess -= int(size)
            return count

        total = 0
        while count := await self._database.submit(job, is_long=True):
            total += count
        return total


def count_within(sizes: Sequence[int], limit: int) -> int:
    """Return how many of the sizes, from the first one on, have a sum within the limit."""
    return sum(total <= limit for total in accumulate(sizes))
