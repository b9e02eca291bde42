"""How runs end: the final values of their row, and the event of their end."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from dragoman.events import Usage
from dragoman.store.hub_events import NewEvent

FinalStatus: TypeAlias = Literal["finished", "failed", "stopped", "interrupted"]


class RunEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    status: FinalStatus
    finished_at: float
    finish_reason: str | None = None
    error: str | None = None
    steps: int = 0
    usage: Usage | None = None
    cost: float | None = None


class EndedRun(NamedTuple):
    """The fields of a run's row that the event of its end needs."""

    session_id: str
    message_id: str
    owner: str
    key_id: str | None
    webhook: str | None


def run_ended(id: str, run: EndedRun, *, ending: RunEnding) -> NewEvent:
    """Return the event of the end of a run."""
    body = {
        "runId": id,
        "messageId": run.message_id,
        "status": ending.status,
        "finishReason": ending.finish_reason,
        "error": ending.error,
        "steps": ending.steps,
    }
    data = msgspec.json.encode(body).decode()
    return NewEvent(
        name="run.ended", owner=run.owner, session_id=run.session_id, data=data, key_id=run.key_id
    )
