"""The spool: settlements on disk that the database has not accepted yet."""

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

from dragoman.json_decoding import DECODE_ERRORS, replace_surrogates
from dragoman.store.accounts.budgets import ChargedBudget
from dragoman.store.private_files import FILE_MODE, FOLDER_MODE
from dragoman.usage_record import UsageRecord

# The file: complete lines are appended, and survive a crash. During a replay the old file is renamed, while
# new lines go to a new one. These functions block.

REPLAY_SUFFIX = ".replayed"


class SpoolSize(NamedTuple):
    """The size of a spool file."""

    rows: int
    bytes: int


class SpoolFile:
    """A file of lines, and the file next to it that is being replayed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._replay_path = path.with_name(path.name + REPLAY_SUFFIX)

    def size(self) -> SpoolSize:
        """Return the size of both files."""
        current, replayed = file_size(self._path), file_size(self._replay_path)
        return SpoolSize(current.rows + replayed.rows, current.bytes + replayed.bytes)

    def append(self, lines: Sequence[bytes]) -> None:
        """Append complete lines; they are on disk on return. Raises OSError, and then none is appended."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)
        with open(self._path, "ab+", buffering=0, opener=open_private) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                    write_all(file.fileno(), b"\n")  # end the line that a crash cut off
                write_all(file.fileno(), b"".join(lines))
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise

    def start_replay(self) -> SpoolSize | None:
        """Rename the file for replay and return its size; None when it is empty.

        An interrupted replay continues with its file first.
        """
        if not self._replay_path.exists():
            if not file_size(self._path).rows:
                return None
            self._path.replace(self._replay_path)
        return file_size(self._replay_path)

    def replay_lines(self) -> Iterator[bytes]:
        """Yield the lines to replay."""
        with self._replay_path.open("rb") as file:
            yield from file

    def finish_replay(self) -> None:
        """Delete the replayed file."""
        self._replay_path.unlink(missing_ok=True)


def open_private(path: str, flags: int) -> int:
    """Open a file; a new one is for this user only."""
    return os.open(path, flags, FILE_MODE)


def file_size(path: Path) -> SpoolSize:
    if not path.exists():
        return SpoolSize(0, 0)
    with path.open("rb") as file:
        return SpoolSize(sum(1 for line in file if line.strip()), path.stat().st_size)


def write_all(file: int, content: bytes) -> None:
    """Write all of the content, however much each system call takes."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


MAX_BYTES = 64 * 1024 * 1024
MAX_ROWS = 100_000
CHUNK = 256

T = TypeVar("T")
log = logging.getLogger(__name__)


class Settlement(msgspec.Struct, frozen=True, omit_defaults=True):
    """A usage record and its effect on budgets, in nano-dollars.

    `boot` is the id of the process that reserved: its reservations end with it. `shared` are budgets that
    tasks share, each with what is reserved of it.
    """

    record: UsageRecord
    charges: tuple[ChargedBudget, ...] = ()
    reserved: int = 0
    spent: int = 0
    boot: str = ""
    shared: tuple[tuple[ChargedBudget, int], ...] = ()
    shared_spent: int = 0


SettlementWriter: TypeAlias = Callable[[Sequence[Settlement]], Awaitable[None]]

ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder(Settlement)


def encode_line(settlement: Settlement) -> bytes:
    """Return a line of the file. Lone surrogates, which no database takes either, are replaced."""
    try:
        return ENCODER.encode(settlement) + b"\n"
    except UnicodeEncodeError:
        return ENCODER.encode(replace_surrogates(msgspec.to_builtins(settlement))) + b"\n"


class Spool:
    """A bounded file of JSON lines, written in a thread. Use it from one event loop.

    When the disk is full, both database and spool fail. Lines then wait in memory, within the same bounds,
    and are written with the next ones.
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
        """How many settlements were lost because the spool was full."""

    @property
    def row_count(self) -> int:
        """How many settlements are in the spool."""
        return self._row_count

    async def open(self) -> None:
        """Count what an earlier process left."""
        try:
            self._row_count, self._byte_count = await self._run_in_thread(self._file.size)
        except OSError as error:
            log.error("cannot read the spool %r: %s", str(self._path), error.strerror)
        if self._row_count:
            log.warning("%d usage records are in the spool %r", self._row_count, str(self._path))

    def append(self, settlements: Sequence[Settlement]) -> None:
        """Add settlements; returns immediately. When the spool is full, the newest are dropped and logged."""
        for at, settlement in enumerate(settlements):
            line = encode_line(settlement)
            if self._row_count >= self._max_rows or self._byte_count + len(line) > self._max_bytes:
                self.dropped += len(settlements) - at
                log.error("the spool %r is full: %d usage records lost", str(self._path), self.dropped)
                break
            self._row_count += 1
            self._byte_count += len(line)
            self._unwritten.append(line)
        self._start_write()

    async def flush(self) -> None:
        """Wait until everything is on disk. Raises OSError."""
        while self._unwritten or self._write_future:
            self._start_write()
            if self._write_future is not None:
                await asyncio.wait([self._write_future])
            if self._problem is not None:
                raise self._problem

    async def replay(self, write: SettlementWriter) -> int:
        """Pass all settlements to `write` in order, in chunks; return how many there were.

        If `write` raises, or the process is killed, the next replay passes the same ones again, so `write`
        must skip what it has written. Run one replay at a time.
        """
        try:
            await self.flush()
        except OSError:
            return await self._replay_file(write) + await self._replay_memory(write)
        return await self._replay_file(write)

    async def close(self) -> None:
        """Write what is in memory, if the disk accepts it."""
        try:
            await self.flush()
        except OSError as error:
            log.error("%d usage records are lost: %s", len(self._unwritten), error.strerror)
        self._executor.shutdown()

    async def _replay_file(self, write: SettlementWriter) -> int:
        count = 0
        while (size := await self._run_in_thread(self._file.start_replay)) is not None:
            lines = self._file.replay_lines()
            while chunk := await self._run_in_thread(lambda lines=lines: list(islice(lines, CHUNK))):  # type: ignore[misc]
                count += await self._replay_chunk(chunk, write)
            await self._run_in_thread(self._file.finish_replay)
            self._row_count -= size.rows
            self._byte_count -= size.bytes
        return count

    async def _replay_memory(self, write: SettlementWriter) -> int:
        """Replay what the disk did not accept."""
        count = 0
        while chunk := self._unwritten[:CHUNK]:
            count += await self._replay_chunk(chunk, write)
            del self._unwritten[: len(chunk)]
            self._row_count -= len(chunk)
            self._byte_count -= sum(len(line) for line in chunk)
        return count

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
        except DECODE_ERRORS as error:
            log.error("a line of the spool %r cannot be read and is skipped: %s", str(self._path), error)
            return None

    def _start_write(self) -> None:
        """Start writing what is in memory, unless the thread is busy."""
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
