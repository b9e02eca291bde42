"""What jobs and queries see of a database: a connection that runs compiled SQL, whatever the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec
from sqlalchemy import ClauseElement, Select, Table, select
from sqlalchemy.dialects.sqlite import Insert

Params: TypeAlias = Mapping[str, Any]
Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")


class DatabaseConnection(Protocol):
    """A connection inside a transaction. SQL is what `Database.compile` gave; parameters go by name."""

    def execute(self, sql: str, params: Params) -> int:
        """How many rows the statement changed."""

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        """Run the statement once for each."""

    def fetch_one(self, sql: str, params: Params) -> Row | None:
        """The first row, or None."""

    def fetch_all(self, sql: str, params: Params) -> Sequence[Row]:
        """Every row."""


class BackendConnection(DatabaseConnection, Protocol):
    """A connection and its transactions, as the writer and the readers hold it."""

    def begin(self) -> None:
        """Start a transaction; a writer takes the write lock at once."""

    def commit(self) -> None:
        """Keep what was written."""

    def rollback(self) -> None:
        """End the transaction, if there is one."""

    def close(self) -> None:
        """Give the connection back to the system."""


DatabaseJob: TypeAlias = Callable[[DatabaseConnection], T]
"""Work inside a transaction. It may run again after a rollback, so it touches nothing but its connection."""

OutageScope: TypeAlias = Literal["writing", "all"]
"""What an outage reaches: a full disk can still be read."""


class Compiler(Protocol):
    """What makes SQL of statements."""

    def insert(self, table: Table) -> Insert:
        """The dialect's own INSERT; each has the ON CONFLICT methods that SQLite's has."""

    def compile(self, statement: ClauseElement) -> str:
        """The statement as SQL."""


class Backend(Compiler, Protocol):
    """A kind of database."""

    def prepare(self) -> None:
        """Create or migrate the tables. Blocks; StoreError when the database cannot be used.

        May be called again when it failed, and after an outage.
        """

    def check(self) -> None:
        """Write something that changes nothing. Blocks; StoreError when the database does not take it."""

    def connect(self, *, writing: bool) -> BackendConnection:
        """A new connection; one that is not `writing` refuses to."""

    def translate_error(self, error: Exception) -> Exception:
        """What a driver's error means, as one of errors.py; any other error as it is."""

    def outage_scope(self, error: Exception) -> OutageScope | None:
        """What cannot be done any more after a driver's error or what it was explained as; None: all can."""

    def release(self) -> None:
        """Give up what `prepare` took."""


# ---- Rows and structs: a struct's fields are columns of a table, by name.

S = TypeVar("S", bound=msgspec.Struct)


def select_fields(kind: type[msgspec.Struct], table: Table) -> Select[Any]:
    """Select the columns of the struct's fields, in their order."""
    return select(*(table.c[name] for name in kind.__struct_fields__))


def to_fields(kind: type[msgspec.Struct], row: Row) -> dict[str, Any]:
    """The fields in a row of `select_fields`; JSON is still text."""
    return dict(zip(kind.__struct_fields__, row, strict=True))


def to_struct(kind: type[S], row: Row) -> S:
    """The struct in a row of `select_fields`, when none of its fields is kept as JSON."""
    return kind(**to_fields(kind, row))


def to_params(struct: msgspec.Struct) -> dict[str, Any]:
    """The struct's fields as parameters; what is kept as JSON is to be replaced by its text."""
    return msgspec.structs.asdict(struct)


def encode_json(value: Any) -> str | None:
    """The value as JSON text; None, which stands for NULL, as it is."""
    return None if value is None else msgspec.json.encode(value).decode()


def decode_json(text: str | None, kind: Any = Any) -> Any:
    """The value of JSON text; None for NULL."""
    return None if text is None else msgspec.json.decode(text, type=kind)
