"""The database: one writer with group commit, and readers beside it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ClauseElement

from dragoman.errors import Unavailable
from dragoman.store.connection import Backend, BackendConnection, Compiler, DatabaseJob
from dragoman.store.outage import Outage, OutageMonitor, try_prepare
from dragoman.store.sqlite import SQLiteBackend, Synchronous
from dragoman.store.writer import DatabaseWriter, WriteResult, WriteTask

T = TypeVar("T")
COMPILED: dict[tuple[type[Backend], Callable[[Compiler], Any]], Any] = {}
READER_THREADS = 4
MAX_QUEUED = 10_000
MAX_DEFERRED = 2_000

log = logging.getLogger(__name__)


class PendingRead(NamedTuple):
    """A query, and where its answer goes."""

    query: DatabaseJob[Any]
    future: asyncio.Future[Any]


class Database:
    """Jobs in, rows out. For the event loop that opened it only."""

    def __init__(
        self,
        backend: Backend,
        *,
        tolerate_outages: bool = False,
        outage: Outage | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """`backend` is prepared, or there is an `outage`; `open` does both."""
        self._backend = backend
        self._on_error = on_error or log_failure
        self._loop = asyncio.get_running_loop()
        self._queued_count = 0
        self._queued_writes: list[WriteTask] = []
        self._queued_reads: list[PendingRead] = []
        self._deferred: deque[DatabaseJob[Any]] = deque(maxlen=MAX_DEFERRED)
        self._closed = False
        self._monitor = (
            OutageMonitor(backend, self._reset_connections, outage=outage)
            if tolerate_outages or outage
            else None
        )
        self.on_recovery(self._write_deferred)
        self._generation = 0
        self._writer = DatabaseWriter(partial(backend.connect, writing=True), self._resolve_writes)
        self._reader_pool = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="dragoman-reader")
        self._thread_local = threading.local()
        self._reader_connections: list[BackendConnection] = []

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        synchronous: Synchronous = "normal",
        exclusive: bool = True,
        tolerate_outages: bool = False,
        on_error: Callable[[Exception], None] | None = None,
    ) -> Database:
        """The SQLite database at `path`, created or migrated if need be.

        `exclusive` is for the hub: it locks the folder against a second one. A command that reads or writes
        beside a running hub opens without. `synchronous="normal"` keeps what was acknowledged through any
        crash of the process, "full" through a power cut too. `on_error` hears of posted jobs that failed;
        without it they are logged. StoreError when the file cannot be used.

        A `patient` database opens even so, unless another hub, another program or a newer version has it.
        While it is down, at the start or later, it refuses at once, and tries to get up: see `is_up`.
        """
        backend = SQLiteBackend(path, synchronous=synchronous, exclusive=exclusive)
        try:
            outage = await asyncio.to_thread(
                partial(try_prepare, backend) if tolerate_outages else backend.prepare
            )
            return cls(backend, tolerate_outages=tolerate_outages, outage=outage, on_error=on_error)
        except BaseException:
            backend.release()
            raise

    @property
    def is_up(self) -> bool:
        """Whether it takes what is written to it. One that is not patient does not know, and says so."""
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """Why it is down; None while it is up."""
        return None if self._monitor is None else self._monitor.problem

    def on_recovery(self, callback: Callable[[], None]) -> None:
        """Call back each time when the database is up again."""
        if self._monitor is not None:
            self._monitor.on_recovery.append(callback)

    def statements(self, kind: Callable[[Compiler], T]) -> T:
        """The SQL of a part of the store, compiled when first needed, once per process and class of backend.

        Compiling takes about 1 ms a statement, longer than running it: a second store in a process pays
        nothing, and a command that only reads sessions does not pay for the rest.
        """
        key = type(self._backend), kind
        if key not in COMPILED:
            COMPILED[key] = kind(self._backend)
        statements: T = COMPILED[key]
        return statements

    def compile(self, statement: ClauseElement) -> str:
        """The statement as SQL for this database; see `statements` for those that do not change."""
        return self._backend.compile(statement)

    async def write(self, job: DatabaseJob[T]) -> T:
        """What the job returns, once it is committed. Cancelling the caller does not take the job back."""
        waiting: asyncio.Future[T] = self._loop.create_future()
        self._submit(WriteTask(job, waiting, self._on_error))
        return await waiting

    def enqueue(
        self, job: DatabaseJob[Any], *, on_failure: Callable[[Exception], None] | None = None
    ) -> None:
        """Have the job done in order with all others. Unavailable when too many wait.

        `failed` hears why when it could not be done, instead of the database's `on_error`.
        """
        if self._queued_count >= MAX_QUEUED:
            raise Unavailable(
                f"the database is {self._queued_count} writes behind", hint="its disk may be slow"
            )
        self._submit(WriteTask(job, None, on_failure or self._on_error))

    def defer(self, job: DatabaseJob[Any]) -> None:
        """Have a job done once the database is up again that was refused because it is down.

        The oldest are forgotten where too many wait, and all with the process.
        """
        if not self.is_up and not self._closed:
            self._deferred.append(job)

    async def read(self, query: DatabaseJob[T]) -> T:
        """What the query returns. All that it reads is of one moment, after every write awaited before."""
        self._check_available(writing=False)
        answer: asyncio.Future[T] = self._loop.create_future()
        self._queued_reads.append(PendingRead(query, answer))
        if len(self._queued_reads) == 1:
            self._loop.call_soon(self._dispatch_reads)
        return await answer

    async def flush(self) -> None:
        """Wait until everything that was posted is committed, or has failed and been reported.

        StoreError when the database does not even begin a transaction.
        """
        if self._closed:
            raise Unavailable("the database is closed")
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._queue_write(WriteTask(lambda _: None, waiting, self._on_error))
        await waiting

    async def close(self) -> None:
        """Finish what waits, then close everything. May be called twice."""
        if not self._closed:
            self._dispatch_writes()
            self._closed = True
            await asyncio.to_thread(self._close_all)

    def _check_available(self, *, writing: bool) -> None:
        if self._closed:
            raise Unavailable("the database is closed")
        if self._monitor is not None:
            self._monitor.check_available(writing=writing)

    def _submit(self, task: WriteTask) -> None:
        self._check_available(writing=True)
        self._queue_write(task)

    def _queue_write(self, task: WriteTask) -> None:
        self._queued_count += 1
        self._queued_writes.append(task)
        if len(self._queued_writes) == 1:
            self._loop.call_soon(self._dispatch_writes)

    def _dispatch_writes(self) -> None:
        """Give the writer all of this round of the loop: waking a thread costs more than a write."""
        tasks, self._queued_writes = self._queued_writes, []
        if tasks:
            self._writer.submit(tasks)

    def _resolve_writes(self, results: list[WriteResult]) -> None:
        self._queued_count -= len(results)
        for task, result, error in results:
            if error is not None and self._monitor is not None:
                self._monitor.observe_error(error, writing=True)
            if task.future is None:
                if error is not None:
                    self._loop.call_soon(task.on_failure, self._backend.translate_error(error))
            elif task.future.done():
                continue  # who waited was cancelled
            elif error is not None:
                task.future.set_exception(self._backend.translate_error(error))
            else:
                task.future.set_result(result)

    def _dispatch_reads(self) -> None:
        """Give a reader all questions of this round of the loop."""
        questions, self._queued_reads = self._queued_reads, []
        try:
            self._reader_pool.submit(self._run_reads, questions)
        except RuntimeError:
            for question in questions:
                question.future.cancel()

    def _run_reads(self, reads: list[PendingRead]) -> None:
        answers = [(question, *self._run_read(question.query)) for question in reads]
        with suppress(RuntimeError):  # the loop has gone, and with it those who asked
            self._loop.call_soon_threadsafe(self._resolve_reads, answers)

    def _run_read(self, query: DatabaseJob[Any]) -> tuple[Any, Exception | None]:
        try:
            connection = self._reader_connection()
            connection.begin()
            try:
                return query(connection), None
            finally:
                connection.rollback()
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            return None, self._backend.translate_error(error)

    def _resolve_reads(self, results: list[tuple[PendingRead, Any, Exception | None]]) -> None:
        for question, result, error in results:
            if error is not None and self._monitor is not None:
                self._monitor.observe_error(error, writing=False)
            if question.future.done():
                continue  # who asked was cancelled
            if error is not None:
                question.future.set_exception(error)
            else:
                question.future.set_result(result)

    def _reader_connection(self) -> BackendConnection:
        """This thread's own connection, a new one after an outage."""
        connection: BackendConnection | None = getattr(self._thread_local, "connection", None)
        if connection is not None and self._thread_local.opening != self._generation:
            self._thread_local.connection = None
            self._reader_connections.remove(connection)
            connection.close()
            connection = None
        if connection is None:
            self._thread_local.opening = self._generation
            connection = self._thread_local.connection = self._backend.connect(writing=False)
            self._reader_connections.append(connection)
        return connection

    def _write_deferred(self) -> None:
        """Do what is owed, before anything else is written."""
        owed = list(self._deferred)
        self._deferred.clear()
        for job in owed:
            self._queue_write(WriteTask(job, None, partial(self._defer_again, job)))

    def _defer_again(self, job: DatabaseJob[Any], error: Exception) -> None:
        self._on_error(error)
        self.defer(job)

    def _reset_connections(self) -> None:
        """After an outage: connections may be to a file that is not there any more."""
        self._generation += 1
        self._writer.reconnect()

    def _close_all(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._reader_pool.shutdown()
        for connection in self._reader_connections:
            connection.close()
        self._writer.stop()
        self._backend.release()


def log_failure(error: Exception) -> None:
    """Log a posted job that failed."""
    log.error("a posted write failed: %s", error, exc_info=error)
