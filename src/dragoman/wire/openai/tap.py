"""A tap on a relayed chat.completions answer. Source: wire notes on providers, §3 and §4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.wire.encoder import KEEP_ALIVE
from dragoman.wire.openai import chunk as chunks
from dragoman.wire.openai.usage import OpenAIUsage, has_counts, read_standard_usage, read_usage
from dragoman.wire.provider_errors import find_error, provider_error
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame
from dragoman.wire.tap import (
    AnswerSummary,
    RelayFrameReader,
    invalid_json_error,
    join_frames,
    unfinished_error,
)

_DONE = b"[DONE]"
_DONE_FRAME = b"data: [DONE]\n\n"


class OpenAITapDelta(msgspec.Struct, gc=False):
    """What is counted of a delta."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()  # `Raw | None` would take null only


class OpenAITapChoice(msgspec.Struct, gc=False):
    """One of the answers."""

    index: int | None = None
    delta: OpenAITapDelta | None = None
    finish_reason: str | None = None
    error: Any = None


class OpenAITapChunk(msgspec.Struct, gc=False):
    """What is looked at in a chunk."""

    choices: list[OpenAITapChoice] | None = None
    model: str | None = None
    usage: Any = None
    error: Any = None
    x_groq: Any = None


_decoder = msgspec.json.Decoder(OpenAITapChunk)


class OpenAITap:
    """See `Tap`. `[DONE]` goes on only behind a finish reason for every choice.

    `hide_usage`: the hub asked for usage and the client did not, so the chunk that holds nothing else is kept
    back. `lenient`: the server never sends a finish reason, and means `[DONE]`.
    """

    def __init__(
        self, *, hide_usage: bool = False, lenient: bool = False, limit: int = MAX_FRAME_BYTES
    ) -> None:
        self.done = False
        self.failure: ProviderError | None = None
        self.model: str | None = None
        self.finish_reason: str | None = None
        self.text_length = 0
        self._frames = RelayFrameReader(limit=limit)
        self._usage: Any = None
        self._hide_usage = hide_usage
        self._lenient_finish = lenient
        self._unfinished_choices: set[int] = set()  # choices without a finish reason
        self._finished_choices: set[int] = set()
        self._started = False
        self._saw_done = False  # [DONE] was said

    @property
    def usage(self) -> Usage | None:
        """The last usage that counts anything."""
        return read_usage(self._usage, model=self.model or "")

    @property
    def generation_finished(self) -> bool:
        """See `Tap`."""
        return self.finish_reason is not None and not self._unfinished_choices

    def feed(self, raw: bytes) -> bytes:
        """See `Tap`."""
        if self.failure is not None or self.done:
            return b""
        frames = self._frames.feed(raw)
        self.failure = self._frames.failure
        said = self._forward(frames) if frames else b""
        return said or (KEEP_ALIVE if self._frames.saw_new_comments() else b"")

    def close(self) -> bytes:
        """See `Tap`. A server that ends without `[DONE]` behind its finish reason has finished."""
        said = b""
        if self.failure is None and not self.done:
            frames = self._frames.close()
            self.failure = self._frames.failure
            said = self._forward(frames, last=True)
        if self.failure is None and not self.done:
            if not self.generation_finished:
                self.failure = unfinished_error(self._started)
            else:
                self.done = True
        return said

    def _forward(self, frames: Sequence[bytes], *, last: bool = False) -> bytes:
        """The frames that may go on."""
        if _DONE in frames:
            self._saw_done = True
            frames = frames[: frames.index(_DONE)]
        passed = self._inspect(frames, last=last)
        if self._saw_done and self.failure is None:
            if not (self.generation_finished or (self._lenient_finish and self._started)):
                self.failure = unfinished_error(self._started, saw_done=True)
            else:
                self.done = True
                return join_frames(passed) + _DONE_FRAME
        return join_frames(passed)

    def _inspect(self, frames: Sequence[bytes], *, last: bool) -> Sequence[bytes]:
        try:
            decoded = _decoder.decode_lines(b"\n".join(frames))
        except chunks.DECODE_ERRORS:
            decoded = []
        if len(decoded) != len(frames):
            return self._inspect_each(frames, last=last)
        hidden: list[int] = []
        for at, chunk in enumerate(decoded):
            if self._count_delta(chunk):
                continue
            if not self._record(chunk, frames[at]):
                frames = frames[:at]
                break
            if self._is_hidden(chunk):
                hidden.append(at)
        return [frame for at, frame in enumerate(frames) if at not in hidden] if hidden else frames

    def _count_delta(self, chunk: OpenAITapChunk) -> bool:
        """Count a chunk that only brings more of the answer, as most do; False for any other."""
        choices = chunk.choices
        if not choices or len(choices) != 1 or chunk.usage is not None or chunk.error is not None:
            return False
        choice = choices[0]
        delta = choice.delta
        if delta is None or choice.finish_reason is not None or choice.error is not None or choice.index:
            return False
        if 0 not in self._unfinished_choices or chunk.x_groq is not None:
            return False
        self.text_length += len(delta.content) if delta.content else delta_length(delta)
        return True

    def _is_hidden(self, chunk: OpenAITapChunk) -> bool:
        return self._hide_usage and chunk.choices == [] and has_counts(chunk.usage)

    def _inspect_each(self, frames: Sequence[bytes], *, last: bool) -> Sequence[bytes]:
        """The same, one by one, for frames that are not all well-behaved chunks."""
        passed: list[bytes] = []
        for frame in frames:
            bare = frame.strip()
            if not bare:
                continue
            if bare == _DONE:
                self._saw_done = True
                break
            try:
                read = chunks.read_chunks(frame)
            except ValueError:
                if not self._is_ignorable(frame, last=last):
                    break
                read = []
            if not all(self._record(to_tap_chunk(chunk), frame) for chunk in read):
                break
            if not (self._hide_usage and read and read[-1].choices == [] and read[-1].usage):
                passed.append(frame)
        return passed

    def _is_ignorable(self, frame: bytes, *, last: bool) -> bool:
        """Whether what is no JSON goes on: a heartbeat with a name. A stump behind the finish is left out."""
        if isinstance(frame, NamedFrame) and frame.event != "error":
            return True
        if not (last and self.generation_finished):
            self.failure = invalid_frame_error(frame)
        return False

    def _record(self, chunk: OpenAITapChunk, frame: bytes) -> bool:
        """Take a chunk in; False when it is an error."""
        error = chunk.error or next((choice.error for choice in chunk.choices or () if choice.error), None)
        if isinstance(chunk.x_groq, dict):
            error = error or chunk.x_groq.get("error")
        if error is None and (chunk.choices is None or isinstance(frame, NamedFrame)):
            error = frame_error(frame)
        if error:
            self.failure = provider_error(error)
            return False
        self.model = self.model or chunk.model or None
        if chunk.usage is not None and has_counts(chunk.usage):
            self._usage = chunk.usage
        elif isinstance(chunk.x_groq, dict) and has_counts(chunk.x_groq.get("usage")):
            self._usage = chunk.x_groq["usage"]
        for choice in chunk.choices or ():
            self._started = True
            self._record_choice(choice)
        return self.failure is None

    def _record_choice(self, choice: OpenAITapChoice) -> None:
        index = choice.index or 0
        if choice.delta is not None:
            self.text_length += len(choice.delta.content or "") + delta_length(choice.delta)
        if choice.finish_reason == "error":
            self.failure = provider_error(None)
        elif choice.finish_reason:
            self.finish_reason = self.finish_reason or choice.finish_reason
            self._unfinished_choices.discard(index)
            self._finished_choices.add(index)
        elif index not in self._finished_choices:
            self._unfinished_choices.add(index)


def delta_length(delta: OpenAITapDelta) -> int:
    """About how many characters a delta has beside its content."""
    calls = len(memoryview(delta.tool_calls)) // 3  # the rest is JSON
    return len(delta.reasoning_content or delta.reasoning or "") + calls


def to_tap_chunk(chunk: chunks.OpenAIChunk) -> OpenAITapChunk:
    """What is looked at in a chunk that was read with more patience."""
    choices = None
    if chunk.choices is not None:
        choices = [
            OpenAITapChoice(
                choice.index,
                OpenAITapDelta(chunks.as_text(delta.content), delta.reasoning_content, delta.reasoning)
                if delta
                else None,
                choice.finish_reason,
                choice.error,
            )
            for choice in chunk.choices
            for delta in (choice.delta,)
        ]
    return OpenAITapChunk(choices, chunk.model, chunk.usage, chunk.error, chunk.x_groq)


def invalid_frame_error(frame: bytes) -> ProviderError:
    """The error for a frame that is no JSON, or an error in plain words."""
    if isinstance(frame, NamedFrame) and frame.event == "error":
        return provider_error(frame.decode(errors="replace"))
    return invalid_json_error(frame)


def frame_error(frame: bytes) -> Any:
    """The error in a frame, if it is one."""
    try:
        value = chunks.parse_lenient_json(frame)
    except ValueError:
        return None
    error = find_error(value)
    if error is None and isinstance(frame, NamedFrame) and frame.event == "error":
        return value
    return error


class OpenAICompletionChoice(msgspec.Struct, gc=False):
    """What is looked at in a choice of a whole answer."""

    finish_reason: str
    error: Any = None


class OpenAICompletion(msgspec.Struct, gc=False):
    """What is looked at in a whole answer that is as OpenAI's are."""

    choices: list[OpenAICompletionChoice]
    usage: OpenAIUsage
    model: str | None = None
    error: Any = None


_completion = msgspec.json.Decoder(OpenAICompletion)


def read_completion(raw: bytes) -> AnswerSummary:
    """What a whole chat.completion says of itself; ProviderError when it is none, or has no end."""
    try:
        said = _completion.decode(raw)
    except chunks.DECODE_ERRORS:
        return _read_lenient_completion(raw)
    usage = read_standard_usage(said.usage)
    reason = said.choices[0].finish_reason if len(said.choices) == 1 else "error"
    if usage is None or said.error is not None or reason == "error" or said.choices[0].error is not None:
        return _read_lenient_completion(raw)
    return AnswerSummary(usage, said.model, reason)


def _read_lenient_completion(raw: bytes) -> AnswerSummary:
    """The same for any other answer, with more patience."""
    value = read_document(raw, "choices")
    choices = [choice for choice in value.get("choices") or () if isinstance(choice, dict)]
    reasons = [choice.get("finish_reason") for choice in choices]
    if "error" in reasons:
        raise provider_error(next((choice.get("error") for choice in choices if choice.get("error")), None))
    if None in reasons:
        raise unfinished_error(True)
    model = value.get("model")
    named = model if isinstance(model, str) else None
    return AnswerSummary(
        read_usage(value.get("usage"), model=named or ""), named, str(reasons[0]) if reasons else None
    )


def read_embeddings(raw: bytes) -> AnswerSummary:
    """What an embeddings answer says of itself."""
    value = read_document(raw, "data")
    model = value.get("model")
    return AnswerSummary(read_usage(value.get("usage")), model if isinstance(model, str) else None, None)


def read_document(raw: bytes, required_field: str) -> dict[str, Any]:
    """The object in a body; ProviderError when it is garbage, an error, or lacks what is needed."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = chunks.parse_lenient_json(raw)
        except ValueError:
            raise invalid_json_error(raw) if raw.strip() else unfinished_error(False) from None
    if isinstance(value, dict) and value.get(required_field) and not value.get("error"):
        return value
    raise provider_error(find_error(value) or f"the answer has no {required_field}")
