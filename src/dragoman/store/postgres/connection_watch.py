"""Finds connections to Postgres that carry nothing any more, while the server works.

A firewall or a pooler may drop one connection of many and close neither end: this process waits for an
answer, and the server process at the other end for a statement. The system notices that only where packets
are not acknowledged (`tcp_user_timeout`). So when a connection has been without an answer for a while, the
server is asked over another one. A statement that the server executes is left alone, however long it takes
or waits for a lock.
"""

from __future__ import annotations

import logging
import time
from typing import Any, TypeAlias
from weakref import WeakSet

import psycopg
from typing_extensions import override

from dragoman.store.connection import Row
from dragoman.store.postgres.connection import PostgresConnection, RawConnection, cut, run_command

log = logging.getLogger(__name__)
SILENT = 10.0  # seconds without an answer after which the server is asked whether it executes a statement
ACTIVE = "SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s) AND state = 'active'"


class WatchedConnection(psycopg.Connection[Row]):
    """A connection of the driver that can be watched: it notes since when it waits for the server."""

    asked_at: float | None = None
    server_process = 0

    @override
    def wait(self, *args: Any, **options: Any) -> Any:
        self.asked_at = time.monotonic()
        try:
            return super().wait(*args, **options)
        finally:
            self.asked_at = None

    def find_server_process(self) -> None:
        """Ask for the number of the server process: that of `info` may be one of a pooler."""
        self.asked_at = time.monotonic()
        try:
            self.server_process = int(run_command(self, b"SELECT pg_backend_pid()") or 0)
        finally:
            self.asked_at = None

    def cut(self) -> None:
        """Shut the connection down, so that a thread that waits for the server finds it lost."""
        cut(self)


Watched: TypeAlias = PostgresConnection | WatchedConnection


class ConnectionWatch:
    """Watches the connections of a host. `check` is called periodically, in one thread."""

    def __init__(self) -> None:
        self._connections: WeakSet[Watched] = WeakSet()

    def add(self, connection: Watched) -> None:
        """Watch a connection, until it is dropped. From any thread."""
        self._connections.add(connection)

    def check(self, raw: RawConnection) -> None:
        """Cut the connections whose statements the server does not execute; `raw` asks it.

        Whoever waits on one finds it lost, and repeats the transaction on another one.
        """
        before = time.monotonic() - SILENT
        silent = {
            each.server_process: each
            for each in self._connections.copy()
            if each.asked_at is not None and each.asked_at < before
        }
        if not silent:
            return
        active = {pid for (pid,) in raw.execute(ACTIVE, (list(silent),)).fetchall()}
        for pid in silent.keys() - active:
            log.warning("a connection to the database has carried nothing for %.0f s: it is replaced", SILENT)
            silent[pid].cut()
