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
from dragoman.store.connection import Backend, Compiler, Job, Transactions
from dragoman.store.outage import Outage, Watch, rouse
from dragoman.store.sqlite import SQLite, Synchronous
from dragoman.store.writer import Settled, Task, Writer

T = TypeVar("T")
COMPILED: dict[tuple[type[Backend], Callable[[Compiler], Any]], Any] = {}
READERS = 4
MAX_POSTED = 10_000
MAX_OWED = 2_000

log = logging.getLogger(__name__)


class Question(NamedTuple):
    """A query, and where its answer goes."""

    query: Job[Any]
    answer: asyncio.Future[Any]


class Database:
    """Jobs in, rows out. For the event loop that opened it only."""

    def __init__(
        self,
        backend: Backend,
        *,
        patient: bool = False,
        outage: Outage | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """`backend` is prepared, or there is an `outage`; `open` does both."""
        self._backend = backend
        self._on_error = on_error or report
        self._loop = asyncio.get_running_loop()
        self._waiting = 0
        self._tasks: list[Task] = []
        self._questions: list[Question] = []
        self._owed: deque[Job[Any]] = deque(maxlen=MAX_OWED)
        self._closed = False
        self._watch = Watch(backend, self._renew, outage=outage) if patient or outage else None
        self.on_up(self._pay)
        self._opening = 0
        self._writer = Writer(partial(backend.connect, writing=True), self._settle)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="dragoman-reader")
        self._own = threading.local()
        self._reading: list[Transactions] = []

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        synchronous: Synchronous = "normal",
        exclusive: bool = True,
        patient: bool = False,
        on_error: Callable[[Exception], None] | None = None,
    ) -> Database:
        """The SQLite database at `path`, created or migrated if need be.

        `exclusive` is for the hub: it locks the folder against a second one. A command that reads or writes
        beside a running hub opens without. `synchronous="normal"` keeps what was acknowledged through any
        crash of the process, "full" through a power cut too. `on_error` hears of posted jobs that failed;
        without it they are logged. StoreError when the file cannot be used.

        A `patient` database opens even so, unless another hub, another program or a newer version has it.
        While it is down, at the start or later, it refuses at once, and tries to get up: see `up`.
        """
        backend = SQLite(path, synchronous=synchronous, exclusive=exclusive)
        try:
            outage = await asyncio.to_thread(partial(rouse, backend) if patient else backend.prepare)
            return cls(backend, patient=patient, outage=outage, on_error=on_error)
        except BaseException:
            backend.release()
            raise

    @property
    def up(self) -> bool:
        """Whether it takes what is written to it. One that is not patient does not know, and says so."""
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """Why it is down; None while it is up."""
        return None if self._watch is None else self._watch.problem

    def on_up(self, callback: Callable[[], None]) -> None:
        """Call back each time when the database is up again."""
        if self._watch is not None:
            self._watch.on_up.append(callback)

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

    async def write(self, job: Job[T]) -> T:
        """What the job returns, once it is committed. Cancelling the caller does not take the job back."""
        waiting: asyncio.Future[T] = self._loop.create_future()
        self._put(Task(job, waiting, self._on_error))
        return await waiting

    def post(self, job: Job[Any], *, failed: Callable[[Exception], None] | None = None) -> None:
        """Have the job done in order with all others. Unavailable when too many wait.

        `failed` hears why when it could not be done, instead of the database's `on_error`.
        """
        if self._waiting >= MAX_POSTED:
            raise Unavailable(f"the database is {self._waiting} writes behind", hint="its disk may be slow")
        self._put(Task(job, None, failed or self._on_error))

    def owe(self, job: Job[Any]) -> None:
        """Have a job done once the database is up again that was refused because it is down.

        The oldest are forgotten where too many wait, and all with the process.
        """
        if not self.up and not self._closed:
            self._owed.append(job)

    async def read(self, query: Job[T]) -> T:
        """What the query returns. All that it reads is of one moment, after every write awaited before."""
        self._admit(writing=False)
        answer: asyncio.Future[T] = self._loop.create_future()
        self._questions.append(Question(query, answer))
        if len(self._questions) == 1:
            self._loop.call_soon(self._ask)
        return await answer

    async def flush(self) -> None:
        """Wait until everything that was posted is committed, or has failed and been reported.

        StoreError when the database does not even begin a transaction.
        """
        if self._closed:
            raise Unavailable("the database is closed")
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._queue(Task(lambda _: None, waiting, self._on_error))
        await waiting

    async def close(self) -> None:
        """Finish what waits, then close everything. May be called twice."""
        if not self._closed:
            self._hand_over()
            self._closed = True
            await asyncio.to_thread(self._shut)

    def _admit(self, *, writing: bool) -> None:
        if self._closed:
            raise Unavailable("the database is closed")
        if self._watch is not None:
            self._watch.admit(writing=writing)

    def _put(self, task: Task) -> None:
        self._admit(writing=True)
        self._queue(task)

    def _queue(self, task: Task) -> None:
        self._waiting += 1
        self._tasks.append(task)
        if len(self._tasks) == 1:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Give the writer all of this round of the loop: waking a thread costs more than a write."""
        tasks, self._tasks = self._tasks, []
        if tasks:
            self._writer.put(tasks)

    def _settle(self, settled: list[Settled]) -> None:
        self._waiting -= len(settled)
        for task, result, error in settled:
            if error is not None and self._watch is not None:
                self._watch.heed(error, writing=True)
            if task.waiting is None:
                if error is not None:
                    self._loop.call_soon(task.failed, self._backend.explain(error))
            elif task.waiting.done():
                continue  # who waited was cancelled
            elif error is not None:
                task.waiting.set_exception(self._backend.explain(error))
            else:
                task.waiting.set_result(result)

    def _ask(self) -> None:
        """Give a reader all questions of this round of the loop."""
        questions, self._questions = self._questions, []
        try:
            self._readers.submit(self._find_out, questions)
        except RuntimeError:
            for question in questions:
                question.answer.cancel()

    def _find_out(self, questions: list[Question]) -> None:
        answers = [(question, *self._query(question.query)) for question in questions]
        with suppress(RuntimeError):  # the loop has gone, and with it those who asked
            self._loop.call_soon_threadsafe(self._answer, answers)

    def _query(self, query: Job[Any]) -> tuple[Any, Exception | None]:
        try:
            connection = self._reader()
            connection.begin()
            try:
                return query(connection), None
            finally:
                connection.rollback()
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            return None, self._backend.explain(error)

    def _answer(self, answers: list[tuple[Question, Any, Exception | None]]) -> None:
        for question, result, error in answers:
            if error is not None and self._watch is not None:
                self._watch.heed(error, writing=False)
            if question.answer.done():
                continue  # who asked was cancelled
            if error is not None:
                question.answer.set_exception(error)
            else:
                question.answer.set_result(result)

    def _reader(self) -> Transactions:
        """This thread's own connection, a new one after an outage."""
        connection: Transactions | None = getattr(self._own, "connection", None)
        if connection is not None and self._own.opening != self._opening:
            self._own.connection = None
            self._reading.remove(connection)
            connection.close()
            connection = None
        if connection is None:
            self._own.opening = self._opening
            connection = self._own.connection = self._backend.connect(writing=False)
            self._reading.append(connection)
        return connection

    def _pay(self) -> None:
        """Do what is owed, before anything else is written."""
        owed = list(self._owed)
        self._owed.clear()
        for job in owed:
            self._queue(Task(job, None, partial(self._pay_later, job)))

    def _pay_later(self, job: Job[Any], error: Exception) -> None:
        self._on_error(error)
        self.owe(job)

    def _renew(self) -> None:
        """After an outage: connections may be to a file that is not there any more."""
        self._opening += 1
        self._writer.renew()

    def _shut(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._readers.shutdown()
        for connection in self._reading:
            connection.close()
        self._writer.stop()
        self._backend.release()


def report(error: Exception) -> None:
    """Log a posted job that failed."""
    log.error("a posted write failed: %s", error, exc_info=error)
