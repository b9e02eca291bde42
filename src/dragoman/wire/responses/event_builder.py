"""Build events from the chunks of one Responses answer: blocks, tool calls, sources, files, finish.

Output items are identified by their `output_index`: some servers send another `item_id` with each event. What
a server leaves out of its stream is taken from the end of the item, or from the response at the end. Items of
tools that the provider ran become calls that it executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import msgspec

from dragoman.errors import ProviderError
from dragoman.events import (
    Data,
    Event,
    File,
    FinishReason,
    FinishStep,
    Usage,
)
from dragoman.messages import ProviderMetadata
from dragoman.wire.answer_decoder import AnswerBuilder, AnswerOptions
from dragoman.wire.json_codec import drop_non_finite
from dragoman.wire.provider_errors import incomplete_answer_error, with_usage
from dragoman.wire.reasoning_metadata import bind_to_provider
from dragoman.wire.responses.chunk import ResponsesChunk, responses_error
from dragoman.wire.responses.provider_calls import RAW_ITEM_TYPE, ProviderCalls, is_provider_call
from dragoman.wire.responses.usage import usage_of_response
from dragoman.wire.source_tracker import SourceTracker
from dragoman.wire.text_block_writer import BlockKind, TextBlockWriter
from dragoman.wire.tool_calls import ToolCallFragment

_INCOMPLETE_REASONS: Mapping[str, FinishReason] = {
    "max_output_tokens": "length",
    "content_filter": "content-filter",
}
_IMAGE_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}


class _TextPlace(msgspec.Struct, frozen=True, gc=False):
    """Where an item has text: in the parts of `field`, as blocks of `kind`."""

    kind: BlockKind
    field: str

    def index(self, chunk: ResponsesChunk) -> int:
        """Return the number of the part that a chunk is about."""
        return (chunk.summary_index if self.field == "summary" else chunk.content_index) or 0


_TEXT = _TextPlace("text", "text")
_REFUSAL = _TextPlace("refusal", "refusal")
_SUMMARY = _TextPlace("reasoning", "summary")
_REASONING = _TextPlace("reasoning", "content")
_TEXT_TYPES = {
    "response.output_text": _TEXT,
    "response.refusal": _REFUSAL,
    "response.reasoning_summary_text": _SUMMARY,
    "response.reasoning_text": _REASONING,
}
_TEXT_DELTAS = {f"{kind}.delta": place for kind, place in _TEXT_TYPES.items()}
_TEXT_ENDS = {f"{kind}.done": place for kind, place in _TEXT_TYPES.items()}
_ARGUMENT_TYPES = ("response.function_call_arguments", "response.custom_tool_call_input")
_ARGUMENT_DELTAS = frozenset(f"{kind}.delta" for kind in _ARGUMENT_TYPES)
_ARGUMENT_ENDS = frozenset(f"{kind}.done" for kind in _ARGUMENT_TYPES)
_ENDS = frozenset(f"response.{end}" for end in ("completed", "incomplete", "failed", "cancelled", "done"))


class _ItemState(msgspec.Struct):
    """What has been read of an output item. `written` names its parts that have had text."""

    written: set[tuple[str, int]] = msgspec.field(default_factory=set)
    has_arguments: bool = False
    is_provider_call: bool = False
    done: bool = False


class ResponsesEventBuilder(AnswerBuilder):
    """Builds the events of one response."""

    def __init__(self, **options: Unpack[AnswerOptions]) -> None:
        super().__init__(**options)
        self.started = False
        self.finished = False
        self.usage: Usage | None = None
        self._model = self.requested_model
        self._service_tier: str | None = None
        self._blocks = TextBlockWriter(self._take_metadata)
        self._reasoning_metadata: ProviderMetadata | None = None
        self._open_part: tuple[int, str, int] | None = None  # the part whose block is open
        self._items: dict[int, _ItemState] = {}
        self._text_length = 0  # of the parts that have ended
        self._text_starts: dict[tuple[int, int], int] = {}  # where each of them begins
        self._sources = SourceTracker()
        self._provider_calls = ProviderCalls(self.new_id, self.provider)

    def add_chunk(self, chunk: ResponsesChunk) -> None:
        """Add a chunk; one of an unknown type is ignored."""
        kind = chunk.type
        if kind in _TEXT_DELTAS:
            self._write(_TEXT_DELTAS[kind], chunk, text=chunk.delta)
        elif kind in _ARGUMENT_DELTAS:
            self._add_arguments(chunk, chunk.delta)
        elif kind in _TEXT_ENDS:
            self._complete(_TEXT_ENDS[kind], chunk, text=chunk.text or chunk.refusal)
        elif kind in _ARGUMENT_ENDS:
            if not self._state(chunk).has_arguments:
                self._add_arguments(chunk, chunk.arguments or chunk.input)
        elif kind in _ENDS:
            self.add_response(chunk.response)
        else:
            self._add_other(chunk)

    def _add_other(self, chunk: ResponsesChunk) -> None:
        match chunk.type:
            case "response.output_item.added":
                self._add_item(chunk.output_index or 0, chunk.item)
            case "response.output_item.done":
                self._end_item(chunk.output_index or 0, chunk.item)
            case "response.output_text.annotation.added":
                self._add_annotations(chunk, [chunk.annotation])
            case "response.created" | "response.in_progress" | "response.queued":
                self._read_head(chunk.response)
            case "error":
                fields = {"code": chunk.code, "message": chunk.message, "param": chunk.param}
                self.fail(chunk.error or {name: value for name, value in fields.items() if value})
            case None if chunk.error:
                self.fail(chunk.error)
            case _:
                pass

    def add_response(self, response: Any) -> None:
        """Add the whole response: what the stream has left out of it, and how it ended."""
        if not isinstance(response, Mapping):
            self.fail(incomplete_answer_error("ended without a response", started=self.started))
            return
        self._read_head(response)
        self.usage = usage_of_response(response, model=self._model or "") or self.usage
        output = response.get("output")
        for index, item in enumerate(output if isinstance(output, list) else ()):
            if not self._item(index).done:
                self._end_item(index, item)
        reason = self._finish_reason(response)
        if reason is not None and self.failure is None:
            self._finish(reason)

    def fail(self, error: Any) -> None:
        """See `AnswerBuilder`; a finished response does not fail, and a failed one has its usage."""
        if self.failure is not None or self.finished:
            return
        failure = error if isinstance(error, ProviderError) else responses_error(error)
        super().fail(with_usage(failure, self.usage))

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        if len(self.tool_calls):
            self._blocks.insert(self.tool_calls.take_events())
        return self._blocks.take_events()

    # ---- the response --------------------------------------------------------------------------------

    def _read_head(self, response: Any) -> None:
        self.started = True
        if not isinstance(response, Mapping):
            return
        if isinstance(model := response.get("model"), str) and model:
            self._model = model
        if isinstance(tier := response.get("service_tier"), str):
            self._service_tier = tier

    def _finish_reason(self, response: Mapping[str, Any]) -> FinishReason | None:
        """Return how the response ended; None if it failed."""
        status = response.get("status")
        if status == "incomplete":
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, Mapping) else None
            return _INCOMPLETE_REASONS.get(reason, "other") if isinstance(reason, str) else "other"
        if status in ("failed", "cancelled") or response.get("error"):
            error = response.get("error") or {"message": f"the provider's response is {status}"}
            self.fail(error)
            return None
        if status in ("queued", "in_progress"):
            self.fail(incomplete_answer_error(f"is still {status}"))
            return None
        return "stop"

    def _finish(self, reason: FinishReason) -> None:
        self._blocks.insert(self.tool_calls.flush())
        self._close_block()
        self._blocks.insert(self._provider_calls.close())
        calls = self.tool_calls.finish(truncated=reason == "length")
        self._blocks.insert(calls)
        if calls and reason == "stop":
            reason = "tool-calls"
        finish = FinishStep(reason, self.usage, self._model, self.provider, service_tier=self._service_tier)
        self._blocks.insert([finish])
        self.finished = True

    # ---- text and reasoning --------------------------------------------------------------------------

    def _item(self, index: int) -> _ItemState:
        return self._items.setdefault(index, _ItemState())

    def _state(self, chunk: ResponsesChunk) -> _ItemState:
        return self._item(chunk.output_index or 0)

    def _write(self, place: _TextPlace, chunk: ResponsesChunk, *, text: str | None) -> None:
        """Append text to a part of an item: an item's reasoning is one block, each other part has its own."""
        if not text:
            return
        part = (chunk.output_index or 0, place.field, place.index(chunk))
        if part != self._open_part:
            self._open_block(place.kind, part)
        self._blocks.pending_text.append(text)

    def _open_block(self, kind: BlockKind, part: tuple[int, str, int]) -> None:
        previous, self._open_part = self._open_part, part
        self.started = True
        self._item(part[0]).written.add(part[1:])
        if len(self.tool_calls):
            self._blocks.insert(self.tool_calls.flush())
        if kind == "reasoning" and previous is not None and previous[:2] == part[:2]:
            self._blocks.write(kind, "\n\n")
        else:
            self._blocks.open(kind)

    def _complete(self, place: _TextPlace, chunk: ResponsesChunk, *, text: str | None) -> None:
        """Write a whole part, unless its text has been streamed."""
        part = (chunk.output_index or 0, place.index(chunk))
        if place is _TEXT and text and part not in self._text_starts:
            self._text_starts[part] = self._text_length
            self._text_length += len(text)
        if (place.field, place.index(chunk)) not in self._state(chunk).written:
            self._write(place, chunk, text=text)

    def _close_block(self) -> None:
        self._blocks.close()
        self._open_part = None

    def _insert(self, events: Sequence[Event]) -> None:
        """Insert events after all that has been read so far."""
        if len(self.tool_calls):
            self._blocks.insert(self.tool_calls.take_events())
        self._blocks.insert(events)

    def _take_metadata(self) -> ProviderMetadata | None:
        metadata, self._reasoning_metadata = self._reasoning_metadata, None
        return metadata

    # ---- items ---------------------------------------------------------------------------------------

    def _add_arguments(self, chunk: ResponsesChunk, arguments: str | None) -> None:
        if not arguments or self._state(chunk).is_provider_call:
            return
        self._state(chunk).has_arguments = True
        index = chunk.output_index or 0
        if self._blocks.kind is None and self.tool_calls.append_arguments(index, arguments):
            return
        self._add_call(index, ToolCallFragment(index=index, arguments=arguments))

    def _add_call(self, index: int, fragment: ToolCallFragment) -> None:
        self._close_block()
        self.started = True
        try:
            self.tool_calls.add(fragment)
        except ProviderError as error:
            self.fail(error)

    def _add_item(self, index: int, item: Any) -> None:
        if not isinstance(item, Mapping):
            return
        self.started = True
        state = self._item(index)
        state.is_provider_call = is_provider_call(item)
        if item.get("type") in ("function_call", "custom_tool_call") and not state.is_provider_call:
            self._add_call(index, _call_fragment(index, item, arguments=""))

    def _end_item(self, index: int, item: Any) -> None:
        """Add the end of an item, and all of it that has not been streamed."""
        state = self._item(index)
        if not isinstance(item, Mapping) or state.done:
            return
        state.done = True
        self.started = True
        if is_provider_call(item):
            self._close_block()
            self._insert(self._provider_calls.call_events(item))
            return
        match item.get("type"):
            case "message":
                self._end_message(index, item)
            case "reasoning":
                self._end_reasoning(index, item)
            case "function_call" | "custom_tool_call":
                text = item.get("arguments") if item["type"] == "function_call" else item.get("input")
                arguments = "" if state.has_arguments or not isinstance(text, str) else text
                self._add_call(index, _call_fragment(index, item, arguments=arguments))
            case "image_generation_call":
                self._add_image(item)
            case _:
                self._insert(self._provider_calls.output_events(item) or [self._raw_event(item=dict(item))])

    def _end_message(self, index: int, item: Mapping[str, Any]) -> None:
        content = item.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if not isinstance(part, Mapping):
                continue
            chunk = ResponsesChunk(output_index=index, content_index=number)
            match part.get("type"):
                case "output_text" | "text":
                    self._complete(_TEXT, chunk, text=_text_of(part.get("text")))
                    self._add_annotations(chunk, part.get("annotations"))
                case "refusal":
                    self._complete(_REFUSAL, chunk, text=_text_of(part.get("refusal")))
                case _:
                    self._insert([self._raw_event(part=dict(part))])
        self._close_block()

    def _add_annotations(self, chunk: ResponsesChunk, annotations: Any) -> None:
        """Add what a part of the text cites. Its places count from the beginning of the part."""
        part = (chunk.output_index or 0, chunk.content_index or 0)
        offset = self._text_starts.get(part, self._text_length)
        self._insert(
            [
                *self._sources.new_sources(annotations, offset=offset),
                *self._sources.new_documents(annotations),
            ]
        )

    def _raw_event(self, **content: dict[str, Any]) -> Event:
        """Return what of the output has no event of its own, for the provider that has sent it."""
        return Data(RAW_ITEM_TYPE, {"provider": self.provider, **drop_non_finite(content)})

    def _end_reasoning(self, index: int, item: Mapping[str, Any]) -> None:
        """End reasoning; what is encrypted has to go back to the provider byte for byte."""
        for place in (_SUMMARY, _REASONING):
            if {field for field, _ in self._item(index).written} <= {place.field}:
                self._complete_reasoning(place, index, parts=item.get(place.field))
        encrypted, id = item.get("encrypted_content"), item.get("id")
        if isinstance(encrypted, str) and encrypted:
            fields = {"itemId": id} if isinstance(id, str) and id else {}
            if self._open_part is None or self._open_part[0] != index:
                self._insert(self.tool_calls.flush())
                self._close_block()
                self._blocks.open("reasoning")
            self._reasoning_metadata = bind_to_provider(
                {**fields, "encryptedContent": encrypted}, self.provider
            )
        self._close_block()

    def _complete_reasoning(self, place: _TextPlace, index: int, *, parts: Any) -> None:
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            text = _text_of(part.get("text")) if isinstance(part, Mapping) else None
            chunk = ResponsesChunk(output_index=index, summary_index=number, content_index=number)
            self._complete(place, chunk, text=text)

    def _add_image(self, item: Mapping[str, Any]) -> None:
        data = item.get("result")
        if isinstance(data, str) and data:
            media_type = _IMAGE_TYPES.get(str(item.get("output_format")), "image/png")
            url = data if data.startswith("data:") else f"data:{media_type};base64,{data}"
            self._close_block()
            self._insert([File(url, media_type)])


def _call_fragment(index: int, item: Mapping[str, Any], *, arguments: str) -> ToolCallFragment:
    id, name = item.get("call_id") or item.get("id"), item.get("name")
    return ToolCallFragment(
        index=index,
        id=id if isinstance(id, str) else "",
        name=name if isinstance(name, str) else "",
        arguments=arguments,
        freeform=item.get("type") == "custom_tool_call",
    )


def _text_of(value: Any) -> str | None:
    return value if isinstance(value, str) else None
