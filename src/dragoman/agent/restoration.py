"""Restore an answer that a crash interrupted, so that its run can continue.

What is complete stays: finished steps, and the calls of the last step once it is known that the model's
answer was complete, because one of them had begun. A step without such a call was cut off while it streamed,
or just after: all of it is dropped, and the model is asked again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman import events as e
from dragoman.agent.approval_events import ApprovalAnswer, pending_questions, question_call_id, question_parts
from dragoman.agent.context.truncation import split_steps
from dragoman.agent.stop_conditions import StepTaken
from dragoman.agent.tool_names import wire_name
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.fold import Fold
from dragoman.messages import (
    FINAL_STATES,
    Message,
    Part,
    ReasoningPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from dragoman.operations.ledger import LedgerEntry

NOT_RUN = "not run: the hub stopped before this call began"


class RestoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to continue from: `unfinished` are the calls to make (again), `lost` the parts that it lost.

    `own_calls` are the calls that the run had begun, `other_calls` those of earlier runs in the same message.
    `settled` is how many parts are complete for good. Without `can_repeat` the lost step cannot be asked for
    again: the provider itself had run tools in it.
    """

    message: Message
    unfinished: frozenset[str]
    settled: int
    lost: tuple[Part, ...] = ()
    can_repeat: bool = True
    own_calls: frozenset[str] = frozenset()
    other_calls: frozenset[str] = frozenset()

    @property
    def lost_length(self) -> int:
        """How many characters its lost parts have."""
        return sum(_part_length(part) for part in self.lost)

    @property
    def part_count(self) -> int:
        """How many parts the answer had, with those that it lost."""
        return len(self.message.parts) + len(self.lost)


def restore_answer(
    message: Message, calls: Sequence[LedgerEntry], *, settled: int = 0, run_id: str | None = None
) -> RestoredAnswer:
    """Return the answer to continue from. `calls` are those that its model had made, as the ledger has them.

    The first `settled` parts are complete, whatever they are. `run_id` is the run that continues, if several
    have answered with this message.
    """
    by_id = {str(call.record.tool_call_id): call for call in calls}
    parts = [*message.parts, *_missing_parts(message, by_id)]
    start = _last_step(parts)
    lost: list[Part] = []
    if start >= settled and not any(_has_begun(part, by_id) for part in parts[start:]):
        parts, lost = parts[:start], parts[start:]
        start = len(parts)
    remaining = [*parts[:start], *(_reopened(part, by_id) for part in parts[start:])]
    open_calls = [part for part in remaining[start:] if isinstance(part, ToolPart) and _is_open(part)]
    waiting = _waiting_calls(remaining)
    own = frozenset(id for id, call in by_id.items() if run_id in (None, call.record.run_id))
    return RestoredAnswer(
        message=replace(message, parts=tuple(remaining)),
        unfinished=frozenset({call.tool_call_id for call in open_calls} - waiting),
        settled=max(settled, start if open_calls else len(remaining)),
        lost=tuple(lost),
        can_repeat=not any(
            isinstance(part, ToolPart) and part.provider_executed and part.dynamic for part in lost
        ),
        own_calls=own,
        other_calls=frozenset(by_id) - own,
    )


def steps_before_crash(
    restored: RestoredAnswer | None, fold: Fold, *, model: str, toolbox: Toolbox
) -> tuple[StepTaken, ...]:
    """Return the steps that the run had taken before the crash, as they are now, for its stop conditions.

    Steps of earlier runs in the same message do not count, as they do not without a crash.
    """
    steps: list[StepTaken] = []
    if restored is None:
        return ()
    for number, step in enumerate(split_steps(fold.message()), 1):
        calls = step.tool_calls
        ids = {call.tool_call_id for call in calls}
        if not ids & restored.own_calls or ids & restored.other_calls:
            continue
        text = "".join(part.text for part in step.parts if isinstance(part, TextPart))
        called = tuple(name for call in calls for name in toolbox.called_operations(call))
        steps.append(
            StepTaken(
                number=number,
                model=model,
                text=text,
                calls=tuple(calls),
                called=called,
                finish_reason="tool-calls",
            )
        )
    return tuple(steps)


def recorded_answers(message: Message, calls: Collection[str]) -> dict[str, ApprovalAnswer]:
    """Return the answers to questions that these calls of a message have not used yet, by call."""
    answers: dict[str, ApprovalAnswer] = {}
    for part in question_parts(message.parts):
        body, id = part.data, question_call_id(part.data)
        if id in calls and body["status"] != "pending":
            approved = body["status"] == "answered"
            answers[id] = ApprovalAnswer(
                body["id"], approved, body.get("answer") if approved else body.get("reason")
            )
    return answers


def _part_length(part: Part) -> int:
    match part:
        case TextPart(text=text) | ReasoningPart(text=text):
            return len(text)
        case ToolPart(input=input, raw_input=raw):
            return len(
                raw if isinstance(raw, str) else msgspec.json.encode(None if input is UNSET else input)
            )
        case _:
            return 0


def _waiting_calls(parts: Sequence[Part]) -> set[str]:
    """Return the calls that wait for a person: a question that was answered answers the request beside it."""
    answered = {part.id for part in question_parts(parts) if part.data["status"] != "pending"}
    requested = {
        part.tool_call_id
        for part in parts
        if isinstance(part, ToolPart)
        and part.state == "approval-requested"
        and part.approval is not None
        and part.approval.id not in answered
    }
    return requested | set(pending_questions(parts))


def _missing_parts(message: Message, calls: Mapping[str, LedgerEntry]) -> list[Part]:
    """Return the parts of calls that had begun before their part was stored."""
    shown = {part.tool_call_id for part in message.tool_calls}
    return [
        ToolPart(f"tool-{wire_name(call.record.operation)}", id, "input-available", input=call.record.input)
        for id, call in calls.items()
        if id not in shown
    ]


def _last_step(parts: Sequence[Part]) -> int:
    """Return the index at which the last step starts, or the number of parts."""
    starts = [index for index, part in enumerate(parts) if isinstance(part, StepStartPart)]
    return starts[-1] if starts else len(parts)


def _has_begun(part: Part, calls: Mapping[str, LedgerEntry]) -> bool:
    """Return whether a part is a call that had begun, or that asks its person."""
    if not isinstance(part, ToolPart) or part.provider_executed:
        return False
    is_answered = part.state in FINAL_STATES and part.state != "output-error"
    return part.tool_call_id in calls or is_answered or part.approval is not None


def _is_open(part: ToolPart) -> bool:
    return part.state not in FINAL_STATES and not part.provider_executed


def _reopened(part: Part, calls: Mapping[str, LedgerEntry]) -> Part:
    """Return a part of the last step as it was before its call ran, if it has not ended."""
    match part:
        case TextPart(state="streaming") | ReasoningPart(state="streaming"):
            return replace(part, state="done")
        case ToolPart() if part.state not in FINAL_STATES or part.preliminary:
            return _reopened_call(part, calls.get(part.tool_call_id))
        case _:
            return part


def _reopened_call(part: ToolPart, call: LedgerEntry | None) -> ToolPart:
    shown = part.input
    if part.state == "input-streaming" and call is not None:
        shown = call.record.input
    if shown is UNSET or part.provider_executed:
        raw = part.raw_input if isinstance(part.raw_input, str) else None
        return replace(
            part,
            state="output-error",
            error_text=NOT_RUN,
            input=raw if shown is UNSET else shown,
            raw_input=UNSET,
            output=UNSET,
            preliminary=None,
        )
    state = part.state
    if state == "input-streaming" or part.preliminary:
        is_approved = part.approval is not None and part.approval.approved
        state = "approval-responded" if is_approved else "input-available"
    return replace(part, state=state, input=shown, raw_input=UNSET, output=UNSET, preliminary=None)


def stored_usage(metadata: Any) -> e.Usage | None:
    """Return the usage in the metadata of a message; None without any."""
    usage = metadata.get("usage") if isinstance(metadata, dict) else None
    return msgspec.convert(usage, e.Usage) if usage else None


def total_usage(earlier: e.Usage | None, usage: e.Usage | None) -> Any:
    """Return the usage of a whole message, as a value: of a run, and of those that it continues."""
    both = earlier + usage if earlier is not None and usage is not None else usage or earlier
    return msgspec.to_builtins(both)


def stored_cost(metadata: Any) -> float | None:
    """Return the cost in the metadata of a message, in US dollars; None without any."""
    cost = metadata.get("cost") if isinstance(metadata, dict) else None
    return cost if isinstance(cost, int | float) else None
