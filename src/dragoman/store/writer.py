"""The writer: one thread that runs all waiting jobs in one transaction and then tells the loop once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from dragoman.store.connection import Job, Transactions

GROUP = 256


class Task(NamedTuple):
    """A job, and who waits for it; or, when nobody does, who hears that it failed."""

    job: Job[Any]
    waiting: asyncio.Future[Any] | None
    failed: Callable[[Exception], None]


class Settled(NamedTuple):
    """What became of a task, once that is certain."""

    task: Task
    result: Any
    error: Exception | None


class Writer:
    """Group commit. Jobs are committed in the order in which they came; one that fails fails alone."""

    def __init__(self, connect: Callable[[], Transactions], settle: Callable[[list[Settled]], None]) -> None:
        """`connect` gives a connection, when there is something to write. `settle` hears what became of the
        tasks of each transaction, on the loop that runs now.
        """
        self._connect = connect
        self._connection: Transactions | None = None
        self._stale = False
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[list[Task] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="dragoman-writer", daemon=True)
        self._thread.start()

    def put(self, tasks: list[Task]) -> None:
        """Take tasks; returns at once."""
        self._tasks.put(tasks)

    def renew(self) -> None:
        """Take a new connection for the next transaction: the database was down."""
        self._stale = True

    def stop(self) -> None:
        """Finish what waits, then end the thread and close the connection; blocks."""
        self._tasks.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (tasks := self._take()) and self._tell(self._together(tasks)):
            pass
        self._drop()

    def _take(self) -> list[Task]:
        """The next task and those that wait behind it; nothing when it is time to stop."""
        tasks: list[Task] = []
        while more := self._tasks.get():
            tasks += more
            if len(tasks) >= GROUP or self._tasks.empty():
                return tasks
        if tasks:
            self._tasks.put(None)
        return tasks

    def _together(self, tasks: list[Task]) -> list[Settled]:
        """All tasks in one transaction; one by one when that fails."""
        connection = self._begin()
        if isinstance(connection, Exception):
            return refuse(tasks, connection)
        if len(tasks) == 1:
            return [self._alone(tasks[0], connection)]
        try:
            settled = [Settled(task, task.job(connection), None) for task in tasks]
            connection.commit()
        except Exception:  # noqa: BLE001 - whoever failed is found, and whoever waits for it told
            self._undo()
            return self._apart(tasks)
        return settled

    def _apart(self, tasks: list[Task]) -> list[Settled]:
        """Each task in a transaction of its own; none more once the database does not even begin one."""
        settled: list[Settled] = []
        for at, task in enumerate(tasks):
            connection = self._begin()
            if isinstance(connection, Exception):
                return settled + refuse(tasks[at:], connection)
            settled.append(self._alone(task, connection))
        return settled

    def _alone(self, task: Task, connection: Transactions) -> Settled:
        """The task in the transaction that was begun for it."""
        try:
            result = task.job(connection)
            connection.commit()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            self._undo()
            return Settled(task, None, error)
        return Settled(task, result, None)

    def _begin(self) -> Transactions | Exception:
        """A connection in a transaction, or why there is none."""
        try:
            if self._stale:
                self._stale = False
                self._drop()
            if self._connection is None:
                self._connection = self._connect()
            self._connection.begin()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            return error
        return self._connection

    def _undo(self) -> None:
        """Roll back; a connection that cannot do even that is given up."""
        try:
            if self._connection is not None:
                self._connection.rollback()
        except Exception:  # noqa: BLE001 - what was tried before has failed, and is what is told
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _tell(self, settled: list[Settled]) -> bool:
        """False when the loop is closed, and with it everyone gone who could wait or write more."""
        try:
            self._loop.call_soon_threadsafe(self._settle, settled)
        except RuntimeError:
            return False
        return True


def refuse(tasks: Sequence[Task], error: Exception) -> list[Settled]:
    return [Settled(task, None, error) for task in tasks]
