"""A tap on a relayed chat.completions answer. Source: wire notes on providers, §3 and §4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.wire.dialect import KEEP_ALIVE
from dragoman.wire.failures import failure, find
from dragoman.wire.openai import chunk as chunks
from dragoman.wire.openai.usage import Standard, counts, plain_usage, read_usage
from dragoman.wire.sse import LIMIT, Named
from dragoman.wire.tap import Frames, Whole, garbage, join, unfinished

_DONE = b"[DONE]"
_DONE_FRAME = b"data: [DONE]\n\n"


class Delta(msgspec.Struct, gc=False):
    """What is counted of a delta."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()  # `Raw | None` would take null only


class Choice(msgspec.Struct, gc=False):
    """One of the answers."""

    index: int | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    error: Any = None


class Chunk(msgspec.Struct, gc=False):
    """What is looked at in a chunk."""

    choices: list[Choice] | None = None
    model: str | None = None
    usage: Any = None
    error: Any = None
    x_groq: Any = None


_decoder = msgspec.json.Decoder(Chunk)


class ChatTap:
    """See `Tap`. `[DONE]` goes on only behind a finish reason for every choice.

    `hide_usage`: the hub asked for usage and the client did not, so the chunk that holds nothing else is kept
    back. `lenient`: the server never sends a finish reason, and means `[DONE]`.
    """

    def __init__(self, *, hide_usage: bool = False, lenient: bool = False, limit: int = LIMIT) -> None:
        self.done = False
        self.failure: ProviderError | None = None
        self.model: str | None = None
        self.finish_reason: str | None = None
        self.said = 0
        self._frames = Frames(limit=limit)
        self._usage: Any = None
        self._hide_usage = hide_usage
        self._lenient = lenient
        self._open: set[int] = set()  # choices without a finish reason
        self._closed: set[int] = set()
        self._begun = False
        self._ended = False  # [DONE] was said

    @property
    def usage(self) -> Usage | None:
        """The last usage that counts anything."""
        return read_usage(self._usage, model=self.model or "")

    @property
    def finishing(self) -> bool:
        """See `Tap`."""
        return self.finish_reason is not None and not self._open

    def feed(self, raw: bytes) -> bytes:
        """See `Tap`."""
        if self.failure is not None or self.done:
            return b""
        frames = self._frames.feed(raw)
        self.failure = self._frames.failure
        said = self._pass(frames) if frames else b""
        return said or (KEEP_ALIVE if self._frames.alive() else b"")

    def close(self) -> bytes:
        """See `Tap`. A server that ends without `[DONE]` behind its finish reason has finished."""
        said = b""
        if self.failure is None and not self.done:
            frames = self._frames.close()
            self.failure = self._frames.failure
            said = self._pass(frames, last=True)
        if self.failure is None and not self.done:
            if not self.finishing:
                self.failure = unfinished(self._begun)
            else:
                self.done = True
        return said

    def _pass(self, frames: Sequence[bytes], *, last: bool = False) -> bytes:
        """The frames that may go on."""
        if _DONE in frames:
            self._ended = True
            frames = frames[: frames.index(_DONE)]
        passed = self._look(frames, last=last)
        if self._ended and self.failure is None:
            if not (self.finishing or (self._lenient and self._begun)):
                self.failure = unfinished(self._begun, said_done=True)
            else:
                self.done = True
                return join(passed) + _DONE_FRAME
        return join(passed)

    def _look(self, frames: Sequence[bytes], *, last: bool) -> Sequence[bytes]:
        try:
            decoded = _decoder.decode_lines(b"\n".join(frames))
        except chunks.FAILED:
            decoded = []
        if len(decoded) != len(frames):
            return self._look_at_each(frames, last=last)
        hidden: list[int] = []
        for at, chunk in enumerate(decoded):
            if self._grow(chunk):
                continue
            if not self._note(chunk, frames[at]):
                frames = frames[:at]
                break
            if self._hides(chunk):
                hidden.append(at)
        return [frame for at, frame in enumerate(frames) if at not in hidden] if hidden else frames

    def _grow(self, chunk: Chunk) -> bool:
        """Count a chunk that only brings more of the answer, as most do; False for any other."""
        choices = chunk.choices
        if not choices or len(choices) != 1 or chunk.usage is not None or chunk.error is not None:
            return False
        choice = choices[0]
        delta = choice.delta
        if delta is None or choice.finish_reason is not None or choice.error is not None or choice.index:
            return False
        if 0 not in self._open or chunk.x_groq is not None:
            return False
        self.said += len(delta.content) if delta.content else written(delta)
        return True

    def _hides(self, chunk: Chunk) -> bool:
        return self._hide_usage and chunk.choices == [] and counts(chunk.usage)

    def _look_at_each(self, frames: Sequence[bytes], *, last: bool) -> Sequence[bytes]:
        """The same, one by one, for frames that are not all well-behaved chunks."""
        passed: list[bytes] = []
        for frame in frames:
            bare = frame.strip()
            if not bare:
                continue
            if bare == _DONE:
                self._ended = True
                break
            try:
                read = chunks.read(frame)
            except ValueError:
                if not self._shrug(frame, last=last):
                    break
                read = []
            if not all(self._note(lighten(chunk), frame) for chunk in read):
                break
            if not (self._hide_usage and read and read[-1].choices == [] and read[-1].usage):
                passed.append(frame)
        return passed

    def _shrug(self, frame: bytes, *, last: bool) -> bool:
        """Whether what is no JSON goes on: a heartbeat with a name. A stump behind the finish is left out."""
        if isinstance(frame, Named) and frame.event != "error":
            return True
        if not (last and self.finishing):
            self.failure = broken(frame)
        return False

    def _note(self, chunk: Chunk, frame: bytes) -> bool:
        """Take a chunk in; False when it is an error."""
        error = chunk.error or next((choice.error for choice in chunk.choices or () if choice.error), None)
        if isinstance(chunk.x_groq, dict):
            error = error or chunk.x_groq.get("error")
        if error is None and (chunk.choices is None or isinstance(frame, Named)):
            error = found(frame)
        if error:
            self.failure = failure(error)
            return False
        self.model = self.model or chunk.model or None
        if chunk.usage is not None and counts(chunk.usage):
            self._usage = chunk.usage
        elif isinstance(chunk.x_groq, dict) and counts(chunk.x_groq.get("usage")):
            self._usage = chunk.x_groq["usage"]
        for choice in chunk.choices or ():
            self._begun = True
            self._choose(choice)
        return self.failure is None

    def _choose(self, choice: Choice) -> None:
        index = choice.index or 0
        if choice.delta is not None:
            self.said += len(choice.delta.content or "") + written(choice.delta)
        if choice.finish_reason == "error":
            self.failure = failure(None)
        elif choice.finish_reason:
            self.finish_reason = self.finish_reason or choice.finish_reason
            self._open.discard(index)
            self._closed.add(index)
        elif index not in self._closed:
            self._open.add(index)


def written(delta: Delta) -> int:
    """About how many characters a delta has beside its content."""
    calls = len(memoryview(delta.tool_calls)) // 3  # the rest is JSON
    return len(delta.reasoning_content or delta.reasoning or "") + calls


def lighten(chunk: chunks.Chunk) -> Chunk:
    """What is looked at in a chunk that was read with more patience."""
    choices = None
    if chunk.choices is not None:
        choices = [
            Choice(
                choice.index,
                Delta(chunks.text(delta.content), delta.reasoning_content, delta.reasoning)
                if delta
                else None,
                choice.finish_reason,
                choice.error,
            )
            for choice in chunk.choices
            for delta in (choice.delta,)
        ]
    return Chunk(choices, chunk.model, chunk.usage, chunk.error, chunk.x_groq)


def broken(frame: bytes) -> ProviderError:
    """The error for a frame that is no JSON, or an error in plain words."""
    if isinstance(frame, Named) and frame.event == "error":
        return failure(frame.decode(errors="replace"))
    return garbage(frame)


def found(frame: bytes) -> Any:
    """The error in a frame, if it is one."""
    try:
        value = chunks.loose(frame)
    except ValueError:
        return None
    error = find(value)
    if error is None and isinstance(frame, Named) and frame.event == "error":
        return value
    return error


class Ended(msgspec.Struct, gc=False):
    """What is looked at in a choice of a whole answer."""

    finish_reason: str
    error: Any = None


class Completion(msgspec.Struct, gc=False):
    """What is looked at in a whole answer that is as OpenAI's are."""

    choices: list[Ended]
    usage: Standard
    model: str | None = None
    error: Any = None


_completion = msgspec.json.Decoder(Completion)


def read_whole(raw: bytes) -> Whole:
    """What a whole chat.completion says of itself; ProviderError when it is none, or has no end."""
    try:
        said = _completion.decode(raw)
    except chunks.FAILED:
        return _read_whole(raw)
    usage = plain_usage(said.usage)
    reason = said.choices[0].finish_reason if len(said.choices) == 1 else "error"
    if usage is None or said.error is not None or reason == "error" or said.choices[0].error is not None:
        return _read_whole(raw)
    return Whole(usage, said.model, reason)


def _read_whole(raw: bytes) -> Whole:
    """The same for any other answer, with more patience."""
    value = read_document(raw, "choices")
    choices = [choice for choice in value.get("choices") or () if isinstance(choice, dict)]
    reasons = [choice.get("finish_reason") for choice in choices]
    if "error" in reasons:
        raise failure(next((choice.get("error") for choice in choices if choice.get("error")), None))
    if None in reasons:
        raise unfinished(True)
    model = value.get("model")
    named = model if isinstance(model, str) else None
    return Whole(
        read_usage(value.get("usage"), model=named or ""), named, str(reasons[0]) if reasons else None
    )


def read_embeddings(raw: bytes) -> Whole:
    """What an embeddings answer says of itself."""
    value = read_document(raw, "data")
    model = value.get("model")
    return Whole(read_usage(value.get("usage")), model if isinstance(model, str) else None, None)


def read_document(raw: bytes, needed: str) -> dict[str, Any]:
    """The object in a body; ProviderError when it is garbage, an error, or lacks what is needed."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = chunks.loose(raw)
        except ValueError:
            raise garbage(raw) if raw.strip() else unfinished(False) from None
    if isinstance(value, dict) and value.get(needed) and not value.get("error"):
        return value
    raise failure(find(value) or f"the answer has no {needed}")
