"""The spool: usage that the database did not take, kept on disk until it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from dragoman.accounts.lines import Lines
from dragoman.store.budgets import Charge
from dragoman.store.usage import UsageRecord

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
    charges: tuple[Charge, ...] = ()
    reserved: int = 0
    spent: int = 0
    boot: str = ""


Write: TypeAlias = Callable[[Sequence[Settlement]], Awaitable[None]]

ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder(Settlement)


class Spool:
    """A file of JSON lines, bounded; what it was given is on disk a moment later. For one event loop.

    Where the disk is full, it takes neither database nor spool: then lines wait in memory, within the same
    bounds, and go to the disk with the next ones.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, max_rows: int = MAX_ROWS) -> None:
        self._path = path
        self._lines = Lines(path)
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._rows, self._bytes = 0, 0
        self._waiting: list[bytes] = []
        self._writing: asyncio.Future[None] | None = None
        self._problem: OSError | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dragoman-spool")
        self.dropped = 0
        """How many found no room."""

    @property
    def rows(self) -> int:
        """How many wait."""
        return self._rows

    async def open(self) -> None:
        """Count what an earlier process has left."""
        try:
            self._rows, self._bytes = await self._run(self._lines.size)
        except OSError as error:
            log.error("cannot read the spool %r: %s", str(self._path), error.strerror)
        if self._rows:
            log.warning("%d usage records wait in %r", self._rows, str(self._path))

    def put(self, settlements: Sequence[Settlement]) -> None:
        """Keep them; returns at once. When there is no room the newest are dropped, counted and logged."""
        for at, settlement in enumerate(settlements):
            line = ENCODER.encode(settlement) + b"\n"
            if self._rows >= self._max_rows or self._bytes + len(line) > self._max_bytes:
                self.dropped += len(settlements) - at
                log.error("the spool %r is full: %d usage records lost", str(self._path), self.dropped)
                break
            self._rows += 1
            self._bytes += len(line)
            self._waiting.append(line)
        self._write()

    async def flush(self) -> None:
        """Wait until all is on disk; OSError when it does not take it."""
        while self._waiting or self._writing:
            self._write()
            if self._writing is not None:
                await asyncio.wait([self._writing])
            if self._problem is not None:
                raise self._problem

    async def replay(self, write: Write) -> int:
        """Hand all that waits to `write`, in order, some at a time; how many that were.

        When `write` raises, or the process dies, the next replay hands over the same again: `write` has to
        know what it has already. Never two at a time.
        """
        try:
            await self.flush()
        except OSError:
            return await self._replay_disk(write) + await self._replay_memory(write)
        return await self._replay_disk(write)

    async def close(self) -> None:
        """Write what waits, if the disk takes it."""
        try:
            await self.flush()
        except OSError as error:
            log.error("%d usage records are lost: %s", len(self._waiting), error.strerror)
        self._thread.shutdown()

    async def _replay_disk(self, write: Write) -> int:
        handed = 0
        while (size := await self._run(self._lines.set_apart)) is not None:
            lines = self._lines.apart()
            while chunk := await self._run(lambda lines=lines: list(islice(lines, CHUNK))):  # type: ignore[misc]
                handed += await self._hand_over(chunk, write)
            await self._run(self._lines.remove)
            self._rows -= size.rows
            self._bytes -= size.bytes
        return handed

    async def _replay_memory(self, write: Write) -> int:
        """What the disk does not take."""
        handed = 0
        while chunk := self._waiting[:CHUNK]:
            handed += await self._hand_over(chunk, write)
            del self._waiting[: len(chunk)]
            self._rows -= len(chunk)
            self._bytes -= sum(len(line) for line in chunk)
        return handed

    async def _hand_over(self, chunk: Sequence[bytes], write: Write) -> int:
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

    def _write(self) -> None:
        """Give the thread what waits, unless it is busy."""
        if self._waiting and self._writing is None:
            lines, self._waiting = self._waiting, []
            self._writing = asyncio.ensure_future(self._run(lambda: self._lines.append(lines)))
            self._writing.add_done_callback(lambda done: self._written(done, lines))

    def _written(self, done: asyncio.Future[None], lines: list[bytes]) -> None:
        self._writing = None
        error = None if done.cancelled() else done.exception()
        if error is None:
            self._problem = None
            self._write()
            return
        self._waiting = lines + self._waiting
        if self._problem is None:
            log.error("cannot write the spool %r: %s", str(self._path), error)
        self._problem = error if isinstance(error, OSError) else OSError(str(error))

    async def _run(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)
