"""The report: what a run that has ended comes to, as a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.agent.loop import Loop
from dragoman.agent.result import (
    ByWord,
    Crashed,
    ErrorDetails,
    OutOfContext,
    Result,
    conversation,
    details_of,
    summarise_calls,
    summarise_usage,
)
from dragoman.errors import ProviderError
from dragoman.messages import ToolPart

UNTRIED = "the agent did not try again (retries=0), since whoever runs it may: error.retry_delay says when"
FILTERED = ErrorDetails(
    message="the provider's content filter cut the answer", category="content_filter", transient=False
)


def report(
    loop: Loop,
    *,
    text: str,
    aborted: str | None = None,
    error: ProviderError | None = None,
    notices: Sequence[str] = (),
) -> Result:
    """The result. `text` is what the last step had said when it ended."""
    shared = told(loop, text=text, notices=notices)
    failure = error or loop.error
    if aborted is not None:
        return ByWord["aborted"](stopped_by=aborted, **shared)
    if failure is not None:
        if failure.transient and not loop.turn.retry.retries:
            shared["notices"] = (*notices, UNTRIED)
        if failure.category == "context_limit":
            return OutOfContext(stopped_by=failure.message, **shared)
        return Crashed(error=details_of(failure), **shared)
    over = loop.over
    if over is not None and over.reason == "content-filter":
        return Crashed(error=FILTERED, **shared)
    if over is None:
        return ByWord["unknown"](stopped_by="it ended without a reason", **shared)
    return ByWord[over.halt.exit](stopped_by=over.halt.why or None, **shared)


def told(loop: Loop, *, text: str, notices: Sequence[str]) -> dict[str, Any]:
    """What is told of a run, however it ended."""
    turn, so_far = loop.turn, loop.so_far()
    said = turn.fold.message()
    spoken = [step.text for step in so_far.steps if step.text]
    return {
        "text": text or (spoken[-1] if spoken else ""),
        "steps": loop.steps,
        "usage": summarise_usage(loop.usage),
        "cost": loop.cost,
        "duration": so_far.seconds,
        "session_id": turn.context.session_id or "",
        "tool_calls": summarise_calls([part for part in said.parts if isinstance(part, ToolPart)]),
        "messages": conversation(loop.history, said),
        "output": loop.conclusion.value,
        "model": so_far.steps[-1].model if so_far.steps else turn.model,
        "notices": tuple(notices),
    }
