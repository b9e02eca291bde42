"""A process that writes until it is killed and prints what was acknowledged: `FOLDER NAME [URL]`.

A line is `session message position text`; it is printed after the write has returned.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path

from dragoman.store.store import DatabaseSettings, Store
from tests.store.samples import FINISHED, assistant, run, session, text, user

SESSIONS = 6
PARTS = 5


async def chronicle(store: Store, session_id: str) -> None:
    """One turn after the other, each part acknowledged, some of them posted before."""
    for turn in itertools.count():
        run_id, answer = f"{session_id}-{turn}", f"a{turn}"
        await store.runs.create(
            run(run_id, session_id=session_id, message_id=answer, at=float(turn)),
            session=await store.sessions.get(session_id) or session(session_id),
            user=user(f"u{turn}", f"q{turn}"),
            assistant=assistant(answer),
        )
        tell(session_id, f"u{turn}", 0, f"q{turn}")
        for position in range(PARTS):
            part = [(position, text(f"t{position}"))]
            store.enqueue(
                store.messages.write_parts_job(session_id, answer, changed=[(position, text("half"))])
            )
            await store.write(store.messages.write_parts_job(session_id, answer, changed=part))
            tell(session_id, answer, position, f"t{position}")
        await store.runs.finish(run_id, FINISHED)
        tell(session_id, "run", turn, run_id)


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def main(folder: Path, name: str, url: str | None = None) -> None:
    opened = await Store.open(folder, database=DatabaseSettings(url))
    async with opened as store, asyncio.TaskGroup() as group:
        for number in range(SESSIONS):
            group.create_task(chronicle(store, f"{name}-{number}"))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
