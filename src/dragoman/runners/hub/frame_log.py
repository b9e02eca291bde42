"""The log of a run's frames: it decides which frames are acknowledged, and restores a run after a crash.

The message itself is journalled as in every run. It lags behind, and an open text of it may be stored in
part, so it does not show which frames it contains. The log does: it is written before the message shows them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.errors import HostFenced, StoreError, Unavailable
from dragoman.messages import Message, decode_part, encode_part
from dragoman.store.runner_frame_log import FrameBatch
from dragoman.store.store import Store
from dragoman.wire.runner.frames import FrameOfTurn, PartTextDelta, decode_from_runner, encode_runner_frame

log = logging.getLogger(__name__)
INTERVAL = 0.2  # seconds between two writes of text
MAX_BODY = 262_144  # characters of one write


class LoggedAnswer(msgspec.Struct, frozen=True, tag_field="type", tag="hub.answer"):
    """The answer to an approval request, at its place among the frames."""

    request: str
    approved: bool
    text: str | None = None


class LoggedMessage(msgspec.Struct, frozen=True, tag_field="type", tag="hub.message"):
    """The message that the run started with, if it already had parts."""

    id: str
    parts: list[msgspec.Raw]
    metadata: Any = None

    @classmethod
    def of(cls, message: Message) -> LoggedMessage:
        """Return the entry for a message."""
        parts = [msgspec.Raw(encode_part(part)) for part in message.parts]
        return cls(message.id, parts, message.metadata)

    def message(self) -> Message:
        """Return the message."""
        parts = tuple(decode_part(bytes(part).decode()) for part in self.parts)
        return Message(id=self.id, role="assistant", parts=parts, metadata=self.metadata)


LogEntry: TypeAlias = FrameOfTurn | LoggedAnswer | LoggedMessage
_own_decoder: msgspec.json.Decoder[LoggedAnswer | LoggedMessage] = msgspec.json.Decoder(
    LoggedAnswer | LoggedMessage
)


class StoredLog(msgspec.Struct, frozen=True):
    """The log of a run: its entries in order, the number of its last frame, and how many batches it has."""

    entries: Sequence[LogEntry] = ()
    seq: int = 0
    batches: int = 0


class FrameLog:
    """Writes the frames of one run in batches. `on_stored` is called with the number of the last frame."""

    def __init__(
        self, store: Store, run_id: str, *, on_stored: Callable[[int], None], batches: int = 0
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._on_stored = on_stored
        self._position = batches
        self._lines: list[str] = []
        self._deltas: list[PartTextDelta] = []  # they become one line
        self._size = 0
        self._seq = self._stored_seq = 0
        self._timer: asyncio.TimerHandle | None = None
        self._write: asyncio.Future[None] | None = None
        self._is_closed = False

    def add(self, entry: LogEntry, *, seq: int) -> int:
        """Add an entry; it is written within `INTERVAL`. Return its size in characters."""
        if isinstance(entry, PartTextDelta) and entry.last_half is entry.first_half is None:
            size = len(entry.delta)
            self._deltas.append(entry)
        else:
            size = self._add_line(entry)
        self._size += size
        self._seq = seq
        if self._size >= MAX_BODY:
            self.flush()
        else:
            self._start_timer()
        return size

    def _add_line(self, entry: LogEntry) -> int:
        """Add a line, after one for the deltas before it; return its size."""
        self._join_deltas()
        match entry:
            case LoggedAnswer() | LoggedMessage():
                line = msgspec.json.encode(entry).decode()
            case _:
                line = encode_runner_frame(entry)
        self._lines.append(line)
        return len(line)

    def _join_deltas(self) -> None:
        deltas, self._deltas = self._deltas, []
        if deltas:
            text = "".join(frame.delta for frame in deltas)
            self._lines.append(encode_runner_frame(replace(deltas[-1], delta=text)))

    def skip(self, *, seq: int) -> None:
        """Count a frame that is not part of the message: its number is written within `INTERVAL`."""
        self._seq = seq
        self._start_timer()

    def flush(self) -> None:
        """Write what was added now, or after the current write."""
        self._stop_timer()
        if self._write is not None or self._is_closed:
            return
        self._join_deltas()
        if not self._lines and self._seq <= self._stored_seq:
            return
        batch = FrameBatch(self._position, self._seq, "\n".join(self._lines))
        try:
            write = self._store.submit(self._store.runner_frames.put_job(self._run_id, batch))
        except (StoreError, Unavailable) as error:
            self._retry(error)
            return
        self._position += bool(self._lines)  # a batch that only counts frames is overwritten by the next
        self._lines, self._size, self._write = [], 0, write
        write.add_done_callback(lambda done: self._on_done(done, batch))

    def _on_done(self, write: asyncio.Future[None], batch: FrameBatch) -> None:
        self._write = None
        error = None if write.cancelled() else write.exception()
        if self._is_closed or isinstance(error, HostFenced):
            self.close()
            return
        if error is not None:
            self._lines = [*lines_of(batch), *self._lines]
            self._size += len(batch.body)
            self._position = batch.position  # overwrite it: it may have been committed despite the error
            self._retry(error)
            return
        self._stored_seq = batch.seq
        self._on_stored(batch.seq)
        if self._lines or self._deltas:
            self.flush()
        elif self._seq > batch.seq:
            self._start_timer()

    def _retry(self, error: BaseException) -> None:
        log.warning("frames of run %s are not stored yet: %s", self._run_id, error)
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(5 * INTERVAL, self.flush)

    async def drain(self) -> None:
        """Write what was added, and wait until it is stored or has failed."""
        for _ in range(2):
            self.flush()
            if self._write is not None:
                await asyncio.wait([self._write])

    def _start_timer(self) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self.flush)

    def close(self) -> None:
        """Write nothing more."""
        self._is_closed = True
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def read_log(store: Store, run_id: str) -> StoredLog:
    """Read the log of a run."""
    batches = await store.runner_frames.list(run_id)
    entries: list[LogEntry] = []
    for batch in batches:
        entries += [decode_entry(line) for line in lines_of(batch)]
        await asyncio.sleep(0)
    last = batches[-1] if batches else None
    return StoredLog(
        entries, max((batch.seq for batch in batches), default=0), last.position + 1 if last else 0
    )


def lines_of(batch: FrameBatch) -> list[str]:
    """Return the lines of a batch; a batch that only counts frames has none."""
    return batch.body.split("\n") if batch.body else []


def decode_entry(line: str) -> LogEntry:
    """Decode one line of a log."""
    if line.startswith('{"type":"hub.'):
        return _own_decoder.decode(line)
    return decode_from_runner(line, limit=2**40)  # type: ignore[return-value] # only frames of turns are added
