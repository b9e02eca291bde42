"""The types of columns, and the metadata that all tables are part of.

Indexes name conditions with `sqlite_where`; see `store/postgres/schema.py` for those on Postgres.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, MetaData, Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import TypeCompiler


class BinaryText(Text):
    """Text that is compared byte by byte, whatever the language of the database."""


def compile_text(_: BinaryText, __: TypeCompiler, **___: Any) -> str:
    return "TEXT"


def compile_postgres_text(_: BinaryText, __: TypeCompiler, **___: Any) -> str:
    return 'TEXT COLLATE "C"'


compiles(BinaryText)(compile_text)
compiles(BinaryText, "postgresql")(compile_postgres_text)

# The revisions use these too: a change here would change what old ones have created.
TEXT = BinaryText()
INTEGER = Integer().with_variant(BigInteger(), "postgresql")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
