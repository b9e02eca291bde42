"""Writes the message of a run to the store as it grows: a part when it ends, an open one every second.

One write is under way at a time, so that the journal adapts to the speed of the database: changes that arrive
meanwhile are written together. A long part is written once, in pieces (`sessions/part_tails.py`). Writes are
numbered; `pending_write` is the number of the write that will contain what is complete and not yet stored.

While the database is down, what is complete goes to a file (`AnswerSpool`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice

import msgspec
from msgspec import UNSET

from dragoman.agent.approval_events import QUESTION_PART
from dragoman.errors import HostFenced, StoreError, Unavailable
from dragoman.fold import Fold
from dragoman.messages import DataPart, encode_part
from dragoman.offload import offload_disk
from dragoman.part_builders import BlockBuilder, PartBuilder, PartSlot, ToolCallBuilder
from dragoman.spilled_text import TextPieces, is_on_disk, read_pieces
from dragoman.store.answer_spool import AnswerSnapshot, SpooledAnswer
from dragoman.store.connection import DatabaseConnection, DatabaseJob
from dragoman.store.runs import RunRecord
from dragoman.store.sessions.messages import PartChanges
from dragoman.store.sessions.part_tails import PartTail
from dragoman.store.sessions.run_ends import RunEnding
from dragoman.store.store import Store

log = logging.getLogger(__name__)
WRITE_INTERVAL = 1.0
MAX_REWRITTEN = 16_384  # characters up to which an open part is written again as a whole
MAX_WHOLE = 65_536  # characters up to which a part that has ended is written as a whole
MAX_PIECE = 262_144  # characters of text in one write
MAX_PARTS = 500  # parts in one write
MAX_BACKLOG = 1_048_576  # characters not yet written, from which on the run waits for the database
PART_SIZE = MAX_PIECE // MAX_PARTS  # characters that take as much time to write as the rest of a part
LONG_WRITE = 32_768  # characters from which on other writes go ahead


class StoredText(msgspec.Struct):
    """What the database has of a growing part: `whole` characters in its row, `length` with its tails."""

    builder: PartBuilder
    whole: int
    length: int


class PlannedWrite(msgspec.Struct):
    """What a write has: parts by position and tails, and what the database has of them after it.

    `cleared` are parts whose tails are deleted. `is_partial`: it does not have all that is complete.
    `on_disk` are tails that have to be read first: position, first character and pieces.
    """

    number: int
    changed: list[tuple[int, bytes]] = []
    tails: list[PartTail] = []
    on_disk: list[tuple[int, int, TextPieces]] = []
    cleared: set[int] = set()
    stored: dict[int, StoredText] = {}
    indexes: set[int] = set()
    size: int = 0
    is_partial: bool = False

    def add_tail(self, index: int, pieces: TextPieces, *, start: int) -> None:
        """Add a tail of a part, which may be in a file."""
        if is_on_disk(pieces):
            self.on_disk.append((index, start, pieces))
        else:
            self.tails.append(PartTail(index, start, read_pieces(pieces)))

    async def load(self) -> None:
        """Read the tails that are in a file; others are served meanwhile. Raises OSError."""
        if self.on_disk:
            self.tails += await offload_disk(
                lambda: [PartTail(index, start, read_pieces(text)) for index, start, text in self.on_disk]
            )
            self.on_disk = []


class Journal:
    """Stores one run's message while it grows.

    `on_written` is called with the number of each write that has all that was complete when it began.
    """

    def __init__(
        self,
        store: Store,
        fold: Fold,
        *,
        run: RunRecord,
        on_written: Callable[[float], None],
        interval: float = WRITE_INTERVAL,
    ) -> None:
        self._store = store
        self._fold = fold
        self._run = run
        self._on_written = on_written
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._flush_handle: asyncio.Handle | None = None
        self._stored_metadata = fold.metadata_version
        self._is_continued = bool(fold.builders)
        self._has_shrunk = False
        self._stored: dict[int, StoredText] = {}
        self._tailed: set[int] = set()
        self._write_number = 0
        self._plan: PlannedWrite | None = None
        self._write: asyncio.Future[None] | None = None
        self._flush_again = False
        self._spooling: asyncio.Task[None] | None = None
        self._is_spooled = False
        self._is_closed = False

    def schedule(self) -> None:
        """Schedule writes after a change of the fold: finished parts now, the rest within an interval."""
        fold = self._fold
        if not fold.dirty:
            return
        if self._flush_handle is None and not self._flush_again:
            for index in fold.dirty:
                # Most changes are text that an open block has grown by: decided here, without a call.
                if type(fold.unfinished.get(index)) is not BlockBuilder and self._is_due_now(index):
                    self._flush_handle = asyncio.get_running_loop().call_soon(self._flush)
                    return
        if self._timer is None:
            self._start_timer()

    @property
    def pending_write(self) -> int | None:
        """The number of the write that will have what is complete and not yet stored; None without any."""
        is_pending = self._flush_handle is not None or self._flush_again
        return self._write_number + 1 if is_pending else None

    async def make_room(self) -> None:
        """Wait while the database is too far behind. Do not wait while it is down."""
        while (backlog := self._backlog()) >= MAX_PIECE and self._store.database.is_up:
            if self._write is None:
                self._post(write_all=True)
            if backlog < MAX_BACKLOG or self._write is None:
                return
            await asyncio.wait([self._write])

    def leave_to_end(self) -> None:
        """Cancel the write that is due now: `finish`, a moment later, writes the same and more."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
            if self._timer is None and not self._is_closed:
                self._start_timer()  # should the end not be written

    def close(self) -> None:
        """Write nothing more."""
        self._is_closed = True
        for handle in (self._timer, self._flush_handle):
            if handle is not None:
                handle.cancel()

    async def finish(self, ending: RunEnding, *, last_job: DatabaseJob[None] | None = None) -> bool:
        """Write everything, and how the run ended, in one transaction, at the end of which `last_job` is run.

        The journal is closed. While the database is down it is spooled, without the `last_job`. Return
        whether the database has it, and had no end of the run before. Raises OSError when neither took it,
        HostFenced when other hosts declared this one dead: then nothing is spooled either.
        """
        job = await self._close()
        try:
            has_ended = await self._store.runs.finish(self._run.id, ending, extra_job=job, last_job=last_job)
        except HostFenced:
            raise
        except (StoreError, Unavailable) as error:
            log.warning("the answer %s waits on disk for the database: %s", self._fold.id, error)
            await self._store.answers.save(self._snapshot(ending))
            return False
        await self._store.answers.remove(self._run.id)
        return has_ended

    async def release(self, extra_job: DatabaseJob[None]) -> RunRecord | None:
        """Write everything and release the run from this host, in one transaction. The journal is closed.

        Return its row; None when another host has it. Raises StoreError, Unavailable.
        """
        last_write = await self._close()

        def job(connection: DatabaseConnection) -> None:
            last_write(connection)
            extra_job(connection)

        return await self._store.runs.move(self._run, to=None, extra_job=job)

    async def _close(self) -> DatabaseJob[None]:
        """Close the journal; return the last write."""
        await self._write_long_parts()
        self.close()
        if self._spooling is not None:
            await asyncio.wait([self._spooling])
        if self._plan is not None:
            self._fold.dirty |= self._plan.indexes  # it may fail; this job is committed after it
        plan = self._make_plan(write_all=True)
        await plan.load()
        return self._job(plan, is_last=True)

    async def _write_long_parts(self) -> None:
        """Write until little is left, and no long write is under way that the last one might overtake."""
        while self._store.database.is_up:
            is_long = self._plan is not None and self._plan.size >= LONG_WRITE
            if not is_long and self._backlog() <= MAX_PIECE:
                return
            if self._write is None:
                self._post(write_all=True)
            if self._write is None:
                return
            await asyncio.wait([self._write])

    def _backlog(self) -> int:
        """Return how many characters are neither written nor being written, plus `PART_SIZE` for each part.

        Parts that have ended count as those that grow. There may be a hundred thousand: then it is the most.
        """
        fold = self._fold
        total = len(fold.dirty) * PART_SIZE
        if total >= MAX_BACKLOG:
            return total
        for index in fold.dirty:
            builder = fold.builders[index] if index < len(fold.builders) else None
            if isinstance(builder, BlockBuilder | ToolCallBuilder):
                stored = self._stored_text(index, builder)
                total += builder.length - (stored.length if stored is not None else 0)
        return total

    def _stored_text(self, index: int, builder: PartBuilder) -> StoredText | None:
        """Return what the database has of a growing part; None when a dropped part was in its place."""
        stored = self._stored.get(index)
        return stored if stored is not None and stored.builder is builder else None

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
        self._post(write_all=False)
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
            self._post(write_all=True)

    def _post(self, *, write_all: bool) -> None:
        """Begin a write; if one is under way, begin another after it."""
        if self._write is not None or self._spooling is not None:
            self._flush_again = True
            return
        if not self._store.database.is_up:
            self._start_spooling()
            return
        self._flush_again = False
        plan = self._make_plan(write_all=write_all)
        try:
            write = asyncio.ensure_future(self._load_and_write(plan)) if plan.on_disk else self._submit(plan)
        except (StoreError, Unavailable) as error:
            self._on_write_error(plan, error)
            return
        self._plan, self._write = plan, write
        write.add_done_callback(self._on_write_done)

    def _submit(self, plan: PlannedWrite) -> asyncio.Future[None]:
        return self._store.submit(self._job(plan), is_long=plan.size >= LONG_WRITE, passes_lazy=True)

    async def _load_and_write(self, plan: PlannedWrite) -> None:
        await plan.load()
        if not self._is_closed:
            await self._submit(plan)

    def _on_write_done(self, write: asyncio.Future[None]) -> None:
        plan, self._plan, self._write = self._plan, None, None
        error = None if write.cancelled() else write.exception()
        if plan is None or self._is_closed:
            return
        if isinstance(error, Exception):
            self._on_write_error(plan, error)
            return
        self._stored |= plan.stored
        if plan.is_partial:
            self._flush_again = True
        elif self._is_spooled:
            self._spooling = asyncio.ensure_future(self._remove_spooled(plan.number))
            return
        else:
            self._on_written(plan.number)
        self._write_next()

    def _write_next(self) -> None:
        """Write what has changed meanwhile."""
        if self._flush_again:
            self._post(write_all=True)
        elif self._fold.dirty and self._timer is None:
            self._start_timer()

    async def _remove_spooled(self, number: int) -> None:
        """Remove the answer from the disk: it is older than the database, and a crash would restore it.

        `on_written` is called only after that.
        """
        try:
            await self._store.answers.remove(self._run.id)
            self._is_spooled = False
        except OSError as error:
            log.error("the spooled answer %s cannot be removed: %s", self._fold.id, error)
        finally:
            self._spooling = None
        if not self._is_closed:
            self._on_written(number)
            self._write_next()

    def _on_write_error(self, plan: PlannedWrite, error: Exception) -> None:
        """Write it again later, and spool what is complete: followers may be waiting for it."""
        if isinstance(error, HostFenced):
            self.close()
            return
        log.warning("could not write part of message %s, will retry: %s", self._fold.id, error)
        self._fold.dirty |= plan.indexes
        self._stored_metadata = -1
        self._start_spooling()

    def _start_spooling(self) -> None:
        self._flush_again = False
        if self._timer is None:
            self._start_timer()  # to try the database again
        self._write_number += 1
        self._spooling = asyncio.ensure_future(self._spool(self._write_number))

    async def _spool(self, number: int) -> None:
        self._is_spooled = True
        try:
            await self._store.answers.save(self._snapshot(None))
        except OSError as error:
            log.error("message %s cannot be spooled either: %s", self._fold.id, error)
        else:
            self._on_written(number)
        finally:
            self._spooling = None
        if self._flush_again and not self._is_closed:
            self._post(write_all=True)

    def _snapshot(self, ending: RunEnding | None) -> AnswerSnapshot:
        answer = SpooledAnswer(
            run_id=self._run.id,
            session_id=self._run.session_id,
            message_id=self._fold.id,
            parts=[],
            metadata=self._fold.metadata,
            ending=ending,
            epoch=self._run.epoch,
        )
        return AnswerSnapshot(answer, [builder.snapshot() for builder in self._fold.builders])

    # Planning a write.

    def _make_plan(self, *, write_all: bool) -> PlannedWrite:
        """Plan the next write, what is complete first. What does not fit stays dirty.

        No more parts are looked at than fit into the write: a message may have very many.
        """
        fold = self._fold
        self._drop_missing()
        self._write_number += 1
        plan = PlannedWrite(self._write_number)
        most = len(fold.dirty) if self._is_closed else MAX_PARTS
        due = list(islice(filter(self._is_due_now, fold.dirty), most))
        plan.is_partial = len(due) == most < len(fold.dirty)
        growing = sorted(fold.dirty.difference(due)) if write_all and not plan.is_partial else []
        for number, index in enumerate((*sorted(due), *growing)):
            plan.indexes.add(index)
            has_room = plan.size < MAX_PIECE and len(plan.changed) < MAX_PARTS
            if (has_room or self._is_closed) and self._plan_part(plan, index):
                fold.dirty.discard(index)
            elif number < len(due):
                plan.is_partial = True
        return plan

    def _drop_missing(self) -> None:
        """Forget the changes of parts that the message no longer has."""
        fold = self._fold
        count = len(fold.builders)
        if fold.dirty and max(fold.dirty) >= count:
            self._has_shrunk = True
            fold.dirty = {index for index in fold.dirty if index < count}

    def _plan_part(self, plan: PlannedWrite, index: int) -> bool:
        """Add a part to the write; return whether it has all of it."""
        builder = self._fold.builders[index]
        if isinstance(builder, PartSlot) or not _is_growing(builder):
            self._plan_whole(plan, index, builder=builder)
            return True
        stored = self._stored_text(index, builder)
        is_open = index in self._fold.unfinished
        if builder.length <= (MAX_REWRITTEN if is_open else MAX_WHOLE):
            self._plan_whole(plan, index, builder=builder)
            plan.stored[index] = StoredText(builder, builder.length, builder.length)
            return True
        whole = min(builder.length, MAX_REWRITTEN) if stored is None else stored.whole
        start = whole if stored is None else stored.length
        end = builder.length if self._is_closed else min(builder.length, start + MAX_PIECE - plan.size)
        is_complete = end == builder.length
        if stored is None or (is_complete and not is_open):
            plan.changed.append((index, encode_part(builder.part_until(whole))))
            if stored is None and index in self._tailed:
                plan.cleared.add(index)
        if end > start:
            plan.add_tail(index, builder.pieces_between(start, end), start=start)
            self._tailed.add(index)
        plan.size += end - start
        plan.stored[index] = StoredText(builder, whole, end)
        return is_complete

    def _plan_whole(self, plan: PlannedWrite, index: int, *, builder: PartBuilder) -> None:
        body = encode_part(builder.part())
        plan.changed.append((index, body))
        plan.size += len(body)
        if index in self._tailed:
            plan.cleared.add(index)

    def _job(self, plan: PlannedWrite, *, is_last: bool = False) -> DatabaseJob[None]:
        fold = self._fold
        changed = is_last or fold.metadata_version != self._stored_metadata
        self._stored_metadata = fold.metadata_version
        has_fewer = self._has_shrunk or (is_last and self._is_continued)  # perhaps, than the database
        changes = PartChanges(
            changed=plan.changed,
            tails=plan.tails,
            tailed=plan.cleared,
            count=len(fold.builders) if has_fewer else None,
            metadata=msgspec.json.encode(fold.metadata) if changed and fold.metadata is not None else None,
        )
        return self._store.messages.write_changes_job(self._run.session_id, fold.id, changes=changes)


def _is_growing(builder: BlockBuilder | ToolCallBuilder) -> bool:
    """Return whether the part is text, or arguments that are still streaming."""
    return isinstance(builder, BlockBuilder) or bool(
        builder.current.state == "input-streaming" and builder.fragments and builder.current.input is UNSET
    )
