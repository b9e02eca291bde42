"""The writer: one thread that runs all waiting jobs in one transaction and then tells the loop once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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

    def __init__(self, connection: Transactions, settle: Callable[[list[Settled]], None]) -> None:
        """`settle` hears what became of the tasks of each transaction, on the loop that runs now."""
        self._connection = connection
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[list[Task] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="dragoman-writer", daemon=True)
        self._thread.start()

    def put(self, tasks: list[Task]) -> None:
        """Take tasks; returns at once."""
        self._tasks.put(tasks)

    def stop(self) -> None:
        """Finish what waits, then end the thread and close the connection; blocks."""
        self._tasks.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (tasks := self._take()) and self._tell(self._together(tasks)):
            pass
        self._connection.close()

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
        try:
            self._connection.begin()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            return [Settled(task, None, error) for task in tasks]
        try:
            settled = [Settled(task, task.job(self._connection), None) for task in tasks]
            self._connection.commit()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            self._connection.rollback()
            if len(tasks) > 1:
                return [alone for task in tasks for alone in self._together([task])]
            return [Settled(tasks[0], None, error)]
        return settled

    def _tell(self, settled: list[Settled]) -> bool:
        """False when the loop is closed, and with it everyone gone who could wait or write more."""
        try:
            self._loop.call_soon_threadsafe(self._settle, settled)
        except RuntimeError:
            return False
        return True
