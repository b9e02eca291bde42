"""Connections to Postgres: explicit transactions, batched statements, and lost connections.

A connection that the server has closed in the meantime is replaced when a transaction begins. One that is
lost during a transaction raises RetryTransaction, since nothing of it was committed. One that is lost during
the commit asks the server, by the transaction's id, whether it took place.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Literal, TypeAlias

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from dragoman.store.connection import CommitUncertain, Params, RetryTransaction, Row
from dragoman.store.postgres.batch import BatchedStatement, StatementBatch

RawConnection: TypeAlias = psycopg.Connection[Row]

# A transaction that writes gets its id at once, in the same round trip: a lost commit is looked up by it.
BEGIN_WRITING = b"BEGIN; SELECT pg_current_xact_id()"
# Two groups may take the same locks in different orders, which the server would notice after a second. After
# the BEGIN of any transaction this returns its id again, or NULL if it has none.
LIMIT_WAITING = b"; SELECT pg_current_xact_id_if_assigned(), set_config('lock_timeout', '50ms', true)"
BEGIN_READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
LOCK_NAME = "SELECT pg_advisory_xact_lock(hashtext(%(name)s), hashtext(current_schema()))"
HAS_PIPELINES = psycopg.Pipeline.is_supported()  # by a libpq of version 14 or later
MAX_BATCH_ROWS = 2_000
DOUBT_SECONDS = 10.0  # for which a lost commit is looked up, while the server may be restarting
DOUBT_INTERVAL = 0.1
RETRIED = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
NUL, REPLACEMENT = "\0", "\ufffd"


@contextmanager
def closing_on_error(raw: RawConnection) -> Iterator[RawConnection]:
    """Close a connection if the block raises."""
    try:
        yield raw
    except BaseException:
        raw.close()
        raise


class PostgresConnection:
    """A connection to Postgres that is opened again when the server has closed it."""

    def __init__(
        self,
        connect: Callable[[], RawConnection],
        *,
        begin: bytes,
        check_lock: Callable[[], None] | None = None,
    ) -> None:
        """`connect` opens a connection in autocommit mode; `begin` begins a transaction.

        `check_lock` is called before each transaction, and raises when this process may not write any more.
        """
        self._connect = connect
        self._check_lock = check_lock
        self._begin_sql = begin
        self._batch = StatementBatch()
        self._transaction_id: str | None = None
        self.asked_at: float | None = None
        """Since when the server owes an answer, on the monotonic clock; None while it does not."""
        self._open()

    def execute(self, sql: str, params: Params) -> int:
        count: int = self._run(sql, params).rowcount
        return count

    def execute_batched(self, sql: str, params: Params) -> None:
        if self._batch.add(sql, params) >= MAX_BATCH_ROWS:
            self._flush()

    def execute_positional(self, sql: str, values: Sequence[Any]) -> None:
        self._run(sql, values)

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        for params in rows:
            self.execute_batched(sql, params)

    def fetch_one(self, sql: str, params: Params) -> Row | None:
        row: Row | None = self._run(sql, params).fetchone()
        return row

    def fetch_all(self, sql: str, params: Params) -> Sequence[Row]:
        rows: Sequence[Row] = self._run(sql, params).fetchall()
        return rows

    def lock(self, name: str) -> None:
        self._run(LOCK_NAME, {"name": name})

    def begin(self, *, is_group: bool = False) -> None:
        """Begin a transaction, on a new connection if the server has closed this one."""
        begin = self._begin_sql + LIMIT_WAITING if is_group else self._begin_sql
        self.rollback()
        if self._check_lock is not None:
            self._check_lock()
        if is_closed(self._raw):
            self._reopen()
        try:
            found = self._command(begin)
        except psycopg.Error:
            if not self._raw.closed:
                raise
            self._reopen()
            found = self._command(begin)
        self._transaction_id = found

    def commit(self) -> None:
        """Commit. Raises CommitUncertain when the connection is lost and the outcome cannot be found out."""
        self._flush()
        transaction_id, self._transaction_id = self._transaction_id, None
        try:
            self._command(b"COMMIT")
        except psycopg.Error as error:
            if not self._raw.closed:
                self._raise_retryable(error)
                raise
            self._settle_lost_commit(transaction_id, error)

    def rollback(self) -> None:
        self._batch.clear()
        if not self._raw.closed and self._raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            try:
                self._command(b"ROLLBACK")
            except psycopg.Error:
                self.close()  # the server rolls back, and `begin` opens another

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._raw.close()

    def cut(self) -> None:
        """Shut the connection down, so that a thread that waits for the server finds it lost."""
        cut(self._raw)

    def _open(self) -> None:
        with closing_on_error(self._connect()) as raw:
            # Not `raw.info.backend_pid`, which behind a pooler is a number of the pooler's own.
            self.server_process = int(run_command(raw, b"SELECT pg_backend_pid()") or 0)
        self._raw = raw
        self._cursor = self._raw.cursor()

    def _reopen(self) -> None:
        self.close()
        self._open()

    def _run(self, sql: str, params: Params | Sequence[Any]) -> psycopg.Cursor[Row]:
        if not isinstance(params, Mapping) or self._batch.concerns(params):
            self._flush()
        self.asked_at = time.monotonic()
        try:
            return self._cursor.execute(sql, storable(params))
        except psycopg.Error as error:
            self._raise_retryable(error)
            raise
        finally:
            self.asked_at = None

    def _command(self, sql: bytes) -> str | None:
        self.asked_at = time.monotonic()
        try:
            return run_command(self._raw, sql)
        finally:
            self.asked_at = None

    def _flush(self) -> None:
        """Send the batched statements, in one round trip."""
        statements = self._batch.take()
        self.asked_at = time.monotonic()
        try:
            with self._raw.pipeline() if len(statements) > 1 and HAS_PIPELINES else nullcontext():
                for statement in statements:
                    self._send(statement)
        except psycopg.Error as error:
            self._raise_retryable(error)
            raise
        finally:
            self.asked_at = None

    def _send(self, statement: BatchedStatement) -> None:
        sql, rows = statement
        if len(rows) == 1:
            self._cursor.execute(sql, storable(rows[0]))
        else:
            self._cursor.executemany(sql, [storable(row) for row in rows])

    def _raise_retryable(self, error: psycopg.Error) -> None:
        if isinstance(error, psycopg.errors.InvalidSqlStatementName):
            # The driver believes a statement to be prepared that the server lacks, as after an aborted
            # pipeline, and would do so for ever: the transaction is repeated on a new connection.
            self.close()
        if self._raw.closed or isinstance(error, RETRIED):
            raise RetryTransaction from error

    def _settle_lost_commit(self, transaction_id: str | None, error: psycopg.Error) -> None:
        """Return if the transaction was committed; raise RetryTransaction if not, or CommitUncertain."""
        deadline = time.monotonic() + DOUBT_SECONDS
        while transaction_id is not None:
            match self._transaction_state(transaction_id):
                case "committed":
                    return
                case "aborted":
                    raise RetryTransaction from error
                case None:
                    break
                case "unknown" | "in progress":
                    if time.monotonic() > deadline:
                        break
                    time.sleep(DOUBT_INTERVAL)
        raise CommitUncertain from error

    def _transaction_state(
        self, transaction_id: str
    ) -> Literal["committed", "aborted", "in progress", "unknown"] | None:
        """Ask for a transaction's state: None when it is too old, "unknown" while no server answers."""
        try:
            self._reopen()
            row = self._raw.execute("SELECT pg_xact_status(%s::xid8)", (transaction_id,)).fetchone()
        except psycopg.Error:
            return "unknown"
        return row[0] if row else None


def run_command(raw: RawConnection, sql: bytes) -> str | None:
    """Run a command without parameters, with a third of the work of a cursor; return its value, if any."""
    result = raw.pgconn.exec_(sql)
    if result.status == ExecStatus.TUPLES_OK:
        value = result.get_value(0, 0) if result.ntuples else None
        return None if value is None else value.decode()
    if result.status != ExecStatus.COMMAND_OK:
        raise error_from_result(result, encoding="utf-8")
    if sql == b"COMMIT" and result.command_status != b"COMMIT":
        raise psycopg.errors.InFailedSqlTransaction("the transaction was rolled back")
    return None


def is_closed(raw: RawConnection) -> bool:
    """Return whether the server has closed an idle connection: anything that arrives there says so."""
    if raw.closed:
        return True
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def cut(raw: RawConnection) -> None:
    """Shut a connection down, so that a thread that waits for the server finds it lost."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(raw.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def storable(params: Params | Sequence[Any]) -> Params | Sequence[Any]:
    """Return parameters as Postgres can store them: its text has no U+0000, which becomes U+FFFD."""
    values = params.values() if isinstance(params, Mapping) else params
    for value in values:
        if type(value) is str and NUL in value:
            break
    else:
        return params
    replaced = [value.replace(NUL, REPLACEMENT) if isinstance(value, str) else value for value in values]
    return dict(zip(params, replaced, strict=True)) if isinstance(params, Mapping) else replaced
