"""Encode events as the stream of an A2A task: its state, and its results as artifacts that grow.

Clients keep each chunk of a text as a part of its own. So a text is sent in sentences, or every
`CHUNK_SECONDS`. How the task ends is added by who can read what is stored. Source: wire notes on A2A,
section B2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.wire.a2a.types import (
    HUB_DATA,
    A2aArtifact,
    A2aPart,
    A2aTask,
    A2aTaskStatus,
    ArtifactUpdate,
    StatusUpdate,
    StreamItem,
    data_artifact_id,
    file_part,
)
from dragoman.wire.encoder import SSE_HEADERS

CHUNK_SECONDS = 0.2
MAX_CHUNK = 100_000  # characters
SENTENCE_ENDS = (". ", "! ", "? ", "\n", "\u3002", "\uff01", "\uff1f")
_encoder = msgspec.json.Encoder()


class StreamEnvelope(msgspec.Struct, frozen=True):
    """How an item of a stream is wrapped: in a JSON-RPC response with this `id`, or not at all."""

    id: Any = msgspec.UNSET

    def frame(self, item: StreamItem) -> bytes:
        """Return one frame of the stream."""
        body: Any = item if self.id is msgspec.UNSET else {"jsonrpc": "2.0", "id": self.id, "result": item}
        return b"data: " + _encoder.encode(body) + b"\n\n"


class TaskStreamEncoder:
    """Encodes the stream of one task, beginning with the task itself.

    `clock` returns seconds. `on_waiting` is called when a text begins to wait for the end of its sentence:
    encode an empty batch `CHUNK_SECONDS` later. `is_task_sent`: the client has the task, submitted.
    """

    headers: Mapping[str, str] = SSE_HEADERS

    def __init__(
        self,
        task: A2aTask,
        *,
        envelope: StreamEnvelope,
        clock: Callable[[], float],
        on_waiting: Callable[[], None],
        is_task_sent: bool = False,
    ) -> None:
        self._is_task_sent = is_task_sent
        self._task = task
        self._envelope = envelope
        self._clock = clock
        self._on_waiting = on_waiting
        self._has_begun = False
        self._texts: dict[str, _TextArtifact] = {}
        self._text_count = self._file_count = 0
        self._counts_before_step = (0, 0)

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """Return the batch as `data:` frames, with the texts that have waited long enough."""
        frames = bytearray(self.begin())
        for event in batch:
            for update in self._convert(event):
                frames += self._envelope.frame(StreamItem(artifact_update=update))
        for text in self._texts.values():
            if text.waits and self._clock() - text.waiting_since >= CHUNK_SECONDS:
                frames += self._envelope.frame(StreamItem(artifact_update=text.take_all()))
        return bytes(frames)

    def begin(self) -> bytes:
        """Return the task and, unless it is in it already, its state `WORKING`, once."""
        if self._has_begun:
            return b""
        self._has_begun = True
        working = StatusUpdate(
            task_id=self._task.id,
            context_id=self._task.context_id,
            status=A2aTaskStatus(state="TASK_STATE_WORKING", timestamp=self._task.status.timestamp),
        )
        update = self._envelope.frame(StreamItem(status_update=working))
        if self._is_task_sent:
            return update
        first = self._envelope.frame(StreamItem(task=self._task))
        is_working = self._task.status.state == working.status.state  # of a task that was begun before
        return first if is_working else first + update

    def end(self) -> bytes:
        """Return what is left of open texts."""
        updates = [text.close() for text in self._texts.values()]
        self._texts.clear()
        frames = [self._envelope.frame(StreamItem(artifact_update=update)) for update in updates]
        return self.begin() + b"".join(frames)

    def _convert(self, event: e.Event) -> Iterator[ArtifactUpdate]:
        match event:
            case e.TextDelta(id=id, delta=delta) if id in self._texts:
                yield from self._grow(self._texts[id], delta)
            case e.TextStart(id=id):
                yield from self._close(id)
                self._text_count += 1
                self._texts[id] = _TextArtifact(self._task, f"text-{self._text_count}")
            case e.TextEnd(id=id):
                yield from self._close(id)
            case e.File(url=url, media_type=media_type):
                self._file_count += 1
                yield self._whole(f"file-{self._file_count}", file_part(url, media_type))
            case e.Data(type=kind, data=data) if kind not in HUB_DATA:
                yield self._whole(data_artifact_id(event.name, event.id), A2aPart(data=data), name=event.name)
            case e.StartStep():
                self._counts_before_step = self._text_count, self._file_count
            case e.ResetStep():  # what follows replaces the artifacts of the step: it has their ids
                self._texts.clear()
                self._text_count, self._file_count = self._counts_before_step
            case _:
                pass

    def _grow(self, text: _TextArtifact, delta: str) -> Iterator[ArtifactUpdate]:
        waited = text.waits
        yield from text.grow(delta)
        if text.waits and not waited:
            text.waiting_since = self._clock()
            self._on_waiting()

    def _close(self, id: str) -> Iterator[ArtifactUpdate]:
        text = self._texts.pop(id, None)
        if text is not None:
            yield text.close()

    def _whole(self, id: str, part: A2aPart, *, name: str = "") -> ArtifactUpdate:
        artifact = A2aArtifact(artifact_id=id, parts=(part,), name=name)
        return ArtifactUpdate(
            task_id=self._task.id, context_id=self._task.context_id, artifact=artifact, last_chunk=True
        )


class _TextArtifact:
    """A text that is sent sentence by sentence; the part after the last sentence waits."""

    def __init__(self, task: A2aTask, id: str) -> None:
        self.waiting_since = 0.0
        self._task = task
        self._id = id
        self._pieces: list[str] = []
        self._length = 0
        self._has_begun = False

    @property
    def waits(self) -> bool:
        return bool(self._pieces)

    def grow(self, delta: str) -> Iterator[ArtifactUpdate]:
        """Add a piece; yield the sentences that are complete, once something follows them."""
        near_end = (self._pieces[-1][-2:] if self._pieces else "") + delta
        self._pieces.append(delta)
        self._length += len(delta)
        if self._length < MAX_CHUNK and not any(mark in near_end for mark in SENTENCE_ENDS):
            return
        text = "".join(self._pieces)
        end = max((text.rfind(mark) + len(mark) for mark in SENTENCE_ENDS if mark in text), default=0)
        if self._length >= MAX_CHUNK:
            end = len(text)
        elif end == len(text):
            return
        if end:
            self._keep(text[end:])
            yield self._update(text[:end], is_last=False)

    def take_all(self) -> ArtifactUpdate:
        """Return all that waits."""
        text = "".join(self._pieces)
        self._keep("")
        return self._update(text, is_last=False)

    def close(self) -> ArtifactUpdate:
        """Return the rest."""
        return self._update("".join(self._pieces), is_last=True)

    def _keep(self, rest: str) -> None:
        self._pieces = [rest] if rest else []
        self._length = len(rest)

    def _update(self, text: str, *, is_last: bool) -> ArtifactUpdate:
        append, self._has_begun = self._has_begun, True
        return ArtifactUpdate(
            task_id=self._task.id,
            context_id=self._task.context_id,
            artifact=A2aArtifact(artifact_id=self._id, parts=(A2aPart(text=text),)),
            append=append,
            last_chunk=is_last,
        )
