"""All rows of a table in batches of bounded size, in the same form for both databases; and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    LargeBinary,
    Table,
    Text,
    bindparam,
    func,
    literal_column,
    select,
    tuple_,
)

from dragoman.store.connection import Compiler, DatabaseConnection, Row
from dragoman.store.tables.core import (
    host_rates,
    host_reservations,
    hosts,
    indexed_messages,
    indexed_sessions,
    metadata,
    passages,
)

DERIVED = (passages, indexed_sessions, indexed_messages, hosts, host_reservations, host_rates)
"""What is not copied: the search index, which searches build from the messages, and rows of running hosts."""

TABLES: Final[Sequence[Table]] = [table for table in metadata.sorted_tables if table not in DERIVED]
"""What is copied; a table comes after those that it refers to."""

BATCH_ROWS = 1_000
BATCH_BYTES = 8_000_000  # of texts and bodies in one batch, unless a single row has more
NUL, REPLACEMENT = "\0", "\ufffd"

Key: TypeAlias = Sequence[Any]
"""The values of a row's primary key."""


class TableDigest:
    """How many rows a table has, and the sum of their SHA-256: equal for equal rows in any order."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows, in the form of `RowFormat`."""
        for row in rows:
            self._sum += int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(row)).digest(), "big")
        self.count += len(rows)

    def __str__(self) -> str:
        return f"{self.count}:{self._sum % 2**256:064x}"


class RowFormat:
    """The form of a table's rows: booleans are `bool`, also those of SQLite; all else is the same everywhere.

    With `replace_nul`, texts have U+FFFD for U+0000, which Postgres cannot store.
    """

    def __init__(self, table: Table, *, replace_nul: bool = False) -> None:
        self._convert: list[tuple[int, Callable[[Any], Any]]] = []
        for index, column in enumerate(table.c):
            if isinstance(column.type, Boolean):
                self._convert.append((index, bool))
            elif replace_nul and isinstance(column.type, Text):
                self._convert.append((index, replace_nuls))

    def apply(self, row: Row) -> Row:
        """Return a row in this form."""
        if not self._convert:
            return row
        values = list(row)
        for index, convert in self._convert:
            if values[index] is not None:
                values[index] = convert(values[index])
        return tuple(values)


def replace_nuls(text: str) -> str:
    return text.replace(NUL, REPLACEMENT)


_STATEMENTS: dict[tuple[str, str], RowStatements] = {}


def row_statements(table: Table, compiler: Compiler) -> RowStatements:
    """Return the statements of a table, compiled once for each kind of database."""
    key = str(table.name), compiler.name
    if key not in _STATEMENTS:
        _STATEMENTS[key] = RowStatements(table, compiler)
    return _STATEMENTS[key]


class RowStatements:
    """The SQL that reads a table in the order of its primary key."""

    def __init__(self, table: Table, compiler: Compiler) -> None:
        self.key_places = [index for index, column in enumerate(table.c) if column.primary_key]
        key = [column for column in table.c if column.primary_key]
        size: ColumnElement[int] = literal_column("64")
        for column in table.c:
            if isinstance(column.type, Text | LargeBinary):
                size = size + func.coalesce(func.length(column), literal_column("0"))
        after = key_bound(key, "after")
        last = key_bound(key, "last")
        sizes = select(*key, size).order_by(*key).limit(literal_column(str(BATCH_ROWS)))
        sizes = sizes.offset(literal_column("0"))
        rows = select(*table.c).order_by(*key)
        place = key_tuple(key)
        self.first_sizes = compiler.compile(sizes)
        self.next_sizes = compiler.compile(sizes.where(place > after))
        self.first_rows = compiler.compile(rows.where(place <= last))
        self.next_rows = compiler.compile(rows.where(place > after, place <= last))

    def key_of(self, row: Row) -> Key:
        """Return the primary key in a row of the table."""
        return [row[place] for place in self.key_places]

    def batches(self, connection: DatabaseConnection, after: Key | None = None) -> Iterator[Sequence[Row]]:
        """Yield the rows after the key `after`, as the driver returns them."""
        place = after
        while True:
            params = {} if place is None else key_params("after", place)
            sizes = connection.fetch_all(self.first_sizes if place is None else self.next_sizes, params)
            if not sizes:
                return
            last = sizes[batch_length([row[-1] for row in sizes]) - 1][:-1]
            sql = self.first_rows if place is None else self.next_rows
            yield connection.fetch_all(sql, {**params, **key_params("last", last)})
            place = last


def batch_length(sizes: Sequence[int]) -> int:
    """Return how many rows of these sizes make a batch."""
    total = 0
    for index, size in enumerate(sizes):
        total += size
        if total > BATCH_BYTES and index:
            return index
    return len(sizes)


def key_tuple(key: Sequence[ColumnElement[Any]]) -> ColumnElement[Any]:
    return key[0] if len(key) == 1 else tuple_(*key)


def key_bound(key: Sequence[Column[Any]], name: str) -> ColumnElement[Any]:
    """Return the parameters of a key, typed as its columns."""
    return key_tuple([bindparam(f"{name}_{index}", type_=column.type) for index, column in enumerate(key)])


def key_params(name: str, key: Key) -> Mapping[str, Any]:
    """Return the values of `key_bound`."""
    return {f"{name}_{index}": value for index, value in enumerate(key)}


def read_digest(connection: DatabaseConnection, statements: RowStatements, *, form: RowFormat) -> TableDigest:
    """Return the digest of a table."""
    digest = TableDigest()
    for rows in statements.batches(connection):
        digest.add([form.apply(row) for row in rows])
    return digest
