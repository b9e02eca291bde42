"""A process with the engine that hosts share. It reads commands, and writes what happens.

Commands are JSON lines: {"enqueue": id, "session": id}, {"end": id}, {"cancel": id}, {"list": true},
{"recover": [living hosts]} and {"borrow": true}. A turn that begins is written as {"begun": id}, and executed
until its `end`. A connection that is borrowed is given back after the end of the engine, and it is written
whether it was closed before that and is after.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from dragoman.runs import dbos_engine
from dragoman.runs.dbos_engine import DbosEngine
from dragoman.runs.engine import QueuedTurn
from dragoman.store.postgres import connection_watch
from dragoman.store.postgres.backend import PostgresBackend
from dragoman.store.postgres.connection import RawConnection
from dragoman.store.postgres.connection_watch import ConnectionWatch


def write(**event: Any) -> None:
    print(json.dumps(event), flush=True)


class CommandedHost:
    """The engine of this process, and the turns that it executes."""

    def __init__(self, engine: DbosEngine) -> None:
        self._engine = engine
        self._ends: dict[str, asyncio.Event] = {}
        self._borrowed: Any = None

    async def execute(self, turn: QueuedTurn) -> None:
        end = self._ends.setdefault(turn.id, asyncio.Event())
        write(begun=turn.id)
        await end.wait()

    async def obey(self, command: dict[str, Any]) -> None:
        match command:
            case {"enqueue": id, "session": session_id}:
                turn = QueuedTurn(id=id, session_id=session_id, kind="continue", subject=id)
                await self._engine.enqueue(turn)
                write(enqueued=id)
            case {"end": id}:
                self._ends.setdefault(id, asyncio.Event()).set()
            case {"cancel": id}:
                await self._engine.cancel(id)
                write(cancelled=id)
            case {"recover": living}:

                async def list_living() -> Any:
                    return living

                await self._engine.recover(list_living=list_living)
                write(recovered=True)
            case {"borrow": _}:
                await self._engine.list()  # it has started
                assert self._engine._pool is not None
                self._borrowed = self._engine._pool.raw_connection()
                write(borrowed=True)
            case {"list": _}:
                write(listed=sorted(turn.id for turn in await self._engine.list()))
            case _:
                raise ValueError(command)

    def give_back(self) -> None:
        """Give the borrowed connection back, as a thread does that the end has not waited for."""
        if self._borrowed is not None:
            raw = self._borrowed.driver_connection
            closed = [raw.closed]
            self._borrowed.close()
            write(closed=[*closed, raw.closed])


async def watch(connections: ConnectionWatch, url: str) -> None:
    """Watch the connections of the engine as a host does, by one that goes to the server itself."""
    raw = PostgresBackend(url).open_watched()
    while True:
        await asyncio.to_thread(connections.check, raw)
        await asyncio.sleep(connection_watch.SILENT / 3)


def watched(url: str, connections: ConnectionWatch) -> Callable[[], RawConnection]:
    """Open connections that are watched."""
    backend = PostgresBackend(url)

    def connect() -> RawConnection:
        raw = backend.open_watched(autocommit=False)
        connections.add(raw)
        return raw

    return connect


async def main(url: str, server_url: str, host_id: str, *settings: str) -> None:
    version, poll_interval, launch_timeout = settings
    dbos_engine.VERSION, dbos_engine.POLL_INTERVAL = version, float(poll_interval)
    dbos_engine.LAUNCH_TIMEOUT = float(launch_timeout)
    dbos_engine.CLAIM_INTERVAL = connection_watch.SILENT = 0.5
    connections = ConnectionWatch()
    engine = DbosEngine(watched(url, connections), host_id=host_id, at_once=8, start_delay=0)
    watching = asyncio.create_task(watch(connections, server_url))
    host = CommandedHost(engine)
    engine.start(host.execute)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await host.obey(json.loads(line))
    watching.cancel()
    await engine.close()
    host.give_back()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
