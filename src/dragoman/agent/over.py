"""How a run is over: the word on the wire, the word for its result, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman import events as e
from dragoman.agent.stops import Exit, Halt
from dragoman.errors import BudgetExhausted, CallDenied, ProviderError
from dragoman.messages import ToolPart


class Over(msgspec.Struct, frozen=True):
    """That it is over: the word on the wire, the word for the result, and why if somebody wants to know."""

    reason: e.FinishReason
    halt: Halt = Halt("success", "")


WAITS = Over("tool-calls", Halt("unknown", "calls wait for their outputs, or for somebody's approval"))
CUT = "the answer was cut: it reached its limit of tokens; `max_tokens` in the model's options sets it"
NOTICES: dict[e.FinishReason, str] = {
    "max-steps": "Stopped after {steps} steps, the most that this agent may take in one answer.",
    "length": "Stopped: the model's answer was cut before its tool calls were complete.",
    "content-filter": "Stopped: the provider's content filter cut the answer.",
    "other": "Stopped: {why}.",
}


def natural(reason: e.FinishReason) -> Over:
    """How it is over when the model says so."""
    match reason:
        case "length":
            return Over(reason, Halt("context_limit", CUT))
        case "content-filter":
            return Over(reason, Halt("unknown", "the provider's content filter cut the answer"))
        case "stop" | "tool-calls":
            return Over(reason)
        case "max-steps":
            return Over(reason, Halt("steps_exhausted", "the provider took as many turns as it may"))
        case "error" | "aborted" | "other":
            return Over(reason, Halt("unknown", f"the provider ended the answer: {reason}"))


def is_answered(calls: Sequence[ToolPart], reason: e.FinishReason) -> bool:
    """Whether the provider has run all these calls itself, and answered after them."""
    return reason in ("stop", "max-steps") and all(call.provider_executed for call in calls)


def refused(error: ProviderError | BudgetExhausted | CallDenied) -> Over:
    """How it is over when a budget, the provider's own too, or a hook does not let it go on."""
    exit: Exit = "aborted" if isinstance(error, CallDenied) else "budget_exhausted"
    return Over("other", Halt(exit, error.message))
