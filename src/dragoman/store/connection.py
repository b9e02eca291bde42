"""Database connections and backends as Protocols, and the mapping of rows to structs.

The rest of the store is written against these: jobs see a connection that runs compiled SQL, and neither
they nor the writer know which backend it is. SQLite is `sqlite.py`, Postgres is `postgres/`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import msgspec
from sqlalchemy import (
    ClauseElement,
    Column,
    ColumnElement,
    Select,
    Table,
    bindparam,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.sqlite import Insert

Params: TypeAlias = Mapping[str, Any]
Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")


class DatabaseConnection(Protocol):
    """A connection inside a transaction. SQL comes from a `Compiler`; parameters have names unless noted."""

    def execute(self, sql: str, params: Params) -> int:
        """Run a statement; return how many rows it changed."""

    def execute_batched(self, sql: str, params: Params) -> None:
        """Run a statement whose number of rows is not needed.

        It may be sent later, together with others of the same SQL, but before the commit and before any
        statement that returns something. Statements that share an id stay in order.
        """

    def execute_positional(self, sql: str, values: Sequence[Any]) -> None:
        """Run a statement of `Compiler.compile_positional`, as `execute_batched` does.

        For statements with hundreds of parameters: SQLite finds each name by a search through all of them.
        """

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        """Run the statement once for each set of parameters, as `execute_batched` does."""

    def fetch_one(self, sql: str, params: Params) -> Row | None:
        """Return the first row, or None."""

    def fetch_all(self, sql: str, params: Params) -> Sequence[Row]:
        """Return all rows."""

    def lock(self, name: str) -> None:
        """Wait until no other transaction has locked this name, and lock it until the end of this one.

        For what has no row, such as rows that do not exist yet. Rows are locked by FOR UPDATE. SQLite
        has one writer, so both do nothing there.
        """


class RetryTransaction(Exception):
    """The transaction was rolled back for a reason outside of it: run it again. `__cause__` says why.

    Raised by connections: after a deadlock, a serialization failure, a lost connection.
    """


class CommitUncertain(Exception):
    """The connection was lost during the commit, and nobody can say whether it took place; see `__cause__`.

    Work that failed like this must not run again by itself.
    """


class BackendConnection(DatabaseConnection, Protocol):
    """A connection that the writer or a reader owns, with control over its transactions."""

    def begin(self, *, is_group: bool = False) -> None:
        """Begin a transaction; a writing connection takes the write lock immediately, where there is one.

        A transaction `is_group` if it has the jobs of several callers, which take locks in no common order:
        it fails soon where it would wait for a lock. Its jobs then run one by one.
        """

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll back the transaction, if there is one."""

    def close(self) -> None:
        """Close the connection."""


DatabaseJob: TypeAlias = Callable[[DatabaseConnection], T]
"""Work inside a transaction. It may run again after a rollback, so its only effects are on its connection."""

OutageScope: TypeAlias = Literal["writing", "all"]
"""What fails during an outage: only writes (a database on a full disk can still be read), or everything."""


class Compiler(Protocol):
    """Compiles statements to SQL of one dialect."""

    @property
    def name(self) -> Literal["sqlite", "postgresql"]:
        """The dialect, where statements alone cannot express what differs."""

    def insert(self, table: Table) -> Insert:
        """Return the dialect's own INSERT, which has ON CONFLICT methods like SQLite's."""

    def compile(self, statement: ClauseElement) -> str:
        """Return the statement as SQL."""

    def compile_positional(self, statement: ClauseElement) -> str:
        """Return the statement as SQL whose parameters have no names, only their order."""


class DeferredSQL(NamedTuple):
    """A statement, and what compiles it when it is first used."""

    compile: Callable[[ClauseElement], str]
    statement: ClauseElement


class DeferringCompiler:
    """A compiler that returns `DeferredSQL` until `is_deferring` is False."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self.name = compiler.name
        self.insert = compiler.insert
        self.is_deferring = True

    def compile(self, statement: ClauseElement) -> str:
        return self._defer(self._compiler.compile, statement)

    def compile_positional(self, statement: ClauseElement) -> str:
        return self._defer(self._compiler.compile_positional, statement)

    def _defer(self, compile: Callable[[ClauseElement], str], statement: ClauseElement) -> str:
        return cast("str", DeferredSQL(compile, statement)) if self.is_deferring else compile(statement)


def lazy_statements(kind: Callable[[Compiler], T], compiler: Compiler) -> T:
    """Return the SQL of a part of the store. The SQL of an attribute is compiled when it is first used.

    A process uses some of the statements of a part, and most of what a part costs is compiling them.
    """
    if not isinstance(kind, type):
        return kind(compiler)
    deferring = DeferringCompiler(compiler)
    statements: T = kind(deferring)
    deferring.is_deferring = False  # what is built later is compiled at once
    defer_attributes(statements)
    return statements


def defer_attributes(statements: object) -> None:
    """Compile the deferred SQL of an object, and of the objects in its attributes, when it is first used."""
    deferred: dict[str, Any] = {}
    for name, value in list(vars(statements).items()):
        if is_deferred(value):
            deferred[name] = value
            delattr(statements, name)
        elif any(map(is_deferred, getattr(value, "__dict__", {}).values())):
            defer_attributes(value)
    lock = threading.Lock()

    def compile_attribute(name: str, _statements: object) -> Any:
        with lock:  # the writer and a reader may use it at the same time
            if name in deferred:
                vars(statements)[name] = compile_deferred(deferred[name])
                del deferred[name]
        return vars(statements)[name]

    properties = {name: cached_property(partial(compile_attribute, name)) for name in deferred}
    statements.__class__ = type(type(statements).__name__, (type(statements),), properties)


def is_deferred(value: Any) -> bool:
    """Return whether a value, or a list, tuple or dict, has deferred SQL."""
    match value:
        case DeferredSQL():
            return True
        case dict():
            return any(map(is_deferred, value.values()))
        case list() | tuple():
            return any(map(is_deferred, value))
        case _:
            return False


def compile_deferred(value: Any) -> Any:
    """Return a value with the SQL of its deferred statements."""
    match value:
        case DeferredSQL(compile, statement):
            return compile(statement)
        case dict():
            return {key: compile_deferred(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(map(compile_deferred, value))
        case _:
            return value


class Backend(Compiler, Protocol):
    """A kind of database."""

    def prepare(self) -> None:
        """Create or migrate the tables. Blocks; StoreError when the database cannot be used.

        May be called again when it failed, and after an outage.
        """

    def check(self) -> None:
        """Write something that changes nothing. Blocks; StoreError when the database does not take it."""

    def connect(self, *, writing: bool) -> BackendConnection:
        """Open a new connection; one that is not `writing` refuses writes."""

    def translate_error(self, error: Exception) -> Exception:
        """Return the error of errors.py for a driver's error; any other error as it is."""

    def outage_scope(self, error: Exception) -> OutageScope | None:
        """Return what fails after a driver's error, or its translation: writes, all, or None for nothing."""

    def try_lock(self, name: str) -> AbstractContextManager[object] | None:
        """Lock a name among all processes that use the database, over several transactions; blocks shortly.

        Returns what frees it; None when another process has it.
        """

    def release(self) -> None:
        """Release the locks that `prepare` took."""


# Rows and structs: the fields of a struct are the columns of its table, by name.

S = TypeVar("S", bound=msgspec.Struct)


def select_fields(kind: type[msgspec.Struct], table: Table) -> Select[Any]:
    """Return a query for the columns of the struct's fields, in order."""
    return select(*(table.c[name] for name in kind.__struct_fields__))


def match_filter(column: Column[Any], names: Container[str]) -> ColumnElement[bool]:
    """Return the condition of the parameter with the column's name; of a session also of `old_session_id`."""
    value: ColumnElement[Any] = bindparam(column.key)
    if column.key == "session_id" and "old_session_id" in names:
        return column.in_((value, bindparam("old_session_id")))
    return column == value


def is_due(next_at: Column[float], *, limit: float) -> ColumnElement[bool]:
    """Return the condition that a next attempt is due at the time `now`.

    Also one that is more than `limit` seconds away: none is planned so late, so the clock was set back.
    """
    earliest: ColumnElement[float] = next_at - literal_column(str(limit))
    return or_(next_at <= bindparam("now"), earliest > bindparam("now"))


def to_fields(kind: type[msgspec.Struct], row: Row) -> dict[str, Any]:
    """Return the fields in a row of `select_fields`. Fields stored as JSON are still text."""
    return dict(zip(kind.__struct_fields__, row, strict=True))


def to_struct(kind: type[S], row: Row) -> S:
    """Return the struct in a row of `select_fields`, if none of its fields is stored as JSON."""
    return kind(**to_fields(kind, row))


def to_params(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the struct's fields as parameters. The caller replaces those stored as JSON by their text."""
    return msgspec.structs.asdict(struct)


def encode_json(value: Any) -> str | None:
    """Encode a value as JSON text; None, for NULL, stays None."""
    return None if value is None else msgspec.json.encode(value).decode()


def decode_json(text: str | None, kind: Any = Any) -> Any:
    """Decode JSON text; None for NULL."""
    return None if text is None else msgspec.json.decode(text, type=kind)
