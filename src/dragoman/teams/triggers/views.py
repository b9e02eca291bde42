"""Triggers and occurrences as JSON for the API and the operations, without secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.session_ids import session_id_for
from dragoman.store.teams.triggers import TriggerOccurrence, TriggerRecord
from dragoman.teams.triggers.occurrence_input import to_iso

HOOK_PATH = "/hooks/triggers/"


def trigger_to_json(trigger: TriggerRecord) -> dict[str, Any]:
    """Return a trigger with its definition."""
    definition: dict[str, Any] = msgspec.json.decode(trigger.body)
    body: dict[str, Any] = {
        "id": trigger.id,
        "team": trigger.team,
        "name": trigger.name,
        "owner": trigger.owner,
        "source": trigger.source,
        "state": trigger.state,
        "reason": trigger.reason,
        "approval": trigger.approval_id,
        **{name: value for name, value in definition.items() if value is not None},
        "session": session_id_for(trigger.owner, trigger.session_id),
        "hook": f"{HOOK_PATH}{trigger.id}" if trigger.type == "webhook" else None,
        "cursor": None if trigger.cursor is None else msgspec.json.decode(trigger.cursor),
        "failures": trigger.failures,
        "createdAt": to_iso(trigger.created_at),
        "nextAt": to_optional_iso(trigger.next_at),
        "lastFiredAt": to_optional_iso(trigger.fired_at),
        "lastResultAt": to_optional_iso(trigger.result_at),
    }
    return {name: value for name, value in body.items() if value is not None}


def occurrence_to_json(occurrence: TriggerOccurrence) -> dict[str, Any]:
    """Return an occurrence as JSON."""
    body: dict[str, Any] = {
        "trigger": occurrence.trigger_id,
        "occurrence": occurrence.key,
        "state": occurrence.state,
        "dueAt": to_iso(occurrence.due_at),
        "firedAt": to_iso(occurrence.created_at),
        "endedAt": to_optional_iso(occurrence.ended_at),
        "window": occurrence.window,
        "task": occurrence.task_id,
        "approval": occurrence.approval_id,
        "tokens": occurrence.tokens,
        "cost": occurrence.cost,
        "result": occurrence.result,
        "error": occurrence.error,
    }
    return {name: value for name, value in body.items() if value is not None}


def firings_to_json(times: Sequence[float]) -> list[str]:
    """Return times as texts."""
    return [to_iso(at) for at in times]


def to_optional_iso(at: float | None) -> str | None:
    """Return a time as a text; None for none."""
    return None if at is None else to_iso(at)
