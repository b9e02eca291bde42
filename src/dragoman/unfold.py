"""Turn a stored message back into events, whole or from a position.

A client that reconnects, or one that reads slower than the run writes, gets events again. They are compact
(docs/design.md §4.7): one delta a block; a finished tool call as start, delta and output, the form that does
not fire a client's callbacks a second time. A reader to whom nothing is told again gets its input as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, assert_never

from msgspec import UNSET
from msgspec.structs import replace

from dragoman import events as e
from dragoman.event_splitting import CompactEvent, DeltaOnDisk
from dragoman.fold import Fold
from dragoman.messages import (
    FINAL_STATES,
    Approval,
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
    STAGES,
    STAGES_PER_APPROVAL,
    BlockBuilder,
    PartBuilder,
    PartProgress,
    PartSlot,
    ToolCallBuilder,
)


class FoldPosition(NamedTuple):
    """How much of a fold a reader has received, as counts and versions.

    `is_retold`: the reader may have had what follows on an earlier connection.
    """

    builders: int
    unfinished: tuple[tuple[int, PartProgress], ...]
    in_step: bool
    metadata_version: int
    end_events: int
    started: bool
    is_retold: bool = True


START_POSITION = FoldPosition(0, (), in_step=False, metadata_version=-1, end_events=0, started=False)


def current_position(fold: Fold) -> FoldPosition:
    """Return the position of a reader who has received everything so far, and nothing of what follows."""
    unfinished = tuple([(index, builder.progress()) for index, builder in fold.unfinished.items()])
    in_step = fold.phase == "step"
    return FoldPosition(
        len(fold.builders),
        unfinished,
        in_step,
        fold.metadata_version,
        len(fold.end_events),
        started=fold.phase != "idle",
        is_retold=False,
    )


def unfold(message: Message) -> list[e.Event]:
    """Return a finished message as events. Folding them gives the same message."""
    fold = Fold(message)
    fold.phase = "finished"
    return [*events_since(fold), e.Finish()]


def events_since(fold: Fold, position: FoldPosition | None = None) -> list[e.Event]:
    """Return the events that bring a reader from `position` (default: the start) to the end of the fold."""
    events = _events_since(fold, position or START_POSITION)
    return [event.read() if isinstance(event, DeltaOnDisk) else event for event in events]


def compact_events_since(fold: Fold, position: FoldPosition) -> list[CompactEvent]:
    """Return the same, with the text that is not in memory as `DeltaOnDisk`."""
    return list(_events_since(fold, position))


def _events_since(fold: Fold, position: FoldPosition) -> Iterator[CompactEvent]:
    if not position.started:
        yield e.Start(fold.id or None, fold.metadata)
    for index, (stage, length) in position.unfinished:
        yield from _builder_events(
            fold.builders[index], stage=stage, length=length, is_retold=position.is_retold
        )
    in_step = position.in_step
    for builder in fold.builders[position.builders :]:
        if isinstance(builder, PartSlot) and isinstance(builder.current, StepStartPart):
            yield from (e.FinishStep(),) if in_step else ()
            in_step = True
        yield from _builder_events(builder, stage=0, length=0, is_retold=position.is_retold)
    if in_step and fold.phase != "step":
        yield e.FinishStep()
    yield from _end_events(fold, position)


def _end_events(fold: Fold, position: FoldPosition) -> Iterator[e.Event]:
    events = fold.end_events[position.end_events :]
    changed = position.started and fold.metadata_version != position.metadata_version
    if changed and not any(isinstance(event, e.Finish) for event in events):
        yield e.MessageMetadata(fold.metadata)
    for event in events:
        yield replace(event, message_metadata=fold.metadata) if isinstance(event, e.Finish) else event


def _builder_events(
    builder: PartBuilder, *, stage: int, length: int, is_retold: bool
) -> Iterator[CompactEvent]:
    match builder:
        case BlockBuilder():
            return _block_events(builder, stage=stage, length=length)
        case ToolCallBuilder():
            return _tool_call_events(builder, stage=stage, length=length, is_retold=is_retold)
        case PartSlot(version=version):
            return iter(()) if stage == version + 1 else _part_events(builder.current)
        case _:
            assert_never(builder)


def _block_events(block: BlockBuilder, *, stage: int, length: int) -> Iterator[CompactEvent]:
    text = block.kind is TextPart
    name, metadata = block.id, block.metadata
    if not stage:
        yield e.TextStart(name, metadata) if text else e.ReasoningStart(name, metadata)
    if block.length > length:
        delta = e.TextDelta if text else e.ReasoningDelta
        for rest in block.pieces_from(length):
            yield delta(name, rest) if isinstance(rest, str) else DeltaOnDisk(delta, name, rest)
    if block.done:
        yield e.TextEnd(name, metadata) if text else e.ReasoningEnd(name, metadata)


def _tool_call_events(
    call: ToolCallBuilder, *, stage: int, length: int, is_retold: bool = True
) -> Iterator[e.Event]:
    if stage > 1 and length == call.changes:
        return
    part, has_seen_approvals = call.current, stage >= STAGES_PER_APPROVAL
    stage = call.delivered_stage(stage)
    if part.state == "output-error" and part.approval is None and stage <= 1:
        yield _input_error_event(part)
        return
    if not stage:
        yield e.ToolInputStart(
            part.tool_call_id,
            part.name,
            provider_executed=part.provider_executed,
            dynamic=part.dynamic,
            title=part.title,
            provider_metadata=part.call_provider_metadata,
        )
    if stage <= 1:
        yield from _input_events(call, length, is_retold=is_retold)
    approval = part.approval or (call.denied if has_seen_approvals else None)
    yield from _approval_events(call, approval, stage=stage, length=length)
    yield from _output_events(part)


def _input_events(call: ToolCallBuilder, length: int, *, is_retold: bool) -> Iterator[e.Event]:
    part, rest = call.current, call.input_text_from(length)
    if rest:
        yield e.ToolInputDelta(part.tool_call_id, rest)
    has_output = part.state in FINAL_STATES and part.input is not UNSET
    waits = part.state in ("input-available", "approval-requested", "approval-responded")
    if waits or (has_output and (part.preliminary or not is_retold)):  # after a preliminary one it may ask
        yield e.ToolInputAvailable(
            part.tool_call_id,
            part.name,
            part.input,
            provider_executed=part.provider_executed,
            provider_metadata=part.call_provider_metadata,
            dynamic=part.dynamic,
            title=part.title,
        )


def _input_error_event(part: ToolPart) -> e.ToolInputError:
    return e.ToolInputError(
        part.tool_call_id,
        part.name,
        None if part.input is UNSET else part.input,
        part.error_text or "",
        provider_executed=part.provider_executed,
        provider_metadata=part.call_provider_metadata,
        dynamic=part.dynamic,
        title=part.title,
    )


def _approval_events(
    call: ToolCallBuilder, approval: Approval | None, *, stage: int, length: int
) -> Iterator[e.Event]:
    part = call.current
    if approval is None:
        return
    waits = part.state in ("approval-requested", "approval-responded")
    answered = stage >= STAGES["approval-responded"]  # of an earlier approval, if the call waits again
    again = waits and (answered or (stage > 1 and call.changes > length + 1))
    if again or stage < STAGES["approval-requested"]:
        yield e.ToolApprovalRequest(approval.id, part.tool_call_id)
    if approval.approved is not None and (again or stage < STAGES["approval-responded"]):
        yield e.ToolApprovalResponse(approval.id, approval.approved, approval.reason)


def _output_events(part: ToolPart) -> Iterator[e.Event]:
    match part.state:
        case "output-available":
            yield e.ToolOutputAvailable(
                part.tool_call_id,
                part.output,
                provider_executed=part.provider_executed,
                dynamic=part.dynamic,
                preliminary=part.preliminary,
                provider_metadata=part.result_provider_metadata,
            )
        case "output-error":
            yield e.ToolOutputError(
                part.tool_call_id,
                part.error_text or "",
                provider_executed=part.provider_executed,
                dynamic=part.dynamic,
                provider_metadata=part.result_provider_metadata,
            )
        case "output-denied":
            yield e.ToolOutputDenied(part.tool_call_id)
        case _:
            return


def _part_events(part: Part) -> Iterator[CompactEvent]:
    match part:
        case StepStartPart():
            yield e.StartStep()
        case TextPart() | ReasoningPart():
            yield from _restored_block_events(part)
        case SourceUrlPart() | SourceDocumentPart() | FilePart():
            yield _source_event(part)
        case DataPart(type=kind, data=data, id=key):
            yield e.Data(kind, data, key)
        case ToolPart():
            yield from _tool_call_events(ToolCallBuilder(part, 0), stage=0, length=0)
        case _:
            assert_never(part)


def _restored_block_events(part: TextPart | ReasoningPart) -> Iterator[CompactEvent]:
    block = BlockBuilder(type(part), "replayed", metadata=part.provider_metadata)
    block.fragments, block.length, block.done = [part.text], len(part.text), True
    return _block_events(block, stage=0, length=0)


def _source_event(part: SourceUrlPart | SourceDocumentPart | FilePart) -> e.Event:
    match part:
        case SourceUrlPart():
            return e.SourceUrl(part.source_id, part.url, part.title, part.provider_metadata)
        case SourceDocumentPart():
            return e.SourceDocument(
                part.source_id, part.media_type, part.title, part.filename, part.provider_metadata
            )
        case FilePart():
            return e.File(part.url, part.media_type, part.provider_metadata)
