"""Anthropic's Messages stream in: bytes as they come from the socket to batches of events.

A finish is never invented: an answer is whole with `message_stop` behind a stop reason, and else an error.
Source: wire notes on providers, §2, §3 and §6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count

from dragoman.errors import FrameTooLong, ProviderError
from dragoman.events import Event
from dragoman.wire.anthropic import frame as frames
from dragoman.wire.anthropic.answer import Answer, unfinished
from dragoman.wire.anthropic.frame import Frame, failure
from dragoman.wire.failures import find
from dragoman.wire.openai.chunk import clean, loose
from dragoman.wire.sse import LIMIT

_DONE = b"[DONE]"
_TOLD = ("message", "content_block", "error")  # how the names of events begin that must hold JSON


class Decoder:
    """Decodes one answer. Feed it every socket read, then close it.

    What comes before a failure is given out first: `failure` is set then, and the next call raises it.
    `done` is true once the `finish-step` is out; what follows is ignored. `provider` and `model` go into it,
    the latter when the stream does not name one. `new_id` makes ids for tool calls that come without one, or
    with one that is `taken`.
    """

    def __init__(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        new_id: Callable[[], str] | None = None,
        taken: Collection[str] = (),
        limit: int = LIMIT,
    ) -> None:
        self.done = False
        self._frames = frames.Frames(limit=limit)
        self._pings = 0
        self._answer = Answer(provider=provider, model=model, new_id=new_id or _counted(), taken=taken)

    @property
    def failure(self) -> ProviderError | None:
        """Why the answer failed, if it did."""
        return self._answer.failure

    @property
    def comments(self) -> int:
        """How many comments and pings the server has sent: life, but no progress."""
        return self._frames.comments + self._pings

    def feed(self, raw: bytes) -> list[Event]:
        """The events in one read; ProviderError when the answer failed and all before it is given out."""
        if self._answer.failure is not None:
            raise self._answer.failure
        if self.done:
            return []
        try:
            payloads = self._frames.feed(raw)
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
            self._read(self._frames.close(), last=True)
        if self._answer.failure is None and not self.done:
            self._answer.fail(unfinished("ended without message_stop", begun=self._answer.begun))
        if self._answer.failure is not None:
            raise self._answer.failure
        return self._answer.take()

    def whole(self, raw: bytes) -> list[Event]:
        """The events of an answer that came as one JSON document instead of a stream."""
        try:
            value = clean(loose(raw))
        except ValueError as error:
            raise _garbage(raw, error) from None
        except RecursionError:
            raise _too_deep() from None
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), list):
            raise failure(find(value) or f"the answer has no content: {_show(raw)}")
        try:
            self._answer.start(value)
        except RecursionError:
            raise _too_deep() from None
        self._finish()
        return self.close()

    def _read(self, payloads: Sequence[bytes], *, last: bool = False) -> None:
        """Take whole frames. The last one of a stream may be the stump of one."""
        try:
            decoded = frames.read_all(payloads)
            if decoded:
                self._absorb(decoded, payloads)
            else:
                self._read_each(payloads, last=last)
        except RecursionError:
            self._answer.fail(_too_deep())

    def _absorb(self, decoded: Sequence[Frame], payloads: Sequence[bytes]) -> None:
        grow = self._answer.grow
        for frame, payload in zip(decoded, payloads, strict=True):
            if frame.type == "content_block_delta" and frame.delta is not None:
                grow(frame.index, frame.delta)
            elif not self._add(frame, payload):
                return

    def _read_each(self, payloads: Sequence[bytes], *, last: bool) -> None:
        """The same, one by one, for frames that are not all well-behaved."""
        for payload in payloads:
            bare = payload.strip()
            if not bare or bare == _DONE:
                if frames.event_name(payload) == "error":
                    self._answer.fail(None)
                    return
                continue
            try:
                frame = frames.read(payload)
            except ValueError as error:
                if _is_idle(payload):
                    continue
                self._answer.fail(_stump() if last else _garbage(payload, error))
                return
            if frame is not None and not self._add(frame, payload):
                return

    def _add(self, frame: Frame, payload: bytes) -> bool:
        """Take any frame; whether the answer may go on behind it."""
        match frame.type:
            case "message_stop":
                self._finish()
            case "ping":
                self._pings += 1
            case "error":
                self._answer.fail(frame.error or _error_in(payload))
            case _ if frames.event_name(payload) == "error" or (frame.type is None and frame.error):
                self._answer.fail(frame.error or _error_in(payload))
            case _:
                self._answer.add(frame)
        return self._answer.failure is None and not self.done

    def _finish(self) -> None:
        self._answer.finish()
        self.done = self._answer.failure is None


def _counted() -> Callable[[], str]:
    """Ids for calls without one: unique within the answer, and the same every time it is decoded."""
    numbers = count(1)
    return lambda: f"call_{next(numbers)}"


def _error_in(payload: bytes) -> object:
    """The error in an event that is one but does not say it in `error`."""
    try:
        value = clean(loose(payload))
    except ValueError:
        return None
    return find(value) or value


def _is_idle(payload: bytes) -> bool:
    """Whether what is no JSON may be passed over: a named heartbeat that does not even begin like it."""
    name = frames.event_name(payload)
    if name is None or payload.startswith(b"{"):
        return False
    return name not in ("data", "completion") and not name.startswith(_TOLD)


def _garbage(payload: bytes, error: ValueError) -> ProviderError:
    if frames.event_name(payload) == "error":
        return failure(payload.decode(errors="replace"))
    return ProviderError(
        f"the provider sent what is no JSON ({error}): {_show(payload)}", category="api_error", transient=True
    )


def _stump() -> ProviderError:
    return unfinished("ended inside an event", begun=True)


def _too_deep() -> ProviderError:
    return ProviderError("the provider sent JSON that is nested too deeply", category="api_error")


def _show(raw: bytes) -> str:
    return repr(raw[:80].decode(errors="replace"))
