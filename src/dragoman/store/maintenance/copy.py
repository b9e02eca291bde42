"""Copies all rows of one database into another, of any kinds: exactly, and so that it can be interrupted.

The source is read in one snapshot, so a hub may continue writing to it. A copy that was killed at any moment
continues when it is run again, and so does one that was finished: rows are compared, and only the differences
are written. At the end the counts and digests of all tables are equal, or the copy fails.

Until then the target has a revision that no hub accepts, see `schema.COPYING`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from sqlalchemy import (
    Column,
    MetaData,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
    text,
)

from dragoman.errors import Conflict, StoreError
from dragoman.store.connection import Backend, BackendConnection, Compiler, DatabaseConnection, Row
from dragoman.store.maintenance.migration import read_revision
from dragoman.store.maintenance.progress import Progress
from dragoman.store.maintenance.row_batches import (
    TABLES,
    Key,
    RowFormat,
    TableDigest,
    read_digest,
    row_statements,
)
from dragoman.store.maintenance.transactions import raising_store_errors, run_transaction, snapshot
from dragoman.store.schema import COPYING, HEAD, UnfinishedCopy

copy_progress = Table(
    "copy_progress",
    MetaData(),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
CREATE_PROGRESS = text(
    "CREATE TABLE IF NOT EXISTS copy_progress (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
)
SET_REVISION = text("UPDATE alembic_version SET version_num = :revision")
SET_EVENT_IDS = text(
    "SELECT setval(pg_get_serial_sequence('hub_events', 'id'),"
    " (SELECT coalesce(max(id), 0) + 1 FROM hub_events), false)"
)
SOURCE, STATE = "source", "state"  # names in `copy_progress`; the others are tables
LOOKUP_KEYS = 50  # rows that one query looks up by their keys

T = TypeVar("T")
CopyState: TypeAlias = Literal["clearing", "copying", "done"]
AGES: Final[Mapping[str, str]] = {
    "sessions": "updated_at",
    "messages": "created_at",
    "runs": "started_at",
    "calls": "started_at",
    "approvals": "created_at",
    "usage": "started_at",
    "hub_events": "created_at",
}
"""Columns that tell whether rows were added."""


_COPIES: dict[tuple[str, str, str], TableCopy] = {}


def table_copy(table: Table, *, source: Backend, target: Backend) -> TableCopy:
    """Return the statements of a table's copy, compiled once for each pair of kinds of database."""
    key = str(table.name), source.name, target.name
    if key not in _COPIES:
        _COPIES[key] = TableCopy(table, source=source, target=target)
    return _COPIES[key]


class TableCopy:
    """The statements that copy one table."""

    def __init__(self, table: Table, *, source: Backend, target: Backend) -> None:
        self.name = table.name
        self.form = RowFormat(table, replace_nul=target.name != "sqlite")
        self.reader = row_statements(table, source)
        self.target_reader = row_statements(table, target)
        has_children = any(
            key.column.table is table for other in TABLES if other is not table for key in other.foreign_keys
        )
        self.frees_values = not has_children or any(
            index.unique and index.dialect_options["sqlite"]["where"] is not None for index in table.indexes
        )
        """Whether rows that differ are deleted first, with their children: others may need their values."""
        self._names = [f"v{index}" for index in range(len(table.c))]
        columns = list(table.c)
        insert = target.insert(table).values(
            {
                column: bindparam(name, type_=column.type)
                for column, name in zip(columns, self._names, strict=True)
            }
        )
        changes = {column.name: insert.excluded[column.name] for column in columns if not column.primary_key}
        keys = list(table.primary_key.columns)
        self.upsert = target.compile(
            insert.on_conflict_do_update(index_elements=keys, set_=changes)
            if changes
            else insert.on_conflict_do_nothing(index_elements=keys)
        )
        this = and_(*(column == bindparam(f"k{index}") for index, column in enumerate(keys)))
        self.delete = target.compile(delete(table).where(this))
        self.clear = target.compile(delete(table))
        self._compile_source_lookup = partial(compile_lookup, source, table)
        self._compile_target_lookup = partial(compile_lookup, target, table)

    @cached_property
    def _source_lookup(self) -> str:
        return self._compile_source_lookup()

    @cached_property
    def _target_lookup(self) -> str:
        return self._compile_target_lookup()

    def params(self, row: Row) -> Mapping[str, Any]:
        """Return the parameters of `upsert` for a row."""
        return dict(zip(self._names, row, strict=True))

    def key_params(self, key: Key) -> Mapping[str, Any]:
        """Return the parameters of `delete` for a key."""
        return {f"k{index}": value for index, value in enumerate(key)}

    def source_rows(self, connection: DatabaseConnection, keys: Sequence[Key]) -> Mapping[str, Row]:
        """Return the rows of the source that have these keys."""
        return self._look_up(connection, self._source_lookup, keys=keys)

    def target_rows(self, connection: DatabaseConnection, keys: Sequence[Key]) -> Mapping[str, Row]:
        """Return the rows of the target that have these keys."""
        return self._look_up(connection, self._target_lookup, keys=keys)

    def name_key(self, row: Row) -> str:
        """Return a row's key as text."""
        return encode_key(self.reader.key_of(row))

    def _look_up(self, connection: DatabaseConnection, sql: str, *, keys: Sequence[Key]) -> Mapping[str, Row]:
        padded = [*keys, *[keys[-1]] * (LOOKUP_KEYS - len(keys))]
        params = {f"k{at}_{index}": part for at, key in enumerate(padded) for index, part in enumerate(key)}
        rows = [self.form.apply(row) for row in connection.fetch_all(sql, params)]
        return {self.name_key(row): row for row in rows}


def compile_lookup(compiler: Compiler, table: Table) -> str:
    """Return the query for `LOOKUP_KEYS` rows by their keys. It is long, and most copies do not need it."""
    keys = list(table.primary_key.columns)
    return compiler.compile(
        select(*table.c).where(
            or_(
                *(
                    and_(*(column == bindparam(f"k{at}_{index}") for index, column in enumerate(keys)))
                    for at in range(LOOKUP_KEYS)
                )
            )
        )
    )


def encode_key(key: Key) -> str:
    return msgspec.json.encode(list(key)).decode()


class TableState(NamedTuple):
    """How many rows a table has, and the time of its newest one."""

    rows: int
    newest: float | None


class CopyReport(NamedTuple):
    """What a copy did. `rows` are those of each table, equal on both sides.

    `written` counts rows that were written by this process, `deleted` those that the source no longer had.
    `new_rows` are rows that were added to the source since the snapshot, by table; `changed`: whether it has
    changed in another way that can be seen.
    """

    rows: Mapping[str, int]
    written: int
    deleted: int
    continued: bool
    new_rows: Mapping[str, int]
    changed: bool


class DatabaseCopy:
    """One copy. The source is of the program's revision; nobody else uses the target."""

    def __init__(
        self, source: Backend, target: Backend, *, source_name: str, progress: Progress, replace: bool = False
    ) -> None:
        """`source_name` identifies the source for a copy that continues; it holds no password.

        With `replace` the target may hold other data, which are deleted.
        """
        self._source = source
        self._target = target
        self._source_name = source_name
        self._progress = progress
        self._replace = replace
        self._tables = [table_copy(table, source=source, target=target) for table in TABLES]
        self._written = 0
        self._deleted = 0
        self._get_progress = target.compile(select(copy_progress.c.name, copy_progress.c.value))
        insert = target.insert(copy_progress)
        self._set_progress = target.compile(
            insert.on_conflict_do_update(index_elements=["name"], set_={"value": insert.excluded.value})
        )
        self._clear_progress = target.compile(delete(copy_progress))

    def run(self, *, before_done: Callable[[], object] = lambda: None) -> CopyReport:
        """Copy. Raises Conflict for a target that holds other data; StoreError.

        The target is prepared and locked here; the caller releases it. Hubs refuse the target until
        `before_done` has returned.
        """
        require_revision(self._source)
        try:
            self._target.prepare()
        except UnfinishedCopy as error:
            if error.revision != f"{COPYING}{HEAD}":
                raise begun_by_another(error.revision.removeprefix(COPYING)) from None
        with raising_store_errors(self._target):
            target = self._target.connect(writing=True)
            try:
                started = self._begin(target)
                with snapshot(self._source) as source:
                    report = self._copy(source, target, started=started)
                before_done()
                self._set_state(target, "done")
                return report
            finally:
                target.rollback()
                target.close()

    def _copy(self, source: BackendConnection, target: BackendConnection, *, started: Set[str]) -> CopyReport:
        """Copy all tables; those that were `started` before hold rows already."""
        state = self._describe(source, self._source)
        if started:
            self._delete_stale(source, target)
        self._progress.start("copying", sum(each.rows for each in state.values()))
        digests = [
            self._copy_table(table, source=source, target=target, compare=table.name in started)
            for table in self._tables
        ]
        self._verify(target, digests)
        source.rollback()
        source.begin()
        later = self._describe(source, self._source)
        more = {name: later[name].rows - each.rows for name, each in state.items()}
        return CopyReport(
            rows={name: each.rows for name, each in state.items()},
            written=self._written,
            deleted=self._deleted,
            continued=bool(started),
            new_rows={name: count for name, count in more.items() if count > 0},
            changed=later != state,
        )

    def _begin(self, target: BackendConnection) -> Set[str]:
        """Mark the target as unfinished; return the tables in which an earlier process has written rows."""
        self._run(target, lambda: target.execute(self._target.compile(CREATE_PROGRESS), {}))
        rows = self._run(target, lambda: target.fetch_all(self._get_progress, {}))
        stored: dict[str, str] = dict(tuple(row) for row in rows)
        source, state = stored.pop(SOURCE, None), stored.pop(STATE, None)
        if source == self._source_name and (
            state == "copying" or (state == "done" and self._is_unchanged(target, stored))
        ):
            self._set_state(target, "copying")
            return stored.keys()
        if self._replace or state == "clearing":
            self._set_state(target, "clearing")
            for table in reversed(self._tables):
                self._run(target, partial(target.execute, table.clear, {}))
        elif any(each.rows for each in self._describe_target(target).values()):
            used = state == "done" and source == self._source_name
            raise Conflict(
                "the target was written to since the copy into it" if used else "the target holds other data",
                hint="name an empty database, or add --replace to delete what this one holds",
            )
        self._run(target, lambda: target.execute(self._clear_progress, {}))
        self._set_state(target, "copying")
        return frozenset()

    def _is_unchanged(self, target: BackendConnection, digests: Mapping[str, str]) -> bool:
        """Whether nobody has written to the target since its copy was done."""
        self._progress.start("checking the earlier copy", 0)
        return all(
            str(self._target_digest(target, table)) == digests.get(table.name) for table in self._tables
        )

    def _describe(self, connection: DatabaseConnection, backend: Backend) -> Mapping[str, TableState]:
        """Return the size of each table, and the time of its newest row."""
        states = {}
        for table in TABLES:
            age = table.c[AGES[table.name]] if table.name in AGES else literal_column("0")
            row = connection.fetch_one(
                backend.compile(select(func.count(), func.max(age)).select_from(table)), {}
            )
            states[table.name] = TableState(*row) if row else TableState(0, None)
        return states

    def _run(self, target: BackendConnection, job: Callable[[], T]) -> T:
        """Run a job on the target. Its errors are the target's, even where the source is being read."""
        with raising_store_errors(self._target):
            return run_transaction(target, job)

    def _describe_target(self, target: BackendConnection) -> Mapping[str, TableState]:
        return self._run(target, lambda: self._describe(target, self._target))

    def _set_state(self, target: BackendConnection, state: CopyState) -> None:
        """Write the state. A hub accepts the database in the state `done` only."""
        revision = HEAD if state == "done" else f"{COPYING}{HEAD}"

        def job() -> None:
            target.execute(self._set_progress, {"name": SOURCE, "value": self._source_name})
            target.execute(self._set_progress, {"name": STATE, "value": state})
            target.execute(self._target.compile(SET_REVISION), {"revision": revision})
            if state == "done" and self._target.name == "postgresql":
                target.fetch_one(self._target.compile(SET_EVENT_IDS), {})

        self._run(target, job)

    def _copy_table(
        self, table: TableCopy, *, source: BackendConnection, target: BackendConnection, compare: bool
    ) -> TableDigest:
        """Copy a table, or with `compare` what differs in it; return the digest of the source's rows."""
        digest = TableDigest()
        for rows in table.reader.batches(source):
            formed = [table.form.apply(row) for row in rows]
            digest.add(formed)
            self._written += self._run(
                target, partial(self._write_batch, table, target, rows=formed, compare=compare)
            )
            self._progress.advance(len(rows))
        return digest

    def _write_batch(
        self, table: TableCopy, target: DatabaseConnection, *, rows: Sequence[Row], compare: bool
    ) -> int:
        written = list(self._differing(table, target, rows=rows)) if compare else rows
        target.execute_many(table.upsert, [table.params(row) for row in written])
        if not compare:
            target.execute(self._set_progress, {"name": table.name, "value": "started"})
        return len(written)

    def _differing(
        self, table: TableCopy, target: DatabaseConnection, *, rows: Sequence[Row]
    ) -> Iterator[Row]:
        for some in pieces(rows):
            stored = table.target_rows(target, [table.reader.key_of(row) for row in some])
            yield from (row for row in some if stored.get(table.name_key(row)) != row)

    def _delete_stale(self, source: BackendConnection, target: BackendConnection) -> None:
        """Delete rows of the target that the source no longer has.

        In tables to which no other refers, and in those with an index that changes of a row may leave, also
        those that differ: their unique values may be another's.
        """
        self._progress.start("comparing", sum(each.rows for each in self._describe_target(target).values()))
        for table in reversed(self._tables):
            place: Key | None = None
            while rows := self._run(target, partial(next_batch, table, target, place=place)):
                place = table.target_reader.key_of(rows[-1])
                stale = list(self._stale(table, source, rows=[table.form.apply(row) for row in rows]))
                keys = [table.key_params(table.reader.key_of(row)) for row in stale]
                self._run(target, partial(target.execute_many, table.delete, keys))
                self._deleted += len(stale)
                self._progress.advance(len(rows))

    def _stale(self, table: TableCopy, source: DatabaseConnection, *, rows: Sequence[Row]) -> Iterator[Row]:
        for some in pieces(rows):
            stored = table.source_rows(source, [table.reader.key_of(row) for row in some])
            for row in some:
                current = stored.get(table.name_key(row))
                if current is None or (current != row and table.frees_values):
                    yield row

    def _verify(self, target: BackendConnection, digests: Sequence[TableDigest]) -> None:
        """Compare counts and digests of all tables. Raises StoreError."""
        self._progress.start("checking", sum(digest.count for digest in digests))
        for table, digest in zip(self._tables, digests, strict=True):
            found = self._target_digest(target, table)
            if str(found) != str(digest):
                contents = ", with other contents" if digest.count == found.count else ""
                raise StoreError(
                    f"the copy of {table.name!r} differs: {digest.count} rows in the source,"
                    f" {found.count} in the target{contents}",
                    hint="run the command again, while nobody else writes to the target",
                )
            params = {"name": table.name, "value": str(digest)}
            self._run(target, partial(target.execute, self._set_progress, params))

    def _target_digest(self, target: BackendConnection, table: TableCopy) -> TableDigest:
        digest = self._run(target, partial(read_digest, target, table.target_reader, form=table.form))
        self._progress.advance(digest.count)
        return digest


def next_batch(table: TableCopy, connection: DatabaseConnection, *, place: Key | None) -> Sequence[Row]:
    """Return the next rows of the target."""
    return next(table.target_reader.batches(connection, place), ())


def pieces(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield as many rows as one query looks up."""
    for start in range(0, len(rows), LOOKUP_KEYS):
        yield rows[start : start + LOOKUP_KEYS]


def begun_by_another(revision: str) -> StoreError:
    """Return the error of a copy that a program of another revision has begun."""
    return StoreError(
        f"the copy into the target was begun by a program of revision {revision}, and this one copies {HEAD}",
        hint="finish it with that program, or copy into a new, empty database",
    )


def require_revision(source: Backend) -> None:
    """Raise StoreError unless the source has the tables of this program."""
    revision = read_revision(source)
    if revision is not None and revision.startswith(COPYING):
        raise UnfinishedCopy("the source", revision)
    if revision != HEAD:
        raise StoreError(
            f"the source is of revision {revision}, and this program copies {HEAD}",
            hint="`dragoman database migrate` migrates an older one, of which the program that wrote it makes"
            " backups; a newer one needs a newer dragoman",
        )
