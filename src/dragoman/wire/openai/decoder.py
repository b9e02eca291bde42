"""OpenAI's chat.completions stream in: bytes as they come from the socket to batches of events.

A finish is never invented: a stream without its finish reason is an error, however cleanly it ends.
Source: wire notes on providers, §2 to §4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import count

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Event
from dragoman.wire.failures import failure, find
from dragoman.wire.openai import chunk as chunks
from dragoman.wire.openai.answer import Answer
from dragoman.wire.openai.chunk import Chunk
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.sse import LIMIT, Named, Splitter

_DONE = b"[DONE]"


class Decoder:
    """Decodes one answer. Feed it every socket read, then close it.

    What comes before a failure is given out first: `failure` is set then, and the next call raises it.
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
        taken: Collection[str] = (),
        limit: int = LIMIT,
    ) -> None:
        self.done = False
        self._splitter = Splitter(limit=limit)
        self._answer = Answer(
            quirks or Quirks(), provider=provider, model=model, new_id=new_id or _counted(), taken=taken
        )

    @property
    def failure(self) -> ProviderError | None:
        """Why the answer failed, if it did."""
        return self._answer.failure

    @property
    def comments(self) -> int:
        """How many comments the server has sent: life, but no progress."""
        return self._splitter.comments

    def feed(self, raw: bytes) -> list[Event]:
        """The events in one read; ProviderError when the answer failed and all before it is given out."""
        if self._answer.failure is not None:
            raise self._answer.failure
        if self.done:
            return []
        try:
            payloads = self._splitter.feed(raw)
        except FrameTooLong as error:
            payloads = []
            self._answer.fail(ProviderError(error.message, category="api_error", hint=error.hint))
        if payloads:
            self._read(payloads)
        events = self._answer.take()
        if not events and self._answer.failure is not None:
            raise self._answer.failure
        return events

    def close(self) -> list[Event]:
        """The last events, at the end of the stream; ProviderError when it ended without its finish."""
        if self._answer.failure is None and not self.done:
            self._read(self._splitter.close(), last=True)
            self._end(done=False)
        if self._answer.failure is not None:
            raise self._answer.failure
        return self._answer.take()

    def whole(self, raw: bytes) -> list[Event]:
        """The events of an answer that came as one JSON document instead of a stream."""
        try:
            value = chunks.loose(raw)
        except ValueError as error:
            raise _garbage(raw, error) from None
        try:
            if not isinstance(value, dict) or not value.get("choices"):
                raise failure(find(value) or f"the answer has no choices: {_show(raw)}")
            self._answer.add(chunks.tolerate(value))
        except RecursionError:
            raise _too_deep() from None
        self._end(done=True)
        return self.close()

    def _read(self, payloads: Sequence[bytes], *, last: bool = False) -> None:
        """Take whole frames. The last one of a stream may be the stump of one."""
        done = _DONE in payloads
        if done:
            payloads = payloads[: payloads.index(_DONE)]
        try:
            decoded = chunks.decode_lines(b"\n".join(payloads))
        except chunks.FAILED:
            decoded = []
        if len(decoded) == len(payloads):
            self._absorb(decoded, payloads)
        else:
            done = self._read_each(payloads, last=last) or done
        if done:
            self._end(done=True)

    def _read_each(self, payloads: Sequence[bytes], *, last: bool) -> bool:
        """The same, one by one, for frames that are not all well-behaved chunks; whether one was `[DONE]`."""
        for payload in payloads:
            bare = payload.strip()
            if bare == _DONE:
                return True
            try:
                decoded = chunks.read(payload) if bare else []
            except ValueError as error:
                if not self._shrug(payload, last=last):
                    self._answer.fail(_garbage(payload, error))
                    return False
                decoded = []
            if not decoded and _is_error(payload):
                self._answer.fail(failure(None))
            self._absorb(decoded, [payload] * len(decoded))
            if bare.endswith(b"\n" + _DONE):
                return True
            if self._answer.failure is not None:
                return False
        return False

    def _shrug(self, payload: bytes, *, last: bool) -> bool:
        """Whether what is no JSON may be passed over: a named heartbeat, or a cut frame behind the finish."""
        if isinstance(payload, Named):
            return payload.event not in ("error", "message", "data", "completion")
        return last and self._answer.finish is not None

    def _absorb(self, decoded: Sequence[Chunk], payloads: Sequence[bytes]) -> None:
        try:
            for chunk, payload in zip(decoded, payloads, strict=True):
                delta = chunks.delta_of(chunk)
                if delta is not None and self._answer.model:
                    self._answer.grow(delta)
                elif not self._add(chunk, payload):
                    return
        except RecursionError:
            self._answer.fail(_too_deep())

    def _add(self, chunk: Chunk, payload: bytes) -> bool:
        """Take a chunk that holds more than a delta; whether the answer may go on behind it."""
        self._answer.add(chunk)
        if chunk.choices is None or isinstance(payload, Named):
            self._check(payload)
        return self._answer.failure is None

    def _check(self, payload: bytes) -> None:
        """Look for an error in an event that has no choices, or a name."""
        try:
            value = chunks.loose(payload)
        except ValueError:
            return
        found = find(value)
        self._answer.fail(value if found is None and _is_error(payload) else found)

    def _end(self, *, done: bool) -> None:
        if self._answer.failure is None and not self.done:
            self._answer.end(done=done)
            self.done = self._answer.failure is None


def _counted() -> Callable[[], str]:
    """Ids for calls without one: unique within the answer, and the same every time it is decoded."""
    numbers = count(1)
    return lambda: f"call_{next(numbers)}"


def _is_error(payload: bytes) -> bool:
    return isinstance(payload, Named) and payload.event == "error"


def _garbage(payload: bytes, error: ValueError) -> ProviderError:
    if _is_error(payload):
        return failure(payload.decode(errors="replace"))
    return ProviderError(
        f"the provider sent what is no JSON ({error}): {_show(payload)}", category="api_error", transient=True
    )


def _too_deep() -> ProviderError:
    return ProviderError("the provider sent JSON that is nested too deeply", category="api_error")


def _show(raw: bytes) -> str:
    return repr(raw[:80].decode(errors="replace"))
