"""The journal: what a run says, written as parts: each when it ends, an open one at least every second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dragoman.agent.word import QUESTION
from dragoman.drafts import Invocation, Slot
from dragoman.errors import StoreError, Unavailable
from dragoman.fold import Fold
from dragoman.messages import DataPart, encode_part
from dragoman.store.connection import Job
from dragoman.store.store import Store

log = logging.getLogger(__name__)
PERIOD = 1.0


class Journal:
    """Keeps one run's message on disk while it grows."""

    def __init__(self, store: Store, fold: Fold, *, session_id: str, period: float = PERIOD) -> None:
        self._store = store
        self._fold = fold
        self._session_id = session_id
        self._period = period
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._metadata = fold.metadata_version
        self._failed = False

    def note(self) -> None:
        """The fold has grown: write what is settled now, the rest within a period."""
        fold = self._fold
        if not fold.dirty:
            return
        if self._soon is None and any(map(self._ready, fold.dirty)):
            self._soon = asyncio.get_running_loop().call_soon(self._flush)
        elif self._timer is None:
            self._arm()

    def rest(self) -> Job[None]:
        """Everything that is not written yet, as a job; the journal is over."""
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        if self._failed:
            self._fold.dirty.update(range(len(self._fold.entries)))
        return self._job(lambda _: True, whole=True)

    def _ready(self, index: int) -> bool:
        """True for what is to be written now: what is settled, a call that is about to run, a question."""
        draft = self._fold.moving.get(index)
        if isinstance(draft, Slot):
            return isinstance(draft.held, DataPart) and draft.held.type == QUESTION
        return draft is None or (isinstance(draft, Invocation) and draft.now.state != "input-streaming")

    def _flush(self) -> None:
        """Write what is settled: once for all of this round of the loop, and before a tool can begin."""
        self._soon = None
        self._post(self._ready)
        if self._fold.dirty and self._timer is None:
            self._arm()

    def _arm(self) -> None:
        """At the next whole period: the journals of all runs write together, in one commit."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = loop.call_at(now - now % self._period + self._period, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._fold.dirty:
            self._post(lambda _: True)

    def _post(self, due: Callable[[int], bool]) -> None:
        try:
            self._store.post(self._job(due), failed=self._remember)
        except (StoreError, Unavailable) as error:
            self._remember(error)

    def _remember(self, error: Exception) -> None:
        """A write failed: the last one writes everything."""
        log.warning("a part of message %s could not be written yet: %s", self._fold.id, error)
        self._failed = True

    def _job(self, due: Callable[[int], bool], *, whole: bool = False) -> Job[None]:
        fold = self._fold
        count = len(fold.entries)
        ready = sorted(index for index in fold.dirty if index < count and due(index))
        shrunk = any(index >= count for index in fold.dirty)
        fold.dirty.difference_update(ready)
        fold.dirty = {index for index in fold.dirty if index < count}
        changed = fold.metadata_version != self._metadata or whole
        self._metadata = fold.metadata_version
        return self._store.messages.put_parts(
            self._session_id,
            fold.id,
            changed=[(index, encode_part(fold.entries[index].part())) for index in ready],
            count=count if whole or shrunk else None,
            metadata=msgspec.json.encode(fold.metadata) if changed and fold.metadata is not None else None,
        )
