"""The live tail of a run in this process: followers get each batch, or what the fold has grown by.

Nothing is queued. A follower that is up to date gets the batch as it is; one that falls behind gets the
difference from the fold (`unfold.events_since`), in pieces that share the fold's text. So a slow reader costs
nothing. The run is slowed only when none of its readers keeps up: see `make_room`.

A batch that says that a part is complete is held back until the part is in the database (`hold`), and so is
what follows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from dragoman.event_splitting import CompactEvent, DeltaOnDisk, delta_length, split_events
from dragoman.events import Data, Event
from dragoman.fold import Fold
from dragoman.large_json import measure
from dragoman.offload import offload_disk
from dragoman.part_builders import MAX_DELTA
from dragoman.unfold import (
    START_POSITION,
    FoldPosition,
    compact_events_since,
    current_position,
)

Batch = Sequence[Event]
QUEUED = "data-queued"
MAX_NOTICE = 64_000  # bytes of a queued message that later followers are shown
END_WRITE = float("inf")  # later than every write of the journal


class LiveTail:
    """Folds the batches of one run and hands them to its followers."""

    def __init__(self, fold: Fold, *, on_empty: Callable[[], None], on_follow: Callable[[], None]) -> None:
        self.fold = fold
        self.has_started = False
        self.is_closed = False
        self.is_paused = False
        self.room: asyncio.Future[None] | None = None
        self.notices: dict[str, Event] = {}
        """The announcements of messages that wait behind the run, by their ids: see `note_queued`."""
        self._pending: list[tuple[float, Batch]] = []
        self._followers: set[Follower] = set()
        self._on_empty = on_empty
        self._on_follow = on_follow

    @property
    def follower_count(self) -> int:
        """The number of followers."""
        return len(self._followers)

    @property
    def is_holding(self) -> bool:
        """Whether batches are held back."""
        return bool(self._pending)

    def follow(self, *, replay: bool, position: FoldPosition = START_POSITION) -> Follower:
        """Return a follower of later batches; with `replay`, of the message from `position` on first."""
        follower = Follower(self, position if replay else None)
        self._followers.add(follower)
        self._on_follow()
        self.notify_room()
        return follower

    def add(self, batch: Batch, *, is_held: bool = False) -> None:
        """Fold a batch. Followers get it at `release`, when it may be shown, or after `hold`."""
        if not self._pending:
            for follower in self._followers:
                if is_held:
                    follower.take_difference()
                elif follower.position is None and (follower.batch is not None or follower.rest is not None):
                    # It has not taken the previous batch yet: from here on it gets the difference.
                    follower.position, follower.seen = current_position(self.fold), self.fold.size
        self.is_paused = True
        self.fold.add(batch)

    def release(self, batch: Batch) -> None:
        """Hand the folded batch to all followers, after those that are held back."""
        if self._pending:
            self._pending.append((0, batch))
            return
        self.is_paused = False
        self._hand_out(batch)

    def withdraw(self, batch: Batch) -> None:
        """Fold a batch that may drop parts, and hand it to all followers behind all that came before it.

        Their positions in the fold are no longer valid then, so those that are behind get the difference now.
        """
        for follower in self._followers:
            follower.take_everything()
        self.fold.add(batch)
        self._hand_out(batch)

    def _hand_out(self, batch: Batch) -> None:
        self.has_started = True
        for follower in self._followers:
            wakeup = follower.wakeup  # as `wake`, without a call for every chunk
            if wakeup is not None and wakeup.done():
                wakeup = None
            if follower.position is None:
                is_next = wakeup is not None and follower.batch is None and follower.rest is None
                if is_next and follower.on_batch is not None and follower.on_batch(batch):
                    continue
                follower.batch = batch if follower.batch is None else [*follower.batch, *batch]
            if wakeup is not None:
                wakeup.set_result(None)

    def announce(self, event: Event) -> None:
        """Hand a transient event, which is not in the fold, to all followers that have begun."""
        self.note_queued([event])
        if self._pending:
            self._pending.append((0, [event]))
            return
        for follower in self._followers:
            if follower.position is None or follower.seen:
                follower.batch = [*(follower.batch or ()), event]
                follower.wake()

    def note_queued(self, batch: Batch) -> None:
        """Keep announcements of queued messages for later followers, until the messages are withdrawn."""
        for event in batch:
            if type(event) is Data and event.type == QUEUED and event.transient and event.id is not None:
                self.notices.pop(event.id, None)
                is_waiting = isinstance(event.data, dict) and event.data.get("state") == "queued"
                if is_waiting and measure(event.data) <= MAX_NOTICE:
                    self.notices[event.id] = event

    def hold(self, batch: Batch, write: float) -> None:
        """Hold the folded batch, and those after it, until `release_held` is called for this write."""
        self.is_paused = True
        self._pending.append((write, batch))

    def hold_end(self, batch: Batch) -> None:
        """Hold the folded last batch until `release_end`: what is released before it must not show it."""
        self.hold(batch, END_WRITE)

    def release_end(self, batch: Batch) -> None:
        """Hand out all that was held back, with this batch as the last one."""
        self._pending[-1] = (0, batch)
        self.release_held(END_WRITE)

    def release_held(self, write: float) -> None:
        """Hand out the batches that were held back for this write or an earlier one."""
        pending = self._pending
        count = next((at for at, (number, _) in enumerate(pending) if number > write), len(pending))
        released = [event for _, batch in pending[:count] for event in batch]
        del pending[:count]
        if not released:
            return
        self.is_paused = bool(self._pending)
        self._hand_out(released)

    def close(self) -> None:
        """Close the tail: no more batches follow."""
        self.is_closed = True
        # The run refers to its tail: without this its whole answer stays until the garbage collector runs.
        self._on_empty = self._on_follow = lambda: None
        for follower in self._followers:
            follower.wake()

    def disconnect(self) -> None:
        """Close the tail in the middle of the run, and end the connections of its followers."""
        self.close()
        for follower in list(self._followers):
            follower.disconnect()

    def remove(self, follower: Follower) -> None:
        """Remove a follower."""
        if follower in self._followers:
            self._followers.discard(follower)
            self.notify_room()
            if not self._followers:
                self._on_empty()

    async def make_room(self, read_ahead: int, *, timeout: float) -> None:
        """Wait while all followers are more than `read_ahead` characters behind; not when there is none.

        Followers that take nothing for `timeout` seconds are disconnected: they may resume later.
        """
        while min((follower.lag for follower in self._followers), default=0) > read_ahead:
            self.room = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait([self.room], timeout=timeout)
                has_progress = self.room.done()
            finally:
                self.room = None
            if not has_progress:
                for follower in list(self._followers):
                    follower.disconnect()

    def notify_room(self) -> None:
        """Let the run look again whether there is room."""
        if self.room is not None and not self.room.done():
            self.room.set_result(None)


class Follower:
    """One reader of a run, used as a context manager; `next()` returns batches until None.

    `batch` is the next one to return. `position` is that of a follower that fell behind, after `batch` and
    `rest`, that of an earlier difference; `seen` is the size of the fold there. With an `interval` (seconds)
    a batch waits that long after the one before it, and is then all that has come. While `next()` waits, a
    batch goes to `on_batch` first, which returns whether it took it, and raises nothing.
    """

    def __init__(self, tail: LiveTail, position: FoldPosition | None) -> None:
        self.batch: Batch | None = None
        self.interval = 0.0
        self.position = position
        self.seen = 0
        self.is_detached = False
        self.is_disconnected = False
        self.on_disconnect: Callable[[], None] | None = None
        self.on_batch: Callable[[Batch], bool] | None = None
        self.rest: Iterator[Sequence[CompactEvent]] | None = None
        self._rest_size = 0
        self._has_begun = False
        self._tail = tail
        self.wakeup: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def next(self) -> Batch | None:
        """Return the events since the last call; empty after a mere `wake()`, None at the end."""
        has_waited = False
        if self._tail.room is not None:
            self._tail.notify_room()
        if self.interval and self.rest is None:
            await self._pause()
        while True:
            batch = await self._next_piece() if self.rest is not None else None
            if batch is None:
                batch, self.batch = self.batch, None
            if batch is None and self.position is not None:
                batch = await self._catch_up()
            if batch is not None or self.is_detached or self._tail.is_closed:
                return None if self.is_detached else batch
            if has_waited:
                return ()
            has_waited = True
            self.wakeup = self._loop.create_future()
            try:
                await self.wakeup
            finally:
                self.wakeup = None

    async def _pause(self) -> None:
        """Wait for the interval, but not before the first batch, and take what has come meanwhile."""
        if self._has_begun:
            await asyncio.sleep(self.interval)
            self.take_difference()
        self._has_begun = True

    def take_difference(self) -> None:
        """Take what the fold has grown by since `position` now, before it is paused; unless that is long."""
        tail = self._tail
        if self.position is None or self.rest is not None or tail.is_paused or not tail.has_started:
            return
        waiting = sum(map(delta_length, self.batch or ()))
        if tail.fold.size - self.seen + waiting <= MAX_DELTA:
            events = self._missing_events()
            if not any(type(event) is DeltaOnDisk for event in events):
                self.batch = [*(self.batch or ()), *cast("Batch", events)]
                self.position = None

    def take_everything(self) -> None:
        """Take all that the fold has grown by since `position`, however long it is.

        Of a fold that has not begun there is nothing to take: the follower stays where it is.
        """
        if not self._tail.has_started:
            return
        events: list[CompactEvent] = [event for piece in self.rest or () for event in piece]
        events += self.batch or ()
        if self.position is not None:
            events += self._missing_events()
        self.batch = self.position = self.rest = None
        if any(type(event) is DeltaOnDisk for event in events):
            self._rest_size = sum(map(delta_length, events))
            self.rest = split_events(events, MAX_DELTA)
        elif events:
            self.batch = cast("Batch", events)

    async def _catch_up(self) -> Batch | None:
        """Return what the fold has grown by since `position`; None while its end may not be shown."""
        tail, position = self._tail, self.position
        if position is None or tail.is_paused or not tail.has_started:
            return None
        if position.builders > len(tail.fold.builders):  # the copy of a run that is still being replayed
            return None
        self._rest_size = tail.fold.size - self.seen
        self.rest = split_events(self._missing_events(), MAX_DELTA)
        self.position = None
        return await self._next_piece()

    def _missing_events(self) -> list[CompactEvent]:
        """Return the events since `position`; for a follower that begins, also of messages that wait."""
        fold, position = self._tail.fold, self.position
        events = [] if position is None else compact_events_since(fold, position)
        return events if self.seen or not fold.is_open else [*events, *self._tail.notices.values()]

    async def _next_piece(self) -> Batch | None:
        """Return the next piece of a difference; None at its end."""
        piece = next(self.rest, None) if self.rest is not None else None
        if piece is None:
            self.rest = None
            return None
        self._rest_size = max(0, self._rest_size - delta_length(piece[-1]))
        return await read_events(piece)

    @property
    def lag(self) -> int:
        """How many characters the follower is behind; what it has taken and is sending does not count."""
        behind = self._tail.fold.size - self.seen if self.position is not None else 0
        waiting = sum(map(delta_length, self.batch or ()))
        return behind + waiting + (self._rest_size if self.rest is not None else 0)

    @property
    def has_finished(self) -> bool:
        """True when the run is over and the follower has all of it."""
        return self._tail.is_closed and self.batch is None and self.rest is None and self.position is None

    def wake(self) -> None:
        """Make `next()` return."""
        if self.wakeup is not None and not self.wakeup.done():
            self.wakeup.set_result(None)

    def detach(self) -> None:
        """Stop following; `next()` returns None."""
        self.is_detached = True
        self._tail.remove(self)
        self.wake()

    def disconnect(self) -> None:
        """Detach the follower, and end its connection."""
        self.is_disconnected = True
        self.detach()
        if self.on_disconnect is not None:
            self.on_disconnect()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


async def read_events(events: Sequence[CompactEvent]) -> Batch:
    """Return the events with the text that is on the disk; others are served while it is read."""
    if not any(type(event) is DeltaOnDisk for event in events):
        return cast("Batch", events)
    return await offload_disk(
        lambda: [event.read() if isinstance(event, DeltaOnDisk) else event for event in events]
    )
