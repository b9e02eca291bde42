"""HTTP handlers of the state of a hub: its process, its database, its queue, and what retention keeps."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dragoman.http.asgi_exchange import Exchange
from dragoman.offload import offload_disk
from dragoman.operations.authorization import is_visible, visible_owner
from dragoman.server.hosts import LocalHost
from dragoman.server.http.query_parameters import parse_limit
from dragoman.session_ids import session_id_for
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.status import DatabaseStatus, file_size, read_status
from dragoman.store.retention import RetentionPeriods
from dragoman.store.store import Store
from dragoman.version import version

TABLES_SECONDS = 60.0  # for which the counts of all tables are shown again: they read the whole database
DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
STATUS_FILE = Path("/proc/self/statm")


class HubStateSources(msgspec.Struct, frozen=True, kw_only=True):
    """Functions by which the handlers read the current state, also after a reload of the configuration."""

    retention: Callable[[], RetentionPeriods]
    database: Callable[[], str | None]
    """The URL of the database; None for SQLite in the data folder."""
    running: Callable[[], int]
    spooled: Callable[[], int]


class HubStateHandlers:
    """Handlers of `/api/system`, `/api/system/tables` and `/api/queue`."""

    def __init__(
        self,
        store: Store,
        sources: HubStateSources,
        *,
        host: LocalHost,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._sources = sources
        self._host = host
        self._clock = clock
        self._tables: tuple[float, DatabaseStatus] | None = None
        self._reading = asyncio.Lock()

    async def system(self, exchange: Exchange) -> None:
        """Return what the process does now, how large its database is, and how long rows are kept."""
        host, store, now = self._host.record, self._store, self._clock()
        waiting = await store.queued_runs.list_page(owner=None, limit=MAX_LIMIT)
        await exchange.respond(
            200,
            {
                "asOf": now,
                "version": version(),
                "python": platform.python_version(),
                "host": {"id": host.id, "name": host.name, "draining": self._host.is_draining},
                "startedAt": host.started_at,
                "memory": await offload_disk(resident_bytes),
                "processors": os.cpu_count(),
                "runs": self._sources.running(),
                "queue": {
                    "waiting": len(waiting),
                    "capped": len(waiting) == MAX_LIMIT,
                    "oldest": min((each.created_at for each in waiting), default=None),
                },
                "spooled": self._sources.spooled(),
                "database": {
                    "kind": "sqlite" if self._sources.database() is None else "postgresql",
                    "up": store.database.is_up,
                    "problem": store.database.problem,
                    "size": await offload_disk(self._size),
                },
                "retention": dict(self._sources.retention()),
            },
        )

    async def tables(self, exchange: Exchange) -> None:
        """Return the rows of each table and what retention would delete; at most TABLES_SECONDS old."""
        async with self._reading:
            found, now = self._tables, self._clock()
            if found is None or not 0 <= now - found[0] < TABLES_SECONDS:
                found = self._tables = (now, await asyncio.to_thread(self._read_tables))
        at, status = found
        await exchange.respond(
            200,
            {
                "asOf": at,
                "kind": status.kind,
                "server": status.server,
                "revision": status.revision,
                "size": status.size,
                "tables": msgspec.to_builtins(status.tables),
            },
        )

    async def queue(self, exchange: Exchange) -> None:
        """List the messages that wait for the run of their session to end, the newest first."""
        caller, owner = exchange.identity, visible_owner(exchange.identity)
        limit = parse_limit(exchange.query.get("limit", str(DEFAULT_LIMIT)), maximum=MAX_LIMIT)
        found = await self._store.queued_runs.list_page(owner=owner, limit=limit + 1)
        rows: list[Mapping[str, Any]] = [
            {
                "id": each.id,
                "sessionId": session_id_for(caller.owner, each.session_id),
                "owner": each.owner,
                "mode": each.mode,
                "background": each.background,
                "createdAt": each.created_at,
            }
            for each in found[:limit]
            if is_visible(each.owner, to=owner)
        ]
        await exchange.respond(200, {"queued": rows, "more": len(found) > limit})

    def _location(self) -> DatabaseLocation:
        url = self._sources.database()
        folder = self._store.folder
        return DatabaseLocation.of_folder(folder) if url is None else DatabaseLocation(None, url, folder)

    def _size(self) -> int | None:
        path = self._location().path
        return None if path is None else file_size(path)

    def _read_tables(self) -> DatabaseStatus:
        return read_status(self._location(), self._sources.retention(), clock=self._clock)


def resident_bytes() -> int | None:
    """Return the memory of this process in bytes; None where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(STATUS_FILE.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None
