"""The live tail of a run in this process: followers get each batch, or what the fold has grown by.

Nothing is queued. A follower that is up to date gets the batch as it is; one that falls behind gets the
difference from the fold (`unfold.events_since`). So a slow reader costs nothing and never slows the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dragoman.events import Event
from dragoman.fold import Fold
from dragoman.unfold import START_POSITION, FoldPosition, current_position, events_since

Batch = Sequence[Event]


class LiveTail:
    """Folds the batches of one run and hands them to its followers."""

    def __init__(self, fold: Fold, *, on_empty: Callable[[], None], on_follow: Callable[[], None]) -> None:
        self.fold = fold
        self.has_started = False
        self.is_closed = False
        self.is_paused = False
        self._followers: set[Follower] = set()
        self._on_empty = on_empty
        self._on_follow = on_follow

    @property
    def follower_count(self) -> int:
        """The number of followers."""
        return len(self._followers)

    def follow(self, *, replay: bool, position: FoldPosition = START_POSITION) -> Follower:
        """Return a follower of later batches; with `replay`, of the message from `position` on first."""
        follower = Follower(self, position if replay else None)
        self._followers.add(follower)
        self._on_follow()
        return follower

    def add(self, batch: Batch) -> None:
        """Fold a batch. Followers get it at `release`, when it may be shown."""
        for follower in self._followers:
            # It has not taken the batch before this one: from here on it needs the difference.
            if follower.batch is not None and follower.position is None:
                follower.position = current_position(self.fold)
        self.is_paused = True
        self.fold.add(batch)

    def release(self, batch: Batch) -> None:
        """Hand the folded batch to all followers."""
        self.is_paused = False
        self.has_started = True
        for follower in self._followers:
            if follower.position is None:
                follower.batch = batch
            follower.wake()

    def close(self) -> None:
        """Close the tail: no more batches follow."""
        self.is_closed = True
        for follower in self._followers:
            follower.wake()

    def remove(self, follower: Follower) -> None:
        """Remove a follower."""
        if follower in self._followers:
            self._followers.discard(follower)
            if not self._followers:
                self._on_empty()


class Follower:
    """One reader of a run, used as a context manager; `next()` returns batches until None.

    `batch` is the next one to return. `position` is that of a follower that fell behind, after `batch`.
    """

    def __init__(self, tail: LiveTail, position: FoldPosition | None) -> None:
        self.batch: Batch | None = None
        self.position = position
        self.is_detached = False
        self._tail = tail
        self._wakeup: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def next(self) -> Batch | None:
        """Return the events since the last call; empty after a mere `wake()`, None at the end."""
        has_waited = False
        while True:
            batch, self.batch = self.batch, None
            if batch is None and self.position is not None:
                batch = self._catch_up()
            if batch is not None or self.is_detached or self._tail.is_closed:
                return None if self.is_detached else batch
            if has_waited:
                return ()
            has_waited = True
            self._wakeup = self._loop.create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None

    def _catch_up(self) -> Batch | None:
        """Return what the fold has grown by since `position`; None while its end may not be shown."""
        tail, position = self._tail, self.position
        if position is None or tail.is_paused or not tail.has_started:
            return None
        self.position = None
        return events_since(tail.fold, position)

    @property
    def has_finished(self) -> bool:
        """True when the run is over and the follower has all of it."""
        return self._tail.is_closed and self.batch is None and self.position is None

    def wake(self) -> None:
        """Make `next()` return."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def detach(self) -> None:
        """Stop following; `next()` returns None."""
        self.is_detached = True
        self._tail.remove(self)
        self.wake()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()
