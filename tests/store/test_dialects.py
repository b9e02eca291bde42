"""The seam for a second backend: all SQL is written once, and can be said in SQLite and in Postgres."""

from __future__ import annotations

from typing import cast

import pytest
from sqlalchemy import ClauseElement, Table, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.sqlite import Insert

from dragoman.store.database import Database
from dragoman.store.report import FILTERS, GROUPS, Report
from dragoman.store.store import Store

INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Compiler:
    """As much of a database as compiles."""

    def __init__(self, url: str) -> None:
        self._dialect = make_url(url).get_dialect()()
        self.said: list[str] = []
        self.values: list[object] = []

    def insert(self, table: Table) -> Insert:
        return cast(Insert, INSERTS[self._dialect.name](table))

    def compile(self, statement: ClauseElement) -> str:
        compiled = statement.compile(dialect=self._dialect)
        self.values += [value for value in compiled.params.values() if value is not None]
        self.said.append(str(compiled))
        return self.said[-1]


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
    said = compiler.compile(Report(GROUPS).select([*FILTERS, "since", "until"]))
    assert compiler.values == []
    assert "GROUP BY usage.owner" in said
    assert day in said


@pytest.mark.parametrize("url", ["sqlite://", "postgresql+psycopg://"])
def test_every_statement_can_be_said_and_takes_all_its_values_by_name(url: str) -> None:
    compiler = Compiler(url)
    Store(cast(Database, compiler))
    assert len(compiler.said) > 30
    assert compiler.values == []
    assert "ON CONFLICT (session_id) WHERE status = 'running' DO NOTHING" in " ".join(compiler.said)
