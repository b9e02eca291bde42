"""The spool: usage that the database did not take, kept on disk until it does."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from dragoman.store.budgets import ChargedBudget
from dragoman.store.usage import UsageRecord

# ---- Lines on disk: appended whole, read again after a crash, set apart while they are worked off. Blocks.

REPLAY_SUFFIX = ".replayed"


class SpoolSize(NamedTuple):
    """How much waits."""

    rows: int
    bytes: int


class SpoolFile:
    """A file of lines. What is set apart to be worked off lies beside it, while new lines come in here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replay_path = path.with_name(path.name + REPLAY_SUFFIX)

    def size(self) -> SpoolSize:
        """How much there is in all."""
        here, apart = file_size(self._path), file_size(self._replay_path)
        return SpoolSize(here.rows + apart.rows, here.bytes + apart.bytes)

    def append(self, lines: Sequence[bytes]) -> None:
        """Add whole lines, on disk on return; OSError when it takes none of them."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                    write_all(file.fileno(), b"\n")  # what a crash cut off stays a line of its own
                write_all(file.fileno(), b"".join(lines))
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise

    def start_replay(self) -> SpoolSize | None:
        """Set apart what there is; how much that is, None when there is nothing.

        What was set apart before and not removed comes first.
        """
        if not self._replay_path.exists():
            if not file_size(self._path).rows:
                return None
            self._path.replace(self._replay_path)
        return file_size(self._replay_path)

    def replay_lines(self) -> Iterator[bytes]:
        """The lines that were set apart."""
        with self._replay_path.open("rb") as file:
            yield from file

    def finish_replay(self) -> None:
        """Remove what was set apart."""
        self._replay_path.unlink(missing_ok=True)


def file_size(path: Path) -> SpoolSize:
    if not path.exists():
        return SpoolSize(0, 0)
    with path.open("rb") as file:
        return SpoolSize(sum(1 for line in file if line.strip()), path.stat().st_size)


def write_all(file: int, content: bytes) -> None:
    """All of it, also when the system takes it in pieces."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


MAX_BYTES = 64 * 1024 * 1024
MAX_ROWS = 100_000
CHUNK = 256

T = TypeVar("T")
log = logging.getLogger(__name__)


class Settlement(msgspec.Struct, frozen=True, omit_defaults=True):
    """A usage record, and what it does to its budgets, in nano-dollars.

    `boot` names the process that reserved: when that has ended, its reservations have too.
    """

    record: UsageRecord
    charges: tuple[ChargedBudget, ...] = ()
    reserved: int = 0
    spent: int = 0
    boot: str = ""


SettlementWriter: TypeAlias = Callable[[Sequence[Settlement]], Awaitable[None]]

ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder(Settlement)


class Spool:
    """A file of JSON lines, bounded; what it was given is on disk a moment later. For one event loop.

    Where the disk is full, it takes neither database nor spool: then lines wait in memory, within the same
    bounds, and go to the disk with the next ones.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, max_rows: int = MAX_ROWS) -> None:
        self._path = path
        self._file = SpoolFile(path)
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._row_count, self._byte_count = 0, 0
        self._unwritten: list[bytes] = []
        self._write_future: asyncio.Future[None] | None = None
        self._problem: OSError | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dragoman-spool")
        self.dropped = 0
        """How many found no room."""

    @property
    def row_count(self) -> int:
        """How many wait."""
        return self._row_count

    async def open(self) -> None:
        """Count what an earlier process has left."""
        try:
            self._row_count, self._byte_count = await self._run_in_thread(self._file.size)
        except OSError as error:
            log.error("cannot read the spool %r: %s", str(self._path), error.strerror)
        if self._row_count:
            log.warning("%d usage records wait in %r", self._row_count, str(self._path))

    def append(self, settlements: Sequence[Settlement]) -> None:
        """Keep them; returns at once. When there is no room the newest are dropped, counted and logged."""
        for at, settlement in enumerate(settlements):
            line = ENCODER.encode(settlement) + b"\n"
            if self._row_count >= self._max_rows or self._byte_count + len(line) > self._max_bytes:
                self.dropped += len(settlements) - at
                log.error("the spool %r is full: %d usage records lost", str(self._path), self.dropped)
                break
            self._row_count += 1
            self._byte_count += len(line)
            self._unwritten.append(line)
        self._start_write()

    async def flush(self) -> None:
        """Wait until all is on disk; OSError when it does not take it."""
        while self._unwritten or self._write_future:
            self._start_write()
            if self._write_future is not None:
                await asyncio.wait([self._write_future])
            if self._problem is not None:
                raise self._problem

    async def replay(self, write: SettlementWriter) -> int:
        """Hand all that waits to `write`, in order, some at a time; how many that were.

        When `write` raises, or the process dies, the next replay hands over the same again: `write` has to
        know what it has already. Never two at a time.
        """
        try:
            await self.flush()
        except OSError:
            return await self._replay_file(write) + await self._replay_memory(write)
        return await self._replay_file(write)

    async def close(self) -> None:
        """Write what waits, if the disk takes it."""
        try:
            await self.flush()
        except OSError as error:
            log.error("%d usage records are lost: %s", len(self._unwritten), error.strerror)
        self._executor.shutdown()

    async def _replay_file(self, write: SettlementWriter) -> int:
        handed = 0
        while (size := await self._run_in_thread(self._file.start_replay)) is not None:
            lines = self._file.replay_lines()
            while chunk := await self._run_in_thread(lambda lines=lines: list(islice(lines, CHUNK))):  # type: ignore[misc]
                handed += await self._replay_chunk(chunk, write)
            await self._run_in_thread(self._file.finish_replay)
            self._row_count -= size.rows
            self._byte_count -= size.bytes
        return handed

    async def _replay_memory(self, write: SettlementWriter) -> int:
        """What the disk does not take."""
        handed = 0
        while chunk := self._unwritten[:CHUNK]:
            handed += await self._replay_chunk(chunk, write)
            del self._unwritten[: len(chunk)]
            self._row_count -= len(chunk)
            self._byte_count -= sum(len(line) for line in chunk)
        return handed

    async def _replay_chunk(self, chunk: Sequence[bytes], write: SettlementWriter) -> int:
        settlements = [settlement for line in chunk if (settlement := self._decode(line)) is not None]
        if settlements:
            await write(settlements)
        return len(settlements)

    def _decode(self, line: bytes) -> Settlement | None:
        if not line.strip():
            return None
        try:
            return DECODER.decode(line)
        except msgspec.DecodeError as error:
            log.error("a line of the spool %r cannot be read and is skipped: %s", str(self._path), error)
            return None

    def _start_write(self) -> None:
        """Give the thread what waits, unless it is busy."""
        if self._unwritten and self._write_future is None:
            lines, self._unwritten = self._unwritten, []
            self._write_future = asyncio.ensure_future(self._run_in_thread(lambda: self._file.append(lines)))
            self._write_future.add_done_callback(lambda done: self._finish_write(done, lines))

    def _finish_write(self, write: asyncio.Future[None], lines: list[bytes]) -> None:
        self._write_future = None
        error = None if write.cancelled() else write.exception()
        if error is None:
            self._problem = None
            self._start_write()
            return
        self._unwritten = lines + self._unwritten
        if self._problem is None:
            log.error("cannot write the spool %r: %s", str(self._path), error)
        self._problem = error if isinstance(error, OSError) else OSError(str(error))

    async def _run_in_thread(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, job)
