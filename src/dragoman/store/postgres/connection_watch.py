"""Finds connections to Postgres that carry nothing any more, while the server works.

A firewall or a pooler may forget one connection of many and close none of its ends: this process waits for
an answer, and the server process at the other end for a statement. The system notices that only where packets
are not acknowledged (`tcp_user_timeout`). So a connection of a host that has been without an answer for a
while is looked up at the server, over another one. A statement that the server executes is let be, however
long it takes or waits for a lock.
"""

from __future__ import annotations

import logging
import time
from weakref import WeakSet

from dragoman.store.postgres.connection import PostgresConnection, RawConnection

log = logging.getLogger(__name__)
SILENT = 10.0  # seconds without an answer after which the server is asked whether it works on one
ACTIVE = "SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s) AND state = 'active'"


class ConnectionWatch:
    """Watches the connections of a host. `look` is called again and again, in one thread."""

    def __init__(self) -> None:
        self._connections: WeakSet[PostgresConnection] = WeakSet()

    def add(self, connection: PostgresConnection) -> None:
        """Watch a connection, until it is dropped. From any thread."""
        self._connections.add(connection)

    def look(self, raw: RawConnection) -> None:
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
