"""Sample sessions, runs and messages."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.messages import Message, TextPart, encode_part
from dragoman.store.hosts.queued_runs import QueuedRun
from dragoman.store.runs import RunRecord
from dragoman.store.sessions.run_ends import RunEnding
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store

FINISHED = RunEnding(status="finished", finished_at=9.0)


def session(id: str = "s", *, owner: str = "ann", at: float = 1.0, **fields: Any) -> Session:
    return Session(id=id, owner=owner, created_at=at, updated_at=at, **fields)


def run(id: str = "r", *, session_id: str = "s", message_id: str = "a", at: float = 1.0) -> RunRecord:
    return RunRecord(id=id, session_id=session_id, message_id=message_id, owner="ann", started_at=at)


def without_host(stored: RunRecord | None) -> RunRecord | None:
    """The record of a run without the host that executes it, which Postgres has."""
    return None if stored is None else msgspec.structs.replace(stored, host=None)


def user(id: str, *texts: str) -> Message:
    return Message(id=id, role="user", parts=tuple(TextPart(text=text) for text in texts))


def assistant(id: str = "a", *texts: str) -> Message:
    return Message(id=id, role="assistant", parts=tuple(TextPart(text=text) for text in texts))


def text(value: str) -> bytes:
    return encode_part(TextPart(text=value))


async def converse(store: Store, *questions: str, session_id: str = "s", **session_fields: Any) -> None:
    """A session in which each question was asked and answered with "yes"."""
    for index, question in enumerate(questions):
        answer = f"a{index}"
        stored = await store.sessions.get(session_id)
        await store.runs.create(
            run(f"{session_id}-r{index}", session_id=session_id, message_id=answer, at=float(index)),
            session=stored or session(session_id, **session_fields),
            user=user(f"u{index}", question),
            assistant=assistant(answer),
        )
        yes = store.messages.write_parts_job(session_id, answer, changed=[(0, text("yes"))])
        await store.runs.finish(f"{session_id}-r{index}", FINISHED, extra_job=yes)


def queued(session_id: str) -> QueuedRun:
    """A message that waits in a session."""
    return QueuedRun(
        id=session_id,
        session_id=session_id,
        owner="ann",
        message_id="u9",
        mode="queue",
        rank=2,
        body="{}",
        created_at=10.0,
    )
