"""A database with rows in every table, of every type of column."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Double, LargeBinary, Table, Text

from dragoman.store.connection import DatabaseConnection
from dragoman.store.store import Store
from dragoman.store.tables.core import metadata

REFERRED = {
    "session_id": "sessions",
    "message_id": "messages",
    "key_id": "keys",
    "response_id": "responses",
    "run_id": "runs",
    "conversation_id": "conversations",
    "trigger_id": "triggers",
}

TEXTS = {"id": "{table}-{number}", "labels": '["é", "{number}"]'}


def value(table: Table, column: Column[Any], number: int) -> Any:
    """A value for a column of the row with this number; keys refer to rows with the same number."""
    if column.name in TEXTS and isinstance(column.type, Text):
        return TEXTS[column.name].format(table=table.name, number=number)
    if column.name in REFERRED:
        return f"{REFERRED[column.name]}-{number}"
    if column.nullable and number % 3 == 2:
        return None
    if column.primary_key and isinstance(column.type, BigInteger):
        return 1_000_000 + number  # the database counts from 1
    return value_of_type(column, number)


def value_of_type(column: Column[Any], number: int) -> Any:
    match column.type:
        case Boolean():
            return bool(number % 2)
        case Double():
            return number + 0.1 + 0.2
        case LargeBinary():
            return bytes(range(number, 256))
        case Text():
            return f"{column.name} é ' \" % \\ 🙂 {number}"
        case _:
            return number


def row(table: Table, number: int) -> dict[str, Any]:
    return {column.name: value(table, column, number) for column in table.c}


async def fill(store: Store, *numbers: int) -> None:
    """Insert a row into every table for each number."""

    def job(connection: DatabaseConnection) -> None:
        for table in metadata.sorted_tables:
            sql = store.database.compile(table.insert())
            for number in numbers:
                connection.execute(sql, row(table, number))

    await store.write(job)
