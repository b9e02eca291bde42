"""Triggers of teams in the database, and their occurrences: each is written once, whichever host notices it.

An occurrence is inserted in the transaction that updates its trigger, then decided upon (does another one
of the trigger still run?), then its task is submitted. A crash leaves a state that any host picks up:

    pending ─► starting ─► running ─► done | failed | cancelled
       ├─► queued, waiting (for an approval) ─► starting
       └─► skipped
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec

from dragoman.errors import ConfigError, Conflict, LimitReached, NotFound
from dragoman.store.connection import DatabaseConnection, Params, to_params, to_struct
from dragoman.store.database import Database
from dragoman.store.encryption import FolderKey, MasterKey
from dragoman.store.hub_events import HubEventRepository, NewEvent
from dragoman.store.teams.trigger_records import (
    Decision,
    OccurrenceEnding,
    OccurrenceState,
    OverlapAction,
    PeriodLimits,
    PeriodUse,
    TriggerOccurrence,
    TriggerRecord,
    TriggerState,
)
from dragoman.store.teams.trigger_secrets import decrypt_secret, encrypt_secret
from dragoman.store.teams.trigger_statements import TriggerStatements, page_params, select_page
from dragoman.store.webhook_deliveries import WebhookDelivery, WebhookDeliveryRepository

__all__ = ["OccurrenceState", "TriggerOccurrence", "TriggerRecord", "TriggerRepository", "TriggerState"]

DecideOverlap: TypeAlias = Callable[[int, int], OverlapAction]
"""Decides from how many occurrences of the trigger are active, and how many have overlapped in a row."""
NEXT_STATES: Mapping[OverlapAction, OccurrenceState] = {
    "start": "starting",
    "replace": "queued",
    "skip": "skipped",
    "queue": "queued",
    "confirm": "waiting",
}
REPLACED = "replaced by the next occurrence of its trigger"
BODY_SECONDS = 86_400.0
"""For how long a body that was signed without a time fires once, whatever id it is sent with."""
MAX_WAIT = 120.0  # seconds until an open occurrence is handled again, at most
LEASE = 30.0  # seconds that one host has to submit the task of an occurrence
FAR_FUTURE = 1e18
MAX_QUEUED = 100  # occurrences of a trigger that wait for an earlier one


class TriggerRepository:
    """All triggers and occurrences. Who may see them is the caller's concern.

    Secrets of webhooks are encrypted like the headers of MCP servers: with the key of the data folder or,
    where hosts share a database, with the master key.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float],
        events: HubEventRepository,
        webhooks: WebhookDeliveryRepository,
        folder_key: FolderKey,
        master_key: MasterKey | None = None,
    ) -> None:
        self.now = clock
        self._database = database
        self._events = events
        self._webhooks = webhooks
        self._folder_key = folder_key
        self._master_key = master_key

    @cached_property
    def _sql(self) -> TriggerStatements:
        return self._database.statements(TriggerStatements)

    # ---- triggers

    async def create(self, trigger: TriggerRecord, *, limit: int) -> None:
        """Insert a trigger. Raises Conflict for a name that the team has, LimitReached above the limit."""
        params = to_params(await self._sealed(trigger))

        def job(connection: DatabaseConnection) -> None:
            connection.lock(f"triggers of {trigger.owner}")
            row = connection.fetch_one(self._sql.count, {"owner": trigger.owner})
            if row is not None and row[0] >= limit:
                hint = "delete some: `dragoman triggers remove ID`"
                raise LimitReached(f"the owner {trigger.owner!r} has {limit} triggers", hint=hint)
            if not connection.execute(self._sql.insert, params):
                raise Conflict(f"the team {trigger.team!r} has a trigger {trigger.name!r} already")

        await self._database.write(job)

    async def get(self, id: str) -> TriggerRecord:
        """Return a trigger, with its secret in plain text. Raises NotFound."""
        found = await self._read(self._sql.get, {"id": id})
        if not found:
            raise NotFound(f"there is no trigger {id!r}", hint="`dragoman triggers list` lists them")
        return found[0]

    async def find(self, team: str, name: str, *, owner: str | None) -> TriggerRecord:
        """Return the trigger of a team by its name; of any owner for None. Raises NotFound, Conflict."""
        params = {"team": team, "name": name, "owner": owner}
        found = await self._read(self._sql.find if owner is None else self._sql.find_owned, params)
        if not found:
            raise NotFound(f"the team {team!r} has no trigger {name!r}", hint="`triggers.list` lists them")
        if len(found) > 1:
            raise Conflict(f"several owners have a trigger {name!r} of the team {team!r}", hint="use its id")
        return found[0]

    async def list(
        self, *, after: TriggerRecord | None = None, limit: int = 1_000, **filters: str | None
    ) -> Sequence[TriggerRecord]:
        """Return triggers by team and name, without secrets; see `page_params`."""
        params = page_params(filters, after=after, limit=limit)
        sql = self._database.query_sql(select_page, frozenset(params))
        return await self._read_sealed(sql, params)

    async def list_active(self, types: Sequence[str]) -> Sequence[TriggerRecord]:
        """Return the active triggers of these types."""
        rows: list[TriggerRecord] = []
        for type in types:
            rows += await self._read(self._sql.active, {"type": type})
        return rows

    async def list_of_files(self) -> Sequence[TriggerRecord]:
        """Return the triggers that people have written in files, without secrets."""
        return await self._read_sealed(self._sql.of_files, {})

    async def list_for_approval(self) -> Sequence[TriggerRecord]:
        """Return the pending triggers whose activation somebody is asked to approve, without secrets."""
        return await self._read_sealed(self._sql.for_approval, {})

    async def update(self, id: str, **changes: Any) -> None:
        """Change columns of a trigger. Raises NotFound."""
        sealed = changes | {"updated_at": self.now()}
        if changes.get("secret") is not None:
            sealed["secret"] = await asyncio.to_thread(self._encrypt, id, changes["secret"])
        sql = self._sql.update(tuple(sorted(sealed)))
        params = {f"new_{name}": value for name, value in sealed.items()} | {"id": id}
        if not await self._database.write(lambda connection: connection.execute(sql, params)):
            raise NotFound(f"there is no trigger {id!r}")

    async def activate(self, trigger: TriggerRecord, **changes: Any) -> None:
        """Activate a trigger with the definition that the caller has seen, and change columns of it.

        Raises Conflict when it has another one or another state by now, or is gone.
        """
        if not await self.update_seen(trigger, state="active", **changes):
            raise Conflict(f"the trigger {trigger.name!r} was changed meanwhile", hint="review it again")

    async def update_seen(self, trigger: TriggerRecord, **changes: Any) -> bool:
        """Change columns of a trigger if its definition, state and approval are still those of `trigger`."""
        changed = changes | {"updated_at": self.now()}
        sql = self._sql.update_seen(tuple(sorted(changed)))
        params = {f"new_{name}": value for name, value in changed.items()}
        params |= {"id": trigger.id, "hash": trigger.hash, "state": trigger.state}
        params["approval"] = trigger.approval_id or ""
        return await self._database.write(lambda connection: connection.execute(sql, params)) > 0

    async def delete(self, id: str) -> bool:
        """Delete a trigger with its history; False when there is none."""
        return await self._database.write(
            lambda connection: connection.execute(self._sql.delete, {"id": id}) > 0
        )

    async def list_due(self, now: float, *, limit: int = 100) -> Sequence[TriggerRecord]:
        """Return active triggers that are due, those due for longest first."""
        return await self._read(self._sql.due, {"now": now, "limit": limit})

    async def next_due(self) -> float | None:
        """Return when the next trigger or occurrence is due; None when none is."""

        def job(connection: DatabaseConnection) -> float | None:
            rows = [connection.fetch_one(sql, {}) for sql in (self._sql.next_trigger, self._sql.next_open)]
            return min((row[0] for row in rows if row is not None and row[0] is not None), default=None)

        return await self._database.read(job)

    # ---- occurrences

    async def fire(
        self,
        trigger: TriggerRecord,
        occurrences: Sequence[TriggerOccurrence],
        *,
        limits: PeriodLimits | None = None,
        **changes: Any,
    ) -> Sequence[TriggerOccurrence]:
        """Insert occurrences that are not stored yet, and change columns of the trigger; return the new ones.

        Nothing happens unless the trigger is active, with the definition and the time that the caller has
        seen, nor for a body of a webhook that is repeated. `limits` hold for the period of the occurrences:
        what exceeds them is inserted as skipped.
        """
        sql = self._sql.move(tuple(sorted(changes)))
        seen = {"id": trigger.id, "hash": trigger.hash, "seen": trigger.next_at or 0.0}
        moved = {f"new_{name}": value for name, value in changes.items()} | seen

        def job(connection: DatabaseConnection) -> Sequence[TriggerOccurrence]:
            connection.lock(f"trigger {trigger.id}")
            if not connection.execute(sql, moved):
                return ()
            if any(self._is_same_body(connection, each) for each in occurrences):
                return ()
            return self._insert(connection, occurrences, limits=limits)

        return await self._database.write(job)

    def _is_same_body(self, connection: DatabaseConnection, occurrence: TriggerOccurrence) -> bool:
        return occurrence.window != occurrence.period and self._find_body(connection, occurrence) is not None

    def _find_body(
        self, connection: DatabaseConnection, occurrence: TriggerOccurrence
    ) -> TriggerOccurrence | None:
        since = occurrence.created_at - BODY_SECONDS
        params = {"trigger_id": occurrence.trigger_id, "period": occurrence.period, "since": since}
        row = connection.fetch_one(self._sql.recent, params)
        return None if row is None else to_struct(TriggerOccurrence, row)

    async def find_repeated(self, occurrence: TriggerOccurrence) -> TriggerOccurrence | None:
        """Return the stored occurrence of the key or, lately, of the signed body of this one."""
        stored = await self.get_occurrence(occurrence.trigger_id, occurrence.key)
        if stored is not None or occurrence.window == occurrence.period:
            return stored
        return await self._database.read(lambda connection: self._find_body(connection, occurrence))

    async def fire_now(self, occurrence: TriggerOccurrence) -> None:
        """Insert an occurrence that a person or a call asks for, whatever the state of the trigger is."""
        await self._database.write(lambda connection: self._insert(connection, [occurrence], limits=None))

    def _insert(
        self,
        connection: DatabaseConnection,
        occurrences: Sequence[TriggerOccurrence],
        *,
        limits: PeriodLimits | None,
    ) -> Sequence[TriggerOccurrence]:
        inserted = []
        for each in occurrences:
            wanted = each if limits is None else self._limited(connection, each, limits=limits)
            if connection.execute(self._sql.insert_occurrence, to_params(wanted)):
                inserted.append(wanted)
        for id in {each.trigger_id for each in inserted}:
            fired = {"id": id, "new_fired_at": self.now()}
            connection.execute(self._sql.update(("fired_at",)), fired)
        return inserted

    def _limited(
        self, connection: DatabaseConnection, occurrence: TriggerOccurrence, *, limits: PeriodLimits
    ) -> TriggerOccurrence:
        reached = self._use(connection, occurrence).exceeds(limits)
        if reached is None:
            return occurrence
        return msgspec.structs.replace(
            occurrence,
            state="skipped",
            error=f"the window has used its {reached}",
            next_at=None,
            ended_at=self.now(),
        )

    def _use(self, connection: DatabaseConnection, occurrence: TriggerOccurrence) -> PeriodUse:
        params = {"trigger_id": occurrence.trigger_id, "period": occurrence.period}
        return to_use(connection.fetch_one(self._sql.use, params))

    async def period_use(self, trigger_id: str, period: str) -> PeriodUse:
        """Return what was used in a period."""
        params = {"trigger_id": trigger_id, "period": period}
        return to_use(
            await self._database.read(lambda connection: connection.fetch_one(self._sql.use, params))
        )

    async def decide(
        self, occurrence: TriggerOccurrence, decide_overlap: DecideOverlap, *, usd: float | None = None
    ) -> Decision | None:
        """Decide whether a pending, queued or confirmed occurrence starts; None when another host has.

        The trigger is locked, so that of two that are decided at the same time the second sees the first.
        `usd` is what all of its period may spend; what active ones may still spend is subtracted.
        """
        place = {"trigger_id": occurrence.trigger_id, "key": occurrence.key}

        def job(connection: DatabaseConnection) -> Decision | None:
            connection.lock(f"trigger {occurrence.trigger_id}")
            row = connection.fetch_one(self._sql.overlaps, place)
            if row is None:
                return None
            found = connection.fetch_all(self._sql.active_occurrences, place)
            active = [to_struct(TriggerOccurrence, each) for each in found]
            action = decide_overlap(len(active), row[0])
            counted = connection.fetch_one(self._sql.count_queued, place)
            if action == "queue" and counted is not None and counted[0] >= MAX_QUEUED:
                action = "skip"
            left = None if usd is None else self._left(connection, occurrence, usd=usd)
            freed = sum(each.usd_limit or 0.0 for each in active) if action == "replace" else 0.0
            if left is not None and left + freed <= 0.0 and action in ("start", "replace"):
                action = "skip"
            if not self._move(connection, occurrence, action=action, usd_limit=left):
                return None
            if action == "replace":  # it counts once it starts; until then, it may have to replace them again
                self._replace_queued(connection, occurrence)
                return Decision(action, active)
            overlaps = row[0] + 1 if active else 0
            changes = {"id": occurrence.trigger_id, "new_overlaps": overlaps}
            connection.execute(self._sql.update(("overlaps",)), changes)
            return Decision(action, active, usd_limit=left)

        return await self._database.write(job)

    def _replace_queued(self, connection: DatabaseConnection, occurrence: TriggerOccurrence) -> None:
        """End the other occurrences that have waited for the same ones: this one takes their place."""
        params = {"trigger_id": occurrence.trigger_id, "key": occurrence.key, "now": self.now()}
        connection.execute(self._sql.replace_queued, {**params, "why": REPLACED})

    def _left(self, connection: DatabaseConnection, occurrence: TriggerOccurrence, *, usd: float) -> float:
        use = self._use(connection, occurrence)
        return usd - use.usd - use.reserved

    def _move(
        self,
        connection: DatabaseConnection,
        occurrence: TriggerOccurrence,
        *,
        action: OverlapAction,
        usd_limit: float | None,
    ) -> bool:
        now, state, is_skipped = self.now(), NEXT_STATES[action], action == "skip"
        changes: dict[str, Any] = {
            "state": state,
            "next_at": None if is_skipped else now + LEASE,
            "ended_at": now if is_skipped else None,
            "error": "another task of the trigger was still running" if is_skipped else None,
            "usd_limit": usd_limit if state == "starting" else None,
        }
        return self._change(connection, occurrence, changes=changes)

    async def change(self, occurrence: TriggerOccurrence, **changes: Any) -> bool:
        """Change columns of an occurrence; False when its state is not the given one any more."""
        return await self._database.write(lambda each: self._change(each, occurrence, changes=changes))

    def _change(
        self, connection: DatabaseConnection, occurrence: TriggerOccurrence, *, changes: Mapping[str, Any]
    ) -> bool:
        sql = self._sql.change(tuple(sorted(changes)))
        params = {f"new_{name}": value for name, value in changes.items()}
        params |= {"trigger_id": occurrence.trigger_id, "key": occurrence.key, "state": occurrence.state}
        return connection.execute(sql, params) > 0

    async def get_occurrence(self, trigger_id: str, key: str) -> TriggerOccurrence | None:
        """Return an occurrence."""
        found = await self._occurrences(self._sql.occurrence, {"trigger_id": trigger_id, "key": key})
        return found[0] if found else None

    async def find_by_task(self, task_id: str) -> TriggerOccurrence | None:
        """Return the occurrence that a task belongs to."""
        found = await self._occurrences(self._sql.of_task, {"task_id": task_id})
        return found[0] if found else None

    async def realign(self) -> None:
        """Make occurrences due now that would be handled too late, because the clock was set back."""
        params = {"now": self.now(), "latest": self.now() + MAX_WAIT}
        await self._database.write(lambda connection: connection.execute(self._sql.realign, params))

    async def list_open(self, now: float, *, limit: int = 200) -> Sequence[TriggerOccurrence]:
        """Return the occurrences that have to be handled now."""
        return await self._occurrences(self._sql.open, {"now": now, "limit": limit})

    async def next_queued(self, trigger_id: str) -> TriggerOccurrence | None:
        """Return the first occurrence of a trigger that waits for an earlier one."""
        found = await self._occurrences(self._sql.queued, {"trigger_id": trigger_id})
        return found[0] if found else None

    async def list_working(self, trigger_id: str, *, since: float) -> Sequence[TriggerOccurrence]:
        """Return the occurrences whose tasks have not ended, or since a time, oldest first."""
        return await self._occurrences(self._sql.working, {"trigger_id": trigger_id, "since": since})

    async def history(
        self, trigger_id: str, *, before: float | None = None, limit: int = 50
    ) -> Sequence[TriggerOccurrence]:
        """Return occurrences of a trigger, newest first."""
        until = FAR_FUTURE if before is None else before
        params = {"trigger_id": trigger_id, "limit": limit, "before": until}
        return await self._occurrences(self._sql.history, params)

    async def settle(
        self,
        occurrence: TriggerOccurrence,
        ending: OccurrenceEnding,
        *,
        threshold: int | None,
        delivery: WebhookDelivery | Literal["session"] | None = None,
        notice: Callable[[str], NewEvent] | None = None,
    ) -> str | None:
        """Write how a task ended, once, and count failures in a row; `threshold` of them disable the trigger.

        Returns why it was disabled, or None. The event that `notice` makes of that, and the `delivery` of the
        result, are written in the same transaction. Raises Conflict if the end was written before.
        """

        def job(connection: DatabaseConnection) -> str | None:
            connection.lock(f"trigger {occurrence.trigger_id}")
            if not self._change(connection, occurrence, changes=to_params(ending) | {"next_at": None}):
                raise Conflict("the end of this occurrence was written before")
            if isinstance(delivery, WebhookDelivery):
                self._webhooks.insert(connection, delivery)
            elif delivery == "session":
                connection.execute(self._sql.deliver_task, {"task_id": occurrence.task_id})
            return self._count_failures(connection, occurrence, ending=ending, limit=threshold, notice=notice)

        reason = await self._database.write(job)
        if reason is not None:
            self._events.on_stored()
        return reason

    def _count_failures(
        self,
        connection: DatabaseConnection,
        occurrence: TriggerOccurrence,
        *,
        ending: OccurrenceEnding,
        limit: int | None,
        notice: Callable[[str], NewEvent] | None,
    ) -> str | None:
        row = connection.fetch_one(self._sql.failures, {"id": occurrence.trigger_id})
        if row is None or ending.state == "cancelled":
            return None
        failures = row[0] + 1 if ending.state == "failed" else 0
        changes: dict[str, Any] = {"failures": failures, "result_at": ending.ended_at}
        reason = None
        if limit is not None and failures >= limit and row[1] == "active":
            reason = f"it failed {failures} times in a row, the last time: {ending.error}"[:500]
            changes |= {"state": "disabled", "reason": reason, "next_at": None}
            if notice is not None:
                self._events.insert(connection, notice(reason))
        sql = self._sql.update(tuple(sorted(changes)))
        named = {f"new_{name}": value for name, value in changes.items()}
        connection.execute(sql, named | {"id": occurrence.trigger_id})
        return reason

    async def purge(self, *, before: float) -> int:
        """Delete the occurrences that ended before a time."""
        return await self._database.write(
            lambda connection: connection.execute(self._sql.purge, {"before": before})
        )

    # ---- reading and secrets

    async def _read(self, sql: str, params: Params) -> Sequence[TriggerRecord]:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        found = [to_struct(TriggerRecord, row) for row in rows]
        return [each if each.secret is None else await self._opened(each) for each in found]

    async def _read_sealed(self, sql: str, params: Params) -> Sequence[TriggerRecord]:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [msgspec.structs.replace(to_struct(TriggerRecord, row), secret=None) for row in rows]

    async def _occurrences(self, sql: str, params: Params) -> Sequence[TriggerOccurrence]:
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_struct(TriggerOccurrence, row) for row in rows]

    async def _sealed(self, trigger: TriggerRecord) -> TriggerRecord:
        if trigger.secret is None:
            return trigger
        sealed = await asyncio.to_thread(self._encrypt, trigger.id, trigger.secret)
        return msgspec.structs.replace(trigger, secret=sealed)

    async def _opened(self, trigger: TriggerRecord) -> TriggerRecord:
        secret = await asyncio.to_thread(self._decrypt, trigger)
        return msgspec.structs.replace(trigger, secret=secret)

    def _encrypt(self, id: str, secret: str) -> str:
        key = self._master_key or self._folder_key.read_or_create()
        return encrypt_secret(id, secret, key=key)

    def _decrypt(self, trigger: TriggerRecord) -> str:
        keys = [self._master_key]
        with suppress(ConfigError):
            keys.append(self._folder_key.read())
        return decrypt_secret(trigger, keys)


def to_use(row: Any) -> PeriodUse:
    ticks, tokens, usd, reserved = row or (0, 0, 0.0, 0.0)
    return PeriodUse(ticks or 0, int(tokens or 0), float(usd or 0.0), float(reserved or 0.0))
