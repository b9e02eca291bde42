"""Finishes out to an Anthropic client: why the answer stopped, and what it took.

The SDKs' types demand numbers, so where nobody has counted the input stays the estimate of the message's
start, and the output is one too, which `estimated` says. What is known is never an estimate of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.errors import ProviderError
from dragoman.events import (
    Event,
    FinishReason,
    FinishStep,
    ReasoningDelta,
    TextDelta,
    ToolInputDelta,
    Usage,
)

_CHARACTERS = 4  # of an answer, for one token
_STOPS: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool-calls": "tool_use",
    "content-filter": "refusal",
    "max-steps": "end_turn",
    "other": "end_turn",
}


def write_stop(finish: FinishStep) -> dict[str, Any]:
    """Stop reason and stop sequence; Anthropic's own where it gave them. ProviderError when there is none."""
    known = (finish.provider_metadata or {}).get("anthropic", {})
    sequence = known.get("stopSequence")
    reason = known.get("stopReason")
    if reason is None and sequence is not None:
        reason = "stop_sequence"
    if reason is None and finish.finish_reason is not None:
        reason = _STOPS.get(finish.finish_reason)
    if reason is None:
        raise unfinished(f"ended with {finish.finish_reason!r}, which is no finish")
    stop = {"stop_reason": reason, "stop_sequence": sequence, "stop_details": known.get("stopDetails")}
    return {**stop, "container": known["container"]} if known.get("container") else stop


def write_usage(usage: Usage | None) -> dict[str, Any]:
    """The counts that are known, in Anthropic's words: the input without what the cache read or took in."""
    if usage is None:
        return {}
    read, written, fresh = usage.cached_input_tokens, usage.cache_write_tokens, usage.input_tokens
    if fresh is not None:
        fresh = max(0, fresh - (read or 0) - (written or 0))
    thoughts = usage.reasoning_tokens
    said = {
        "input_tokens": fresh,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": None if thoughts is None else {"thinking_tokens": thoughts},
    }
    return {word: count for word, count in said.items() if count is not None}


def filled_usage(usage: Usage | None, said: int) -> dict[str, Any]:
    """The counts with a number for the output, whoever knows it: `said` counts the answer's characters."""
    known = write_usage(usage)
    if said and not known.get("output_tokens"):
        return {**known, "output_tokens": -(-said // _CHARACTERS), "estimated": True}
    return {"output_tokens": 0, **known}


def length_of(event: Event) -> int:
    """How many characters an event adds to the answer."""
    match event:
        case TextDelta() | ReasoningDelta():
            return len(event.delta)
        case ToolInputDelta():
            return len(event.input_text_delta)
        case _:
            return 0


def unfinished(what: str) -> ProviderError:
    """The error for an answer that did not come to its end."""
    return ProviderError(f"the provider's answer {what}", category="network", transient=True)
