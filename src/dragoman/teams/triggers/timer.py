"""The timer of all triggers: one per hub, however many there are. It sleeps until the next one is due.

Every host of a database has one. Two that fire at once insert the same occurrence, and one of them wins. The
timer wakes at least every `MAX_SLEEP`, since the clock may have been set, and another host may have changed
what is due. When the clock was set back, due times are computed again; what has fired already does not fire
again, because its occurrence exists.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dragoman.errors import BadRequest, DragomanError, NotFound, StoreError, Unavailable
from dragoman.offload import offload
from dragoman.store.settled_clock import SettledClock
from dragoman.store.teams.task_records import TeamTask
from dragoman.store.teams.triggers import TriggerOccurrence, TriggerRecord
from dragoman.teams.schedule import due_occurrences, find_zone, occurrence_key, tick_key, window_at
from dragoman.teams.trigger_spec import ScheduleConfig, WindowConfig, parse_tick
from dragoman.teams.triggers.occurrence_input import occurrence_input, to_iso
from dragoman.teams.triggers.occurrence_lifecycle import TriggerFiring, period_limits
from dragoman.teams.triggers.service import (
    TriggerService,
    next_tick_time,
    next_time,
    next_window_start,
    read_definition,
)

log = logging.getLogger(__name__)
MAX_SLEEP = 30.0  # seconds
RETRY_INTERVAL = 1.0  # seconds after the database was down
APPROVAL_INTERVAL = 2.0  # seconds between two polls for approvals that were answered at other hosts
CLOCK_TOLERANCE = 2.0  # seconds by which the clock may be set back unnoticed
PURGE_INTERVAL = 86_400.0
RETENTION = 90 * 86_400.0  # seconds for which an occurrence is stored
AT_ONCE = 100  # triggers or occurrences in one tick
OCCURRENCE_SIZE = 1_000  # computing an occurrence takes as long as decoding this many bytes


class TriggerTimer:
    """Fires due triggers, and takes their occurrences through their lifecycle."""

    def __init__(
        self,
        service: TriggerService,
        firing: TriggerFiring,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._triggers = service.triggers
        self._database = service.store.database
        self._firing = firing
        self._monotonic = monotonic
        self._woken = asyncio.Event()
        self._clock_offset: float | None = None
        self._approvals_wait = True
        self._settled_clock = SettledClock(
            service.triggers.now, monotonic=monotonic, ahead=service.store.clock_ahead
        )
        self._purged_at: float | None = None
        self._ended: deque[TeamTask] = deque(maxlen=1_000)

    def wake(self) -> None:
        """Run a tick now."""
        self._woken.set()

    def approvals_may_wait(self) -> None:
        """Look for approvals that activate triggers."""
        self._approvals_wait = True

    def task_ended(self, task: TeamTask) -> None:
        """Look after the occurrence whose task this host has ended."""
        if task.source == "trigger":
            self._ended.append(task)
            self.wake()

    async def run(self) -> None:
        """Fire what is due, until cancelled."""
        while True:
            delay = RETRY_INTERVAL
            try:
                if self._database.is_up:
                    await self.tick()
                    delay = await self._delay()
            except (StoreError, Unavailable) as error:
                log.info("triggers fire later: %s", error.message)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._woken.wait()
            self._woken.clear()

    async def tick(self) -> None:
        """Do all that is due now. Raises StoreError, Unavailable."""
        if self._clock_was_set_back():
            await self.realign()
        if self._approvals_wait:
            self._approvals_wait = await self._service.apply_approvals()
        while self._ended:
            with suppress(NotFound):  # the trigger was deleted just now
                await self._firing.task_ended(self._ended.popleft())
        now = self._triggers.now()
        for trigger in await self._triggers.list_due(now, limit=AT_ONCE):
            await self._fire(trigger)
        for occurrence in await self._triggers.list_open(self._triggers.now(), limit=AT_ONCE):
            await self._handle(occurrence)
        await self._firing.notices.deliver()
        passed = self._monotonic()
        if self._purged_at is None or passed > self._purged_at + PURGE_INTERVAL:
            self._purged_at = passed
            if self._settled_clock.is_settled():
                await self._triggers.purge(before=now - RETENTION)

    async def realign(self) -> None:
        """Compute again what is due next where that is too far away, because the clock was set back."""
        await self._triggers.realign()
        now = self._triggers.now()
        for trigger in await self._triggers.list_active(("schedule", "window")):
            await asyncio.sleep(0)  # a thousand of them would hold the event loop
            with suppress(BadRequest, NotFound):
                expected = next_time(read_definition(trigger), now)
                if trigger.next_at is None or (expected is not None and expected < trigger.next_at):
                    await self._triggers.update(trigger.id, next_at=expected)

    def _clock_was_set_back(self) -> bool:
        """Return whether the clock was set back since the last tick; True at the first one."""
        offset, last = self._triggers.now() - self._monotonic(), self._clock_offset
        self._clock_offset = offset
        return last is None or offset < last - CLOCK_TOLERANCE

    async def _delay(self) -> float:
        due = await self._triggers.next_due()
        longest = APPROVAL_INTERVAL if self._approvals_wait else MAX_SLEEP
        return longest if due is None else min(longest, max(0.0, due - self._triggers.now()))

    async def _handle(self, occurrence: TriggerOccurrence) -> None:
        try:
            await self._firing.handle(occurrence)
        except (StoreError, Unavailable):
            raise
        except DragomanError as error:
            log.info(
                "the occurrence %s of %s waits: %s", occurrence.key, occurrence.trigger_id, error.message
            )
            later = self._triggers.now() + MAX_SLEEP
            await self._triggers.change(occurrence, next_at=later)

    async def _fire(self, trigger: TriggerRecord) -> None:
        """Insert the occurrences of a trigger that is due, and set when it is due next."""
        try:
            definition = read_definition(trigger)
            match definition.config:
                case ScheduleConfig() as config:
                    await self._fire_schedule(trigger, config)
                case WindowConfig() as config:
                    await self._fire_tick(trigger, config)
                case _:
                    await self._triggers.update(trigger.id, next_at=None)
        except BadRequest as error:  # a time zone that is not there any more
            log.warning("the trigger %s is disabled: %s", trigger.id, error.message)
            with suppress(NotFound):
                await self._service.disable(trigger, error.message)
        except NotFound:
            log.debug("the trigger %s was deleted while it was due", trigger.id)

    async def _fire_schedule(self, trigger: TriggerRecord, config: ScheduleConfig) -> None:
        now, zone = self._triggers.now(), find_zone(config.zone)
        first = now if trigger.next_at is None else trigger.next_at
        find = partial(due_occurrences, config.cron, first, now=now, zone=zone, missed=config.missed)
        due = await offload(OCCURRENCE_SIZE * int(max(0.0, now - first) // 60), find)
        occurrences = [
            self._occurrence(trigger, occurrence_key(each.at), at=each.at, missedCount=each.missed_count)
            for each in due
        ]
        next_at = next_time(read_definition(trigger), now)
        await self._triggers.fire(trigger, occurrences, next_at=next_at)

    async def _fire_tick(self, trigger: TriggerRecord, config: WindowConfig) -> None:
        now, tick = self._triggers.now(), parse_tick(config.tick)
        window = window_at(config.during, now, zone=find_zone(config.zone))
        next_at = next_tick_time(config, now)
        occurrences: Sequence[TriggerOccurrence] = ()
        if window is not None:
            key = tick_key(window, now, tick=tick)
            shown = {"start": to_iso(window.start), "end": to_iso(window.end)}
            at = window.start + (now - window.start) // tick * tick
            period = occurrence_key(window.start)
            occurrences = [self._occurrence(trigger, key, at=at, period=period, window=shown)]
        limits = period_limits(read_definition(trigger))
        fired = await self._triggers.fire(trigger, occurrences, limits=limits, next_at=next_at)
        if any(each.state == "skipped" for each in fired):
            # The window's limits are used up, so the next tick that can begin is in the next window.
            await self._triggers.update(trigger.id, next_at=next_window_start(config, now))

    def _occurrence(
        self, trigger: TriggerRecord, key: str, *, at: float, period: str | None = None, **details: Any
    ) -> TriggerOccurrence:
        now = self._triggers.now()
        return TriggerOccurrence(
            trigger_id=trigger.id,
            key=key,
            due_at=at,
            created_at=now,
            next_at=now,
            period=period,
            input=occurrence_input(trigger, due_at=at, **details),
        )
