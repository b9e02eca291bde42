"""`kill -9` of a writing process: acknowledged data is there, the database is valid."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.messages import TextPart
from dragoman.store.store import Store
from tests.effort import rounds
from tests.store.places import Place

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("patient_locks")
KILLS = rounds(quick=4, thorough=20)
LINES = 400


def write_and_kill(place: Place, *, name: str, lines: int) -> list[list[str]]:
    """Let a process write, kill it after that many acknowledged lines, and give all that it printed."""
    command = [sys.executable, "-m", "tests.store.writer_process", str(place.folder), name]
    command += [place.url] if place.url else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        output = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        output += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    return [line.split() for line in output if line.endswith("\n")]


def check(place: Place) -> None:
    """The database is valid."""
    if place.backend == "sqlite":
        assert place.query("PRAGMA integrity_check") == [("ok",)]
        assert place.query("PRAGMA foreign_key_check") == []
    running = "SELECT session_id FROM runs WHERE status = 'running' GROUP BY 1 HAVING COUNT(*) > 1"
    assert place.query(running) == []


async def stored_parts(store: Store) -> set[tuple[str, str, int, str]]:
    """All parts and runs that a chronicler could have acknowledged, as stored."""
    found: set[tuple[str, str, int, str]] = set()
    for session in await store.sessions.list("ann", limit=10_000):
        for message in await store.messages.list(session.id):
            texts = [part.text for part in message.parts if isinstance(part, TextPart)]
            found |= {(session.id, message.id, position, text) for position, text in enumerate(texts)}
        for turn, run in enumerate(await store.runs.list(session.id)):
            if run.status == "finished":
                found.add((session.id, "run", turn, run.id))
    return found


async def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(place: Place) -> None:
    chance = random.Random(20)
    acknowledged: set[tuple[str, str, int, str]] = set()
    for kill in range(KILLS):
        lines = write_and_kill(place, name=f"k{kill}", lines=chance.randrange(LINES))
        acknowledged |= {
            (session, message, int(position), text) for session, message, position, text in lines
        }
        async with await place.open() as store:
            check(place)
            assert acknowledged - await stored_parts(store) == set()
    assert len(acknowledged) > KILLS
