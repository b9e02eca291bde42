"""SQL that compiles for SQLite and Postgres."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Literal, cast

import pytest
from sqlalchemy import ClauseElement, Table, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.sqlite import Insert

from dragoman import store
from dragoman.store.accounts.usage_report import FILTERS, GROUP_NAMES, UsageReport
from dragoman.store.connection import lazy_statements
from dragoman.store.sessions.message_paths import MessagePathStatements

INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Compiler:
    """As much of a database as compiles."""

    def __init__(self, url: str) -> None:
        self._dialect = make_url(url).get_dialect()()
        self.name: Literal["sqlite", "postgresql"] = "sqlite" if "sqlite" in url else "postgresql"
        self.statements: list[str] = []
        self.values: list[object] = []

    def insert(self, table: Table) -> Insert:
        return cast(Insert, INSERTS[self._dialect.name](table))

    def compile(self, statement: ClauseElement) -> str:
        compiled = statement.compile(dialect=self._dialect)
        self.values += [value for value in compiled.params.values() if value is not None]
        self.statements.append(str(compiled))
        return self.statements[-1]

    def compile_positional(self, statement: ClauseElement) -> str:
        return self.compile(statement)


@pytest.mark.parametrize(
    ("url", "day"),
    [
        ("sqlite://", "CAST(usage.started_at / (86400 + 0.0) AS INTEGER)"),
        (
            "postgresql+psycopg://",
            "CAST(floor(usage.started_at / CAST(86400 AS DOUBLE PRECISION)) AS BIGINT)",
        ),
    ],
)
def test_a_report_can_be_said_and_takes_all_its_values_by_name(url: str, day: str) -> None:
    compiler = Compiler(url)
    statements = compiler.compile(UsageReport(GROUP_NAMES).select([*FILTERS, "since", "until"]))
    assert compiler.values == []
    assert "GROUP BY usage.owner" in statements
    assert day in statements


@pytest.mark.parametrize("url", ["sqlite://", "postgresql+psycopg://"])
def test_every_statement_can_be_said_and_takes_all_its_values_by_name(url: str) -> None:
    compiler = Compiler(url)
    for kind in kinds_of_statements():
        kind(compiler)
    assert len(compiler.statements) > 100
    assert compiler.values == []
    assert "ON CONFLICT (session_id) WHERE status = 'running' DO NOTHING" in " ".join(compiler.statements)


@pytest.mark.parametrize("url", ["sqlite://", "postgresql+psycopg://"])
def test_a_statement_is_compiled_when_it_is_first_used(url: str) -> None:
    compiler = Compiler(url)
    sql = lazy_statements(MessagePathStatements, compiler)
    assert compiler.statements == []
    assert [sql.by_id, sql.by_id] == compiler.statements * 2


@pytest.mark.parametrize("url", ["sqlite://", "postgresql+psycopg://"])
def test_every_statement_compiled_later_is_the_same(url: str) -> None:
    compiler = Compiler(url)
    for kind in kinds_of_statements():
        expected, lazy = kind(compiler), lazy_statements(kind, compiler)
        assert list(sql_of(lazy, names=expected)) == list(sql_of(expected, names=expected))


def sql_of(statements: object, *, names: object) -> Iterator[tuple[str, object]]:
    """The SQL of the attributes that `names` has, and of objects in them."""
    for name, expected in vars(names).items():
        value = getattr(statements, name)
        if is_sql(expected):
            yield name, value
        elif type(expected).__module__.startswith(store.__name__):
            yield from sql_of(value, names=expected)


def is_sql(value: object) -> bool:
    """Whether it is SQL, or consists of it."""
    match value:
        case dict():
            return all(map(is_sql, value.values()))
        case list() | tuple():
            return all(map(is_sql, value))
        case _:
            return isinstance(value, str | int)


def kinds_of_statements() -> Iterator[type]:
    """The classes that are given to `Database.statements`."""
    for found in pkgutil.walk_packages(store.__path__, f"{store.__name__}."):
        if ".migrations" in found.name or ".maintenance" in found.name:
            continue
        for name, kind in vars(import_module(found.name)).items():
            if name.endswith("Statements") and kind.__module__ == found.name:
                yield kind
