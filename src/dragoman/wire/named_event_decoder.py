"""Decode streams of named events whose data repeats the name: those of Anthropic and the Responses API."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from dragoman.errors import ProviderError
from dragoman.wire.answer_decoder import Builder, SSEAnswerDecoder
from dragoman.wire.provider_errors import incomplete_answer_error, invalid_json_error, nesting_error
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame, SSEParser

_EVENT_PREFIX, _DATA_PREFIX, _DATA_OBJECT = b"event: ", b"data: ", b"\ndata: {"
_DONE = b"[DONE]"


class NamedEventParser(SSEParser):
    """An SSE parser with a fast path for frames of an `event:` line and a `data:` line.

    Event names are dropped then, since the data repeats them; an error's name is kept.
    """

    def _split_frames(self, raw: bytes) -> list[bytes]:
        if raw.startswith(_EVENT_PREFIX) and len(raw) <= self._limit:
            lines = raw.split(b"\n")
            data = lines[1::3]
            if (
                len(lines) == 3 * len(data) - 1
                and raw.count(b"\n" + _EVENT_PREFIX) + 1 == len(data) == raw.count(_DATA_OBJECT)
                and not any(lines[2::3])
                and b"\n" + _DATA_OBJECT not in raw  # so each data line is the second line of its frame
                and b"event: error" not in lines
            ):
                return [line[len(_DATA_PREFIX) :] for line in data]
        return super()._split_frames(raw)


def event_name(payload: bytes) -> str | None:
    """Return the frame's name in the event stream, if it was kept."""
    return payload.event if isinstance(payload, NamedFrame) else None


Chunk = TypeVar("Chunk")


class NamedEventDecoder(SSEAnswerDecoder[Builder], Generic[Builder, Chunk]):
    """Decodes an answer whose data repeats the names of its events.

    `json_event_prefixes` begin the names of events with JSON data; others may be heartbeats of the server's.
    """

    json_event_prefixes: ClassVar[tuple[str, ...]]

    def __init__(self, builder: Builder, *, limit: int = MAX_FRAME_BYTES) -> None:
        super().__init__(builder, NamedEventParser(limit=limit))

    @abstractmethod
    def _decode_chunks(self, payloads: Sequence[bytes]) -> Sequence[Chunk]:
        """Decode the chunks of regular payloads; none if one of them needs `_read_chunk`."""

    @abstractmethod
    def _read_chunk(self, payload: bytes) -> Chunk | None:
        """Parse a chunk leniently; None for `null`, ValueError if it is not a JSON object."""

    @abstractmethod
    def _add_chunks(self, chunks: Sequence[Chunk], payloads: Sequence[bytes]) -> bool:
        """Add chunks to the builder; return whether the answer may continue."""

    def _decode_frames(self, payloads: Sequence[bytes], *, last: bool = False) -> None:
        try:
            if chunks := self._decode_chunks(payloads):
                self._add_chunks(chunks, payloads)
            else:
                self._decode_each(payloads, last=last)
        except RecursionError:
            self._builder.fail(nesting_error())

    def _decode_each(self, payloads: Sequence[bytes], *, last: bool) -> None:
        """Decode frames one by one if some are irregular."""
        for payload in payloads:
            stripped = payload.strip()
            if not stripped or stripped == _DONE:
                if event_name(payload) == "error":
                    self._builder.fail(None)
                    return
                continue
            try:
                chunk = self._read_chunk(payload)
            except ValueError as error:
                if self._is_heartbeat(payload):
                    continue
                self._builder.fail(
                    incomplete_answer_error("ended inside an event")
                    if last
                    else self._frame_error(payload, error)
                )
                return
            if chunk is not None and not self._add_chunks([chunk], [payload]):
                return

    def _is_heartbeat(self, payload: bytes) -> bool:
        """Return whether invalid JSON can be skipped: a named heartbeat that does not begin like JSON."""
        name = event_name(payload)
        if name is None or payload.startswith(b"{"):
            return False
        return not name.startswith(self.json_event_prefixes)

    def _frame_error(self, payload: bytes, reason: ValueError) -> ProviderError | str:
        """Return the error for a frame that is not JSON, or that is an error in plain text."""
        if event_name(payload) == "error":
            return payload.decode(errors="replace")
        return invalid_json_error(payload, reason)
