"""Decode the stream of the Responses API: socket reads to batches of events.

A finish is never invented: an answer is complete with its whole response, otherwise it is an error. Source:
wire notes on the Responses API, sections 2 to 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Event
from dragoman.json_text import replace_surrogates
from dragoman.wire.anthropic.chunk import AnthropicSSEParser, event_name
from dragoman.wire.json_codec import parse_lenient_json
from dragoman.wire.provider_errors import (
    EMPTY_VALUES,
    find_error,
    incomplete_answer_error,
    invalid_json_error,
    nesting_error,
    preview,
)
from dragoman.wire.responses.chunk import ResponsesChunk, decode_chunks, read_chunk, responses_error
from dragoman.wire.responses.event_builder import ResponsesEventBuilder
from dragoman.wire.sse import MAX_FRAME_BYTES
from dragoman.wire.tool_calls import sequential_ids

_DONE = b"[DONE]"


class ResponsesDecoder:
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
        self._builder = ResponsesEventBuilder(
            provider=provider, model=model, new_id=new_id or sequential_ids(), used_ids=used_ids
        )

    @property
    def failure(self) -> ProviderError | None:
        """Why the answer failed, if it did."""
        return self._builder.failure

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
        builder = self._builder
        if builder.failure is not None:
            raise builder.failure
        if self.done:
            return []
        try:
            payloads = self._parser.feed(raw)
        except FrameTooLong as error:
            payloads = []
            builder.fail(ProviderError(error.message, category="api_error", hint=error.hint))
        if payloads:
            self._decode_frames(payloads)
        events = builder.take_events()
        self.done = builder.finished
        if not events and builder.failure is not None:
            raise builder.failure
        return events

    def close(self) -> list[Event]:
        """Return the last events at the end of the stream; ProviderError if it ended without a finish."""
        builder = self._builder
        if builder.failure is None and not self.done:
            self._decode_frames(self._parser.close(), last=True)
            self.done = builder.finished
        if builder.failure is None and not self.done:
            builder.fail(incomplete_answer_error("ended without its response", started=builder.started))
        if builder.failure is not None:
            raise builder.failure
        return builder.take_events()

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
        if not isinstance(value, Mapping) or not isinstance(value.get("output"), list):
            raise responses_error(find_error(value) or f"the answer has no output: {preview(raw)}")
        try:
            self._builder.add_response(value)
        except RecursionError:
            raise nesting_error() from None
        self.done = self._builder.finished
        return self._builder.take_events()

    def _decode_frames(self, payloads: Sequence[bytes], *, last: bool = False) -> None:
        """Decode complete frames. The last frame of a stream may be truncated."""
        try:
            chunks = decode_chunks(payloads)
            if chunks:
                self._add_chunks(chunks)
            else:
                self._decode_each(payloads, last=last)
        except RecursionError:
            self._builder.fail(nesting_error())

    def _add_chunks(self, chunks: Sequence[ResponsesChunk]) -> None:
        builder = self._builder
        for chunk in chunks:
            builder.add_chunk(chunk)
            if builder.failure is not None or builder.finished:
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
            if chunk is not None:
                self._add_chunks([chunk])
            if self._builder.failure is not None or self._builder.finished:
                return


def _is_heartbeat(payload: bytes) -> bool:
    """Whether invalid JSON can be skipped: a named heartbeat that does not begin like JSON."""
    name = event_name(payload)
    return (
        name is not None
        and not payload.startswith(b"{")
        and not name.startswith(("response.", "error", "data", "message"))
    )


def _frame_error(payload: bytes, reason: ValueError) -> ProviderError:
    """The error for a frame that is not JSON, or that is an error in plain text."""
    if event_name(payload) == "error":
        return responses_error(payload.decode(errors="replace"))
    return invalid_json_error(payload, reason)
