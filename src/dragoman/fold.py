"""Fold events into a message: history is created in no other way.

`fold(message, events)` is pure. A `Fold` does the same batch by batch for an active run. Both check the
grammar of docs/design.md §1 and raise OutOfOrder for an event that it does not allow. `unfold.py` is the
inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import UNSET

from dragoman import events as e
from dragoman.errors import OutOfOrder
from dragoman.messages import (
    FINAL_STATES,
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SourceDocumentPart,
    SourceUrlPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from dragoman.part_builders import (
    MAX_FRAGMENTS,
    BlockBuilder,
    PartBuilder,
    PartSlot,
    ToolCallBuilder,
    ToolInputEvent,
    join_fragments,
)

SPILLED_FROM = 524_288  # characters of a text in memory from which on a part of it is spilled
KEPT_IN_MEMORY = 131_072  # characters of it that are not

Phase = Literal["idle", "open", "step", "ended", "finished"]


class Fold:
    """One assistant message under construction.

    `add` takes batches of events, `message()` returns the result so far. `dirty` has the indexes of parts
    that changed since the journal last cleared it, `unfinished` the builders of parts that can still change.
    `size` counts the characters of all deltas.
    """

    def __init__(self, message: Message | None = None) -> None:
        self.id = message.id if message else ""
        self.metadata: Any = message.metadata if message else None
        self.metadata_version = 0
        self.builders: list[PartBuilder] = []
        self.dirty: set[int] = set()
        self.unfinished: dict[int, PartBuilder] = {}
        self.phase: Phase = "idle"
        self.end_events: list[e.Event] = []
        self.size = 0
        self.steps = 0
        self.step_start = 0
        self._open_blocks: dict[tuple[type, str], tuple[int, BlockBuilder]] = {}
        self._tool_calls: dict[str, tuple[int, ToolCallBuilder]] = {}
        self._calls_by_approval: dict[str, tuple[int, ToolCallBuilder]] = {}
        self._data_parts: dict[tuple[str, str], int] = {}
        for part in message.parts if message else ():
            self._restore_part(part)

    def add(self, events: Iterable[e.Event]) -> None:
        """Fold a batch. Raises OutOfOrder at the first event that the grammar does not allow."""
        for event in events:
            _HANDLERS[type(event)](self, event)

    def message(self) -> Message:
        """Return the message so far; open blocks have the state `streaming`."""
        parts = tuple(builder.part() for builder in self.builders)
        return Message(id=self.id, role="assistant", parts=parts, metadata=self.metadata)

    def count_parts(self, kind: type[Part]) -> int:
        """Return how many complete parts are of a kind, such as the beginnings of steps."""
        return sum(isinstance(each, PartSlot) and isinstance(each.current, kind) for each in self.builders)

    def long_blocks(self) -> list[BlockBuilder]:
        """Return the texts of which more is in memory than should be."""
        return [
            builder
            for builder in self.builders
            if isinstance(builder, BlockBuilder) and builder.size_in_memory >= SPILLED_FROM
        ]

    def is_final(self, index: int) -> bool:
        """Whether the part can no longer change."""
        return index not in self.unfinished

    @property
    def is_open(self) -> bool:
        """Whether the message has begun and not ended."""
        return self.phase in ("open", "step")

    def step_calls(self) -> list[ToolPart]:
        """Return the tool calls of the current step in the model's order; before the first step, all."""
        return [
            call.current for _, call in self._tool_calls.values() if not self.steps or call.step == self.steps
        ]

    def open_blocks(self) -> list[tuple[type, str]]:
        """Return the kind and id of every open text and reasoning block."""
        return list(self._open_blocks)

    # One handler for each event type.

    def start(self, event: e.Start) -> None:
        """`start`: first, and once. A continued message keeps its id."""
        self._require_phase("start", "idle")
        if event.message_id is not None:
            if self.builders and event.message_id != self.id:
                raise OutOfOrder(f"start of message {event.message_id!r} while folding {self.id!r}")
            self.id = event.message_id
        self.phase = "open"
        self._merge_metadata(event.message_metadata)

    def start_step(self, _: e.StartStep) -> None:
        """`start-step`: between steps."""
        self._require_phase("start-step", "open")
        self.phase = "step"
        self.steps += 1
        self._append(PartSlot(StepStartPart()))
        self.step_start = len(self.builders)

    def finish_step(self, _: e.FinishStep) -> None:
        """`finish-step`: when every block is closed and every call's arguments are complete."""
        self._require_phase("finish-step", "step")
        if self._open_blocks:
            raise OutOfOrder(
                f"finish-step while blocks are open: {[name for _, name in self._open_blocks]!r}"
            )
        restored = () if self.steps > 1 else self.builders[: self.step_start]
        incomplete = [
            each.current.tool_call_id
            for each in (*restored, *self.builders[self.step_start :])
            if isinstance(each, ToolCallBuilder) and each.current.state == "input-streaming"
        ]
        if incomplete:
            raise OutOfOrder(f"finish-step while the arguments of {incomplete!r} are not complete")
        self.phase = "open"

    def reset_step(self, _: e.ResetStep) -> None:
        """`reset-step`: drop the step's parts."""
        self._require_phase("reset-step", "step")
        dropped = range(self.step_start, len(self.builders))
        del self.builders[self.step_start :]
        self._open_blocks.clear()
        self._tool_calls = {key: entry for key, entry in self._tool_calls.items() if entry[0] not in dropped}
        self._calls_by_approval = {
            key: entry for key, entry in self._calls_by_approval.items() if entry[0] not in dropped
        }
        self._data_parts = {key: index for key, index in self._data_parts.items() if index not in dropped}
        self.unfinished = {
            index: builder for index, builder in self.unfinished.items() if index not in dropped
        }
        self.dirty.update(dropped)

    def block_start(
        self, kind: type[TextPart] | type[ReasoningPart], event: e.TextStart | e.ReasoningStart
    ) -> None:
        """`text-start`, `reasoning-start`: the id must not be open."""
        self._require_phase("a block's start", "step")
        if (kind, event.id) in self._open_blocks:
            raise OutOfOrder(f"block {event.id!r} is already open; close it or use another id")
        block = BlockBuilder(kind, event.id, metadata=event.provider_metadata)
        index = self._append(block)
        self.unfinished[index] = block
        self._open_blocks[kind, event.id] = (index, block)

    def block_delta(self, event: e.TextDelta | e.ReasoningDelta) -> None:
        """`text-delta`, `reasoning-delta`: the block must be open."""
        entry = self._open_blocks.get((_DELTA_PARTS[type(event)], event.id))
        if entry is None:
            raise OutOfOrder(f"delta for block {event.id!r}, which is not open; send its start first")
        index, block = entry
        size = len(event.delta)
        block.fragments.append(event.delta)
        block.length += size
        self.size += size
        if len(block.fragments) - block.joined > MAX_FRAGMENTS:
            block.joined = join_fragments(block.fragments, block.joined)
        if event.provider_metadata is not None:
            block.metadata = event.provider_metadata
        self.dirty.add(index)

    def block_end(self, kind: type, event: e.TextEnd | e.ReasoningEnd) -> None:
        """`text-end`, `reasoning-end`: the block must be open; its id may be used again."""
        entry = self._open_blocks.pop((kind, event.id), None)
        if entry is None:
            raise OutOfOrder(f"end of block {event.id!r}, which is not open")
        index, block = entry
        block.done = True
        if event.provider_metadata is not None:
            block.metadata = event.provider_metadata
        self._mark_final(index)

    def input_start(self, event: e.ToolInputStart) -> None:
        """`tool-input-start`: the call id must be new in this message."""
        self._open_tool_call(event)

    def input_delta(self, event: e.ToolInputDelta) -> None:
        """`tool-input-delta`: only while the arguments stream."""
        index, call = self._find_tool_call(event.tool_call_id)
        call.append_input(event.input_text_delta)
        self.size += len(event.input_text_delta)
        self.dirty.add(index)

    def input_available(self, event: e.ToolInputAvailable) -> None:
        """`tool-input-available`: after the call's start, or alone."""
        if event.tool_call_id not in self._tool_calls:
            self._open_tool_call(event)
        index, call = self._find_tool_call(event.tool_call_id)
        call.complete_input(event, state="input-available")
        self.dirty.add(index)

    def input_error(self, event: e.ToolInputError) -> None:
        """`tool-input-error`: the call ends here."""
        if event.tool_call_id not in self._tool_calls:
            self._open_tool_call(event)
        index, call = self._find_tool_call(event.tool_call_id)
        call.complete_input(event, state="output-error", error_text=event.error_text)
        self._mark_final(index)

    def approval_request(self, event: e.ToolApprovalRequest) -> None:
        """`tool-approval-request`: the call waits for an answer."""
        index, call = self._find_tool_call(event.tool_call_id)
        call.request_approval(event.approval_id)
        self._calls_by_approval[event.approval_id] = (index, call)
        self.dirty.add(index)

    def approval_response(self, event: e.ToolApprovalResponse) -> None:
        """`tool-approval-response`: answers an approval request of this message."""
        index, call = self._calls_by_approval.get(event.approval_id, (0, None))
        approval = None if call is None else call.current.approval
        is_asked = approval is not None and approval.id == event.approval_id
        if call is None or not is_asked or call.current.state != "approval-requested":
            raise OutOfOrder(f"answer to approval {event.approval_id!r}, which no call waits for")
        call.record_approval(event)
        self.dirty.add(index)

    def output_available(self, event: e.ToolOutputAvailable) -> None:
        """`tool-output-available`: any number of preliminary outputs, then a final one."""
        index, call = self._find_output_call(event)
        call.set_output(
            state="output-available",
            output=event.output,
            preliminary=event.preliminary or None,
            result_provider_metadata=event.provider_metadata,
        )
        if event.preliminary:
            self.dirty.add(index)
        else:
            self._mark_final(index)

    def output_error(self, event: e.ToolOutputError) -> None:
        """`tool-output-error`: the call failed."""
        index, call = self._find_output_call(event)
        call.set_output(
            state="output-error",
            output=UNSET,
            preliminary=None,
            error_text=event.error_text,
            result_provider_metadata=event.provider_metadata,
        )
        self._mark_final(index)

    def output_denied(self, event: e.ToolOutputDenied) -> None:
        """`tool-output-denied`: the approval was refused."""
        index, call = self._find_output_call(event)
        call.require_state("approval-requested", "approval-responded")
        call.set_output(state="output-denied")
        self._mark_final(index)

    def source(self, event: e.SourceUrl | e.SourceDocument | e.File) -> None:
        """`source-url`, `source-document`, `file`: complete parts."""
        self._require_phase(e.event_type(event), "step")
        self._append(PartSlot(_source_part(event)))

    def data(self, event: e.Data) -> None:
        """`data-*`: replaces the part of the same type and id. A transient event makes no part."""
        self._require_phase(event.type, "open", "step")
        if event.transient:
            return
        part = DataPart(type=event.type, data=event.data, id=event.id)
        previous = self._data_parts.get((event.type, event.id)) if event.id is not None else None
        if previous is not None and isinstance(slot := self.builders[previous], PartSlot):
            slot.current, slot.version = part, slot.version + 1
            self.dirty.add(previous)
            return
        slot = PartSlot(part)
        index = self._append(slot)
        if event.id is not None:
            self._data_parts[event.type, event.id] = index
            self.unfinished[index] = slot

    def message_metadata(self, event: e.MessageMetadata) -> None:
        """`message-metadata`: merged into the message's."""
        self._require_phase("message-metadata", "open", "step")
        self._merge_metadata(event.message_metadata)

    def end_run(self, event: e.ErrorEvent | e.Abort) -> None:
        """`error`, `abort`: after the last step is closed. Only `finish` may follow."""
        self._require_phase(e.event_type(event), "open")
        self.phase = "ended"
        self.end_events.append(event)

    def finish(self, event: e.Finish) -> None:
        """`finish`: last."""
        self._require_phase("finish", "open", "ended")
        self.phase = "finished"
        self.end_events.append(event)
        self._merge_metadata(event.message_metadata)

    # Helpers of the handlers.

    def _require_phase(self, event_type: str, *phases: Phase) -> None:
        if self.phase not in phases:
            raise OutOfOrder(f"{event_type} is not allowed {_PHASE_TEXTS[self.phase]}")

    def _append(self, builder: PartBuilder) -> int:
        self.builders.append(builder)
        index = len(self.builders) - 1
        self.dirty.add(index)
        return index

    def _mark_final(self, index: int) -> None:
        self.unfinished.pop(index, None)
        self.dirty.add(index)

    def _merge_metadata(self, metadata: Any) -> None:
        if metadata is not None:
            self.metadata = merge_metadata(self.metadata, metadata)
            self.metadata_version += 1

    def _open_tool_call(self, event: ToolInputEvent) -> None:
        self._require_phase(e.event_type(event), "step")
        if event.tool_call_id in self._tool_calls:
            raise OutOfOrder(f"{e.event_type(event)}: the message already has a call {event.tool_call_id!r}")
        call = ToolCallBuilder.from_event(event, self.steps)
        index = self._append(call)
        self.unfinished[index] = call
        self._tool_calls[event.tool_call_id] = (index, call)

    def _find_tool_call(self, tool_call_id: str) -> tuple[int, ToolCallBuilder]:
        entry = self._tool_calls.get(tool_call_id)
        if entry is None:
            raise OutOfOrder(f"no tool call {tool_call_id!r} in this message; send its input first")
        return entry

    def _find_output_call(self, event: ToolOutputEvent) -> tuple[int, ToolCallBuilder]:
        self._require_phase(e.event_type(event), "open", "step")
        index, call = self._find_tool_call(event.tool_call_id)
        call.require_state("input-streaming", "input-available", "approval-requested", "approval-responded")
        if self.steps and call.step != self.steps:
            raise OutOfOrder(f"output of {event.tool_call_id!r} outside the step of its call")
        return index, call

    def _restore_part(self, part: Part) -> None:
        match part:
            case ToolPart():
                call = ToolCallBuilder(part, 0)
                self.builders.append(call)
                self._tool_calls[part.tool_call_id] = (len(self.builders) - 1, call)
                if part.approval is not None:
                    self._calls_by_approval[part.approval.id] = (len(self.builders) - 1, call)
                if part.state not in FINAL_STATES:
                    self.unfinished[len(self.builders) - 1] = call
            case DataPart(id=str(key)):
                self._data_parts[part.type, key] = len(self.builders)
                self.builders.append(PartSlot(part))
            case _:
                self.builders.append(PartSlot(part))


ToolOutputEvent: TypeAlias = e.ToolOutputAvailable | e.ToolOutputError | e.ToolOutputDenied

_PHASE_TEXTS: dict[Phase, str] = {
    "idle": "before start",
    "open": "between steps; a step begins with start-step",
    "step": "inside a step; close it with finish-step",
    "ended": "after error or abort; only finish may follow",
    "finished": "after finish",
}

_DELTA_PARTS: dict[type, type] = {e.TextDelta: TextPart, e.ReasoningDelta: ReasoningPart}
_HANDLERS: dict[type, Callable[[Fold, Any], None]] = {
    e.Start: Fold.start,
    e.StartStep: Fold.start_step,
    e.TextStart: lambda fold, event: fold.block_start(TextPart, event),
    e.TextDelta: Fold.block_delta,
    e.TextEnd: lambda fold, event: fold.block_end(TextPart, event),
    e.ReasoningStart: lambda fold, event: fold.block_start(ReasoningPart, event),
    e.ReasoningDelta: Fold.block_delta,
    e.ReasoningEnd: lambda fold, event: fold.block_end(ReasoningPart, event),
    e.ToolInputStart: Fold.input_start,
    e.ToolInputDelta: Fold.input_delta,
    e.ToolInputAvailable: Fold.input_available,
    e.ToolInputError: Fold.input_error,
    e.ToolApprovalRequest: Fold.approval_request,
    e.ToolApprovalResponse: Fold.approval_response,
    e.ToolOutputAvailable: Fold.output_available,
    e.ToolOutputError: Fold.output_error,
    e.ToolOutputDenied: Fold.output_denied,
    e.SourceUrl: Fold.source,
    e.SourceDocument: Fold.source,
    e.File: Fold.source,
    e.Data: Fold.data,
    e.MessageMetadata: Fold.message_metadata,
    e.ResetStep: Fold.reset_step,
    e.FinishStep: Fold.finish_step,
    e.ErrorEvent: Fold.end_run,
    e.Abort: Fold.end_run,
    e.Finish: Fold.finish,
}


def fold(message: Message | None, events: Iterable[e.Event]) -> Message:
    """Fold events into a message and return it. `message` is the message that they continue, if any.

    Raises OutOfOrder at the first event that the grammar does not allow. How deltas are cut or batched
    makes no difference.
    """
    accumulated = Fold(message)
    accumulated.add(events)
    return accumulated.message()


def _source_part(event: e.SourceUrl | e.SourceDocument | e.File) -> Part:
    metadata = event.provider_metadata
    match event:
        case e.SourceUrl(source_id=key, url=url, title=title):
            return SourceUrlPart(key, url, title, metadata)
        case e.SourceDocument(source_id=key, media_type=media_type, title=title, filename=filename):
            return SourceDocumentPart(key, media_type, title, filename, metadata)
        case e.File(url=url, media_type=media_type):
            return FilePart(media_type, url, provider_metadata=metadata)


def merge_metadata(old: Any, new: Any) -> Any:
    """Merge metadata as the AI SDK does: objects deeply; anything else is replaced."""
    if old is None or new is None or not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: merge_metadata(old.get(key), value) for key, value in new.items()}}
