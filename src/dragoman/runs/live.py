"""The live tail of a run, in this process: whoever follows gets each batch, or what the fold has grown by.

Nothing is queued. A follower that is up to date is handed the batch as it is; one that fell behind is told
the difference from the fold (`retell.tell`). So a slow reader costs nothing, and never slows the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dragoman.events import Event
from dragoman.fold import Fold
from dragoman.retell import Mark, mark, tell

Batch = Sequence[Event]


class Tail:
    """What followers of one run share: the fold, and the batch that was folded last."""

    def __init__(self, fold: Fold, *, on_empty: Callable[[], None], on_follow: Callable[[], None]) -> None:
        self.fold = fold
        self.seq = 0
        self.last: Batch = ()
        self.closed = False
        self._held = False
        self._followers: set[Follower] = set()
        self._on_empty = on_empty
        self._on_follow = on_follow

    @property
    def followers(self) -> int:
        """How many follow."""
        return len(self._followers)

    def follow(self, *, replay: bool) -> Follower:
        """A follower: of what comes from now on, or with `replay` of the whole message and then the tail."""
        follower = Follower(self, None if replay else mark(self.fold))
        self._followers.add(follower)
        self._on_follow()
        return follower

    def hold(self) -> None:
        """Say nothing until the next publish: what was folded is not kept yet."""
        self._held = True

    @property
    def held(self) -> bool:
        """True between hold() and publish()."""
        return self._held

    def publish(self, batch: Batch) -> None:
        """Hand a batch, just folded, to all followers."""
        self._held = False
        self.seq += 1
        self.last = batch
        for follower in self._followers:
            follower.wake()

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True
        for follower in self._followers:
            follower.wake()

    def leave(self, follower: Follower) -> None:
        """The follower has gone."""
        if follower in self._followers:
            self._followers.discard(follower)
            if not self._followers:
                self._on_empty()


class Follower:
    """One reader of a run. Use it in `with`; `next()` gives batches until None."""

    def __init__(self, tail: Tail, since: Mark | None) -> None:
        self._tail = tail
        self._mark = since
        self._seq = tail.seq if since is not None else -1 if tail.seq else 0
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.gone = False

    async def next(self) -> Batch | None:
        """What came since the last call: empty after a mere `wake()`, None at the end or when gone."""
        tail = self._tail
        if self._seq == tail.seq or tail.held:
            if self.gone or tail.closed:
                return None
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            if tail.held or self._seq == tail.seq:
                return None if self._has_left() else ()
        if self._has_left():
            return None
        told = (
            tail.last if self._seq == tail.seq - 1 and self._mark is not None else tell(tail.fold, self._mark)
        )
        self._seq = tail.seq
        self._mark = mark(tail.fold)
        return told

    def _has_left(self) -> bool:
        return self.gone

    @property
    def ended(self) -> bool:
        """True when the run is over and all of it was given."""
        return self._tail.closed and self._seq == self._tail.seq

    def wake(self) -> None:
        """Let `next()` return."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def leave(self) -> None:
        """Stop following; `next()` gives None."""
        self.gone = True
        self._tail.leave(self)
        self.wake()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
