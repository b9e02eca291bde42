"""Triggers and their occurrences as the database has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

OverlapAction: TypeAlias = Literal["start", "skip", "queue", "replace", "confirm"]
TriggerState: TypeAlias = Literal["pending", "active", "disabled"]
OccurrenceState: TypeAlias = Literal[
    "pending", "queued", "waiting", "starting", "running", "done", "failed", "cancelled", "skipped"
]
BODY_PERIOD = "body:"
"""How a period begins that names a signed body."""


class TriggerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger. `body` is its definition as JSON, `hash` the hash of that; a person activates one hash.

    `owner` and `key_id` are the identity of its tasks: "" for a trigger of a file that nobody has
    activated yet. `secret` signs its webhooks. `next_at` is when it is due. `progress` is how far its
    messages or files were read, `cursor` what its tasks pass to the next. `failures` and `overlaps` count
    those in a row.
    """

    id: str
    owner: str
    team: str
    name: str
    type: str
    body: str
    hash: str
    created_at: float
    updated_at: float
    key_id: str | None = None
    source: str = "api"
    secret: str | None = None
    state: TriggerState = "pending"
    reason: str | None = None
    approval_id: str | None = None
    session_id: str | None = None
    next_at: float | None = None
    cursor: str | None = None
    progress: str | None = None
    failures: int = 0
    overlaps: int = 0
    fired_at: float | None = None
    result_at: float | None = None

    def __repr__(self) -> str:
        return f"TriggerRecord({self.id!r}, {self.team!r}, {self.name!r}, {self.state!r})"


class TriggerOccurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One occurrence of a trigger; `key` names it, the same at every host.

    `due_at` is when it was due, `input` what its task gets as JSON. `period` is the window that it counts in;
    for a webhook whose signature has no time, it names the signed body.
    `next_at` is when to handle it again. `result` is the beginning of the task's result.
    """

    trigger_id: str
    key: str
    due_at: float
    created_at: float
    state: OccurrenceState = "pending"
    period: str | None = None
    input: str = "{}"
    task_id: str | None = None
    approval_id: str | None = None
    next_at: float | None = None
    usd_limit: float | None = None
    tokens: int | None = None
    cost: float | None = None
    result: str | None = None
    error: str | None = None
    ended_at: float | None = None

    @property
    def window(self) -> str | None:
        """The window that it counts in."""
        return None if self.period is None or self.period.startswith(BODY_PERIOD) else self.period


class PeriodLimits(msgspec.Struct, frozen=True):
    """What a trigger may use in one period, such as a window; None means no limit."""

    ticks: int | None = None
    tokens: int | None = None
    usd: float | None = None


class PeriodUse(msgspec.Struct, frozen=True):
    """What the occurrences of a period have used; `reserved` is what active ones may still spend."""

    ticks: int
    tokens: int
    usd: float
    reserved: float

    def exceeds(self, limits: PeriodLimits) -> str | None:
        """Return which limit is reached, as text; None if none is."""
        reached = {
            f"{limits.ticks} ticks": limits.ticks is not None and self.ticks >= limits.ticks,
            f"{limits.tokens} tokens": limits.tokens is not None and self.tokens >= limits.tokens,
            f"{limits.usd} USD": limits.usd is not None and self.usd >= limits.usd,
        }
        return next((text for text, is_reached in reached.items() if is_reached), None)


class Decision(msgspec.Struct, frozen=True):
    """What was decided about an occurrence, what it may spend, and which others were active."""

    action: OverlapAction
    active: Sequence[TriggerOccurrence] = ()
    usd_limit: float | None = None


class OccurrenceEnding(msgspec.Struct, frozen=True, kw_only=True):
    """How the task of an occurrence ended."""

    state: OccurrenceState
    ended_at: float
    tokens: int | None = None
    cost: float | None = None
    result: str | None = None
    error: str | None = None
