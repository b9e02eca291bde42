"""Decode Ollama's /api/chat stream: socket reads to batches of events.

A finish is never invented: a stream without its `done` line is an error, however cleanly it ends. Source:
wire notes on providers, §7 and §10.4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from dragoman.errors import ProviderError
from dragoman.events import Event, Usage
from dragoman.wire.ndjson import BOM, NdjsonSplitter
from dragoman.wire.ollama.chunk import OllamaChunk, decode_lines, read_chunk
from dragoman.wire.ollama.event_builder import OllamaEventBuilder, read_usage
from dragoman.wire.provider_errors import invalid_json_error, nesting_error, with_usage
from dragoman.wire.sse import MAX_FRAME_BYTES
from dragoman.wire.tool_calls import sequential_ids


class OllamaDecoder:
    """Decodes one answer. Call `feed` with every socket read, then `close`.

    Events before a failure are returned first: `failure` is set then, and the next call raises it. `done` is
    true once `finish-step` has been returned; later bytes are ignored. `provider` and `model` go into
    `finish-step`, the latter if the stream does not name one. `new_id` creates ids for tool calls without an
    id, or with one in `used_ids`.
    """

    def __init__(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        new_id: Callable[[], str] | None = None,
        used_ids: Collection[str] = (),
        limit: int = MAX_FRAME_BYTES,
    ) -> None:
        self.done = False
        self._splitter = NdjsonSplitter(limit=limit)
        self._builder = OllamaEventBuilder(
            provider=provider, model=model, new_id=new_id or sequential_ids(), used_ids=used_ids
        )

    @property
    def failure(self) -> ProviderError | None:
        """Why the answer failed, if it did."""
        return self._builder.failure

    @property
    def heartbeat_count(self) -> int:
        """Always 0: NDJSON has no comments."""
        return 0

    @property
    def pending_size(self) -> int:
        """See `AnswerDecoder`."""
        return self._splitter.pending_size + self._builder.tool_calls.arguments_length

    def limit_arguments(self, characters: int) -> None:
        """See `AnswerDecoder`."""
        self._builder.tool_calls.max_arguments = characters

    def feed(self, raw: bytes) -> list[Event]:
        """Return the events in one read; ProviderError once the answer has failed and all events before it
        are returned.
        """
        if self._builder.failure is not None:
            raise self._builder.failure
        if self.done:
            return []
        self._decode_block(self._splitter.feed(raw))
        events = self._builder.take_events()
        if not events and self._builder.failure is not None:
            raise self._builder.failure
        return events

    def close(self) -> list[Event]:
        """Return the last events at the end of the stream; ProviderError if it ended before `done`.

        Events of a last line before a failure are returned, as in `feed`.
        """
        if self._builder.failure is None and not self.done:
            self._decode_block(self._splitter.close(), last=True)
            self._builder.end()
        events = self._builder.take_events()
        if not events and self._builder.failure is not None:
            raise self._builder.failure
        return events

    def decode_document(self, raw: bytes) -> list[Event]:
        """Return the events of an answer that is one JSON document, or a stream after all.

        As in `feed`, events before a failure are returned, and `failure` is set, with the usage.
        """
        raw = raw.removeprefix(BOM)
        try:
            self._add_chunks([read_chunk(raw)])
        except ValueError as error:
            if b"\n" not in raw.strip():
                raise invalid_json_error(raw, error) from None
            self._decode_block(raw)
        return self.close()

    def _decode_block(self, block: bytes, *, last: bool = False) -> None:
        """Decode complete lines. The last line of a stream may be truncated."""
        if block:
            chunks = decode_lines(block)
            self._add_chunks(self._decode_each(block, last=last) if chunks is None else chunks)
        if self._splitter.failure is not None and not self.done:
            error = self._splitter.failure
            self._builder.fail(ProviderError(error.message, category="api_error", hint=error.hint))

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
