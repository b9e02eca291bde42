"""How a run ends: its outcome, and the events that close its message.

Every block is ended and every call answered, whatever happened, so that the next turn can use the message.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from dragoman import events as e
from dragoman.agent.approval_events import QUESTION_PART, declined_data, pending_questions
from dragoman.agent.stop_conditions import ExitReason, Halt
from dragoman.errors import BudgetExhausted, CallDenied, ProviderError
from dragoman.fold import Fold
from dragoman.messages import FINAL_STATES, StepStartPart, TextPart, ToolPart
from dragoman.part_builders import BlockBuilder, PartSlot, ToolCallBuilder


def close_step(fold: Fold, *, reason: str) -> list[e.Event]:
    """Return the events that close the step: blocks are ended, calls without an output fail with `reason`."""
    if fold.phase != "step":
        return []
    closed: list[e.Event] = [
        e.TextEnd(key) if kind is TextPart else e.ReasoningEnd(key) for kind, key in fold.open_blocks()
    ]
    for call in fold.step_calls():
        if call.state in FINAL_STATES and not call.preliminary:
            continue
        if call.state == "input-streaming":
            input = None if call.input is UNSET else call.input
            closed.append(e.ToolInputError(call.tool_call_id, call.name, input, f"not run: {reason}"))
        else:
            closed.append(e.ToolOutputError(call.tool_call_id, reason))
    return [*closed, *_decline_questions(fold, reason), e.FinishStep()]


def _decline_questions(fold: Fold, reason: str) -> list[e.Event]:
    """Return the events that show the questions of the step as declined: nothing waits for their answers."""
    slots = (draft for draft in fold.builders[fold.step_start :] if isinstance(draft, PartSlot))
    pending = pending_questions(slot.current for slot in slots)
    return [e.Data(QUESTION_PART, declined_data(part, reason), part.id) for part in pending.values()]


def is_empty_step(fold: Fold) -> bool:
    """Return whether the current step has no content yet."""
    last = fold.builders[-1] if fold.builders else None
    return fold.phase == "step" and isinstance(last, PartSlot) and isinstance(last.current, StepStartPart)


def notice_step(text: str) -> list[e.Event]:
    """Return a step of the hub's own with a text in it.

    A message that ends on a tool call would make a client with auto-submit send it again; a notice stops
    that.
    """
    return [
        e.StartStep(),
        e.TextStart("notice"),
        e.TextDelta("notice", text),
        e.TextEnd("notice"),
        e.FinishStep(),
    ]


def last_text_blocks(fold: Fold) -> list[BlockBuilder]:
    """Return the text blocks of the last step, in order, after the last call that the provider ran itself."""
    blocks: list[BlockBuilder] = []
    for draft in reversed(fold.builders):
        if isinstance(draft, BlockBuilder) and draft.kind is TextPart:
            blocks.append(draft)
        elif (isinstance(draft, ToolCallBuilder) and draft.current.provider_executed and blocks) or (
            isinstance(draft, PartSlot) and isinstance(draft.current, StepStartPart)
        ):
            break
    return blocks[::-1]


def ends_with_tool_calls(fold: Fold) -> bool:
    """Return whether the last step made tool calls, which a client with auto-submit would send again."""
    for draft in reversed(fold.builders):
        if isinstance(draft, ToolCallBuilder):
            return True
        if isinstance(draft, PartSlot) and isinstance(draft.current, StepStartPart):
            return False
    return False


def abort_events(fold: Fold, *, reason: str, metadata: object = None) -> list[e.Event]:
    """Return the events that end an aborted run."""
    opening: list[e.Event] = [e.Start(fold.id)] if fold.phase == "idle" else []
    closing = close_step(fold, reason=reason)
    notice = notice_step(f"Stopped: {reason}.") if ends_with_tool_calls(fold) else []
    return [*opening, *closing, *notice, e.Abort(reason), e.Finish("aborted", message_metadata=metadata)]


def failure_events(
    fold: Fold,
    *,
    text: str,
    code: str,
    transient: bool = False,
    metadata: object = None,
    reason: str = "the model's answer failed",
) -> list[e.Event]:
    """Return the events that end a failed run; `reason` is the error of calls without an output."""
    opening: list[e.Event] = [e.Start(fold.id)] if fold.phase == "idle" else []
    closing = close_step(fold, reason=reason)
    error = e.ErrorEvent(text, code, transient)
    return [*opening, *closing, error, e.Finish("error", message_metadata=metadata)]


class RunOutcome(msgspec.Struct, frozen=True):
    """Why a run ends: the finish reason on the wire, and the exit reason of the result with its text."""

    reason: e.FinishReason
    halt: Halt = Halt("success", "")


WAITING = RunOutcome(
    "tool-calls", Halt("unknown", "calls wait for their outputs, or for somebody's approval")
)
STEERED = RunOutcome("other", Halt("unknown", "a new message of the user is answered next"))
LENGTH_REASON = (
    "the answer was cut: it reached its limit of tokens; `max_tokens` in the model's options sets it"
)
NOTICES: dict[e.FinishReason, str] = {
    "max-steps": "Stopped after {steps} steps, the most that this agent may take in one answer.",
    "length": "Stopped: the model's answer was cut before its tool calls were complete.",
    "content-filter": "Stopped: the provider's content filter cut the answer.",
    "other": "Stopped: {why}.",
}


def model_outcome(reason: e.FinishReason) -> RunOutcome:
    """Return the outcome of a run that ends with the finish reason of the model."""
    match reason:
        case "length":
            return RunOutcome(reason, Halt("context_limit", LENGTH_REASON))
        case "content-filter":
            return RunOutcome(reason, Halt("unknown", "the provider's content filter cut the answer"))
        case "stop" | "tool-calls":
            return RunOutcome(reason)
        case "max-steps":
            return RunOutcome(reason, Halt("steps_exhausted", "the provider reached its limit of turns"))
        case "error" | "aborted" | "other":
            return RunOutcome(reason, Halt("unknown", f"the provider ended the answer: {reason}"))


def is_answered_by_provider(calls: Sequence[ToolPart], reason: e.FinishReason) -> bool:
    """Return whether the provider ran all these calls itself and finished the answer."""
    return reason in ("stop", "max-steps") and all(call.provider_executed for call in calls)


def refusal_outcome(error: ProviderError | BudgetExhausted | CallDenied) -> RunOutcome:
    """Return the outcome of a run that a budget (the provider's own too) or a hook stopped."""
    exit: ExitReason = "aborted" if isinstance(error, CallDenied) else "budget_exhausted"
    return RunOutcome("other", Halt(exit, error.message))


def waiting_calls(calls: Sequence[ToolPart]) -> list[ToolPart]:
    """Return the calls that wait for their output or for an approval."""
    states = ("input-available", "approval-requested")
    return [call for call in calls if call.state in states and not call.provider_executed]
