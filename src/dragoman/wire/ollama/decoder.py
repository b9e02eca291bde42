"""Decode Ollama's /api/chat stream: socket reads to batches of events.

A finish is never invented: a stream without its `done` line is an error, however cleanly it ends. Source:
wire notes on providers, §7 and §10.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from dragoman.errors import ProviderError
from dragoman.events import Event, Usage
from dragoman.wire.answer_decoder import AnswerDecoder, AnswerOptions
from dragoman.wire.ndjson import BOM, NdjsonSplitter
from dragoman.wire.ollama.chunk import OllamaChunk, decode_lines, read_chunk
from dragoman.wire.ollama.event_builder import OllamaEventBuilder, read_usage
from dragoman.wire.provider_errors import invalid_json_error, nesting_error, too_long_error, with_usage
from dragoman.wire.sse import MAX_FRAME_BYTES


class OllamaDecoder(AnswerDecoder[OllamaEventBuilder]):
    """See `AnswerDecoder`."""

    def __init__(self, *, limit: int = MAX_FRAME_BYTES, **options: Unpack[AnswerOptions]) -> None:
        super().__init__(OllamaEventBuilder(**options))
        self._splitter = NdjsonSplitter(limit=limit)

    @property
    def pending_size(self) -> int:
        """See `AnswerDecoder`."""
        return self._splitter.pending_size + self._builder.pending_arguments

    def decode_document(self, raw: bytes) -> list[Event]:
        """See `AnswerDecoder`; the answer may be a stream after all."""
        raw = raw.removeprefix(BOM)
        try:
            self._add_chunks([read_chunk(raw)])
        except ValueError as error:
            if b"\n" not in raw.strip():
                raise invalid_json_error(raw, error) from None
            self._decode_block(raw)
        return self.close()

    def _read(self, raw: bytes) -> None:
        self._decode_block(self._splitter.feed(raw))

    def _end(self) -> None:
        self._decode_block(self._splitter.close(), last=True)
        self._builder.end()

    def _decode_block(self, block: bytes, *, last: bool = False) -> None:
        """Decode complete lines. The last line of a stream may be truncated."""
        if block:
            chunks = decode_lines(block)
            self._add_chunks(self._decode_each(block, last=last) if chunks is None else chunks)
        if self._splitter.failure is not None and not self.done:
            self._builder.fail(too_long_error(self._splitter.failure))

    def _decode_each(self, block: bytes, *, last: bool) -> Iterable[OllamaChunk]:
        """Decode lines one by one if some are irregular."""
        for payload in block.split(b"\n"):
            stripped = payload.strip()
            if not stripped:
                continue
            try:
                yield read_chunk(stripped)
            except ValueError as error:
                truncated = last and stripped.startswith(b"{")
                if not truncated:  # else `end` reports that the answer is incomplete
                    self._builder.fail(invalid_json_error(stripped, error))
                return

    def _add_chunks(self, chunks: Iterable[OllamaChunk]) -> None:
        usage: Usage | None = None
        try:
            for chunk in chunks:
                usage = read_usage(chunk)
                self._builder.add_chunk(chunk)
                self.done = self._builder.done
                if self.done or self._builder.failure is not None:
                    return
        except RecursionError:
            self._builder.fail(nesting_error())
        except ProviderError as error:
            self._builder.fail(with_usage(error, usage))
