"""Memories: what teams know, with the history of each, and the search over their words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from sqlalchemy import ColumnElement, and_, bindparam, delete, func, insert, literal_column, select, update

from dragoman.errors import Conflict, NotFound
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
from dragoman.store.sessions.full_text import query_terms, query_words
from dragoman.store.sessions.postgres_words import QueryWord, split_words
from dragoman.store.tables.teams import memories

MemoryKind: TypeAlias = Literal["identity", "lesson", "decision", "context", "reference", "historical"]
MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
Confidence: TypeAlias = Literal["low", "medium", "high"]

MAX_ACTIVE = 500  # memories of a team for one owner
FEW = 20  # memories that are read in the thread of the event loop
MAX_ROWS = 2_000  # with their history, of which the oldest goes first
PREFIX_WEIGHT = 0.5  # of a word that only begins with the one searched for
KEY_WEIGHT = 2.0


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a team knows, or knew: then it has `ended_at`.

    `supersedes` is the id of the memory that it replaced, and `reason` why, or why it was deleted.
    `sources` are where it comes from.
    """

    id: str
    team: str
    owner: str
    key: str
    kind: MemoryKind
    content: str
    is_active: bool = True
    created_at: float
    created_by: str | None = None
    ended_at: float | None = None
    supersedes: str | None = None
    reason: str | None = None
    confidence: Confidence | None = None
    sources: tuple[str, ...] = ()


class MemoryStatements:
    """The SQL of `MemoryRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        table = memories.c
        found = select_fields(Memory, memories)
        scope = and_(table.team == bindparam("team"), table.owner == bindparam("owner"))
        active = and_(scope, table.is_active)
        this = and_(active, table.key == bindparam("key"))
        newest = table.created_at.desc(), table.id
        limit: ColumnElement[Any] = bindparam("limit")
        offset: ColumnElement[Any] = literal_column("0")
        kinds = table.kind.in_([bindparam(f"kind{number}") for number in range(len(MEMORY_KINDS))])
        self.insert = compiler.compile(insert(memories))
        self.get = compiler.compile(found.where(this))
        self.list = compiler.compile(found.where(active, kinds).order_by(*newest).limit(limit).offset(offset))
        self.search = compiler.compile(found.add_columns(table.words).where(active, kinds).order_by(*newest))
        self.history = compiler.compile(
            found.where(scope, table.key == bindparam("key"))
            .order_by(table.is_active.desc(), *newest)
            .limit(limit)
            .offset(offset)
        )
        counted = select(func.count(literal_column("1"))).select_from(memories)
        self.count = compiler.compile(counted.where(active))
        changes: dict[str, Any] = {
            "is_active": literal_column("false"),
            "ended_at": bindparam("now"),
        }
        self.end = compiler.compile(update(memories).where(this).values(changes))
        deleted = {**changes, "reason": func.coalesce(bindparam("why"), table.reason)}
        self.delete = compiler.compile(update(memories).where(this).values(deleted))
        newest_ids = select(table.id).where(scope).order_by(table.is_active.desc(), *newest)
        newest_ids = newest_ids.limit(bindparam("rows")).offset(literal_column("0"))
        self.trim = compiler.compile(delete(memories).where(scope, table.id.not_in(newest_ids)))


class MemoryRepository:
    """The memories of all teams, separate for each owner. The caller checks who may read them."""

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    @cached_property
    def _sql(self) -> MemoryStatements:
        return self._database.statements(MemoryStatements)

    async def save(self, memory: Memory) -> Memory:
        """Store a memory in place of the active one with its key, and return it as stored.

        One that says the same is left as it is and returned. Raises Conflict when another one would be
        replaced without a `reason`, or when there are too many.
        """

        def job(connection: DatabaseConnection) -> Memory:
            connection.lock(f"memories {memory.team} {memory.owner}")
            scope = {"team": memory.team, "owner": memory.owner}
            row = connection.fetch_one(self._sql.get, {**scope, "key": memory.key})
            earlier = None if row is None else to_memory(row)
            if earlier is not None and is_same_memory(earlier, memory):
                return earlier
            stored = msgspec.structs.replace(
                memory, created_at=self._clock(), supersedes=None if earlier is None else earlier.id
            )
            if earlier is None:
                self._check_count(connection, scope)
            elif not memory.reason:
                raise Conflict(
                    f"there is a memory {memory.key!r} that says something else",
                    hint="give the reason for which it is replaced, or another key",
                )
            connection.execute(self._sql.end, {**scope, "key": memory.key, "now": self._clock()})
            connection.execute(self._sql.insert, memory_params(stored))
            connection.execute(self._sql.trim, {**scope, "rows": MAX_ROWS})
            return stored

        return await self._database.write(job)

    def _check_count(self, connection: DatabaseConnection, scope: dict[str, str]) -> None:
        row = connection.fetch_one(self._sql.count, scope)
        if row is not None and row[0] >= MAX_ACTIVE:
            raise Conflict(
                f"the team {scope['team']!r} has {MAX_ACTIVE} memories, the maximum",
                hint="delete some, or replace one by saving under its key",
            )

    async def list(
        self, team: str, owner: str, *, kinds: Sequence[MemoryKind] = MEMORY_KINDS, limit: int = MAX_ACTIVE
    ) -> Sequence[Memory]:
        """Return the active memories, the newest first."""
        params = {"team": team, "owner": owner, "limit": min(limit, FEW), **kind_params(kinds)}
        rows = await self._database.read_by_key(
            lambda connection: connection.fetch_all(self._sql.list, params)
        )
        if len(rows) == FEW < limit:
            params["limit"] = limit
            rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.list, params))
        return [to_memory(row) for row in rows]

    async def search(
        self,
        team: str,
        owner: str,
        *,
        query: str,
        kinds: Sequence[MemoryKind] = MEMORY_KINDS,
        limit: int = 5,
    ) -> Sequence[Memory]:
        """Return the active memories with words of the query, the best first."""
        params = {"team": team, "owner": owner, **kind_params(kinds)}

        def job(connection: DatabaseConnection) -> Sequence[Memory]:
            found = [
                (to_memory(row[:-1]), str(row[-1])) for row in connection.fetch_all(self._sql.search, params)
            ]
            return rank(found, query_terms(query_words(query)))[:limit]

        return await self._database.read(job)

    async def history(self, team: str, owner: str, *, key: str, limit: int = 50) -> Sequence[Memory]:
        """Return what was known under a key: the active memory, then those before it, the newest first."""
        params = {"team": team, "owner": owner, "key": key, "limit": limit}
        rows = await self._database.read(lambda connection: connection.fetch_all(self._sql.history, params))
        return [to_memory(row) for row in rows]

    async def delete(self, team: str, owner: str, *, key: str, reason: str | None = None) -> None:
        """End a memory; its history stays. Raises NotFound."""
        params = {"team": team, "owner": owner, "key": key, "now": self._clock(), "why": reason}
        if not await self._database.write(lambda connection: connection.execute(self._sql.delete, params)):
            raise NotFound(f"the team {team!r} has no memory {key!r}", hint="list its memories")


def is_same_memory(one: Memory, other: Memory) -> bool:
    fields = ("kind", "content", "confidence", "sources")
    return all(getattr(one, name) == getattr(other, name) for name in fields)


def indexed_words(text: str) -> str:
    """Return the distinct words of a text, between spaces, as a search compares them."""
    return f" {' '.join(dict.fromkeys(span.word for span in split_words(text)))} "


def rank(found: Sequence[tuple[Memory, str]], query: Sequence[QueryWord]) -> Sequence[Memory]:
    """Return the memories that have words of the query, the best first; rare words count more."""
    wanted = [(word, term.is_prefix) for term in query for word in term.words]
    shares = [
        [share_of(words, word, is_prefix=is_prefix) for word, is_prefix in wanted] for _, words in found
    ]
    counts = [sum(share[place] > 0 for share in shares) for place in range(len(wanted))]
    rarities = [math.log(1 + (len(found) - count + 0.5) / (count + 0.5)) for count in counts]
    scores: list[tuple[float, Memory]] = []
    for (memory, _), share in zip(found, shares, strict=True):
        key = indexed_words(memory.key)
        score = sum(
            rarity * each * (KEY_WEIGHT if f" {word}" in key else 1.0)
            for rarity, each, (word, _) in zip(rarities, share, wanted, strict=True)
        )
        if score:
            scores.append((score, memory))
    return [memory for _, memory in sorted(scores, key=lambda item: item[0], reverse=True)]


def share_of(words: str, word: str, *, is_prefix: bool) -> float:
    """Return how well a text has a word: 1 for the word itself, less for a longer one, 0 for none."""
    if f" {word} " in words:
        return 1.0
    return PREFIX_WEIGHT if is_prefix and f" {word}" in words else 0.0


def kind_params(kinds: Sequence[MemoryKind]) -> dict[str, str]:
    """Return the parameters of a filter by kinds, of which there is at least one."""
    wanted = list(kinds) + [kinds[-1]] * (len(MEMORY_KINDS) - len(kinds))
    return {f"kind{number}": kind for number, kind in enumerate(wanted)}


def memory_params(memory: Memory) -> dict[str, Any]:
    words = indexed_words(f"{memory.key} {memory.content}")
    return {**to_params(memory), "sources": encode_json(memory.sources), "words": words}


def to_memory(row: Row) -> Memory:
    fields = to_fields(Memory, row)
    fields["is_active"] = bool(fields["is_active"])
    fields["sources"] = decode_json(fields["sources"], tuple[str, ...]) or ()
    return Memory(**fields)
