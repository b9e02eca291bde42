"""The live tail of a run in this process: followers get each batch, or what the fold has grown by.

Nothing is queued. A follower that is up to date gets the batch as it is; one that fell behind gets the
difference from the fold (`unfold.events_since`). So a slow reader costs nothing and never slows the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dragoman.events import Event
from dragoman.fold import Fold
from dragoman.unfold import FoldPosition, current_position, events_since

Batch = Sequence[Event]


class LiveTail:
    """What the followers of one run share: the fold, and the batch that was folded last."""

    def __init__(self, fold: Fold, *, on_empty: Callable[[], None], on_follow: Callable[[], None]) -> None:
        self.fold = fold
        self.sequence = 0
        self.last_batch: Batch = ()
        self.is_closed = False
        self._is_paused = False
        self._followers: set[Follower] = set()
        self._on_empty = on_empty
        self._on_follow = on_follow

    @property
    def follower_count(self) -> int:
        """The number of followers."""
        return len(self._followers)

    def follow(self, *, replay: bool) -> Follower:
        """Return a follower of later batches; with `replay`, of the whole message and then of them."""
        follower = Follower(self, None if replay else current_position(self.fold))
        self._followers.add(follower)
        self._on_follow()
        return follower

    def pause(self) -> None:
        """Hold batches back until the next publish: what was folded is not stored yet."""
        self._is_paused = True

    @property
    def is_paused(self) -> bool:
        """True between pause() and publish()."""
        return self._is_paused

    def publish(self, batch: Batch) -> None:
        """Publish a batch that was just folded."""
        self._is_paused = False
        self.sequence += 1
        self.last_batch = batch
        for follower in self._followers:
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
    """One reader of a run, used as a context manager; `next()` returns batches until None."""

    def __init__(self, tail: LiveTail, since: FoldPosition | None) -> None:
        self._tail = tail
        self._mark = since
        self._sequence = tail.sequence if since is not None else -1 if tail.sequence else 0
        self._wakeup: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.is_detached = False

    async def next(self) -> Batch | None:
        """Return the events since the last call: empty after a mere `wake()`, None at the end or when
        detached.
        """
        tail = self._tail
        if self._sequence == tail.sequence or tail.is_paused:
            if self.is_detached or tail.is_closed:
                return None
            self._wakeup = self._loop.create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None
            if tail.is_paused or self._sequence == tail.sequence:
                return None if self._check_detached() else ()
        if self._check_detached():
            return None
        events = (
            tail.last_batch
            if self._sequence == tail.sequence - 1 and self._mark is not None
            else events_since(tail.fold, self._mark)
        )
        self._sequence = tail.sequence
        self._mark = current_position(tail.fold)
        return events

    def _check_detached(self) -> bool:
        return self.is_detached

    @property
    def has_finished(self) -> bool:
        """True when the run is over and the follower has all of it."""
        return self._tail.is_closed and self._sequence == self._tail.sequence

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
