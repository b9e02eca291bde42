"""Decode OpenAI's chat.completions stream: socket reads to batches of events.

A finish is never invented: a stream without a finish reason is an error, however cleanly it ends. Source:
wire notes on providers, §2 to §4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Event, TextDelta
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.wire.answer_decoder import AnswerOptions, SSEAnswerDecoder, parse_answer
from dragoman.wire.json_codec import parse_lenient_json
from dragoman.wire.openai.chunk import OpenAIChunk, decode_lines, lenient_chunk, read_chunks
from dragoman.wire.openai.event_builder import OpenAIEventBuilder
from dragoman.wire.openai.plain_chunks import decode_plain_chunk, read_plain_text
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.provider_errors import (
    find_error,
    invalid_json_error,
    nesting_error,
    preview,
    provider_error,
    with_usage,
)
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame, SSEParser

_DONE = b"[DONE]"
PLAIN_ATTEMPTS = 2  # reads with other chunks, after which all are read as such: each was decoded twice


class OpenAIDecoder(SSEAnswerDecoder[OpenAIEventBuilder]):
    """See `AnswerDecoder`."""

    def __init__(
        self, quirks: Quirks | None = None, *, limit: int = MAX_FRAME_BYTES, **options: Unpack[AnswerOptions]
    ) -> None:
        super().__init__(OpenAIEventBuilder(quirks or Quirks(), **options), SSEParser(limit=limit))
        self._plain_attempts = PLAIN_ATTEMPTS

    def feed(self, raw: bytes) -> list[Event]:
        """See `AnswerDecoder`. A read of one chunk of text, as most are, becomes its event in one step."""
        if self.failure is not None:
            raise self.failure
        if self.done:
            return []
        try:
            payloads = self._parser.feed(raw)
        except FrameTooLong as error:
            payloads = self._fail_frame(error)
        if len(payloads) == 1 and self._plain_attempts and (delta := self._plain_delta(payloads[0])):
            return [delta]
        if payloads:
            self._decode_frames(payloads)
        return self._take_events()

    def _end(self) -> None:
        self._decode_frames(self._parser.close(), last=True)
        self._finish(done=False)

    def decode_document(self, raw: bytes) -> list[Event]:
        """See `AnswerDecoder`."""
        value = parse_answer(raw)
        if not isinstance(value, dict) or not value.get("choices"):
            raise provider_error(find_error(value) or f"the answer has no choices: {preview(raw)}")
        try:
            self._builder.add_chunk(lenient_chunk(value))
        except RecursionError:
            raise nesting_error() from None
        except ProviderError as error:
            self._builder.fail(with_usage(error, self._builder.usage))
        self._finish(done=True)
        return self._take_events()

    def _decode_frames(self, payloads: Sequence[bytes], *, last: bool = False) -> None:
        """Decode complete frames. The last frame of a stream may be truncated."""
        done = _DONE in payloads
        if done:
            payloads = payloads[: payloads.index(_DONE)]
        if len(payloads) > 1 and self._plain_attempts:
            payloads = self._add_plain_text(payloads)
        try:
            chunks_read = decode_lines(b"\n".join(payloads))
        except DECODE_ERRORS:
            chunks_read = []
        if len(chunks_read) == len(payloads):
            self._add_chunks(chunks_read, payloads)
        else:
            done = self._decode_each(payloads, last=last) or done
        if done:
            self._finish(done=True)

    def _plain_delta(self, payload: bytes) -> TextDelta | None:
        """Return the event of a frame by which the text grows, as most do that come alone in a read."""
        builder = self._builder
        if builder.blocks.kind != "text" or not builder.model or type(payload) is not bytes:
            return None
        try:
            text = decode_plain_chunk(payload).choices[0].delta.content
        except DECODE_ERRORS:
            self._plain_attempts -= 1
            return None
        return builder.extend_text(text) if text else None

    def _add_plain_text(self, payloads: Sequence[bytes]) -> Sequence[bytes]:
        """Add the first chunks if they hold nothing but text; return the others."""
        plain = read_plain_text(payloads)
        if plain is None:
            self._plain_attempts -= 1
            return payloads
        self._builder.model = self._builder.model or plain.model or ""
        self._builder.add_text(plain.text)
        return payloads[plain.chunks :]

    def _decode_each(self, payloads: Sequence[bytes], *, last: bool) -> bool:
        """Decode frames one by one if some are irregular; return whether one was `[DONE]`."""
        for payload in payloads:
            stripped = payload.strip()
            if stripped == _DONE:
                return True
            try:
                chunks_read = read_chunks(payload) if stripped else []
            except ValueError as error:
                if not self._is_ignorable(payload, last=last):
                    self._builder.fail(_frame_error(payload, error))
                    return False
                chunks_read = []
            if not chunks_read and _is_error_frame(payload):
                self._builder.fail(provider_error(None))
            self._add_chunks(chunks_read, [payload] * len(chunks_read))
            if stripped.endswith(b"\n" + _DONE):
                return True
            if self._builder.failure is not None:
                return False
        return False

    def _is_ignorable(self, payload: bytes, *, last: bool) -> bool:
        """Whether invalid JSON can be skipped: a named heartbeat, or a truncated frame after the finish."""
        if isinstance(payload, NamedFrame):
            return payload.event not in ("error", "message", "data", "completion")
        return last and self._builder.finish_reason is not None

    def _add_chunks(self, batch: Sequence[OpenAIChunk], payloads: Sequence[bytes]) -> None:
        try:
            for chunk, payload in zip(batch, payloads, strict=True):
                if not (self._builder.add_if_sole_delta(chunk) or self._add_chunk(chunk, payload)):
                    return
        except RecursionError:
            self._builder.fail(nesting_error())
        except ProviderError as error:
            self._builder.fail(error)

    def _add_chunk(self, chunk: OpenAIChunk, payload: bytes) -> bool:
        """Add a chunk with more than a delta; return whether the answer may continue."""
        self._builder.add_chunk(chunk)
        if chunk.choices is None or isinstance(payload, NamedFrame):
            self._check_for_error(payload)
        return self._builder.failure is None

    def _check_for_error(self, payload: bytes) -> None:
        """Look for an error in an event that has no choices, or has a name."""
        try:
            value = parse_lenient_json(payload)
        except ValueError:
            return
        error = find_error(value)
        self._builder.fail(value if error is None and _is_error_frame(payload) else error)

    def _finish(self, *, done: bool) -> None:
        if self._builder.failure is None and not self.done:
            self._builder.end(done=done)
            self.done = self._builder.failure is None


def _is_error_frame(payload: bytes) -> bool:
    return isinstance(payload, NamedFrame) and payload.event == "error"


def _frame_error(payload: bytes, reason: ValueError) -> ProviderError:
    """Return the error for a frame that is not JSON, or that is an error in plain text."""
    if _is_error_frame(payload):
        return provider_error(payload.decode(errors="replace"))
    return invalid_json_error(payload, reason)
