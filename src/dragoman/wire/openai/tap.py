"""Read usage and the finish from a relayed chat.completions answer.

Source: wire notes on providers, §3 and §4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.json_text import DECODE_ERRORS
from dragoman.wire.encoder import KEEP_ALIVE
from dragoman.wire.json_codec import as_text, parse_lenient_json
from dragoman.wire.openai.chunk import OpenAIChunk, read_chunks
from dragoman.wire.openai.usage import OpenAIUsage, has_counts, read_standard_usage, read_usage
from dragoman.wire.provider_errors import (
    find_error,
    incomplete_answer_error,
    invalid_json_error,
    provider_error,
)
from dragoman.wire.sse import DONE_FRAME, MAX_FRAME_BYTES, NamedFrame
from dragoman.wire.tap import AnswerSummary, RelayFrameReader, join_frames

_DONE = b"[DONE]"


class OpenAITapDelta(msgspec.Struct, gc=False):
    """The fields of a delta that are counted."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()  # `Raw | None` would decode only null


class OpenAITapChoice(msgspec.Struct, gc=False):
    """One choice."""

    index: int | None = None
    delta: OpenAITapDelta | None = None
    finish_reason: str | None = None
    error: Any = None


class OpenAITapChunk(msgspec.Struct, gc=False):
    """The fields of a chunk that are read."""

    choices: list[OpenAITapChoice] | None = None
    model: str | None = None
    usage: Any = None
    error: Any = None
    x_groq: Any = None


_decoder = msgspec.json.Decoder(OpenAITapChunk)


class OpenAITap:
    """See `AnswerTap`. `[DONE]` is passed on only after a finish reason for every choice.

    `hide_usage`: the hub asked for usage and the client did not, so the chunk that contains only usage is
    removed. `lenient`: the server never sends a finish reason, and `[DONE]` counts as one.
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
        self._saw_done = False  # [DONE] was received

    @property
    def usage(self) -> Usage | None:
        """The last usage that has counts."""
        return read_usage(self._usage, model=self.model or "")

    @property
    def generation_finished(self) -> bool:
        """See `AnswerTap`."""
        return self.finish_reason is not None and not self._unfinished_choices

    def feed(self, raw: bytes) -> bytes:
        """See `AnswerTap`."""
        if self.failure is not None or self.done:
            return b""
        frames = self._frames.feed(raw)
        self.failure = self._frames.failure
        passed_bytes = self._forward(frames) if frames else b""
        return passed_bytes or (KEEP_ALIVE if self._frames.saw_new_comments() else b"")

    def close(self) -> bytes:
        """See `AnswerTap`. A stream that ends without `[DONE]` after its finish reason is complete."""
        passed_bytes = b""
        if self.failure is None and not self.done:
            frames = self._frames.close()
            self.failure = self._frames.failure
            passed_bytes = self._forward(frames, last=True)
        if self.failure is None and not self.done:
            if not self.generation_finished:
                self.failure = incomplete_answer_error(started=self._started)
            else:
                self.done = True
        return passed_bytes

    def _forward(self, frames: Sequence[bytes], *, last: bool = False) -> bytes:
        """Return the frames that may be passed on."""
        if _DONE in frames:
            self._saw_done = True
            frames = frames[: frames.index(_DONE)]
        passed_frames = self._inspect(frames, last=last)
        if self._saw_done and self.failure is None:
            if not (self.generation_finished or (self._lenient_finish and self._started)):
                self.failure = incomplete_answer_error(started=self._started, saw_done=True)
            else:
                self.done = True
                return join_frames(passed_frames) + DONE_FRAME
        return join_frames(passed_frames)

    def _inspect(self, frames: Sequence[bytes], *, last: bool) -> Sequence[bytes]:
        try:
            chunks_read = _decoder.decode_lines(b"\n".join(frames))
        except DECODE_ERRORS:
            chunks_read = []
        if len(chunks_read) != len(frames):
            return self._inspect_each(frames, last=last)
        hidden_indexes: list[int] = []
        for index, chunk in enumerate(chunks_read):
            if self._count_delta(chunk):
                continue
            if not self._record(chunk, frames[index]):
                frames = frames[:index]
                break
            if self._is_hidden(chunk):
                hidden_indexes.append(index)
        return (
            [frame for index, frame in enumerate(frames) if index not in hidden_indexes]
            if hidden_indexes
            else frames
        )

    def _count_delta(self, chunk: OpenAITapChunk) -> bool:
        """Count a chunk that has only a delta, as most have; False for any other."""
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
        """Inspect frames one by one if some are irregular."""
        passed_frames: list[bytes] = []
        for frame in frames:
            stripped = frame.strip()
            if not stripped:
                continue
            if stripped == _DONE:
                self._saw_done = True
                break
            try:
                chunks_read = read_chunks(frame)
            except ValueError:
                if not self._is_ignorable(frame, last=last):
                    break
                chunks_read = []
            if not all(self._record(to_tap_chunk(chunk), frame) for chunk in chunks_read):
                break
            if not (
                self._hide_usage and chunks_read and chunks_read[-1].choices == [] and chunks_read[-1].usage
            ):
                passed_frames.append(frame)
        return passed_frames

    def _is_ignorable(self, frame: bytes, *, last: bool) -> bool:
        """Whether invalid JSON is passed on: a named heartbeat. A truncated frame after the finish is
        removed.
        """
        if isinstance(frame, NamedFrame) and frame.event != "error":
            return True
        if not (last and self.generation_finished):
            self.failure = invalid_frame_error(frame)
        return False

    def _record(self, chunk: OpenAITapChunk, frame: bytes) -> bool:
        """Record a chunk; False if it is an error."""
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
    """About how many characters a delta has besides its content."""
    calls = len(memoryview(delta.tool_calls)) // 3  # the rest is JSON syntax
    return len(delta.reasoning_content or delta.reasoning or "") + calls


def to_tap_chunk(chunk: OpenAIChunk) -> OpenAITapChunk:
    """Convert a leniently parsed chunk to the fields that are read."""
    choices = None
    if chunk.choices is not None:
        choices = [
            OpenAITapChoice(
                choice.index,
                OpenAITapDelta(as_text(delta.content), delta.reasoning_content, delta.reasoning)
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
    """The error for a frame that is not JSON, or that is an error in plain text."""
    if isinstance(frame, NamedFrame) and frame.event == "error":
        return provider_error(frame.decode(errors="replace"))
    return invalid_json_error(frame)


def frame_error(frame: bytes) -> Any:
    """The error in a frame, if it has one."""
    try:
        value = parse_lenient_json(frame)
    except ValueError:
        return None
    error = find_error(value)
    if error is None and isinstance(frame, NamedFrame) and frame.event == "error":
        return value
    return error


class OpenAICompletionChoice(msgspec.Struct, gc=False):
    """The fields of a complete answer's choice that are read."""

    finish_reason: str
    error: Any = None


class OpenAICompletion(msgspec.Struct, gc=False):
    """The fields of a complete answer that are read, if it is in OpenAI's format."""

    choices: list[OpenAICompletionChoice]
    usage: OpenAIUsage
    model: str | None = None
    error: Any = None


_completion = msgspec.json.Decoder(OpenAICompletion)


def read_completion(raw: bytes) -> AnswerSummary:
    """Read a chat.completion document; ProviderError if it is invalid or incomplete."""
    try:
        completion = _completion.decode(raw)
    except DECODE_ERRORS:
        return _read_lenient_completion(raw)
    usage = read_standard_usage(completion.usage)
    finish_reason = completion.choices[0].finish_reason if len(completion.choices) == 1 else "error"
    if (
        usage is None
        or completion.error is not None
        or finish_reason == "error"
        or completion.choices[0].error is not None
    ):
        return _read_lenient_completion(raw)
    return AnswerSummary(usage, completion.model, finish_reason)


def _read_lenient_completion(raw: bytes) -> AnswerSummary:
    """Read a document of any other vendor, leniently."""
    value = read_document(raw, "choices")
    choices = [choice for choice in value.get("choices") or () if isinstance(choice, dict)]
    reasons = [choice.get("finish_reason") for choice in choices]
    if "error" in reasons:
        raise provider_error(next((choice.get("error") for choice in choices if choice.get("error")), None))
    if None in reasons:
        raise incomplete_answer_error()
    model = value.get("model")
    model_name = model if isinstance(model, str) else None
    return AnswerSummary(
        read_usage(value.get("usage"), model=model_name or ""),
        model_name,
        str(reasons[0]) if reasons else None,
    )


def read_embeddings(raw: bytes) -> AnswerSummary:
    """Read an embeddings document."""
    value = read_document(raw, "data")
    model = value.get("model")
    return AnswerSummary(read_usage(value.get("usage")), model if isinstance(model, str) else None, None)


def read_document(raw: bytes, required_field: str) -> dict[str, Any]:
    """Decode the object in a body; ProviderError if it is invalid, an error, or lacks `required_field`."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = parse_lenient_json(raw)
        except ValueError:
            raise invalid_json_error(raw) if raw.strip() else incomplete_answer_error(started=False) from None
    if isinstance(value, dict) and value.get(required_field) and not value.get("error"):
        return value
    raise provider_error(find_error(value) or f"the answer has no {required_field}")
