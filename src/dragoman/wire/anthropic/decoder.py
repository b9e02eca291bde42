"""Decode Anthropic's Messages stream: socket reads to batches of events.

A finish is never invented: an answer is complete with `message_stop` after a stop reason, otherwise it is an
error. Source: wire notes on providers, §2, §3 and §6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Event
from dragoman.json_text import replace_surrogates
from dragoman.wire.anthropic.chunk import (
    AnthropicChunk,
    AnthropicSSEParser,
    anthropic_error,
    decode_chunks,
    event_name,
    read_chunk,
)
from dragoman.wire.anthropic.event_builder import AnthropicEventBuilder
from dragoman.wire.json_codec import parse_lenient_json
from dragoman.wire.provider_errors import (
    EMPTY_VALUES,
    find_error,
    incomplete_answer_error,
    invalid_json_error,
    nesting_error,
    preview,
    with_usage,
)
from dragoman.wire.sse import MAX_FRAME_BYTES
from dragoman.wire.tool_calls import sequential_ids

_DONE = b"[DONE]"
_JSON_EVENT_PREFIXES = ("message", "content_block", "error")  # of the names of events with JSON data


class AnthropicDecoder:
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
        self._parser = AnthropicSSEParser(limit=limit)
        self._ping_count = 0
        self._builder = AnthropicEventBuilder(
            provider=provider, model=model, new_id=new_id or sequential_ids(), used_ids=used_ids
        )

    @property
    def failure(self) -> ProviderError | None:
        """Why the answer failed, if it did."""
        return self._builder.failure

    @property
    def heartbeat_count(self) -> int:
        """The number of comments and pings received: a sign of life, but no progress."""
        return self._parser.comment_count + self._ping_count

    @property
    def pending_size(self) -> int:
        """See `AnswerDecoder`."""
        return self._parser.pending_size + self._builder.pending_arguments

    def limit_arguments(self, characters: int) -> None:
        """See `AnswerDecoder`."""
        self._builder.max_arguments = characters

    def feed(self, raw: bytes) -> list[Event]:
        """Return the events in one read; ProviderError once the answer has failed and all events before it
        are returned.
        """
        if self._builder.failure is not None:
            raise self._builder.failure
        if self.done:
            return []
        try:
            payloads = self._parser.feed(raw)
        except FrameTooLong as error:
            payloads = []
            self._builder.fail(ProviderError(error.message, category="api_error", hint=error.hint))
        if payloads:
            self._decode_frames(payloads)
        events = self._builder.take_events()
        if not events and self._builder.failure is not None:
            raise self._builder.failure
        return events

    def close(self) -> list[Event]:
        """Return the last events at the end of the stream; ProviderError if it ended without a finish."""
        if self._builder.failure is None and not self.done:
            self._decode_frames(self._parser.close(), last=True)
        if self._builder.failure is None and not self.done and self._builder.stop_reason is not None:
            self._finish()  # only message_stop is missing
        if self._builder.failure is None and not self.done:
            self._builder.fail(
                incomplete_answer_error("ended without message_stop", started=self._builder.started)
            )
        if self._builder.failure is not None:
            raise self._builder.failure
        return self._builder.take_events()

    def decode_document(self, raw: bytes) -> list[Event]:
        """Return the events of an answer that is one JSON document instead of a stream.

        As in `feed`, events before a failure are returned, and `failure` is set, with the usage.
        """
        try:
            value = replace_surrogates(parse_lenient_json(raw))
        except ValueError as error:
            raise invalid_json_error(raw, error) from None
        except RecursionError:
            raise nesting_error() from None
        if value in EMPTY_VALUES:
            raise incomplete_answer_error(started=False)
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), list):
            raise anthropic_error(find_error(value) or f"the answer has no content: {preview(raw)}")
        try:
            self._builder.add_message(value)
        except RecursionError:
            raise nesting_error() from None
        if self._builder.failure is not None:
            with_usage(self._builder.failure, self._builder.usage)
            return self._builder.take_events()
        self._finish()
        return self.close()

    def _decode_frames(self, payloads: Sequence[bytes], *, last: bool = False) -> None:
        """Decode complete frames. The last frame of a stream may be truncated."""
        try:
            chunks = decode_chunks(payloads)
            if chunks:
                self._add_chunks(chunks, payloads)
            else:
                self._decode_each(payloads, last=last)
        except RecursionError:
            self._builder.fail(nesting_error())

    def _add_chunks(self, chunks: Sequence[AnthropicChunk], payloads: Sequence[bytes]) -> None:
        add_delta = self._builder.add_delta
        for chunk, payload in zip(chunks, payloads, strict=True):
            if chunk.type == "content_block_delta" and chunk.delta is not None:
                add_delta(chunk.index, chunk.delta)
            elif self._builder.failure is not None or not self._add_chunk(chunk, payload):
                return

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
                chunk = read_chunk(payload)
            except ValueError as error:
                if _is_heartbeat(payload):
                    continue
                self._builder.fail(
                    incomplete_answer_error("ended inside an event") if last else _frame_error(payload, error)
                )
                return
            if chunk is not None and not self._add_chunk(chunk, payload):
                return

    def _add_chunk(self, chunk: AnthropicChunk, payload: bytes) -> bool:
        """Add any chunk; return whether the answer may continue."""
        match chunk.type:
            case "message_stop":
                self._finish()
            case "ping":
                self._ping_count += 1
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
    """The error in an error event that does not have it in `error`."""
    try:
        value = replace_surrogates(parse_lenient_json(payload))
    except ValueError:
        return None
    return find_error(value) or value


def _is_heartbeat(payload: bytes) -> bool:
    """Whether invalid JSON can be skipped: a named heartbeat that does not begin like JSON."""
    name = event_name(payload)
    if name is None or payload.startswith(b"{"):
        return False
    return name not in ("data", "completion") and not name.startswith(_JSON_EVENT_PREFIXES)


def _frame_error(payload: bytes, reason: ValueError) -> ProviderError:
    """The error for a frame that is not JSON, or that is an error in plain text."""
    if event_name(payload) == "error":
        return anthropic_error(payload.decode(errors="replace"))
    return invalid_json_error(payload, reason)
