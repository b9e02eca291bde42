"""The database: one writer thread with group commit, a pool of readers, reads by key in the event loop."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ClauseElement

from dragoman.errors import HostFenced, StoreError, Unavailable
from dragoman.offload import acquire_in_thread
from dragoman.store.connection import (
    Backend,
    BackendConnection,
    Compiler,
    DatabaseJob,
    RetryTransaction,
    lazy_statements,
)
from dragoman.store.outage import Outage, OutageMonitor, try_prepare
from dragoman.store.writer import DatabaseWriter, WriteResult, WriteTask, cause_of

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
COMPILED: dict[tuple[type[Backend], Callable[[Compiler], Any]], Any] = {}
COMPILED_QUERIES: dict[tuple[type[Backend], Callable[..., ClauseElement], Hashable], str] = {}
READER_THREADS = 4
MAX_QUEUED = 10_000
LAZY_SECONDS = 0.005
MAX_DEFERRED = 2_000
RETRY_SECONDS = 1.0  # after a refused connection, before the next attempt, while others are open

log = logging.getLogger(__name__)


class PendingRead(NamedTuple):
    """A query and the future of its result."""

    query: DatabaseJob[Any]
    future: asyncio.Future[Any]


class Database:
    """Runs jobs and queries. Use it only from the event loop that opened it."""

    def __init__(
        self,
        backend: Backend,
        *,
        tolerate_outages: bool = False,
        outage: Outage | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """For `open`, which prepares the backend; `outage` says why that failed."""
        self._backend = backend
        self._on_error = on_error or log_failure
        self._loop = asyncio.get_running_loop()
        self._queued_count = 0
        self._queued_writes: list[WriteTask] = []
        self._is_dispatching = False
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._lazy_writes: list[WriteTask] = []
        self.lazy_rounds = 0
        """How often the lazy jobs were queued. A job that was added since can still be changed."""
        self._queued_reads: list[PendingRead] = []
        self._deferred: deque[DatabaseJob[Any]] = deque(maxlen=MAX_DEFERRED)
        self._closed = False
        self._monitor = (
            OutageMonitor(backend, self._reset_connections, outage=outage)
            if tolerate_outages or outage
            else None
        )
        self.on_recovery(self._write_deferred)
        self._writer = DatabaseWriter(partial(backend.connect, writing=True), self._resolve_writes)
        self._reader_pool = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="dragoman-reader")
        self._readers = ReaderConnections(partial(backend.connect, writing=False))
        self._loop_connection: BackendConnection | None = None

    @classmethod
    async def open(
        cls,
        backend: Backend,
        *,
        tolerate_outages: bool = False,
        on_error: Callable[[Exception], None] | None = None,
    ) -> Database:
        """Prepare the backend, which creates or migrates the tables if necessary, and open the database.

        `on_error` is called for queued jobs that failed; by default they are logged. Raises StoreError when
        the database cannot be used.

        A database that tolerates outages opens even then, unless another hub, another program or a newer
        version uses it. While it is down, at the start or later, it refuses jobs at once, and tries to
        connect again: see `is_up`.
        """
        try:
            prepare = partial(try_prepare, backend) if tolerate_outages else backend.prepare
            outage = await acquire_in_thread(prepare, release=backend.release)
            return cls(backend, tolerate_outages=tolerate_outages, outage=outage, on_error=on_error)
        except Exception:
            backend.release()
            raise

    @property
    def is_up(self) -> bool:
        """Whether the database accepts writes. Always True without `tolerate_outages`."""
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """Why the database is down; None while it is up."""
        return None if self._monitor is None else self._monitor.problem

    def on_recovery(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time the database is up again after an outage."""
        if self._monitor is not None:
            self._monitor.on_recovery.append(callback)

    def go_down(self, problem: StoreError) -> None:
        """Treat the database as down, if it tolerates outages, until it can be used again."""
        if self._monitor is not None:
            self._monitor.go_down(problem)

    def statements(self, kind: Callable[[Compiler], T]) -> T:
        """Return the SQL of a part of the store, built at first use, once per process and backend class.

        Compiling takes about 1 ms, longer than running it: each statement is compiled when it is first used.
        """
        key = type(self._backend), kind
        if key not in COMPILED:
            COMPILED[key] = lazy_statements(kind, self._backend)
        statements: T = COMPILED[key]
        return statements

    def compile(self, statement: ClauseElement) -> str:
        """Compile a statement for this database. For statements that never change, see `statements`."""
        return self._backend.compile(statement)

    def query_sql(self, build: Callable[[H], ClauseElement], variant: H) -> str:
        """Return the SQL of a query that has few variants, such as the names of its filters.

        `build` makes the statement of a variant. Compiled at first use, as `statements` is.
        """
        key = type(self._backend), build, variant
        if key not in COMPILED_QUERIES:
            COMPILED_QUERIES[key] = self._backend.compile(build(variant))
        return COMPILED_QUERIES[key]

    async def write(self, job: DatabaseJob[T]) -> T:
        """Run a job and return its result once it is committed. Cancelling the caller does not stop it."""
        return await self.submit(job)

    def submit(
        self, job: DatabaseJob[T], *, is_long: bool = False, passes_lazy: bool = False
    ) -> asyncio.Future[T]:
        """Queue a job; return the future of its result. It is done once the job is committed.

        A job `is_long` when it writes hundreds of kilobytes: those that are queued later may be committed
        before it. One that `passes_lazy` may be committed before lazy jobs that were queued earlier.
        """
        waiting: asyncio.Future[T] = self._loop.create_future()
        self._check_available(writing=True)
        self._queue_write(WriteTask(job, waiting, self._on_error, is_long), passes_lazy=passes_lazy)
        return waiting

    def enqueue(
        self,
        job: DatabaseJob[Any],
        *,
        on_failure: Callable[[Exception], None] | None = None,
        is_lazy: bool = False,
    ) -> None:
        """Queue a job; jobs are committed in the order of their calls. Raises Unavailable when too many wait.

        `on_failure` is called with the error of a failed job, instead of the database's `on_error`. A job
        `is_lazy` goes to the writer with the next one that does not pass it, at the latest after
        `LAZY_SECONDS`.
        """
        if self._queued_count >= MAX_QUEUED:
            raise Unavailable(
                f"the database is {self._queued_count} writes behind", hint="its disk may be slow"
            )
        self._check_available(writing=True)
        task = WriteTask(job, None, on_failure or self._on_error)
        if is_lazy:
            self._queue_lazily(task)
        else:
            self._queue_write(task)

    def defer(self, job: DatabaseJob[Any]) -> None:
        """Run a job, which was refused because the database is down, once it is up again.

        When too many wait, the oldest are dropped; when the process ends, all are.
        """
        if self._closed or self._monitor is None:
            return
        if self.is_up:  # it has come up in the meantime
            self._queue_write(WriteTask(job, None, partial(self._defer_again, job)))
        else:
            self._deferred.append(job)

    async def read(self, query: DatabaseJob[T]) -> T:
        """Run a query in one snapshot, which includes every write that was awaited before."""
        self._check_available(writing=False)
        answer: asyncio.Future[T] = self._loop.create_future()
        self._queued_reads.append(PendingRead(query, answer))
        if len(self._queued_reads) == 1:
            self._loop.call_soon(self._dispatch_reads)
        return await answer

    async def read_by_key(self, query: DatabaseJob[T]) -> T:
        """Do what `read` does, for a few rows that are found by an index; each statement by itself.

        On SQLite the query runs at once, in the thread of the event loop: it takes a fifth of the time that
        waking another thread takes. Without a transaction, since each statement gives up the interpreter to
        the writer. A query that fails, or would have to wait for a lock, runs again in a reader.
        """
        if self._backend.name != "sqlite":
            return await self.read(query)
        self._check_available(writing=False)
        try:
            return query(self._loop_connection or self._open_loop_connection())
        except (sqlite3.Error, OSError, StoreError):
            return await self.read(query)

    @asynccontextmanager
    async def try_lock(self, name: str) -> AsyncIterator[bool]:
        """Lock a name among all processes that use the database; False when another one has it.

        For work of many transactions that one process does at a time. Raises StoreError.
        """
        stack = ExitStack()

        def take() -> bool:
            lock = self._backend.try_lock(name)
            stack.enter_context(lock or nullcontext())
            return lock is not None

        with stack:
            yield await acquire_in_thread(take, release=stack.close)

    async def flush(self) -> None:
        """Wait until every queued job is committed, or has failed and been reported.

        Raises StoreError when the database cannot begin a transaction.
        """
        if self._closed:
            raise Unavailable("the database is closed")
        for is_long in (False, True):  # after the short jobs, then after the long ones
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._queue_write(WriteTask(lambda _: None, waiting, self._on_error, is_long))
            await waiting

    async def close(self) -> None:
        """Finish queued jobs and queries, then close all connections. May be called twice."""
        if not self._closed:
            self._dispatch_all()
            self._dispatch_reads()
            self._closed = True
            await asyncio.to_thread(self._close_all)

    def _check_available(self, *, writing: bool) -> None:
        if self._closed:
            raise Unavailable("the database is closed")
        if self._monitor is not None:
            self._monitor.check_available(writing=writing)

    def _queue_lazily(self, task: WriteTask) -> None:
        self._queued_count += 1
        self._lazy_writes.append(task)
        if self._lazy_timer is None:
            self._lazy_timer = self._loop.call_later(LAZY_SECONDS, self._dispatch_all)

    def _queue_write(self, task: WriteTask, *, passes_lazy: bool = False) -> None:
        self._queued_count += 1
        if self._lazy_writes and not passes_lazy:
            self._take_lazy_writes()
        self._queued_writes.append(task)
        if not self._is_dispatching:
            self._is_dispatching = True
            self._loop.call_soon(self._dispatch_writes)

    def _take_lazy_writes(self) -> None:
        """Put the lazy jobs into the queue."""
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None
        self._queued_writes += self._lazy_writes
        self._lazy_writes.clear()
        self.lazy_rounds += 1

    def _dispatch_all(self) -> None:
        self._take_lazy_writes()
        self._dispatch_writes()

    def _dispatch_writes(self) -> None:
        """Hand the writer all writes of this loop iteration: waking the thread costs more than a write."""
        self._is_dispatching = False
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
                continue  # the caller was cancelled
            elif error is not None:
                task.future.set_exception(self._backend.translate_error(error))
            else:
                task.future.set_result(result)

    def _dispatch_reads(self) -> None:
        """Hand a reader all queries of this iteration of the loop."""
        reads, self._queued_reads = self._queued_reads, []
        if reads:
            self._reader_pool.submit(self._run_reads, reads)

    def _run_reads(self, reads: list[PendingRead]) -> None:
        results = [(read, *self._run_read(read.query)) for read in reads]
        with suppress(RuntimeError):  # the loop is closed, so nobody waits for the results
            self._loop.call_soon_threadsafe(self._resolve_reads, results)

    def _run_read(self, query: DatabaseJob[Any]) -> tuple[Any, Exception | None]:
        """Return the result of a query or its error. A query whose connection is lost runs once more."""
        for attempt in ("first", "second"):
            try:
                with self._readers.transaction() as connection:
                    return query(connection), None
            except Exception as error:  # noqa: BLE001 - raised to the caller
                if attempt == "second" or not isinstance(error, RetryTransaction):
                    return None, self._backend.translate_error(cause_of(error))
        raise AssertionError("the second attempt returns")

    def _resolve_reads(self, results: list[tuple[PendingRead, Any, Exception | None]]) -> None:
        for read, result, error in results:
            if error is not None and self._monitor is not None:
                self._monitor.observe_error(error, writing=False)
            if read.future.done():
                continue  # the caller was cancelled
            if error is not None:
                read.future.set_exception(error)
            else:
                read.future.set_result(result)

    def _open_loop_connection(self) -> BackendConnection:
        """Open the connection that reads by key in the thread of the event loop, which never waits."""
        connection = self._backend.connect(writing=False)
        connection.fetch_all("PRAGMA busy_timeout = 0", {})
        self._loop_connection = connection
        return connection

    def _close_readers(self) -> None:
        self._readers.reset()
        if self._loop_connection is not None:
            self._loop_connection.close()
            self._loop_connection = None

    def _write_deferred(self) -> None:
        """Run the deferred jobs before anything else is written."""
        jobs = list(self._deferred)
        self._deferred.clear()
        for job in jobs:
            self._queue_write(WriteTask(job, None, partial(self._defer_again, job)))

    def _defer_again(self, job: DatabaseJob[Any], error: Exception) -> None:
        self._on_error(error)
        if not self.is_up:
            self.defer(job)

    def _reset_connections(self) -> None:
        """Replace all connections after an outage: their file may have been replaced."""
        self._close_readers()
        self._writer.reconnect()

    def _close_all(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._reader_pool.shutdown()
        self._close_readers()
        self._writer.stop()
        self._backend.release()


class ReaderConnections:
    """Connections for one transaction each. May be used from any thread.

    A database that takes no further connections is read through those that are open, by one thread after
    the other.
    """

    def __init__(self, connect: Callable[[], BackendConnection]) -> None:
        self._connect = connect
        self._generation = 0
        self._idle: list[BackendConnection] = []
        self._open_count = 0
        self._changed = threading.Condition()
        self._retry_at = 0.0

    @contextmanager
    def transaction(self) -> Iterator[BackendConnection]:
        """Lend a connection that has begun a transaction, and roll it back at the end.

        A connection that cannot begin one is closed, and another one used. Raises what the last one raised,
        or StoreError if there was none and none can be opened.
        """
        connection, generation = self._begin()
        try:
            yield connection
        finally:
            try:
                connection.rollback()
            finally:
                self._release(connection, generation)

    def reset(self) -> None:
        """Replace all connections: the idle ones now, the others when they are given back."""
        with self._changed:
            self._generation += 1
            replaced, self._idle = self._idle, []
            self._open_count -= len(replaced)
            self._retry_at = 0.0
        for connection in replaced:
            connection.close()

    def _begin(self) -> tuple[BackendConnection, int]:
        while True:
            connection, generation = self._acquire()
            try:
                connection.begin()
            except BaseException as error:
                connection.close()
                with self._changed:
                    self._open_count -= 1
                    is_last = not self._open_count
                    # A new one could be to another file, which took the place of the one that was open.
                    self._retry_at = time.monotonic() + RETRY_SECONDS
                    self._changed.notify_all()
                if is_last or not isinstance(error, Exception):
                    raise
            else:
                return connection, generation

    def _acquire(self) -> tuple[BackendConnection, int]:
        """Take an idle connection or open one; if that is refused, wait for one of those that are open."""
        while True:
            connection, generation = self._take_idle()
            try:
                connection = connection or self._open()
            except (StoreError, OSError):
                if not self._open_count:
                    raise
                self._retry_at = time.monotonic() + RETRY_SECONDS
            else:
                return connection, generation

    def _take_idle(self) -> tuple[BackendConnection | None, int]:
        """Take an idle connection, None if another one may be opened. Waits while one was just refused."""
        with self._changed:
            while not self._idle and self._open_count and time.monotonic() < self._retry_at:
                self._changed.wait(RETRY_SECONDS)
            return (self._idle.pop() if self._idle else None), self._generation

    def _open(self) -> BackendConnection:
        connection = self._connect()
        with self._changed:
            self._open_count += 1
        return connection

    def _release(self, connection: BackendConnection, generation: int) -> None:
        with self._changed:
            is_current = generation == self._generation
            if is_current:
                self._idle.append(connection)
            else:
                self._open_count -= 1
            self._changed.notify()
        if not is_current:
            connection.close()


def log_failure(error: Exception) -> None:
    """Log a queued job that failed. A fenced host refuses all of them, wherever they come from."""
    log.error("a queued write failed: %s", error, exc_info=None if isinstance(error, HostFenced) else error)
