"""The log of events of a hub: publish an event, and follow what is published, here and at other hosts.

Stored events are always read from the database, once for all followers of this process, so a follower misses
none, whichever process wrote it: the log is read when this process has committed an event, and otherwise
every `POLL_INTERVAL` seconds while there are followers. A follower that does not keep up loses its queue and
reads the database itself until it is up to date again. Publishers never wait for followers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from dragoman.errors import RateLimited, StoreError, TooLarge, Unavailable
from dragoman.hub_events.event_filter import EventFilter, with_messages, without_repeated_positions
from dragoman.store.hub_events import EventPosition, HubEvent, HubEventRepository, NewEvent

log = logging.getLogger(__name__)
POLL_INTERVAL = 0.25  # seconds between two reads of what other processes have written
RETRY_INTERVAL = 0.01  # seconds to the next read when what was just written cannot be read yet
RETRIES = 10
TRIM_INTERVAL = 60.0


class EventSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an event log.

    `queue`: events that wait for a follower before it reads the database instead; `followers`: open at a time
    for one owner; `size`: bytes of an event's data; `rows`: events that are stored.
    """

    queue: int = 1_000
    followers: int = 2_000
    size: int = 65_536
    rows: int = 1_000_000


class EventLog:
    """The events of a hub, and their followers in this process."""

    def __init__(self, events: HubEventRepository, *, settings: EventSettings | None = None) -> None:
        self.settings = settings or EventSettings()
        self._events = events
        self._position = EventPosition()
        self._followers: dict[str | None, set[EventFollower]] = {}
        self._counts: dict[str, int] = {}
        self._is_woken = False
        self._waiting: asyncio.Future[None] | None = None
        events.on_stored = self.wake

    # ---- publishing

    def publish(
        self, session_id: str, owner: str, *, name: str, data: Any = None, actor: str | None = None
    ) -> None:
        """Write an event of a session in the background. Raises TooLarge, Unavailable.

        `session_id` is the hub's id, `data` a JSON object, `actor` the owner who did it.
        """
        text = self._encode(name, data)
        _ = self._events.submit(
            NewEvent(name=name, owner=owner, session_id=session_id, data=text, actor=actor)
        )

    def publish_live(self, session_id: str | None, owner: str, *, name: str, data: Any = None) -> None:
        """Hand an event to the followers in this process without storing it. Raises TooLarge.

        An event without a session reaches only followers of all sessions.
        """
        if self.is_followed(session_id):
            body = msgspec.Raw(self._encode(name, data).encode())
            event = HubEvent(name=name, owner=owner, session_id=session_id, created_at=time.time(), data=body)
            self._dispatch([event])

    def is_followed(self, session_id: str | None) -> bool:
        """Return whether this process has followers of the session, or of all sessions."""
        return None in self._followers or session_id in self._followers

    def _encode(self, name: str, data: Any) -> str:
        text = msgspec.json.encode({} if data is None else data)
        if len(text) > self.settings.size:
            raise TooLarge(
                f"the event {name!r} has {len(text)} bytes, and the hub takes {self.settings.size}",
                hint="`limits.event` sets the limit",
            )
        return text.decode()

    # ---- following

    @asynccontextmanager
    async def follow(
        self, wanted: EventFilter, *, caller: str, after: EventPosition | None = None
    ) -> AsyncIterator[EventFollower]:
        """Follow the events after a position; without one, those from now on.

        `caller` is the owner who follows, and who may have a limited number of followers. Raises RateLimited,
        StoreError, Unavailable.
        """
        if self._counts.get(caller, 0) >= self.settings.followers:
            raise RateLimited(
                f"{self.settings.followers} streams and sockets of events are open for {caller!r}",
                retry_after=5.0,
            )
        self._counts[caller] = self._counts.get(caller, 0) + 1
        follower: EventFollower | None = None
        try:
            newest = await self._events.last_position()
            # From before a backup was restored, or invented by the client.
            is_unknown = after is not None and after > newest
            position = newest if after is None or is_unknown else after
            follower = EventFollower(self, self._events, wanted=wanted, position=position)
            follower.has_gap = is_unknown or (after is not None and await self._is_cut_off(after))
            self._add(follower)
            yield follower
        finally:
            if follower is not None:
                self._remove(follower)
            self._counts[caller] -= 1
            if not self._counts[caller]:
                del self._counts[caller]

    def wake(self) -> None:
        """Read new events now: this process has committed some."""
        if self._followers:
            self._wake_reader()

    def _wake_reader(self) -> None:
        self._is_woken = True
        self._end_wait()

    def _end_wait(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def run(self) -> None:
        """Read new events and hand them to the followers, until cancelled."""
        with suppress(StoreError, Unavailable):
            await self._events.adopt()
        tries = 0
        while True:
            is_woken = await self._wait(RETRY_INTERVAL if 0 < tries < RETRIES else POLL_INTERVAL)
            try:
                found = await self._read_new()
            except (StoreError, Unavailable) as error:
                log.debug("events cannot be read now: %s", error.message)
                await asyncio.sleep(POLL_INTERVAL)
                continue
            # The event that woke us may be invisible while an earlier transaction is open: read again soon.
            tries = 0 if found else tries + 1 if is_woken or 0 < tries < RETRIES else 0

    async def trim(self) -> None:
        """Delete the oldest events above the limit of rows, every `TRIM_INTERVAL` seconds until cancelled."""
        while True:
            await asyncio.sleep(TRIM_INTERVAL)
            with suppress(StoreError, Unavailable):
                await self._events.purge(max_rows=self.settings.rows)

    async def _wait(self, seconds: float) -> bool:
        """Wait to be woken; with followers, at most `seconds`. Return whether it was woken."""
        if not self._is_woken:
            # A bare future, because every commit ends a wait: `wait_for` would create a task each time, and
            # `timeout` is as slow.
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_later(seconds, self._end_wait) if self._followers else None
            try:
                await self._waiting
            finally:
                self._waiting = None
                if timer is not None:
                    timer.cancel()
        is_woken, self._is_woken = self._is_woken, False
        return is_woken

    async def _read_new(self) -> bool:
        """Hand all new events to the followers; return whether there were any."""
        found = False
        while self._followers:
            read = self._events.list if found else self._events.list_few
            page = await read(self._position)
            if page.events:
                found = True
                self._position = page.events[-1].position or self._position
                self._dispatch(page.events)
            if page.is_last:
                break
        return found

    def _dispatch(self, events: Sequence[HubEvent]) -> None:
        for event in events:
            interested: Collection[EventFollower] = self._followers.get(None, ())
            of_session = self._followers.get(event.session_id, ()) if event.session_id is not None else ()
            if not interested and not of_session:
                continue
            for each in with_messages(event):
                for follower in (*interested, *of_session):
                    follower.offer(each)

    def _add(self, follower: EventFollower) -> None:
        if not self._followers:
            self._position = follower.position
        self._followers.setdefault(follower.wanted.session_id, set()).add(follower)
        self._wake_reader()

    def _remove(self, follower: EventFollower) -> None:
        key = follower.wanted.session_id
        others = self._followers.get(key)
        if others is not None:
            others.discard(follower)
            if not others:
                del self._followers[key]

    async def _is_cut_off(self, after: EventPosition) -> bool:
        """Return whether events after a position may have been deleted."""
        first = await self._events.first_position()
        return after.id > 0 and first.id > after.id + 1 and first > after


class EventFollower:
    """A follower of the log; `next()` returns events in their order."""

    __slots__ = (
        "__weakref__",
        "_events",
        "_is_behind",
        "_is_closed",
        "_log",
        "_overflows",
        "_queue",
        "_wakeup",
        "has_gap",
        "position",
        "wanted",
    )

    def __init__(
        self, event_log: EventLog, events: HubEventRepository, *, wanted: EventFilter, position: EventPosition
    ) -> None:
        self.wanted = wanted
        """May be replaced by one for the same session."""
        self.position = position
        """Position of the last stored event that was returned; the next one comes after it."""
        self.has_gap = False
        """Whether events before the next one may be lost; the reader resets it when it has reported that."""
        self._log = event_log
        self._events = events
        self._queue: list[HubEvent] = []
        self._is_behind = True
        self._overflows = 0
        self._wakeup: asyncio.Future[None] | None = None
        self._is_closed = False

    def offer(self, event: HubEvent) -> None:
        """Queue an event of the log. When the queue is full, it is dropped and the database read later."""
        if event.position is not None and event.position <= self.position:
            return
        if not self.wanted.matches(event):
            return
        if len(self._queue) < self._log.settings.queue:
            self._queue.append(event)
            self.wake()
            return
        # From here on the follower reads the database, where events that were not stored are missing.
        self.has_gap = self.has_gap or any(event.position is None for event in (event, *self._queue))
        self._queue.clear()
        self._is_behind = True
        self._overflows += 1
        self.wake()

    def wake(self) -> None:
        """Make `next()` return."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def close(self) -> None:
        """Stop following; `next()` returns None."""
        self._is_closed = True
        self.wake()

    async def next(self) -> Sequence[HubEvent] | None:
        """Return the next events: none after `wake()` or when there is a gap, None once it is closed."""
        while not self._is_closed:
            if self._is_behind:
                found = await self._catch_up()
                if found or self.has_gap:
                    return found
                continue  # it may be behind still, or closed meanwhile
            if self._queue:
                return self._take()
            self._wakeup = asyncio.get_running_loop().create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None
            if not self._queue and not self._is_behind:
                return self._woken()
        return None

    def _woken(self) -> Sequence[HubEvent] | None:
        return None if self._is_closed else ()

    def _take(self) -> Sequence[HubEvent]:
        taken = without_repeated_positions(self._queue)
        self._queue.clear()
        for event in reversed(taken):
            if event.position is not None:
                self.position = event.position
                break
        return taken

    async def _catch_up(self) -> Sequence[HubEvent]:
        """Return the next matching events of the database.

        Events that the log hands out meanwhile stay in the queue, so that none is missed between the last
        page and the first of them.
        """
        overflows = self._overflows
        page = await self._events.list(self.position, session_id=self.wanted.session_id)
        if page.events:
            self.position = page.events[-1].position or self.position
        is_joined = page.is_last and self._overflows == overflows
        self._is_behind = not is_joined
        waiting, self._queue = self._queue, []
        for event in waiting:
            if event.position is None or (is_joined and event.position > self.position):
                self._queue.append(event)
        expanded = (each for event in page.events for each in with_messages(event))
        return without_repeated_positions([each for each in expanded if self.wanted.matches(each)])
