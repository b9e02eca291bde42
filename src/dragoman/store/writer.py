"""The writer: one thread that runs all waiting jobs in one transaction and then tells the loop once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from dragoman.store.connection import BackendConnection, DatabaseJob

MAX_GROUP = 256


class WriteTask(NamedTuple):
    """A job, and who waits for it; or, when nobody does, who hears that it failed."""

    job: DatabaseJob[Any]
    future: asyncio.Future[Any] | None
    on_failure: Callable[[Exception], None]


class WriteResult(NamedTuple):
    """What became of a task, once that is certain."""

    task: WriteTask
    result: Any
    error: Exception | None


class DatabaseWriter:
    """Group commit. Jobs are committed in the order in which they came; one that fails fails alone."""

    def __init__(
        self, connect: Callable[[], BackendConnection], resolve: Callable[[list[WriteResult]], None]
    ) -> None:
        """`connect` gives a connection, when there is something to write. `settle` hears what became of the
        tasks of each transaction, on the loop that runs now.
        """
        self._connect = connect
        self._connection: BackendConnection | None = None
        self._needs_reconnect = False
        self._resolve = resolve
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[list[WriteTask] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="dragoman-writer", daemon=True)
        self._thread.start()

    def submit(self, tasks: list[WriteTask]) -> None:
        """Take tasks; returns at once."""
        self._tasks.put(tasks)

    def reconnect(self) -> None:
        """Take a new connection for the next transaction: the database was down."""
        self._needs_reconnect = True

    def stop(self) -> None:
        """Finish what waits, then end the thread and close the connection; blocks."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (tasks := self._next_group()) and self._notify(self._commit_group(tasks)):
            pass
        self._close_connection()

    def _next_group(self) -> list[WriteTask]:
        """The next task and those that wait behind it; nothing when it is time to stop."""
        tasks: list[WriteTask] = []
        while more := self._tasks.get():
            tasks += more
            if len(tasks) >= MAX_GROUP or self._tasks.empty():
                return tasks
        if tasks:
            self._tasks.put(None)
        return tasks

    def _commit_group(self, tasks: list[WriteTask]) -> list[WriteResult]:
        """All tasks in one transaction; one by one when that fails."""
        connection = self._begin()
        if isinstance(connection, Exception):
            return fail_all(tasks, connection)
        if len(tasks) == 1:
            return [self._commit_one(tasks[0], connection)]
        try:
            settled = [WriteResult(task, task.job(connection), None) for task in tasks]
            connection.commit()
        except Exception:  # noqa: BLE001 - whoever failed is found, and whoever waits for it told
            self._rollback()
            return self._commit_singly(tasks)
        return settled

    def _commit_singly(self, tasks: list[WriteTask]) -> list[WriteResult]:
        """Each task in a transaction of its own; none more once the database does not even begin one."""
        settled: list[WriteResult] = []
        for at, task in enumerate(tasks):
            connection = self._begin()
            if isinstance(connection, Exception):
                return settled + fail_all(tasks[at:], connection)
            settled.append(self._commit_one(task, connection))
        return settled

    def _commit_one(self, task: WriteTask, connection: BackendConnection) -> WriteResult:
        """The task in the transaction that was begun for it."""
        try:
            result = task.job(connection)
            connection.commit()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            self._rollback()
            return WriteResult(task, None, error)
        return WriteResult(task, result, None)

    def _begin(self) -> BackendConnection | Exception:
        """A connection in a transaction, or why there is none."""
        try:
            if self._needs_reconnect:
                self._needs_reconnect = False
                self._close_connection()
            if self._connection is None:
                self._connection = self._connect()
            self._connection.begin()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            return error
        return self._connection

    def _rollback(self) -> None:
        """Roll back; a connection that cannot do even that is given up."""
        try:
            if self._connection is not None:
                self._connection.rollback()
        except Exception:  # noqa: BLE001 - what was tried before has failed, and is what is told
            self._close_connection()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _notify(self, results: list[WriteResult]) -> bool:
        """False when the loop is closed, and with it everyone gone who could wait or write more."""
        try:
            self._loop.call_soon_threadsafe(self._resolve, results)
        except RuntimeError:
            return False
        return True


def fail_all(tasks: Sequence[WriteTask], error: Exception) -> list[WriteResult]:
    return [WriteResult(task, None, error) for task in tasks]
