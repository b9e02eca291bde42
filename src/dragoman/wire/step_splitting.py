"""The steps, tool calls and results of a conversation, for the requests of every provider family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import msgspec

from dragoman.messages import Part, StepStartPart, ToolPart
from dragoman.wire.json_codec import encode_json
from dragoman.wire.multimodal_outputs import without_files

NOT_RUN = "not run: interrupted"
NOT_APPROVED = "not run: nobody has approved it"
DENIED = "denied"


def split_steps(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Split an assistant message into the parts of each model call."""
    step: list[Part] = []
    for part in parts:
        if isinstance(part, StepStartPart):
            yield step
            step = []
        else:
            step.append(part)
    yield step


def local_tool_calls(parts: Sequence[Part]) -> list[ToolPart]:
    """Return the complete calls that did not run at the provider."""
    return [
        part
        for part in parts
        if isinstance(part, ToolPart) and part.state != "input-streaming" and not part.provider_executed
    ]


def tool_result_text(part: ToolPart) -> str:
    """Return the text that the model reads as the result of a call; files are named, not included."""
    match part.state:
        case "output-available":
            output = None if part.output is msgspec.UNSET else part.output
            return output if isinstance(output, str) else encode_json(without_files(output))
        case "output-error":
            return part.error_text or "the call failed"
        case "output-denied":
            return _denial_text(part)
        case "approval-responded" if part.approval is not None and part.approval.approved is False:
            return _denial_text(part)
        case "approval-requested":
            return NOT_APPROVED
        case "input-available" | "input-streaming" | "approval-responded":
            return NOT_RUN
        case _:
            assert_never(part.state)


def _denial_text(part: ToolPart) -> str:
    reason = part.approval.reason if part.approval is not None else None
    return f"{DENIED}: {reason}" if reason else DENIED
