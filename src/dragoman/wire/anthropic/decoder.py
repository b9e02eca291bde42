"""Decode Anthropic's Messages stream: socket reads to batches of events.

A finish is never invented: an answer is complete with `message_stop` after a stop reason, otherwise it is an
error. Source: wire notes on providers, §2, §3 and §6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Unpack

from dragoman.events import Event
from dragoman.wire.answer_decoder import AnswerOptions, parse_answer
from dragoman.wire.anthropic.chunk import AnthropicChunk, anthropic_error, decode_chunks, read_chunk
from dragoman.wire.anthropic.event_builder import AnthropicEventBuilder
from dragoman.wire.json_codec import parse_lenient_json
from dragoman.wire.named_event_decoder import NamedEventDecoder, event_name
from dragoman.wire.provider_errors import (
    find_error,
    incomplete_answer_error,
    nesting_error,
    preview,
    with_usage,
)
from dragoman.wire.sse import MAX_FRAME_BYTES


class AnthropicDecoder(NamedEventDecoder[AnthropicEventBuilder, AnthropicChunk]):
    """See `AnswerDecoder`."""

    json_event_prefixes: ClassVar[tuple[str, ...]] = (
        "message",
        "content_block",
        "error",
        "data",
        "completion",
    )

    def __init__(self, *, limit: int = MAX_FRAME_BYTES, **options: Unpack[AnswerOptions]) -> None:
        super().__init__(AnthropicEventBuilder(**options), limit=limit)

    def decode_document(self, raw: bytes) -> list[Event]:
        """See `AnswerDecoder`."""
        value = parse_answer(raw)
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), list):
            raise anthropic_error(find_error(value) or f"the answer has no content: {preview(raw)}")
        try:
            self._builder.add_message(value)
        except RecursionError:
            raise nesting_error() from None
        if self._builder.failure is not None:
            with_usage(self._builder.failure, self._builder.usage)
        else:
            self._finish()
        return self._take_events()

    def _end(self) -> None:
        self._decode_frames(self._parser.close(), last=True)
        if self._builder.failure is not None or self.done:
            return
        if self._builder.stop_reason is not None:
            self._finish()  # only message_stop is missing
        else:
            self._builder.fail(
                incomplete_answer_error("ended without message_stop", started=self._builder.started)
            )

    def _decode_chunks(self, payloads: Sequence[bytes]) -> Sequence[AnthropicChunk]:
        return decode_chunks(payloads)

    def _read_chunk(self, payload: bytes) -> AnthropicChunk | None:
        return read_chunk(payload)

    def _add_chunks(self, chunks: Sequence[AnthropicChunk], payloads: Sequence[bytes]) -> bool:
        add_delta = self._builder.add_delta
        for chunk, payload in zip(chunks, payloads, strict=True):
            if chunk.type == "content_block_delta" and chunk.delta is not None:
                add_delta(chunk.index, chunk.delta)
            elif self._builder.failure is not None or not self._add_chunk(chunk, payload):
                return False
        return True

    def _add_chunk(self, chunk: AnthropicChunk, payload: bytes) -> bool:
        """Add any chunk; return whether the answer may continue."""
        match chunk.type:
            case "message_stop":
                self._finish()
            case "ping":
                pass
            case "error":
                self._builder.fail(chunk.error or _error_from(payload))
            case _ if event_name(payload) == "error" or (chunk.type is None and chunk.error):
                self._builder.fail(chunk.error or _error_from(payload))
            case _:
                self._builder.add_chunk(chunk)
        return self._builder.failure is None and not self.done

    def _finish(self) -> None:
        self._builder.finish()
        self.done = self._builder.failure is None


def _error_from(payload: bytes) -> object:
    """Return the error in an error event that does not have it in `error`."""
    try:
        value = parse_lenient_json(payload)
    except ValueError:
        return None
    return find_error(value) or value
