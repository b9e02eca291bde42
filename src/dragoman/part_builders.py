"""Builders of message parts from deltas: text, reasoning, tool calls."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman import events as e
from dragoman.errors import OutOfOrder
from dragoman.messages import Approval, Part, ProviderMetadata, ReasoningPart, TextPart, ToolPart

PartProgress: TypeAlias = tuple[int, int]
"""How far a part has come: the stage of a call or the version of data, and the length of its text, or how
often a call whose arguments are complete has changed since.
"""

STAGES = {
    "input-streaming": 1,
    "input-available": 2,
    "approval-requested": 3,
    "approval-responded": 4,
    "output-available": 5,
    "output-error": 5,
    "output-denied": 5,
}
STAGES_PER_APPROVAL = (
    10  # stages that a call goes through each time that it waits for somebody's word, and more
)

ToolInputEvent: TypeAlias = e.ToolInputStart | e.ToolInputAvailable | e.ToolInputError


class BlockBuilder:
    """An open or closed text or reasoning block; grows in pieces, is joined when somebody looks."""

    __slots__ = ("done", "fragments", "id", "kind", "length", "metadata")

    def __init__(
        self, kind: type[TextPart] | type[ReasoningPart], id: str, *, metadata: ProviderMetadata | None
    ) -> None:
        self.kind = kind
        self.id = id
        self.fragments: list[str] = []
        self.length = 0
        self.metadata = metadata
        self.done = False

    def text(self) -> str:
        """What the block holds so far."""
        if len(self.fragments) > 1:
            self.fragments = ["".join(self.fragments)]
        return self.fragments[0] if self.fragments else ""

    def progress(self) -> PartProgress:
        """How far it has come."""
        return 1, self.length

    def part(self) -> Part:
        """The block as a part."""
        state: Literal["done", "streaming"] = "done" if self.done else "streaming"
        return self.kind(text=self.text(), state=state, provider_metadata=self.metadata)


class ToolCallBuilder:
    """A tool call: the part as it stands, the raw text of its arguments, and the step that it belongs to.

    `changes` counts requests, answers and outputs, `approvals` the requests for somebody's word.
    """

    __slots__ = ("approvals", "changes", "current", "fragments", "length", "step")

    def __init__(self, part: ToolPart, step: int) -> None:
        self.current = part
        self.step = step
        self.approvals = 0
        self.fragments: list[str] = []
        self.length = 0
        self.changes = 0

    @classmethod
    def from_event(cls, event: ToolInputEvent, step: int) -> ToolCallBuilder:
        """A call whose arguments begin to stream."""
        part = ToolPart(
            type="dynamic-tool" if event.dynamic else f"tool-{event.tool_name}",
            tool_call_id=event.tool_call_id,
            state="input-streaming",
            tool_name=event.tool_name if event.dynamic else None,
            title=event.title,
            provider_executed=event.provider_executed,
            call_provider_metadata=event.provider_metadata,
        )
        return cls(part, step)

    def require_state(self, *states: str) -> None:
        """OutOfOrder unless the call is in one of these states, or holds a preliminary output."""
        if self.current.state not in states and not self.current.preliminary:
            raise OutOfOrder(
                f"the tool call {self.current.tool_call_id!r} is in state {self.current.state!r}"
            )

    def append_input(self, fragment: str) -> None:
        """The arguments go on."""
        self.require_state("input-streaming")
        self.fragments.append(fragment)
        self.length += len(fragment)

    def complete_input(self, event: e.ToolInputAvailable | e.ToolInputError, **fields: Any) -> None:
        """The arguments are complete, for better or worse."""
        self.require_state("input-streaming")
        metadata = event.provider_metadata or self.current.call_provider_metadata
        self.current = replace(self.current, input=event.input, call_provider_metadata=metadata, **fields)

    def request_approval(self, approval_id: str) -> None:
        """Somebody has to say yes, perhaps once more. What it had said until then was on the way only."""
        self.require_state("input-streaming", "input-available", "approval-requested", "approval-responded")
        self.approvals += 1
        self.changes += 1
        self.current = replace(
            self.current,
            state="approval-requested",
            input=self.parsed_input(),
            output=UNSET,
            preliminary=None,
            approval=Approval(approval_id),
        )

    def record_approval(self, event: e.ToolApprovalResponse) -> None:
        """Somebody did, or said no."""
        self.changes += 1
        approval = Approval(event.approval_id, event.approved, event.reason)
        self.current = replace(self.current, state="approval-responded", approval=approval)

    def set_output(self, **fields: Any) -> None:
        """The output is there; an approval that was not answered in this stream is taken as given."""
        self.changes += 1
        approval = self.current.approval
        if approval and approval.approved is None:
            fields["approval"] = replace(approval, approved=fields["state"] != "output-denied")
        self.current = replace(self.current, input=self.parsed_input(), **fields)

    def parsed_input(self) -> Any:
        """The arguments as a value; UNSET when their text is no JSON."""
        if self.current.input is not UNSET:
            return self.current.input
        try:
            return msgspec.json.decode("".join(self.fragments))
        except msgspec.DecodeError:
            return UNSET

    def input_text(self) -> str:
        """The arguments' JSON text, as the model wrote it or, for a stored call, written again."""
        if not self.fragments and self.current.input is not UNSET:
            return msgspec.json.encode(self.current.input).decode()
        return "".join(self.fragments)

    def progress(self) -> PartProgress:
        """How far it has come. While its output is preliminary it may yet have to wait for an approval."""
        stage = STAGES[self.current.state]
        if stage <= 1:
            return stage, self.length
        if self.current.preliminary:
            stage = STAGES["approval-responded" if self.current.approval else "input-available"]
        return STAGES_PER_APPROVAL * self.approvals + stage, self.changes

    def delivered_stage(self, stage: int) -> int:
        """The stage that somebody knows of who was told it at this one."""
        before, known = divmod(stage, STAGES_PER_APPROVAL)
        return known if before == self.approvals else min(known, STAGES["input-available"])

    def part(self) -> Part:
        """The call as a part."""
        if self.current.state == "input-streaming" and self.fragments:
            return replace(self.current, raw_input=self.input_text())
        return self.current


class PartSlot:
    """A part that stands, or a data part that its id may replace; `version` counts the replacements."""

    __slots__ = ("current", "version")

    def __init__(self, part: Part) -> None:
        self.current = part
        self.version = 0

    def progress(self) -> PartProgress:
        """Which version it is; 0 is for none."""
        return self.version + 1, 0

    def part(self) -> Part:
        """The part."""
        return self.current


PartBuilder: TypeAlias = BlockBuilder | ToolCallBuilder | PartSlot
