"""Parts as they grow: text and reasoning blocks, tool calls, and parts that stand."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman import events as e
from dragoman.errors import OutOfOrder
from dragoman.messages import Approval, Part, ProviderMetadata, ReasoningPart, TextPart, ToolPart

Progress: TypeAlias = tuple[int, int]
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
ROUND = 10  # stages that a call goes through each time that it waits for somebody's word, and more

Opening: TypeAlias = e.ToolInputStart | e.ToolInputAvailable | e.ToolInputError


class Block:
    """An open or closed text or reasoning block; grows in pieces, is joined when somebody looks."""

    __slots__ = ("done", "id", "kind", "length", "metadata", "pieces")

    def __init__(
        self, kind: type[TextPart] | type[ReasoningPart], id: str, *, metadata: ProviderMetadata | None
    ) -> None:
        self.kind = kind
        self.id = id
        self.pieces: list[str] = []
        self.length = 0
        self.metadata = metadata
        self.done = False

    def text(self) -> str:
        """What the block holds so far."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def progress(self) -> Progress:
        """How far it has come."""
        return 1, self.length

    def part(self) -> Part:
        """The block as a part."""
        state: Literal["done", "streaming"] = "done" if self.done else "streaming"
        return self.kind(text=self.text(), state=state, provider_metadata=self.metadata)


class Invocation:
    """A tool call: the part as it stands, the raw text of its arguments, and the step that it belongs to.

    `changes` counts requests, answers and outputs, `asked` the requests for somebody's word.
    """

    __slots__ = ("asked", "changes", "length", "now", "pieces", "step")

    def __init__(self, part: ToolPart, step: int) -> None:
        self.now = part
        self.step = step
        self.asked = 0
        self.pieces: list[str] = []
        self.length = 0
        self.changes = 0

    @classmethod
    def opened(cls, event: Opening, step: int) -> Invocation:
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

    def need(self, *states: str) -> None:
        """OutOfOrder unless the call is in one of these states, or holds a preliminary output."""
        if self.now.state not in states and not self.now.preliminary:
            raise OutOfOrder(f"the tool call {self.now.tool_call_id!r} is in state {self.now.state!r}")

    def grow(self, fragment: str) -> None:
        """The arguments go on."""
        self.need("input-streaming")
        self.pieces.append(fragment)
        self.length += len(fragment)

    def read(self, event: e.ToolInputAvailable | e.ToolInputError, **fields: Any) -> None:
        """The arguments are complete, for better or worse."""
        self.need("input-streaming")
        metadata = event.provider_metadata or self.now.call_provider_metadata
        self.now = replace(self.now, input=event.input, call_provider_metadata=metadata, **fields)

    def ask(self, approval_id: str) -> None:
        """Somebody has to say yes, perhaps once more. What it had said until then was on the way only."""
        self.need("input-streaming", "input-available", "approval-requested", "approval-responded")
        self.asked += 1
        self.changes += 1
        self.now = replace(
            self.now,
            state="approval-requested",
            input=self.input(),
            output=UNSET,
            preliminary=None,
            approval=Approval(approval_id),
        )

    def answer(self, event: e.ToolApprovalResponse) -> None:
        """Somebody did, or said no."""
        self.changes += 1
        approval = Approval(event.approval_id, event.approved, event.reason)
        self.now = replace(self.now, state="approval-responded", approval=approval)

    def close(self, **fields: Any) -> None:
        """The output is there; an approval that was not answered in this stream is taken as given."""
        self.changes += 1
        approval = self.now.approval
        if approval and approval.approved is None:
            fields["approval"] = replace(approval, approved=fields["state"] != "output-denied")
        self.now = replace(self.now, input=self.input(), **fields)

    def input(self) -> Any:
        """The arguments as a value; UNSET when their text is no JSON."""
        if self.now.input is not UNSET:
            return self.now.input
        try:
            return msgspec.json.decode("".join(self.pieces))
        except msgspec.DecodeError:
            return UNSET

    def raw(self) -> str:
        """The arguments' JSON text, as the model wrote it or, for a stored call, written again."""
        if not self.pieces and self.now.input is not UNSET:
            return msgspec.json.encode(self.now.input).decode()
        return "".join(self.pieces)

    def progress(self) -> Progress:
        """How far it has come. While its output is preliminary it may yet have to wait for an approval."""
        stage = STAGES[self.now.state]
        if stage <= 1:
            return stage, self.length
        if self.now.preliminary:
            stage = STAGES["approval-responded" if self.now.approval else "input-available"]
        return ROUND * self.asked + stage, self.changes

    def known(self, stage: int) -> int:
        """The stage that somebody knows of who was told it at this one."""
        before, known = divmod(stage, ROUND)
        return known if before == self.asked else min(known, STAGES["input-available"])

    def part(self) -> Part:
        """The call as a part."""
        if self.now.state == "input-streaming" and self.pieces:
            return replace(self.now, raw_input=self.raw())
        return self.now


class Slot:
    """A part that stands, or a data part that its id may replace; `version` counts the replacements."""

    __slots__ = ("held", "version")

    def __init__(self, held: Part) -> None:
        self.held = held
        self.version = 0

    def progress(self) -> Progress:
        """Which version it is; 0 is for none."""
        return self.version + 1, 0

    def part(self) -> Part:
        """The part."""
        return self.held


Draft: TypeAlias = Block | Invocation | Slot
