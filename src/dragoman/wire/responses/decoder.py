"""Decode the stream of the Responses API: socket reads to batches of events.

A finish is never invented: an answer is complete with its whole response, otherwise it is an error. Source:
wire notes on the Responses API, sections 2 to 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Unpack

from dragoman.events import Event
from dragoman.wire.answer_decoder import AnswerOptions, parse_answer
from dragoman.wire.named_event_decoder import NamedEventDecoder
from dragoman.wire.provider_errors import find_error, incomplete_answer_error, nesting_error, preview
from dragoman.wire.responses.chunk import ResponsesChunk, decode_chunks, read_chunk, responses_error
from dragoman.wire.responses.event_builder import ResponsesEventBuilder
from dragoman.wire.sse import MAX_FRAME_BYTES


class ResponsesDecoder(NamedEventDecoder[ResponsesEventBuilder, ResponsesChunk]):
    """See `AnswerDecoder`."""

    json_event_prefixes: ClassVar[tuple[str, ...]] = ("response.", "error", "data", "message")

    def __init__(self, *, limit: int = MAX_FRAME_BYTES, **options: Unpack[AnswerOptions]) -> None:
        super().__init__(ResponsesEventBuilder(**options), limit=limit)

    def decode_document(self, raw: bytes) -> list[Event]:
        """See `AnswerDecoder`."""
        value = parse_answer(raw)
        if not isinstance(value, Mapping) or not isinstance(value.get("output"), list):
            raise responses_error(find_error(value) or f"the answer has no output: {preview(raw)}")
        try:
            self._builder.add_response(value)
        except RecursionError:
            raise nesting_error() from None
        return self._take_events()

    def _end(self) -> None:
        self._decode_frames(self._parser.close(), last=True)
        if not self._builder.finished:
            self._builder.fail(
                incomplete_answer_error("ended without its response", started=self._builder.started)
            )

    def _take_events(self) -> list[Event]:
        self.done = self._builder.finished
        return super()._take_events()

    def _decode_chunks(self, payloads: Sequence[bytes]) -> Sequence[ResponsesChunk]:
        return decode_chunks(payloads)

    def _read_chunk(self, payload: bytes) -> ResponsesChunk | None:
        return read_chunk(payload)

    def _add_chunks(self, chunks: Sequence[ResponsesChunk], payloads: Sequence[bytes]) -> bool:
        builder = self._builder
        for chunk in chunks:
            builder.add_chunk(chunk)
            if builder.failure is not None or builder.finished:
                return False
        return True
