"""A function in a process of its own that is killed before a step: a change of a file's name, or a commit."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

NAMING = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.chmod")
WRITING = os.O_WRONLY | os.O_RDWR


def is_killed(function: Callable[[], object], *, at: int, below: Path) -> bool:
    """Call a function in a fork, which is killed before the step `at`; False when it ended before that.

    Steps are what changes the folder `below`, and the commits of databases.
    """
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        run_until(function, Steps(at, below))
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), "the process failed before it was killed: see its traceback"
    return status != 0


def run_until(function: Callable[[], object], steps: Steps) -> NoReturn:
    """Call a function in this process, and end the process without any cleanup."""
    code = 1
    try:
        steps.install()
        function()
        code = 0
    except BaseException:  # noqa: BLE001 - the process of the test must not be continued here
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


class Steps:
    """Counts the steps of this process, and kills it before one of them."""

    def __init__(self, at: int, below: Path) -> None:
        self._left = at
        self._below = os.fsencode(below)

    def install(self) -> None:
        """Count from now on, until the process ends."""
        sys.addaudithook(self._hear)
        connect = sqlite3.connect

        def connect_and_hear(*arguments: Any, **options: Any) -> sqlite3.Connection:
            raw: sqlite3.Connection = connect(*arguments, **options)
            raw.set_trace_callback(self._hear_statement)
            return raw

        sqlite3.connect = connect_and_hear  # type: ignore[assignment]
        try:
            from dragoman.store.postgres.connection import (
                PostgresConnection,  # late: few tests need the driver
            )
        except ModuleNotFoundError:
            return
        commit = PostgresConnection.commit

        def count_and_commit(connection: PostgresConnection) -> None:
            self.count()
            commit(connection)
            self.count()

        setattr(PostgresConnection, "commit", count_and_commit)  # noqa: B010 - mypy refuses to assign a method

    def count(self) -> None:
        """End the process at its last step."""
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & WRITING:
                self._count_below(path)
        elif event in NAMING:
            self._count_below(args[0])

    def _hear_statement(self, sql: str) -> None:
        if sql.upper().startswith("COMMIT"):
            self.count()

    def _count_below(self, path: Any) -> None:
        if isinstance(path, str | bytes | os.PathLike) and os.fsencode(path).startswith(self._below):
            self.count()
