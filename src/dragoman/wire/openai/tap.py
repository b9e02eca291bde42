"""Read usage and the finish from a relayed chat.completions answer; repair what no SDK can read.

Regular frames keep their bytes: they fit `OpenAITapChunk`, which has what the SDKs rely on. Source: wire
notes on providers, §3 and §4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import Usage
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.wire.json_codec import as_text, parse_lenient_json
from dragoman.wire.openai.chunk import (
    OpenAIChunk,
    OpenAIDelta,
    OpenAIToolCallDelta,
    check_choice_count,
    lenient_chunk,
    list_choices,
    read_objects,
)
from dragoman.wire.openai.stream_repair import (
    ChunkRepair,
    encode_repaired,
    is_same_json,
    join_reasons,
)
from dragoman.wire.openai.usage import has_counts, read_usage
from dragoman.wire.provider_errors import (
    find_error,
    incomplete_answer_error,
    invalid_json_error,
    provider_error,
)
from dragoman.wire.sse import DONE_FRAME, MAX_FRAME_BYTES, NamedFrame
from dragoman.wire.tap import AnswerDefaults, AnswerTap, join_frames

_DONE = b"[DONE]"
_LIST = b"[{"  # the beginning of a list of objects
_ROLE = b'"role":"assistant",'  # as written by vendors that repeat it in each chunk


class OpenAITapDelta(msgspec.Struct, gc=False):
    """The fields of a delta that are counted or checked."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[OpenAIToolCallDelta] | None = None
    reasoning_details: list[Any] | None = None
    thinking_blocks: list[Any] | None = None
    annotations: list[Any] | None = None
    images: list[Any] | None = None
    function_call: Any = None


class OpenAITapChoice(msgspec.Struct, gc=False):
    """One choice."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    delta: OpenAITapDelta
    finish_reason: str | None = None
    logprobs: dict[str, msgspec.Raw] | None = None
    message: Any = None
    error: Any = None
    usage: Any = None


class OpenAITapChunk(msgspec.Struct, gc=False):
    """The fields of a chunk that are read; a frame without the required ones is repaired."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[OpenAITapChoice]
    usage: Any = None
    error: Any = None
    x_groq: Any = None


_decoder = msgspec.json.Decoder(OpenAITapChunk)
_CHUNK_EVENTS = ("message", "data", "completion", "chunk")
_LISTS = ("reasoning_details", "thinking_blocks", "annotations", "images")


class OpenAITap(AnswerTap):
    """See `AnswerTap`. `[DONE]` is passed on only after a finish reason for every choice.

    If the server sends `[DONE]` after an answer without a finish reason, the client gets one. `hide_usage`:
    the hub asked for usage and the client did not, so the chunk that contains only usage is removed.
    `lenient`: the server never sends a finish reason, and an empty answer may end with `[DONE]`.
    """

    def __init__(
        self,
        *,
        hide_usage: bool = False,
        lenient: bool = False,
        limit: int = MAX_FRAME_BYTES,
        defaults: AnswerDefaults | None = None,
    ) -> None:
        super().__init__(limit=limit)
        self._usage: Any = None
        self._hide_usage = hide_usage
        self._lenient_finish = lenient
        self._unfinished_choices: set[int] = set()  # choices without a finish reason
        self._finished_choices: set[int] = set()
        self._saw_done = False  # [DONE] was received
        self._repair = ChunkRepair(defaults or AnswerDefaults())

    @property
    def usage(self) -> Usage | None:
        """The last usage that has counts."""
        return read_usage(self._usage, model=self.model or "")

    @property
    def generation_finished(self) -> bool:
        """See `AnswerTap`."""
        return self.finish_reason is not None and not self._unfinished_choices

    def _forward(self, frames: Sequence[bytes], *, last: bool = False) -> bytes:
        if _DONE in frames:
            self._saw_done = True
            frames = frames[: frames.index(_DONE)]
        try:
            passed_frames = self._inspect(frames, last=last)
        except ProviderError as error:  # a call that is too long to be repaired
            self.failure = error
            return b""
        if self._saw_done and self.failure is None:
            if not self.generation_finished:
                if not self._is_answer:
                    self.failure = incomplete_answer_error(started=self._started, saw_done=True)
                    return join_frames(passed_frames)
                passed_frames = [*passed_frames, self._finish_frame()]
            self.done = True
            return join_frames(passed_frames) + DONE_FRAME
        return join_frames(passed_frames)

    def _end(self) -> bytes:
        """A stream that ends without `[DONE]` after its finish reason is complete."""
        if self.generation_finished:
            self.done = True
        else:
            self.failure = incomplete_answer_error(started=self._started)
        return b""

    @property
    def _is_answer(self) -> bool:
        """Whether the server has sent an answer, although without a finish reason."""
        return self._started and (self._lenient_finish or bool(self.text_length) or has_counts(self._usage))

    def _finish_frame(self) -> bytes:
        """Return the frame with the finish reasons that the server has left out."""
        chunk = self._repair.finish(self._unfinished_choices or {0})
        self._unfinished_choices.clear()
        self.finish_reason = self.finish_reason or chunk["choices"][0]["finish_reason"]
        return encode_repaired(chunk)

    def _inspect(self, frames: Sequence[bytes], *, last: bool) -> Sequence[bytes]:
        lines = b"\n".join(frames)
        try:
            chunks_read = _decoder.decode_lines(lines)
        except DECODE_ERRORS:
            chunks_read = []
        if len(chunks_read) != len(frames):
            return self._inspect_each(frames, last=last)
        changed_frames: dict[int, Sequence[bytes]] = {}
        may_have_lists = lines.count(_LIST) > len(frames)
        for index, chunk in enumerate(chunks_read):
            if self._count_delta(chunk, frames[index] if may_have_lists else b""):
                continue
            passed_frames = self._pass_chunk(chunk, frames[index])
            if passed_frames is None:
                frames = frames[:index]
                break
            if len(passed_frames) != 1 or passed_frames[0] is not frames[index]:
                changed_frames[index] = passed_frames
        if not changed_frames:
            return frames
        return [
            passed for index, frame in enumerate(frames) for passed in changed_frames.get(index, (frame,))
        ]

    def _pass_chunk(self, chunk: OpenAITapChunk, frame: bytes) -> Sequence[bytes] | None:
        """Record a chunk and return the frames to pass on for it; None if it is an error."""
        self._repair.has_content = self.text_length > 0
        if not self._record(chunk, frame):
            return None
        if not self._repair.has_head:
            self._repair.set_head(chunk.id, created=chunk.created, model=chunk.model)
        if self._hide_usage and not chunk.choices and has_counts(chunk.usage):
            return ()
        self._repair.begin_chunk()
        short_frame = self._drop_repeated_role(chunk, frame)
        if short_frame is not None and self._is_regular(chunk) and not has_unknown_lists(chunk, frame):
            return (short_frame,)
        return self._repair_frame([msgspec.json.decode(frame)], frame)

    def _drop_repeated_role(self, chunk: OpenAITapChunk, frame: bytes) -> bytes | None:
        """Return the frame without a role that was sent before; None if that needs the frame's repair."""
        repeated = [
            choice
            for choice in chunk.choices
            if choice.delta.role is not None and not self._repair.accept_role(choice.index, choice.delta.role)
        ]
        if not repeated:
            return frame
        if type(frame) is bytes and frame.count(b'"role"') == 1 and _ROLE in frame:
            return frame.replace(_ROLE, b"", 1)
        return None

    def _count_delta(self, chunk: OpenAITapChunk, frame: bytes) -> bool:
        """Count a chunk that has only a delta, as most do; return False for any other.

        `frame` is empty if it cannot have unknown lists.
        """
        choices = chunk.choices
        if not choices or len(choices) != 1 or chunk.usage is not None or chunk.error is not None:
            return False
        choice = choices[0]
        delta = choice.delta
        if choice.finish_reason is not None or choice.error is not None or choice.index:
            return False
        if choice.message is not None or (choice.logprobs is not None and not has_readable_logprobs(choice)):
            return False
        if 0 not in self._unfinished_choices or chunk.x_groq is not None or self._repair.usage is not None:
            return False
        if (
            delta.role is not None
            or delta.tool_calls is not None
            or delta.reasoning_details is not None
            or delta.thinking_blocks is not None
            or delta.annotations is not None
            or delta.images is not None
            or delta.function_call is not None
            or (frame and has_unknown_lists(chunk, frame))
        ):
            return False
        self.text_length += len(delta.content) if delta.content else delta_length(delta)
        return True

    def _is_regular(self, chunk: OpenAITapChunk) -> bool:
        """Return whether the SDKs can add a chunk, which has the right fields, to what was passed on."""
        repair = self._repair
        if has_counts(chunk.usage):
            repair.usage = chunk.usage
        elif repair.usage is not None or (
            isinstance(chunk.x_groq, dict) and has_counts(chunk.x_groq.get("usage"))
        ):
            return False
        return all(map(self._is_regular_choice, chunk.choices))

    def _is_regular_choice(self, choice: OpenAITapChoice) -> bool:
        repair, index, delta = self._repair, choice.index, choice.delta
        if choice.message is not None or choice.usage is not None or not has_readable_logprobs(choice):
            return False
        if delta.tool_calls is not None and not repair.accept_calls(index, delta.tool_calls):
            return False
        if choice.finish_reason and not repair.accept_finish(index, choice.finish_reason):
            return False
        if delta.function_call is not None and not repair.accept_function_call(index, delta.function_call):
            return False
        for name in _LISTS:
            entries = getattr(delta, name)
            if entries and not repair.accept_list(index, name, entries=entries):
                return False
        return True

    def _repair_frame(self, values: Sequence[dict[str, Any]], frame: bytes) -> Sequence[bytes]:
        """Return the frame if it needs no repair, else one frame for each of the chunks in it."""
        if isinstance(frame, NamedFrame) and frame.event not in _CHUNK_EVENTS:
            return ()  # a heartbeat: an SDK would read it as a chunk
        repaired = list(map(self._repair.repair, values))
        if len(repaired) == 1 and is_same_json(repaired[0], frame):
            return (frame,)
        return list(map(encode_repaired, repaired))

    def _inspect_each(self, frames: Sequence[bytes], *, last: bool) -> Sequence[bytes]:
        """Inspect frames one by one if some are irregular."""
        all_passed_frames: list[bytes] = []
        for frame in frames:
            stripped = frame.strip()
            if not stripped:
                continue
            if stripped == _DONE:
                self._saw_done = True
                break
            passed_frames = self._inspect_one(frame, last=last)
            if passed_frames is None:
                break
            all_passed_frames += passed_frames
        return all_passed_frames

    def _inspect_one(self, frame: bytes, *, last: bool) -> Sequence[bytes] | None:
        """Return the frames to pass on for one frame; None if the answer has failed."""
        try:
            return self._pass_chunk(_decoder.decode(frame), frame)
        except DECODE_ERRORS:
            pass
        try:
            values = read_objects(frame)
            for value in values:
                check_choice_count(len(list_choices(value) or ()))
            has_content = self._repair.has_content = self.text_length > 0
            chunks_read = [to_tap_chunk(lenient_chunk(value), has_content=has_content) for value in values]
        except (ValueError, RecursionError):
            return () if self._is_ignorable(frame, last=last) else None
        if not values and isinstance(frame, NamedFrame) and frame.event == "error":
            self.failure = provider_error(None)
        if not all(self._record(chunk, frame) for chunk in chunks_read) or self.failure is not None:
            return None
        self._repair.begin_chunk()
        if self._hide_usage and chunks_read:
            last_chunk = chunks_read[-1]
            if not last_chunk.choices and has_counts(last_chunk.usage):
                values = values[:-1]
        return self._repair_frame(values, frame) if values else ()

    def _is_ignorable(self, frame: bytes, *, last: bool) -> bool:
        """Return whether a frame that is not JSON may be dropped: a named heartbeat. Otherwise the answer
        fails, unless the frame is a truncated one after the finish.
        """
        if isinstance(frame, NamedFrame) and frame.event != "error":
            return True
        if not (last and self.generation_finished):
            self.failure = invalid_frame_error(frame)
        return False

    def _record(self, chunk: OpenAITapChunk, frame: bytes) -> bool:
        """Record a chunk; False if it is an error. Raises ProviderError for too many choices."""
        check_choice_count(len(chunk.choices))
        error = chunk.error or next((choice.error for choice in chunk.choices if choice.error), None)
        if isinstance(chunk.x_groq, dict):
            error = error or chunk.x_groq.get("error")
        if error is None and (not chunk.choices or isinstance(frame, NamedFrame)):
            error = frame_error(frame)
        if error:
            self.failure = provider_error(error)
            return False
        self.model = self.model or chunk.model or None
        if chunk.usage is not None and has_counts(chunk.usage):
            self._usage = chunk.usage
        elif isinstance(chunk.x_groq, dict) and has_counts(chunk.x_groq.get("usage")):
            self._usage = chunk.x_groq["usage"]
        for choice in chunk.choices:
            self._started = True
            if choice.usage is not None and has_counts(choice.usage):
                self._usage = choice.usage
            self._record_choice(choice)
        check_choice_count(len(self._unfinished_choices) + len(self._finished_choices))
        return self.failure is None

    def _record_choice(self, choice: OpenAITapChoice) -> None:
        index = choice.index
        self.text_length += len(choice.delta.content or "") + delta_length(choice.delta)
        if choice.finish_reason == "error":
            self.failure = provider_error(None)
        elif choice.finish_reason:
            if self.finish_reason is None or index in self._finished_choices:
                self.finish_reason = join_reasons(self.finish_reason, choice.finish_reason)
            self._unfinished_choices.discard(index)
            self._finished_choices.add(index)
        elif index not in self._finished_choices:
            self._unfinished_choices.add(index)


def has_readable_logprobs(choice: OpenAITapChoice) -> bool:
    """Return whether the SDKs can add up the log probabilities of a choice."""
    logprobs = choice.logprobs
    if logprobs is None:
        return True
    return all(bytes(logprobs.get(name, b"n"))[:1] in (b"[", b"n") for name in ("content", "refusal"))


def has_unknown_lists(chunk: OpenAITapChunk, frame: bytes) -> bool:
    """Return whether a frame may have lists of objects besides its choices, their logprobs and known lists.

    The SDKs merge the entries of any list of a delta by their indexes.
    """
    others = frame.count(_LIST) - 1
    if others < 1:
        return False
    for choice in chunk.choices:
        if choice.logprobs:
            return False
        delta = choice.delta
        others -= bool(delta.tool_calls) + bool(delta.reasoning_details) + bool(delta.thinking_blocks)
        others -= bool(delta.annotations) + bool(delta.images)
    return others > 0


def delta_length(delta: OpenAITapDelta) -> int:
    """About how many characters a delta has besides its content."""
    length = len(delta.reasoning_content or delta.reasoning or delta.refusal or "")
    for call in delta.tool_calls or ():
        function = call.function
        if function is not None:
            length += len(function.name or "") + len(function.arguments or "")
    return length


def to_tap_chunk(chunk: OpenAIChunk, *, has_content: bool = False) -> OpenAITapChunk:
    """Convert a leniently parsed chunk to the fields that are read.

    A message after the content of earlier chunks repeats it.
    """
    choices = [
        OpenAITapChoice(
            position if choice.index is None or choice.index < 0 else choice.index,
            to_tap_delta(choice.delta or (None if has_content else choice.message)),
            choice.finish_reason,
            error=choice.error,
            usage=choice.usage,
        )
        for position, choice in enumerate(chunk.choices or ())
    ]
    return OpenAITapChunk(
        "", "chat.completion.chunk", 0, chunk.model or "", choices, chunk.usage, chunk.error, chunk.x_groq
    )


def to_tap_delta(delta: OpenAIDelta | None) -> OpenAITapDelta:
    """Convert a leniently parsed delta to the fields that are counted."""
    if delta is None:
        return OpenAITapDelta()
    return OpenAITapDelta(
        content=as_text(delta.content),
        reasoning_content=delta.reasoning_content,
        reasoning=delta.reasoning,
        refusal=delta.refusal,
        tool_calls=delta.tool_calls,
    )


def invalid_frame_error(frame: bytes) -> ProviderError:
    """Return the error for a frame that is not JSON, or that is an error in plain text."""
    if isinstance(frame, NamedFrame) and frame.event == "error":
        return provider_error(frame.decode(errors="replace"))
    return invalid_json_error(frame)


def frame_error(frame: bytes) -> Any:
    """Return the error in a frame, if it has one."""
    try:
        value = parse_lenient_json(frame)
    except ValueError:
        return None
    error = find_error(value)
    if error is None and isinstance(frame, NamedFrame) and frame.event == "error":
        return value
    return error
