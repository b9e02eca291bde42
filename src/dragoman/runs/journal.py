"""Writes the message of a run to the store as it grows: a part when it ends, an open one every second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dragoman.agent.approvals import QUESTION_PART
from dragoman.errors import StoreError, Unavailable
from dragoman.fold import Fold
from dragoman.messages import DataPart, encode_part
from dragoman.part_builders import BlockBuilder, PartSlot, ToolCallBuilder
from dragoman.store.connection import DatabaseJob
from dragoman.store.store import Store

log = logging.getLogger(__name__)
WRITE_INTERVAL = 1.0


class Journal:
    """Stores one run's message while it grows."""

    def __init__(
        self, store: Store, fold: Fold, *, session_id: str, interval: float = WRITE_INTERVAL
    ) -> None:
        self._store = store
        self._fold = fold
        self._session_id = session_id
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._flush_handle: asyncio.Handle | None = None
        self._metadata_version = fold.metadata_version
        self._failed = False

    def schedule(self) -> None:
        """Schedule writes after a change of the fold: finished parts now, the rest within an interval."""
        fold = self._fold
        if not fold.dirty:
            return
        if self._flush_handle is None:
            for index in fold.dirty:
                # Most changes are text that an open block has grown by: decided here, without a call.
                if type(fold.unfinished.get(index)) is not BlockBuilder and self._is_due_now(index):
                    self._flush_handle = asyncio.get_running_loop().call_soon(self._flush)
                    return
        if self._timer is None:
            self._start_timer()

    def final_write(self) -> DatabaseJob[None]:
        """Return a job that writes everything not written yet. The journal is closed."""
        for handle in (self._timer, self._flush_handle):
            if handle is not None:
                handle.cancel()
        if self._failed:
            self._fold.dirty.update(range(len(self._fold.builders)))
        return self._write_job(lambda _: True, write_all=True)

    def _is_due_now(self, index: int) -> bool:
        """Return whether a part is to be written now: a finished one, a call about to run, a question."""
        draft = self._fold.unfinished.get(index)
        if isinstance(draft, PartSlot):
            return isinstance(draft.current, DataPart) and draft.current.type == QUESTION_PART
        return draft is None or (
            isinstance(draft, ToolCallBuilder) and draft.current.state != "input-streaming"
        )

    def _flush(self) -> None:
        """Write the finished parts: once for this iteration of the event loop, before a tool can start."""
        self._flush_handle = None
        self._post(self._is_due_now)
        if self._fold.dirty and self._timer is None:
            self._start_timer()

    def _start_timer(self) -> None:
        """Start the timer at the next whole interval: the journals of all runs share one commit."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = loop.call_at(now - now % self._interval + self._interval, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._fold.dirty:
            self._post(lambda _: True)

    def _post(self, is_due: Callable[[int], bool]) -> None:
        try:
            self._store.enqueue(self._write_job(is_due), on_failure=self._on_write_error)
        except (StoreError, Unavailable) as error:
            self._on_write_error(error)

    def _on_write_error(self, error: Exception) -> None:
        """Log a failed write; the final one writes everything."""
        log.warning("could not write part of message %s, will retry at its end: %s", self._fold.id, error)
        self._failed = True

    def _write_job(self, is_due: Callable[[int], bool], *, write_all: bool = False) -> DatabaseJob[None]:
        fold = self._fold
        count = len(fold.builders)
        ready = sorted(index for index in fold.dirty if index < count and is_due(index))
        shrunk = any(index >= count for index in fold.dirty)
        fold.dirty.difference_update(ready)
        fold.dirty = {index for index in fold.dirty if index < count}
        changed = fold.metadata_version != self._metadata_version or write_all
        self._metadata_version = fold.metadata_version
        return self._store.messages.write_parts_job(
            self._session_id,
            fold.id,
            changed=[(index, encode_part(fold.builders[index].part())) for index in ready],
            count=count if write_all or shrunk else None,
            metadata=msgspec.json.encode(fold.metadata) if changed and fold.metadata is not None else None,
        )
