"""Decode OpenAI's chat.completions stream: socket reads to batches of events.

A finish is never invented: a stream without a finish reason is an error, however cleanly it ends. Source:
wire notes on providers, §2 to §4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Event, TextDelta
from dragoman.json_text import DECODE_ERRORS
from dragoman.wire.json_codec import parse_lenient_json
from dragoman.wire.openai.chunk import OpenAIChunk, decode_lines, lenient_chunk, read_chunks
from dragoman.wire.openai.event_builder import OpenAIEventBuilder
from dragoman.wire.openai.plain_chunks import decode_plain_chunk, read_plain_text
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.provider_errors import (
    EMPTY_VALUES,
    find_error,
    incomplete_answer_error,
    invalid_json_error,
    nesting_error,
    preview,
    provider_error,
    with_usage,
)
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame, SSEParser
from dragoman.wire.tool_calls import sequential_ids

_DONE = b"[DONE]"
PLAIN_ATTEMPTS = 2  # reads with other chunks, after which all are read as such: each was decoded twice


class OpenAIDecoder:
    """Decodes one answer. Call `feed` with every socket read, then `close`.

    Events before a failure are returned first: `failure` is set then, and the next call raises it. `done` is
    true once `finish-step` has been returned; later bytes are ignored. `provider` and `model` go into
    `finish-step`, the latter if the stream does not name one. `new_id` creates ids for tool calls without an
    id, or with one in `used_ids`.
    """

    def __init__(
        self,
        quirks: Quirks | None = None,
        *,
        provider: str | None = None,
        model: str | None = None,
        new_id: Callable[[], str] | None = None,
        used_ids: Collection[str] = (),
        limit: int = MAX_FRAME_BYTES,
    ) -> None:
        self.done = False
        self.failure: ProviderError | None = None
        self._parser = SSEParser(limit=limit)
        self._plain_attempts = PLAIN_ATTEMPTS
        self._builder = OpenAIEventBuilder(
            quirks or Quirks(),
            provider=provider,
            model=model,
            new_id=new_id or sequential_ids(),
            used_ids=used_ids,
        )

    @property
    def heartbeat_count(self) -> int:
        """The number of comments received: a sign of life, but no progress."""
        return self._parser.comment_count

    @property
    def pending_size(self) -> int:
        """See `AnswerDecoder`."""
        return self._parser.pending_size + self._builder.tool_calls.arguments_length

    def limit_arguments(self, characters: int) -> None:
        """See `AnswerDecoder`."""
        self._builder.tool_calls.max_arguments = characters

    def feed(self, raw: bytes) -> list[Event]:
        """Return the events in one read; ProviderError once the answer has failed and all events before it
        are returned.
        """
        if self.failure is not None:
            raise self.failure
        if self.done:
            return []
        try:
            payloads = self._parser.feed(raw)
        except FrameTooLong as error:
            payloads = []
            self._builder.fail(ProviderError(error.message, category="api_error", hint=error.hint))
        if len(payloads) == 1 and self._plain_attempts and (delta := self._plain_delta(payloads[0])):
            return [delta]
        if payloads:
            self._decode_frames(payloads)
        events = self._builder.take_events()
        self.failure = self._builder.failure
        if self.failure is not None and not events:
            raise self.failure
        return events

    def close(self) -> list[Event]:
        """Return the last events at the end of the stream; ProviderError if it ended without a finish."""
        if self._builder.failure is None and not self.done:
            self._decode_frames(self._parser.close(), last=True)
            self._finish(done=False)
        self.failure = self._builder.failure
        if self.failure is not None:
            raise self.failure
        return self._builder.take_events()

    def decode_document(self, raw: bytes) -> list[Event]:
        """Return the events of an answer that is one JSON document instead of a stream.

        As in `feed`, events before a failure are returned, and `failure` is set, with the usage.
        """
        try:
            value = parse_lenient_json(raw)
        except ValueError as error:
            raise invalid_json_error(raw, error) from None
        try:
            if value in EMPTY_VALUES:
                raise incomplete_answer_error(started=False)
            if not isinstance(value, dict) or not value.get("choices"):
                raise provider_error(find_error(value) or f"the answer has no choices: {preview(raw)}")
            chunk = lenient_chunk(value)
        except RecursionError:
            raise nesting_error() from None
        try:
            self._builder.add_chunk(chunk)
        except RecursionError:
            raise nesting_error() from None
        except ProviderError as error:
            self._builder.fail(with_usage(error, self._builder.usage))
            self.failure = self._builder.failure
            return self._builder.take_events()
        self._finish(done=True)
        return self.close()

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
    """The error for a frame that is not JSON, or that is an error in plain text."""
    if _is_error_frame(payload):
        return provider_error(payload.decode(errors="replace"))
    return invalid_json_error(payload, reason)
