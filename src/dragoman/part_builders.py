"""Builders of message parts from deltas: text, reasoning, tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman import events as e
from dragoman.errors import OutOfOrder
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.messages import Approval, Part, ProviderMetadata, ReasoningPart, TextPart, ToolPart
from dragoman.spilled_text import (
    HEAD,
    SpilledText,
    TextFile,
    TextPieces,
    TextRange,
    WrittenPiece,
    read_pieces,
)

PartProgress: TypeAlias = tuple[int, int]
"""How much of a part exists: its stage (of a tool call) or version (of data), and its length.

The length counts characters of text or arguments; of a call with complete arguments it counts changes.
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
# A call that asks for approval again passes the stages again: each request adds this much to its stage.
STAGES_PER_APPROVAL = 10

ToolInputEvent: TypeAlias = e.ToolInputStart | e.ToolInputAvailable | e.ToolInputError


MAX_FRAGMENTS = 32  # joined when there are more: 1,000 short deltas would take 70 KB
CHUNK = 65_536  # characters up to which fragments are joined while a block is open
MAX_DELTA = 262_144  # characters up to which the rest of a block is one delta


def join_fragments(fragments: list[str], first: int) -> int:
    """Join the fragments from `first` on: small strings take ten times the memory of their text.

    Return the index from which on the next ones are to be joined. Joined fragments stay as they are, so that
    all readers can share them.
    """
    if first == len(fragments):
        return first
    if first and len(fragments[first - 1]) < CHUNK:
        first -= 1
    fragments[first:] = ["".join(fragments[first:])]
    return first + 1


def rest_of(fragments: list[str], start: int, *, length: int) -> list[str]:
    """Return the fragments from the character `start` on; `length` is that of the whole text."""
    at, index = length, len(fragments)
    while at > start:
        index -= 1
        at -= len(fragments[index])
    rest = fragments[index:]
    if rest and start > at:
        rest[0] = rest[0][start - at :]
    return rest


def first_characters(fragments: list[str], end: int) -> str:
    """Return the first `end` characters of the fragments."""
    first, size = list[str](), 0
    for fragment in fragments:
        if size >= end:
            break
        first.append(fragment)
        size += len(fragment)
    return "".join(first)[:end]


class PartSnapshot(NamedTuple):
    """A part as it was at one moment. Its text may be in a file, and is read in any thread."""

    part: Part
    text: TextPieces | None = None

    def read(self) -> Part:
        """Return the part with its text. Raises OSError."""
        if self.text is None or not isinstance(self.part, TextPart | ReasoningPart):
            return self.part
        return replace(self.part, text=read_pieces(self.text))

    def read_text(self) -> str:
        """Return the text of a text or reasoning part. Raises OSError."""
        part = self.read()
        return part.text if isinstance(part, TextPart | ReasoningPart) else ""


class BlockBuilder:
    """A text or reasoning block, open or closed. Fragments are joined when the text is read.

    `spilled` is the beginning of a long text; the fragments are the rest.
    """

    __slots__ = ("done", "fragments", "id", "joined", "kind", "length", "metadata", "spilled")

    def __init__(
        self, kind: type[TextPart] | type[ReasoningPart], id: str, *, metadata: ProviderMetadata | None
    ) -> None:
        self.kind = kind
        self.id = id
        self.fragments: list[str] = []
        self.joined = 0
        self.length = 0
        self.metadata = metadata
        self.done = False
        self.spilled: SpilledText | None = None

    @property
    def size_in_memory(self) -> int:
        """The number of characters that are not spilled."""
        return self.length if self.spilled is None else self.length - self.spilled.length

    def older_text(self, *, keep: int) -> str:
        """Return the text in memory but for its last `keep` characters."""
        return first_characters(self.fragments, max(0, self.size_in_memory - keep))

    def spill(self, file: TextFile, pieces: Sequence[WrittenPiece]) -> None:
        """Forget the text in memory that was written to a file: `older_text`, at its beginning."""
        if pieces:
            head = "" if self.spilled is not None else first_characters(self.fragments, HEAD)
            self.spilled = self.spilled or SpilledText(file, head=head)
            self.spilled.append(pieces)
            self.fragments = rest_of(self.fragments, self.spilled.length, length=self.length)
            self.joined = len(self.fragments)

    def text(self) -> str:
        """Return the text received so far."""
        if self.spilled is not None:
            return self.text_from(0)
        if len(self.fragments) > 1:
            self.fragments = ["".join(self.fragments)]
            self.joined = 1
        return self.fragments[0] if self.fragments else ""

    def text_from(self, start: int) -> str:
        """Return the text received so far from the character `start` on."""
        spilled = self.spilled
        if spilled is not None and start < spilled.length:
            return spilled.read(start, spilled.length) + "".join(self.fragments)
        return "".join(rest_of(self.fragments, start, length=self.length))

    def pieces_from(self, start: int) -> list[str | TextRange]:
        """Return the same in pieces: one, unless it is long; then they are shared, or read on demand."""
        if self.length - start <= MAX_DELTA:
            return [self.text_from(start)]
        self.joined = join_fragments(self.fragments, self.joined)
        spilled = self.spilled
        if spilled is not None and start < spilled.length:
            return [*spilled.ranges(start), *self.fragments]
        return [*rest_of(self.fragments, start, length=self.length)]

    def pieces_between(self, start: int, end: int) -> TextPieces:
        """Return the characters from `start` to `end`, without reading those that are in a file."""
        spilled = self.spilled
        on_disk = 0 if spilled is None else spilled.length
        pieces: list[str | TextRange] = []
        if spilled is not None and start < on_disk:
            pieces += spilled.pieces(start, end)
            start = on_disk
        if end > start:
            pieces.append(first_characters(rest_of(self.fragments, start, length=self.length), end - start))
        return pieces

    def snapshot(self, end: int | None = None) -> PartSnapshot:
        """Return the block as a part with its first `end` characters, without reading them."""
        end = self.length if end is None else end
        if self.spilled is None and end >= self.length:
            return PartSnapshot(self.part())
        state: Literal["done", "streaming"] = "done" if self.done else "streaming"
        part = self.kind(text="", state=state, provider_metadata=self.metadata)
        return PartSnapshot(part, self.pieces_between(0, end))

    def part_until(self, end: int) -> Part:
        """Return the block as a part with its first `end` characters only."""
        state: Literal["done", "streaming"] = "done" if self.done else "streaming"
        if end >= self.length:
            text = self.text()
        elif self.spilled is not None:
            text = self.text()[:end] if end > self.spilled.length else self.spilled.read(0, end)
        else:
            text = first_characters(self.fragments, end)
        return self.kind(text=text, state=state, provider_metadata=self.metadata)

    def progress(self) -> PartProgress:
        """Return how much of the block exists."""
        return 1, self.length

    def part(self) -> Part:
        """Return the block as a part."""
        return self.part_until(self.length)


class ToolCallBuilder:
    """A tool call: its current part, the JSON text of its arguments, and the number of its step.

    `changes` counts approval requests, approval responses and outputs; `approvals` counts the requests.
    `denied` is the refused approval of a call below this one, which has an output all the same.
    """

    __slots__ = ("approvals", "changes", "current", "denied", "fragments", "joined", "length", "step")

    def __init__(self, part: ToolPart, step: int) -> None:
        self.current = part
        self.step = step
        self.approvals = 0
        self.denied: Approval | None = None
        self.fragments: list[str] = []
        self.joined = 0
        self.length = 0
        self.changes = 0

    @classmethod
    def from_event(cls, event: ToolInputEvent, step: int) -> ToolCallBuilder:
        """Create the builder of a call whose arguments begin to stream."""
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
        """Raise OutOfOrder unless the call is in one of these states or has a preliminary output."""
        if self.current.state not in states and not self.current.preliminary:
            raise OutOfOrder(
                f"tool call {self.current.tool_call_id!r} is in state {self.current.state!r},"
                f" expected {' or '.join(states)}"
            )

    def append_input(self, fragment: str) -> None:
        """Append a fragment of the arguments' JSON text."""
        self.require_state("input-streaming")
        self.fragments.append(fragment)
        self.length += len(fragment)
        if len(self.fragments) - self.joined > MAX_FRAGMENTS:
            self.joined = join_fragments(self.fragments, self.joined)

    def complete_input(self, event: e.ToolInputAvailable | e.ToolInputError, **fields: Any) -> None:
        """Set the complete arguments, valid or not; `fields` are further fields of the part."""
        self.require_state("input-streaming")
        earlier, more = self.current.call_provider_metadata, event.provider_metadata
        self.current = replace(
            self.current,
            input=event.input,
            title=event.title or self.current.title,
            call_provider_metadata={**earlier, **more} if earlier and more else more or earlier,
            **fields,
        )

    def request_approval(self, approval_id: str) -> None:
        """Wait for an approval. A call may ask again later; its preliminary output is dropped."""
        self.require_state("input-streaming", "input-available", "approval-requested", "approval-responded")
        self.approvals += 1
        self.denied = None
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
        """Record the answer to the approval request."""
        self.changes += 1
        approval = Approval(event.approval_id, event.approved, event.reason)
        self.current = replace(self.current, state="approval-responded", approval=approval)

    def set_output(self, **fields: Any) -> None:
        """Set the output or error. An approval without an answer in this stream counts as approved.

        The part does not keep a refused one beside an output: it was for a call of a sub-agent, which went on
        without it, and the AI SDK's `validateUIMessages` rejects such a part.
        """
        self.changes += 1
        approval = self.current.approval
        if approval and approval.approved is False and fields["state"] != "output-denied":
            self.denied, fields["approval"] = approval, None
        elif approval and approval.approved is None:
            fields["approval"] = replace(approval, approved=fields["state"] != "output-denied")
        self.current = replace(self.current, input=self.parsed_input(), **fields)

    def parsed_input(self) -> Any:
        """Return the arguments as a value; UNSET when their text is not valid JSON."""
        if self.current.input is not UNSET:
            return self.current.input
        try:
            return decode_json("".join(self.fragments))
        except DECODE_ERRORS:
            return UNSET

    def input_text(self) -> str:
        """Return the arguments' JSON text: as the model wrote it or, for a stored call, encoded again."""
        if not self.fragments and self.current.input is not UNSET:
            return msgspec.json.encode(self.current.input).decode()
        return "".join(self.fragments)

    def input_text_from(self, start: int) -> str:
        """Return `input_text` from the character `start` on."""
        return self.text_from(start) if self.fragments else self.input_text()[start:]

    def progress(self) -> PartProgress:
        """Return how much of the call exists. A preliminary output counts as none: approval may follow it."""
        stage = STAGES[self.current.state]
        if stage <= 1:
            return stage, self.length
        if self.current.preliminary:
            has_approval = self.current.approval is not None or self.denied is not None
            stage = STAGES["approval-responded" if has_approval else "input-available"]
        return STAGES_PER_APPROVAL * self.approvals + stage, self.changes

    def delivered_stage(self, stage: int) -> int:
        """Return the stage, of the current approval, that a reader of an earlier `progress` has seen."""
        approvals, seen = divmod(stage, STAGES_PER_APPROVAL)
        return seen if approvals == self.approvals else min(seen, STAGES["input-available"])

    def text_from(self, start: int) -> str:
        """Return the arguments' JSON text received so far from the character `start` on."""
        return "".join(rest_of(self.fragments, start, length=self.length))

    def pieces_between(self, start: int, end: int) -> TextPieces:
        """Return the arguments' JSON text from the character `start` to `end`."""
        return [first_characters(rest_of(self.fragments, start, length=self.length), end - start)]

    def snapshot(self, end: int | None = None) -> PartSnapshot:
        """Return the call as a part; see `part_until`."""
        return PartSnapshot(self.part_until(self.length if end is None else end))

    def part_until(self, end: int) -> Part:
        """Return the call as a part with the first `end` characters of arguments that are still streaming."""
        if self.current.state == "input-streaming" and self.fragments:
            return replace(self.current, raw_input=first_characters(self.fragments, end))
        return self.current

    def part(self) -> Part:
        """Return the call as a part."""
        return self.part_until(self.length)


class PartSlot:
    """A complete part. A data part may be replaced by one of the same id; `version` counts replacements."""

    __slots__ = ("current", "version")

    def __init__(self, part: Part) -> None:
        self.current = part
        self.version = 0

    def snapshot(self) -> PartSnapshot:
        """Return the part as it is."""
        return PartSnapshot(self.current)

    def progress(self) -> PartProgress:
        """Return the version, counted from 1."""
        return self.version + 1, 0

    def part(self) -> Part:
        """Return the part."""
        return self.current


PartBuilder: TypeAlias = BlockBuilder | ToolCallBuilder | PartSlot
