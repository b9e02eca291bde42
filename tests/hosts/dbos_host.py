"""A process with the engine that hosts share. It reads commands, and writes what happens.

Commands are JSON lines: {"enqueue": id, "session": id}, {"end": id}, {"cancel": id}, {"list": true} and
{"recover": [living hosts]}. A turn that begins is written as {"begun": id}, and executed until its `end`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from dragoman.runs import dbos_engine
from dragoman.runs.dbos_engine import DbosEngine
from dragoman.runs.engine import QueuedTurn
from dragoman.store.postgres.url import parse_url


def write(**event: Any) -> None:
    print(json.dumps(event), flush=True)


class CommandedHost:
    """The engine of this process, and the turns that it executes."""

    def __init__(self, engine: DbosEngine) -> None:
        self._engine = engine
        self._ends: dict[str, asyncio.Event] = {}

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
                await self._engine.recover(living=living)
                write(recovered=True)
            case {"list": _}:
                write(listed=sorted(turn.id for turn in await self._engine.list()))
            case _:
                raise ValueError(command)


async def main(url: str, host_id: str, version: str, poll_interval: str) -> None:
    dbos_engine.VERSION, dbos_engine.POLL_INTERVAL = version, float(poll_interval)
    engine = DbosEngine(parse_url(url), host_id=host_id, at_once=8, start_delay=0)
    host = CommandedHost(engine)
    engine.start(host.execute)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await host.obey(json.loads(line))
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
