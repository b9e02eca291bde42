"""The writer thread: group commit of all waiting jobs in one transaction, with one wake-up of the loop.

Long jobs (megabytes of an answer) wait until all others are done, and are committed one at a time: nobody
waits for more than one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from dragoman.store.connection import BackendConnection, CommitUncertain, DatabaseJob, RetryTransaction

MAX_GROUP = 256
MAX_ATTEMPTS = 5  # transactions of a job that the database rolls back for a reason outside of the job


class WriteTask(NamedTuple):
    """A job, the future of its result if a caller waits, and the callback for a failure if none does.

    `is_long`: it may be committed after jobs that were queued later.
    """

    job: DatabaseJob[Any]
    future: asyncio.Future[Any] | None
    on_failure: Callable[[Exception], None]
    is_long: bool = False


class WriteResult(NamedTuple):
    """The outcome of a task after its commit or rollback."""

    task: WriteTask
    result: Any
    error: Exception | None


class DatabaseWriter:
    """Group commit. Jobs are committed in order, the long ones after all others; one that fails does not
    affect the others.
    """

    def __init__(
        self, connect: Callable[[], BackendConnection], resolve: Callable[[list[WriteResult]], None]
    ) -> None:
        """`connect` opens a connection at the first write. `resolve` is called with the results of each
        transaction, on the current event loop.
        """
        self._connect = connect
        self._connection: BackendConnection | None = None
        self._needs_reconnect = False
        self._resolve = resolve
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[list[WriteTask] | None] = SimpleQueue()
        self._short_tasks: deque[WriteTask] = deque()
        self._long_tasks: deque[WriteTask] = deque()
        self._is_stopping = False
        self._thread = Thread(target=self._run, name="dragoman-writer", daemon=True)
        self._thread.start()

    def submit(self, tasks: list[WriteTask]) -> None:
        """Queue tasks; returns immediately."""
        self._tasks.put(tasks)

    def reconnect(self) -> None:
        """Open a new connection for the next transaction, after an outage."""
        self._needs_reconnect = True

    def stop(self) -> None:
        """Finish queued tasks, then end the thread and close the connection. Blocks."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._write_group():
            pass
        self._close_connection()

    def _write_group(self) -> bool:
        """Wait for tasks, and commit them; return whether more may come.

        A function of its own: while the thread waits, it holds nothing of the last tasks, which may be large.
        """
        tasks = self._next_group()
        return bool(tasks) and self._notify(self._commit_group(tasks))

    def _next_group(self) -> list[WriteTask]:
        """Return the next tasks: short ones or, when there are none, one long task; none at the end."""
        self._collect_tasks()
        if self._short_tasks:
            count = min(len(self._short_tasks), MAX_GROUP)
            return [self._short_tasks.popleft() for _ in range(count)]
        return [self._long_tasks.popleft()] if self._long_tasks else []

    def _collect_tasks(self) -> None:
        """Take all queued tasks; wait for one if there is nothing to do."""
        while not self._is_stopping:
            has_work = bool(self._short_tasks or self._long_tasks)
            try:
                tasks = self._tasks.get(block=not has_work)
            except Empty:
                return
            if tasks is None:
                self._is_stopping = True
                return
            for task in tasks:
                (self._long_tasks if task.is_long else self._short_tasks).append(task)

    def _commit_group(self, tasks: list[WriteTask]) -> list[WriteResult]:
        """Run all tasks in one transaction or, if that fails, each in its own."""
        connection = self._begin(is_group=len(tasks) > 1)
        if isinstance(connection, Exception):
            return fail_all(tasks, connection)
        if len(tasks) == 1:
            return [self._commit_one(tasks[0], connection)]
        try:
            settled = [WriteResult(task, task.job(connection), None) for task in tasks]
            connection.commit()
        except CommitUncertain as error:
            self._rollback()
            return fail_all(tasks, cause_of(error))
        except Exception:  # noqa: BLE001 - found and reported below
            self._rollback()
            return self._commit_singly(tasks)
        return settled

    def _commit_singly(self, tasks: list[WriteTask]) -> list[WriteResult]:
        """Run each task in its own transaction; stop when the database cannot begin one."""
        settled: list[WriteResult] = []
        for at, task in enumerate(tasks):
            connection = self._begin()
            if isinstance(connection, Exception):
                return settled + fail_all(tasks[at:], connection)
            settled.append(self._commit_one(task, connection))
        return settled

    def _commit_one(self, task: WriteTask, connection: BackendConnection) -> WriteResult:
        """Run a task in the transaction that was begun for it. Repeat it after RetryTransaction."""
        current: BackendConnection | Exception = connection
        attempts = 0
        while not isinstance(current, Exception):
            attempts += 1
            try:
                result = task.job(current)
                current.commit()
            except Exception as error:  # noqa: BLE001 - reported to the caller
                self._rollback()
                if not isinstance(error, RetryTransaction) or attempts == MAX_ATTEMPTS:
                    return WriteResult(task, None, cause_of(error))
                current = self._begin()
            else:
                return WriteResult(task, result, None)
        return WriteResult(task, None, current)

    def _begin(self, *, is_group: bool = False) -> BackendConnection | Exception:
        """Return a connection in a transaction, or why there is none."""
        try:
            if self._needs_reconnect:
                self._needs_reconnect = False
                self._close_connection()
            if self._connection is None:
                self._connection = self._connect()
            self._connection.begin(is_group=is_group)
        except Exception as error:  # noqa: BLE001 - reported to the caller
            return error
        return self._connection

    def _rollback(self) -> None:
        """Roll back; close a connection that cannot."""
        try:
            if self._connection is not None:
                self._connection.rollback()
        except Exception:  # noqa: BLE001 - the earlier error is the one to report
            self._close_connection()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _notify(self, results: list[WriteResult]) -> bool:
        """Report results to the loop. Returns False when the loop is closed, and nobody waits any more."""
        try:
            self._loop.call_soon_threadsafe(self._resolve, results)
        except RuntimeError:
            return False
        return True


def cause_of(error: Exception) -> Exception:
    """Return what a driver raised, without the exception that tells the writer what to do about it."""
    wrapped = isinstance(error, RetryTransaction | CommitUncertain)
    return error.__cause__ if wrapped and isinstance(error.__cause__, Exception) else error


def fail_all(tasks: Sequence[WriteTask], error: Exception) -> list[WriteResult]:
    return [WriteResult(task, None, error) for task in tasks]
