"""Base classes of the decoders of all families: bytes become frames, and a builder makes events of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypedDict, TypeVar

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Event
from dragoman.wire.json_codec import parse_lenient_json
from dragoman.wire.provider_errors import (
    EMPTY_VALUES,
    incomplete_answer_error,
    invalid_json_error,
    nesting_error,
    provider_error,
    too_long_error,
)
from dragoman.wire.sse import SSEParser
from dragoman.wire.tool_calls import MAX_ARGUMENTS, ToolCallAssembler, sequential_ids


class AnswerOptions(TypedDict, total=False):
    """What a decoder has to know in addition to the answer.

    `provider` and `model` go into `finish-step`, the latter if the answer does not name one. `new_id` creates
    ids for tool calls without an id, or with one in `used_ids`. `audio_format` is the format of audio output
    that the request asks for.
    """

    provider: str | None
    model: str | None
    new_id: Callable[[], str]
    used_ids: Collection[str]
    audio_format: str | None


class AnswerBuilder(ABC):
    """Builds the events of one answer. When it has failed, `failure` is set and nothing may be added."""

    def __init__(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        new_id: Callable[[], str] | None = None,
        used_ids: Collection[str] = (),
        audio_format: str | None = None,
    ) -> None:
        self.failure: ProviderError | None = None
        self.provider = provider
        self.audio_format = audio_format
        self.requested_model = model
        self.new_id = new_id or sequential_ids()
        self._earlier_ids = used_ids
        self._max_arguments = MAX_ARGUMENTS
        self._tool_calls: ToolCallAssembler | None = None

    @abstractmethod
    def take_events(self) -> list[Event]:
        """Return the events since the last call."""

    @property
    def tool_calls(self) -> ToolCallAssembler:
        """The tool calls of the answer."""
        if self._tool_calls is None:  # most answers have none
            self._tool_calls = ToolCallAssembler(new_id=self.new_id, used_ids=self._earlier_ids)
            self._tool_calls.max_arguments = self._max_arguments
        return self._tool_calls

    @property
    def pending_arguments(self) -> int:
        """Characters of arguments of the calls that are still open."""
        return 0 if self._tool_calls is None else self._tool_calls.arguments_length

    def limit_arguments(self, characters: int) -> None:
        """Set the most characters of the arguments of one call."""
        self._max_arguments = characters

    def fail(self, error: Any) -> None:
        """Record why the answer failed: a ProviderError, or an error body. The first is kept."""
        if self.failure is None:
            self.failure = error if isinstance(error, ProviderError) else self._read_error(error)

    def _read_error(self, error: Any) -> ProviderError:
        """Return the error body of the provider as a ProviderError."""
        return provider_error(error)


Builder = TypeVar("Builder", bound=AnswerBuilder)


class AnswerDecoder(ABC, Generic[Builder]):
    """Decodes one answer. Call `feed` with every socket read, then `close`.

    Events before a failure are returned first: `failure` is set then, and the next call raises it. `done` is
    true once `finish-step` has been returned; later bytes are ignored.
    """

    def __init__(self, builder: Builder) -> None:
        self.done = False
        self.failure: ProviderError | None = None
        self._builder = builder

    @property
    @abstractmethod
    def pending_size(self) -> int:
        """Bytes of the incomplete frame and characters of incomplete calls: decoded when complete."""

    def limit_arguments(self, characters: int) -> None:
        """Set the most characters of the arguments of one call; before the first bytes."""
        self._builder.limit_arguments(characters)

    def feed(self, raw: bytes) -> list[Event]:
        """Return the events in one read.

        Raises ProviderError if the answer has failed and all events before that were returned.
        """
        if self.failure is not None:
            raise self.failure
        if self.done:
            return []
        self._read(raw)
        return self._take_events()

    def close(self) -> list[Event]:
        """Return the last events at the end of the stream.

        Raises ProviderError as `feed` does, and if the answer ended without a finish.
        """
        if self.failure is None and not self.done:
            self._end()
        return self._take_events()

    @abstractmethod
    def decode_document(self, raw: bytes) -> list[Event]:
        """Return the events of an answer that is one JSON document instead of a stream.

        As in `feed`, events before a failure are returned, and `failure` is set, with the usage.
        """

    @abstractmethod
    def _read(self, raw: bytes) -> None:
        """Add one read to the builder."""

    @abstractmethod
    def _end(self) -> None:
        """Add what the end of the stream completes; the answer fails if it has no finish."""

    def _take_events(self) -> list[Event]:
        events = self._builder.take_events()
        self.failure = self._builder.failure
        if self.failure is not None and not events:
            raise self.failure
        return events


class SSEAnswerDecoder(AnswerDecoder[Builder]):
    """Decodes an answer that is an event stream."""

    def __init__(self, builder: Builder, parser: SSEParser) -> None:
        super().__init__(builder)
        self._parser = parser

    @property
    def pending_size(self) -> int:
        """See `AnswerDecoder`."""
        return self._parser.pending_size + self._builder.pending_arguments

    def _read(self, raw: bytes) -> None:
        try:
            payloads = self._parser.feed(raw)
        except FrameTooLong as error:
            payloads = self._fail_frame(error)
        if payloads:
            self._decode_frames(payloads)

    def _fail_frame(self, error: FrameTooLong) -> list[bytes]:
        """Fail the answer at a frame that is too long; return the frames to decode, none."""
        self._builder.fail(too_long_error(error))
        return []

    @abstractmethod
    def _decode_frames(self, payloads: Sequence[bytes], *, last: bool = False) -> None:
        """Decode complete frames. The last frame of a stream may be truncated."""


def parse_answer(raw: bytes) -> Any:
    """Parse an answer that is one JSON document, leniently. Raises ProviderError if nothing is in it."""
    try:
        value = parse_lenient_json(raw)
    except ValueError as error:
        raise invalid_json_error(raw, error) from None
    except RecursionError:
        raise nesting_error() from None
    if value in EMPTY_VALUES:
        raise incomplete_answer_error(started=False)
    return value
