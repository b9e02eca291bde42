"""OpenAI's chat.completions stream in: bytes as they come from the socket to batches of events.

A finish is never invented: a stream without its finish reason is an error, however cleanly it ends.
Source: wire notes on providers, §2 to §4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import count

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Event
from dragoman.wire.openai import chunk as chunks
from dragoman.wire.openai.chunk import OpenAIChunk
from dragoman.wire.openai.event_builder import OpenAIEventBuilder
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.provider_errors import find_error, provider_error
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame, SSEParser

_DONE = b"[DONE]"


class OpenAIDecoder:
    """Decodes one answer. Feed it every socket read, then close it.

    What comes before a failure is given out first: `provider_error` is set then, and the next call raises it.
    `done` is true once the `finish-step` is out; what follows is ignored. `provider` and `model` go into it,
    the latter when the stream does not name one. `new_id` makes ids for tool calls that come without one, or
    with one that is `taken`.
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
        self._parser = SSEParser(limit=limit)
        self._builder = OpenAIEventBuilder(
            quirks or Quirks(),
            provider=provider,
            model=model,
            new_id=new_id or _sequential_ids(),
            used_ids=used_ids,
        )

    @property
    def failure(self) -> ProviderError | None:
        """Why the answer failed, if it did."""
        return self._builder.failure

    @property
    def heartbeat_count(self) -> int:
        """How many comments the server has sent: life, but no progress."""
        return self._parser.comment_count

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
            self._finish(done=False)
        if self._builder.failure is not None:
            raise self._builder.failure
        return self._builder.take_events()

    def decode_document(self, raw: bytes) -> list[Event]:
        """The events of an answer that came as one JSON document instead of a stream."""
        try:
            value = chunks.parse_lenient_json(raw)
        except ValueError as error:
            raise _invalid_json_error(raw, error) from None
        try:
            if not isinstance(value, dict) or not value.get("choices"):
                raise provider_error(find_error(value) or f"the answer has no choices: {_preview(raw)}")
            self._builder.add_chunk(chunks.lenient_chunk(value))
        except RecursionError:
            raise _nesting_error() from None
        self._finish(done=True)
        return self.close()

    def _decode_frames(self, payloads: Sequence[bytes], *, last: bool = False) -> None:
        """Take whole frames. The last one of a stream may be the stump of one."""
        done = _DONE in payloads
        if done:
            payloads = payloads[: payloads.index(_DONE)]
        try:
            decoded = chunks.decode_lines(b"\n".join(payloads))
        except chunks.DECODE_ERRORS:
            decoded = []
        if len(decoded) == len(payloads):
            self._add_chunks(decoded, payloads)
        else:
            done = self._decode_each(payloads, last=last) or done
        if done:
            self._finish(done=True)

    def _decode_each(self, payloads: Sequence[bytes], *, last: bool) -> bool:
        """The same, one by one, for frames that are not all well-behaved chunks; whether one was `[DONE]`."""
        for payload in payloads:
            bare = payload.strip()
            if bare == _DONE:
                return True
            try:
                decoded = chunks.read_chunks(payload) if bare else []
            except ValueError as error:
                if not self._is_ignorable(payload, last=last):
                    self._builder.fail(_invalid_json_error(payload, error))
                    return False
                decoded = []
            if not decoded and _is_error_frame(payload):
                self._builder.fail(provider_error(None))
            self._add_chunks(decoded, [payload] * len(decoded))
            if bare.endswith(b"\n" + _DONE):
                return True
            if self._builder.failure is not None:
                return False
        return False

    def _is_ignorable(self, payload: bytes, *, last: bool) -> bool:
        """Whether what is no JSON may be passed over: a named heartbeat, or a cut frame behind the finish."""
        if isinstance(payload, NamedFrame):
            return payload.event not in ("error", "message", "data", "completion")
        return last and self._builder.finish_reason is not None

    def _add_chunks(self, decoded: Sequence[OpenAIChunk], payloads: Sequence[bytes]) -> None:
        try:
            for chunk, payload in zip(decoded, payloads, strict=True):
                delta = chunks.sole_delta(chunk)
                if delta is not None and self._builder.model:
                    self._builder.add_delta(delta)
                elif not self._add_chunk(chunk, payload):
                    return
        except RecursionError:
            self._builder.fail(_nesting_error())

    def _add_chunk(self, chunk: OpenAIChunk, payload: bytes) -> bool:
        """Take a chunk that holds more than a delta; whether the answer may go on behind it."""
        self._builder.add_chunk(chunk)
        if chunk.choices is None or isinstance(payload, NamedFrame):
            self._check_for_error(payload)
        return self._builder.failure is None

    def _check_for_error(self, payload: bytes) -> None:
        """Look for an error in an event that has no choices, or a name."""
        try:
            value = chunks.parse_lenient_json(payload)
        except ValueError:
            return
        found = find_error(value)
        self._builder.fail(value if found is None and _is_error_frame(payload) else found)

    def _finish(self, *, done: bool) -> None:
        if self._builder.failure is None and not self.done:
            self._builder.end(done=done)
            self.done = self._builder.failure is None


def _sequential_ids() -> Callable[[], str]:
    """Ids for calls without one: unique within the answer, and the same every time it is decoded."""
    numbers = count(1)
    return lambda: f"call_{next(numbers)}"


def _is_error_frame(payload: bytes) -> bool:
    return isinstance(payload, NamedFrame) and payload.event == "error"


def _invalid_json_error(payload: bytes, error: ValueError) -> ProviderError:
    if _is_error_frame(payload):
        return provider_error(payload.decode(errors="replace"))
    return ProviderError(
        f"the provider sent what is no JSON ({error}): {_preview(payload)}",
        category="api_error",
        transient=True,
    )


def _nesting_error() -> ProviderError:
    return ProviderError("the provider sent JSON that is nested too deeply", category="api_error")


def _preview(raw: bytes) -> str:
    return repr(raw[:80].decode(errors="replace"))
