"""Anthropic's Messages stream in: bytes as they come from the socket to batches of events.

A finish is never invented: an answer is whole with `message_stop` behind a stop reason, and else an error.
Source: wire notes on providers, §2, §3 and §6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Event
from dragoman.wire.anthropic import chunk as frames
from dragoman.wire.anthropic.chunk import AnthropicChunk, anthropic_error
from dragoman.wire.anthropic.event_builder import AnthropicEventBuilder, unfinished_error
from dragoman.wire.openai.chunk import parse_lenient_json, replace_surrogates
from dragoman.wire.provider_errors import find_error
from dragoman.wire.sse import MAX_FRAME_BYTES

_DONE = b"[DONE]"
_JSON_EVENT_PREFIXES = (
    "message",
    "content_block",
    "error",
)  # how the names of events begin that must hold JSON


class AnthropicDecoder:
    """Decodes one answer. Feed it every socket read, then close it.

    What comes before a failure is given out first: `anthropic_error` is set then, and the next call raises
    it. `done` is true once the `finish-step` is out; what follows is ignored. `provider` and `model` go
    into it, the latter when the stream does not name one. `new_id` makes ids for tool calls that come
    without one, or with one that is `taken`.
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
        self._parser = frames.AnthropicSSEParser(limit=limit)
        self._ping_count = 0
        self._builder = AnthropicEventBuilder(
            provider=provider, model=model, new_id=new_id or _sequential_ids(), used_ids=used_ids
        )

    @property
    def failure(self) -> ProviderError | None:
        """Why the answer failed, if it did."""
        return self._builder.failure

    @property
    def heartbeat_count(self) -> int:
        """How many comments and pings the server has sent: life, but no progress."""
        return self._parser.comment_count + self._ping_count

    def feed(self, raw: bytes) -> list[Event]:
        """The events in one read; ProviderError when the answer failed and all before it is given out."""
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
        """The last events, at the end of the stream; ProviderError when it ended without its finish."""
        if self._builder.failure is None and not self.done:
            self._decode_frames(self._parser.close(), last=True)
        if self._builder.failure is None and not self.done:
            self._builder.fail(unfinished_error("ended without message_stop", started=self._builder.started))
        if self._builder.failure is not None:
            raise self._builder.failure
        return self._builder.take_events()

    def decode_document(self, raw: bytes) -> list[Event]:
        """The events of an answer that came as one JSON document instead of a stream."""
        try:
            value = replace_surrogates(parse_lenient_json(raw))
        except ValueError as error:
            raise _invalid_json_error(raw, error) from None
        except RecursionError:
            raise _nesting_error() from None
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), list):
            raise anthropic_error(find_error(value) or f"the answer has no content: {_preview(raw)}")
        try:
            self._builder.add_message(value)
        except RecursionError:
            raise _nesting_error() from None
        self._finish()
        return self.close()

    def _decode_frames(self, payloads: Sequence[bytes], *, last: bool = False) -> None:
        """Take whole frames. The last one of a stream may be the stump of one."""
        try:
            decoded = frames.decode_chunks(payloads)
            if decoded:
                self._add_chunks(decoded, payloads)
            else:
                self._decode_each(payloads, last=last)
        except RecursionError:
            self._builder.fail(_nesting_error())

    def _add_chunks(self, decoded: Sequence[AnthropicChunk], payloads: Sequence[bytes]) -> None:
        grow = self._builder.add_delta
        for frame, payload in zip(decoded, payloads, strict=True):
            if frame.type == "content_block_delta" and frame.delta is not None:
                grow(frame.index, frame.delta)
            elif not self._add_chunk(frame, payload):
                return

    def _decode_each(self, payloads: Sequence[bytes], *, last: bool) -> None:
        """The same, one by one, for frames that are not all well-behaved."""
        for payload in payloads:
            bare = payload.strip()
            if not bare or bare == _DONE:
                if frames.event_name(payload) == "error":
                    self._builder.fail(None)
                    return
                continue
            try:
                frame = frames.read_chunk(payload)
            except ValueError as error:
                if _is_heartbeat(payload):
                    continue
                self._builder.fail(_truncated_error() if last else _invalid_json_error(payload, error))
                return
            if frame is not None and not self._add_chunk(frame, payload):
                return

    def _add_chunk(self, chunk: AnthropicChunk, payload: bytes) -> bool:
        """Take any frame; whether the answer may go on behind it."""
        match chunk.type:
            case "message_stop":
                self._finish()
            case "ping":
                self._ping_count += 1
            case "error":
                self._builder.fail(chunk.error or _error_from(payload))
            case _ if frames.event_name(payload) == "error" or (chunk.type is None and chunk.error):
                self._builder.fail(chunk.error or _error_from(payload))
            case _:
                self._builder.add_chunk(chunk)
        return self._builder.failure is None and not self.done

    def _finish(self) -> None:
        self._builder.finish()
        self.done = self._builder.failure is None


def _sequential_ids() -> Callable[[], str]:
    """Ids for calls without one: unique within the answer, and the same every time it is decoded."""
    numbers = count(1)
    return lambda: f"call_{next(numbers)}"


def _error_from(payload: bytes) -> object:
    """The error in an event that is one but does not say it in `error`."""
    try:
        value = replace_surrogates(parse_lenient_json(payload))
    except ValueError:
        return None
    return find_error(value) or value


def _is_heartbeat(payload: bytes) -> bool:
    """Whether what is no JSON may be passed over: a named heartbeat that does not even begin like it."""
    name = frames.event_name(payload)
    if name is None or payload.startswith(b"{"):
        return False
    return name not in ("data", "completion") and not name.startswith(_JSON_EVENT_PREFIXES)


def _invalid_json_error(payload: bytes, error: ValueError) -> ProviderError:
    if frames.event_name(payload) == "error":
        return anthropic_error(payload.decode(errors="replace"))
    return ProviderError(
        f"the provider sent what is no JSON ({error}): {_preview(payload)}",
        category="api_error",
        transient=True,
    )


def _truncated_error() -> ProviderError:
    return unfinished_error("ended inside an event", started=True)


def _nesting_error() -> ProviderError:
    return ProviderError("the provider sent JSON that is nested too deeply", category="api_error")


def _preview(raw: bytes) -> str:
    return repr(raw[:80].decode(errors="replace"))
