"""Telling a message again as events: whole for a resume, or from a mark for a follower who fell behind.

The compact rule (docs/design.md §4.7): one delta a block; a finished tool call as start, delta and output,
the form that does not re-fire a client's callbacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, assert_never

from msgspec import UNSET
from msgspec.structs import replace

from dragoman import events as e
from dragoman.drafts import STAGES, Block, Draft, Invocation, Progress, Slot
from dragoman.fold import Fold
from dragoman.messages import (
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


class Mark(NamedTuple):
    """How much of a fold somebody was told."""

    parts: int
    moving: tuple[tuple[int, Progress], ...]
    in_step: bool
    metadata: int
    ending: int
    started: bool


NOTHING = Mark(0, (), in_step=False, metadata=-1, ending=0, started=False)


def mark(fold: Fold) -> Mark:
    """The place where somebody stands who was told everything up to now."""
    moving = tuple([(at, draft.progress()) for at, draft in fold.moving.items()])
    in_step = fold.phase == "step"
    version, ending = fold.metadata_version, len(fold.ending)
    return Mark(len(fold.entries), moving, in_step, version, ending, started=fold.phase != "idle")


def retell(message: Message) -> list[e.Event]:
    """A finished message as events; folding them gives the message again."""
    fold = Fold(message)
    fold.phase = "finished"
    return [*tell(fold), e.Finish()]


def tell(fold: Fold, since: Mark | None = None) -> list[e.Event]:
    """What is to be told of the fold since the mark; from the first part when there is none."""
    return list(_tell(fold, since or NOTHING))


def _tell(fold: Fold, since: Mark) -> Iterator[e.Event]:
    if not since.started:
        yield e.Start(fold.id or None, fold.metadata)
    for at, (stage, length) in since.moving:
        yield from _draft(fold.entries[at], stage=stage, length=length)
    in_step = since.in_step
    for draft in fold.entries[since.parts :]:
        if isinstance(draft, Slot) and isinstance(draft.held, StepStartPart):
            yield from (e.FinishStep(),) if in_step else ()
            in_step = True
        yield from _draft(draft, stage=0, length=0)
    if in_step and fold.phase != "step":
        yield e.FinishStep()
    yield from _ending(fold, since)


def _ending(fold: Fold, since: Mark) -> Iterator[e.Event]:
    said = fold.ending[since.ending :]
    changed = since.started and fold.metadata_version != since.metadata
    if changed and not any(isinstance(event, e.Finish) for event in said):
        yield e.MessageMetadata(fold.metadata)
    for event in said:
        yield replace(event, message_metadata=fold.metadata) if isinstance(event, e.Finish) else event


def _draft(draft: Draft, *, stage: int, length: int) -> Iterator[e.Event]:
    match draft:
        case Block():
            return _block(draft, stage=stage, length=length)
        case Invocation():
            return _call(draft, stage=stage, length=length)
        case Slot(version=version):
            return iter(()) if stage == version + 1 else _standing(draft.held)
        case _:
            assert_never(draft)


def _block(block: Block, *, stage: int, length: int) -> Iterator[e.Event]:
    text = block.kind is TextPart
    name, metadata = block.id, block.metadata
    if not stage:
        yield e.TextStart(name, metadata) if text else e.ReasoningStart(name, metadata)
    if block.length > length:
        rest = block.text()[length:]
        yield e.TextDelta(name, rest) if text else e.ReasoningDelta(name, rest)
    if block.done:
        yield e.TextEnd(name, metadata) if text else e.ReasoningEnd(name, metadata)


def _call(call: Invocation, *, stage: int, length: int) -> Iterator[e.Event]:
    if stage > 1 and length == call.changes:
        return
    part, stage = call.now, call.known(stage)
    if part.state == "output-error" and part.approval is None and stage <= 1:
        yield _input_error(part)
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
        yield from _input(call, length)
    yield from _approval(call, stage=stage, length=length)
    yield from _output(part)


def _input(call: Invocation, length: int) -> Iterator[e.Event]:
    part, rest = call.now, call.raw()[length:]
    if rest:
        yield e.ToolInputDelta(part.tool_call_id, rest)
    if part.state == "input-available":
        yield e.ToolInputAvailable(
            part.tool_call_id,
            part.name,
            part.input,
            provider_executed=part.provider_executed,
            provider_metadata=part.call_provider_metadata,
            dynamic=part.dynamic,
            title=part.title,
        )


def _input_error(part: ToolPart) -> e.ToolInputError:
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


def _approval(call: Invocation, *, stage: int, length: int) -> Iterator[e.Event]:
    part, approval = call.now, call.now.approval
    if approval is None:
        return
    waits = part.state in ("approval-requested", "approval-responded")
    answered = stage >= STAGES["approval-responded"]  # of an approval before this one, if it waits now
    again = waits and (answered or (stage > 1 and call.changes > length + 1))
    if again or stage < STAGES["approval-requested"]:
        yield e.ToolApprovalRequest(approval.id, part.tool_call_id)
    if approval.approved is not None and (again or stage < STAGES["approval-responded"]):
        yield e.ToolApprovalResponse(approval.id, approval.approved, approval.reason)


def _output(part: ToolPart) -> Iterator[e.Event]:
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


def _standing(part: Part) -> Iterator[e.Event]:
    match part:
        case StepStartPart():
            yield e.StartStep()
        case TextPart() | ReasoningPart():
            yield from _restored(part)
        case SourceUrlPart() | SourceDocumentPart() | FilePart():
            yield _cited(part)
        case DataPart(type=kind, data=data, id=key):
            yield e.Data(kind, data, key)
        case ToolPart():
            yield from _call(Invocation(part, 0), stage=0, length=0)
        case _:
            assert_never(part)


def _restored(part: TextPart | ReasoningPart) -> Iterator[e.Event]:
    block = Block(type(part), "retold", metadata=part.provider_metadata)
    block.pieces, block.length, block.done = [part.text], len(part.text), True
    return _block(block, stage=0, length=0)


def _cited(part: SourceUrlPart | SourceDocumentPart | FilePart) -> e.Event:
    match part:
        case SourceUrlPart():
            return e.SourceUrl(part.source_id, part.url, part.title, part.provider_metadata)
        case SourceDocumentPart():
            return e.SourceDocument(
                part.source_id, part.media_type, part.title, part.filename, part.provider_metadata
            )
        case FilePart():
            return e.File(part.url, part.media_type, part.provider_metadata)
