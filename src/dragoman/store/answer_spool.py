"""Answers on disk that the database has not accepted yet: what clients were told must not be lost.

One file a run, replaced as a whole. Files are written to the database when it is up again, and at the start.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.errors import DragomanError, StoreError, Unavailable
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.messages import encode_part
from dragoman.part_builders import PartSnapshot
from dragoman.store.runs import RunRepository
from dragoman.store.sessions.messages import MessageRepository
from dragoman.store.sessions.run_ends import RunEnding

T = TypeVar("T")
log = logging.getLogger(__name__)
MAX_BYTES = 256_000_000


class SpooledAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The message of a run as it was when the database did not accept it; `ending` once the run has ended.

    `epoch` is that of the run in the process that wrote the file, None in a file of an earlier version.
    """

    run_id: str
    session_id: str
    message_id: str
    parts: list[msgspec.Raw]
    metadata: Any = None
    ending: RunEnding | None = None
    epoch: int | None = None


class AnswerSnapshot(NamedTuple):
    """An answer, and more parts of it, which are read and encoded when it is written."""

    answer: SpooledAnswer
    parts: Sequence[PartSnapshot] = ()

    def encode(self) -> bytes:
        """Return the answer as JSON, in any thread. Raises OSError."""
        parts = [msgspec.Raw(encode_part(part.read())) for part in self.parts]
        return _encoder.encode(replace(self.answer, parts=[*self.answer.parts, *parts]))


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(SpooledAnswer)


class AnswerSpool:
    """A folder of answers. Use it from one event loop; files are written in a thread, one at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        runs: RunRepository,
        messages: MessageRepository,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._folder = folder
        self._runs = runs
        self._messages = messages
        self._max_bytes = max_bytes
        self._lock = asyncio.Lock()
        self._saved: set[str] = set()

    async def save(self, snapshot: AnswerSnapshot) -> None:
        """Write an answer to its file; it is on disk on return. Raises OSError, also for a full spool."""
        run_id = snapshot.answer.run_id
        self._saved.add(run_id)
        await self._in_thread(lambda: self._write(self._path(run_id), snapshot.encode()))

    async def remove(self, run_id: str) -> None:
        """Remove the file of a run whose answer is in the database, if it has one."""
        if run_id in self._saved:
            await self._in_thread(lambda: self._path(run_id).unlink(missing_ok=True))
            self._saved.discard(run_id)

    async def replay(self, *, at_start: bool) -> int:
        """Write the answers to the database, and remove their files. Returns how many there were.

        While runs are active (`at_start` False) only those that have ended. A run that the database knows to
        have ended, or that another host has taken over, is left as it is. Raises StoreError or Unavailable
        when the database does not accept them.
        """
        count = 0
        for path in await self._in_thread(self._files):
            answer = await self._in_thread(lambda path=path: read_answer(path))  # type: ignore[misc]
            if answer is None or not (at_start or answer.ending is not None):
                continue
            await self._replay_answer(answer)
            await self._in_thread(lambda path=path: path.unlink(missing_ok=True))  # type: ignore[misc]
            self._saved.discard(answer.run_id)
            count += 1
        return count

    async def _replay_answer(self, answer: SpooledAnswer) -> None:
        job = self._messages.write_parts_job(
            answer.session_id,
            answer.message_id,
            changed=[(position, bytes(part)) for position, part in enumerate(answer.parts)],
            count=len(answer.parts),
            metadata=None if answer.metadata is None else _encoder.encode(answer.metadata),
        )
        try:
            if answer.ending is not None:
                await self._runs.finish(answer.run_id, answer.ending, extra_job=job, epoch=answer.epoch)
            else:
                await self._runs.write_running(answer.run_id, job, epoch=answer.epoch)
        except (StoreError, Unavailable):
            raise
        except DragomanError as error:  # such as a session that was deleted
            log.warning("the spooled answer of run %s is dropped: %s", answer.run_id, error.message)

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"

    def _files(self) -> Sequence[Path]:
        return sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ()

    def _write(self, path: Path, raw: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = sum(file.stat().st_size for file in self._folder.iterdir() if file.name != path.name)
        if others + len(raw) > self._max_bytes:
            raise OSError(f"the folder {str(self._folder)!r} has {others} of {self._max_bytes} bytes")
        partial = path.with_suffix(".partial")
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            view = memoryview(raw)
            while view:
                view = view[os.write(file, view) :]
            os.fsync(file)
        finally:
            os.close(file)
        partial.replace(path)
        folder = os.open(self._folder, os.O_RDONLY)  # its names have to outlive a loss of power, too
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def _in_thread(self, job: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(job)


def read_answer(path: Path) -> SpooledAnswer | None:
    """Return the answer in a file; None when it cannot be read, which is logged."""
    try:
        return _decoder.decode(path.read_bytes())
    except (OSError, *DECODE_ERRORS) as error:
        log.error("the spooled answer %r cannot be read and is skipped: %s", str(path), error)
        return None
