"""The frames of the runner protocol, version 1: one JSON object per WebSocket message. Source: seed 001.

A runner sends the V2 events of the seed, each with `sessionId` and `turnId`; the hub sends prompts, aborts
and answers. `seq` numbers the frames of a turn from 1: the hub acknowledges them once they are stored, and a
runner that connects again repeats those that were not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from dragoman.errors import BadRequest, FrameTooLong, TooLarge, WireError
from dragoman.events import Usage
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.json_limits import check_shape

VERSION = 1
PATH = "/api/runners"
DATA_PREFIX = "data-"
TEXT_DELTA = "message.part.text-delta"
REPLACEMENT = "\ufffd"
HELLO_BYTES = 262_144
DOMAIN_TYPES = frozenset(
    {
        "audit",
        "child-session",
        "diff",
        "files-changed",
        "git-state",
        "pr-created",
        "review",
        "status",
        "title",
        "toast",
        "user.joined",
        "user.left",
    }
)
"""V2 events that concern the session and not the chat. Besides them, every `data-<name>` is one."""

Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Sequenced: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
ToolStatus: TypeAlias = Literal["pending", "running", "completed", "error"]
FinalizeReason: TypeAlias = Literal["end_turn", "error", "canceled"]


class RunnerFrame(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel", omit_defaults=True
):
    """One message. Unknown fields are ignored."""


class TurnFrame(RunnerFrame, frozen=True, kw_only=True):
    """A frame of a turn. Without `seq` it counts as the next one."""

    session_id: Id
    turn_id: Id
    seq: Sequenced | None = None


# ---- What a runner sends.


class RunnerHello(RunnerFrame, frozen=True, kw_only=True, tag="hello"):
    """First message: the sessions that the runner serves.

    `turns` are the ids of the turns that it is still working on; the hub closes other turns of these sessions
    as interrupted. Without `turns`, all continue. `token` is the key, for clients that cannot set a header.
    """

    protocol: int = VERSION
    sessions: tuple[Id, ...] = ()
    turns: tuple[Id, ...] | None = None
    token: str | None = None

    def __repr__(self) -> str:
        """Without the token."""
        return f"RunnerHello(sessions={self.sessions!r}, protocol={self.protocol})"


class RunnerJoin(RunnerFrame, frozen=True, kw_only=True, tag="join"):
    """Serve further sessions on this connection; the reply is a `welcome` for them."""

    sessions: tuple[Id, ...]


class RunnerLeave(RunnerFrame, frozen=True, kw_only=True, tag="leave"):
    """Serve these sessions no longer."""

    sessions: tuple[Id, ...]


class MessageCreate(TurnFrame, frozen=True, kw_only=True, tag="message.create"):
    """The assistant's message begins."""

    channel_type: str | None = None
    channel_id: str | None = None
    opencode_session_id: str | None = None
    model: str | None = None


class PartTextDelta(TurnFrame, frozen=True, kw_only=True, tag=TEXT_DELTA):
    """More text.

    A runner that cuts text between the UTF-16 units of a character sends a lone surrogate at the end of one
    delta and the other at the beginning of the next. `delta` has U+FFFD instead of each; `last_half` and
    `first_half` are the surrogates.
    """

    delta: str
    last_half: Annotated[int, Meta(ge=0xD800, le=0xDBFF)] | None = None
    first_half: Annotated[int, Meta(ge=0xDC00, le=0xDFFF)] | None = None


class PartToolUpdate(TurnFrame, frozen=True, kw_only=True, tag="message.part.tool-update"):
    """The state of a tool call that the runner makes.

    A `result` of a call that is `running` is preliminary.
    """

    call_id: Id
    tool_name: Id
    status: ToolStatus
    args: Any = msgspec.UNSET
    result: Any = msgspec.UNSET
    error: Any = None


class MessageFinalize(TurnFrame, frozen=True, kw_only=True, tag="message.finalize"):
    """The turn is over. `final_text` is the whole text of the turn, or that of its last block.

    `usage`, `cost` (US dollars) and `model` are shown with the message; the hub bills nothing for them.
    """

    reason: FinalizeReason
    final_text: str | None = None
    error: Any = None
    usage: Usage | None = None
    cost: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    model: str | None = None


class TurnComplete(RunnerFrame, frozen=True, kw_only=True, tag="complete"):
    """The agent is idle. A turn that was not finalized ends here."""

    session_id: Id
    turn_id: Id | None = None
    seq: Sequenced | None = None


class RunnerStatus(RunnerFrame, frozen=True, kw_only=True, tag="agentStatus"):
    """What the agent does: idle, thinking, streaming, tool_calling, error."""

    session_id: Id
    turn_id: Id | None = None
    seq: Sequenced | None = None
    status: str
    detail: str | None = None


class RunnerQuestion(TurnFrame, frozen=True, kw_only=True, tag="question"):
    """The agent asks its user; an `answer` follows. With `approval`, it asks to run the call `call_id`."""

    question_id: Id
    text: Annotated[str, Meta(max_length=20_000)] = ""
    options: Annotated[Sequence[Annotated[str, Meta(max_length=2_000)]], Meta(max_length=100)] = ()
    call_id: Id | None = None
    approval: bool = False


class RunnerEvent(RunnerFrame, frozen=True, kw_only=True, tag="data"):
    """A domain event: `{"type": "data-<name>", "data": ...}`, or one of `DOMAIN_TYPES`.

    Only the former is part of the chat (`in_chat`).
    """

    session_id: Id
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    turn_id: Id | None = None
    seq: Sequenced | None = None
    data: Any = None
    id: Id | None = None
    transient: bool = False
    in_chat: bool = True


class RunnerUnknown(RunnerFrame, frozen=True, kw_only=True, tag="unknown"):
    """A frame of a type that this version does not know: it is acknowledged, and has no other effect."""

    session_id: Id | None = None
    turn_id: Id | None = None
    seq: Sequenced | None = None


class RunnerPing(RunnerFrame, frozen=True, kw_only=True, tag="ping"):
    """Asks whether the hub is there; the reply is a `pong` with the same `n`."""

    n: int = 0


# ---- What the hub sends.


class SessionState(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A session that a runner serves, its unfinished turn, and the last stored `seq` of that turn."""

    session_id: str
    turn_id: str | None = None
    seq: int = 0


class FrameError(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a frame or session was refused: a code for programs, a message for people."""

    code: str
    message: str


class SessionRefusal(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A session that the runner may not serve."""

    session_id: str
    error: FrameError


class RunnerWelcome(RunnerFrame, frozen=True, kw_only=True, tag="welcome"):
    """Reply to `hello` and `join`: the sessions that are served, and those that are refused.

    `frame` is the maximum bytes of a message, `window` the maximum characters of frames that a runner sends
    without having received their acknowledgement.
    """

    protocol: int = VERSION
    sessions: tuple[SessionState, ...] = ()
    refused: tuple[SessionRefusal, ...] = ()
    frame: int
    window: int


class RunnerPrompt(RunnerFrame, frozen=True, kw_only=True, tag="prompt"):
    """Answer this message in this turn. A prompt with an earlier `turn_id` is a repetition of that prompt.

    `message` is the AI SDK's `UIMessage`, `text` the text of it.
    """

    session_id: str
    turn_id: str
    text: str
    message: Any = None


class RunnerAbort(RunnerFrame, frozen=True, kw_only=True, tag="abort"):
    """Stop the turn and finalize it as `canceled`; the hub closes it anyway after some seconds."""

    session_id: str
    turn_id: str
    reason: str | None = None


class RunnerSteer(RunnerFrame, frozen=True, kw_only=True, tag="steer"):
    """A message waits for the end of the turn: finalize the turn after its current step; then the message's
    prompt follows. A runner that does not support this continues with the turn.
    """

    session_id: str
    turn_id: str
    message_id: str | None = None


class RunnerAnswer(RunnerFrame, frozen=True, kw_only=True, tag="answer"):
    """The answer to a question: `answer` is its text if `approved`, else `reason` may say why not."""

    session_id: str
    turn_id: str
    question_id: str
    approved: bool
    answer: str | None = None
    reason: str | None = None


class RunnerAck(RunnerFrame, frozen=True, kw_only=True, tag="ack"):
    """All frames of the turn up to `seq` are stored."""

    session_id: str
    turn_id: str
    seq: int


class RunnerRefused(RunnerFrame, frozen=True, kw_only=True, tag="refused"):
    """A frame was refused, or, as the first of a connection, the connection, which is closed."""

    error: FrameError
    session_id: str | None = None
    turn_id: str | None = None
    seq: int | None = None


class RunnerPong(RunnerFrame, frozen=True, kw_only=True, tag="pong"):
    """Reply to a ping."""

    n: int = 0


class RunnerBye(RunnerFrame, frozen=True, kw_only=True, tag="bye"):
    """The hub closes the connection; `again` says whether the runner should connect again."""

    code: str = "leaving"
    message: str = ""
    again: bool = True


FrameOfTurn: TypeAlias = (
    MessageCreate
    | PartTextDelta
    | PartToolUpdate
    | MessageFinalize
    | TurnComplete
    | RunnerStatus
    | RunnerQuestion
    | RunnerEvent
    | RunnerUnknown
)
FrameFromRunner: TypeAlias = FrameOfTurn | RunnerHello | RunnerJoin | RunnerLeave | RunnerPing
FrameToTurn: TypeAlias = RunnerAbort | RunnerSteer | RunnerAnswer | RunnerAck
FrameToRunner: TypeAlias = (
    RunnerWelcome
    | RunnerPrompt
    | RunnerAbort
    | RunnerSteer
    | RunnerAnswer
    | RunnerAck
    | RunnerRefused
    | RunnerPong
    | RunnerBye
)


class FrameRefused(WireError):
    """A frame is refused. Has the session, turn and `seq` that the frame names, as far as they are valid."""

    code = "bad_frame"

    def __init__(
        self,
        message: str,
        *,
        code: str = "bad_frame",
        session_id: str | None = None,
        turn_id: str | None = None,
        seq: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.session_id = session_id
        self.turn_id = turn_id
        self.seq = seq

    def to_frame(self) -> RunnerRefused:
        """Return the frame that reports this to the runner."""
        error = FrameError(code=self.code, message=self.message)
        return RunnerRefused(error=error, session_id=self.session_id, turn_id=self.turn_id, seq=self.seq)


_encoder = msgspec.json.Encoder()
_hub_decoder: msgspec.json.Decoder[FrameToRunner] = msgspec.json.Decoder(FrameToRunner)
_frame_types: Mapping[str, type[RunnerFrame]] = {
    str(frame.__struct_config__.tag): frame
    for frame in (
        RunnerHello,
        RunnerJoin,
        RunnerLeave,
        MessageCreate,
        PartTextDelta,
        PartToolUpdate,
        MessageFinalize,
        TurnComplete,
        RunnerStatus,
        RunnerQuestion,
        RunnerPing,
    )
}


def encode_runner_frame(frame: RunnerFrame) -> str:
    """Encode a frame of either side as JSON. A `RunnerEvent` gets its type `data-<name>` back."""
    if isinstance(frame, RunnerEvent):
        fields = msgspec.to_builtins(frame)
        fields["type"] = DATA_PREFIX + fields.pop("name")
        return _encoder.encode(fields).decode()
    return _encoder.encode(frame).decode()


def decode_from_hub(text: str | bytes) -> FrameToRunner:
    """Decode a frame of a hub. Raises WireError."""
    try:
        return decode_json(text, _hub_decoder)
    except DECODE_ERRORS as error:
        raise WireError(f"this is not a frame of the runner protocol: {error}") from None


def decode_from_runner(text: str, *, limit: int) -> FrameFromRunner:
    """Decode a frame of a runner. Raises FrameRefused if it is invalid, or longer than `limit` bytes."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > limit:
        raise FrameRefused(f"a frame has {len(data)} bytes; the limit is {limit}", code=FrameTooLong.code)
    try:
        check_shape(data)
        fields = decode_json(data)
    except (BadRequest, TooLarge) as error:
        message = error.message.replace("the request body", "a frame")
        raise FrameRefused(message) from None
    except DECODE_ERRORS as error:
        raise FrameRefused(f"a frame is not JSON: {error}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise FrameRefused("a frame is a JSON object with a `type`")
    if fields["type"] == TEXT_DELTA and may_have_halves(fields.get("delta")):
        fields |= surrogate_halves(text)
    return _convert_fields(fields)


def may_have_halves(delta: Any) -> bool:
    """Return whether a delta begins or ends with U+FFFD, which may replace a lone surrogate."""
    return isinstance(delta, str) and REPLACEMENT in (delta[:1], delta[-1:])


def surrogate_halves(text: str) -> dict[str, int]:
    """Return the lone surrogates at the ends of the delta in a frame, by the names of the frame's fields."""
    delta = json.loads(text)["delta"]  # unlike msgspec, this keeps lone surrogates
    halves: dict[str, int] = {}
    if 0xDC00 <= ord(delta[0]) <= 0xDFFF:
        halves["firstHalf"] = ord(delta[0])
    if 0xD800 <= ord(delta[-1]) <= 0xDBFF:
        halves["lastHalf"] = ord(delta[-1])
    return halves


def _convert_fields(fields: dict[str, Any]) -> FrameFromRunner:
    name = fields["type"]
    frame_type = _frame_types.get(name)
    if frame_type is None:
        domain = _domain_fields(fields)
        if domain is None:
            return RunnerUnknown(**frame_place(fields))
        fields, frame_type = domain, RunnerEvent
    try:
        return msgspec.convert(fields, frame_type)  # type: ignore[return-value] # one of the union
    except (msgspec.ValidationError, RecursionError) as error:
        raise FrameRefused(f"a frame {name[:100]!r} is invalid: {error}", **frame_place(fields)) from None


def frame_place(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `session_id`, `turn_id` and `seq` of a frame, as far as they are valid."""
    place: dict[str, Any] = {}
    for name, field in (("session_id", "sessionId"), ("turn_id", "turnId")):
        if isinstance(fields.get(field), str) and len(fields[field]) <= 200:
            place[name] = fields[field]
    seq = fields.get("seq")
    if isinstance(seq, int) and not isinstance(seq, bool) and 0 < seq <= 2**53:
        place["seq"] = seq
    return place


def _domain_fields(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a `RunnerEvent`; None for another type.

    The V2 types have their data beside `sessionId`, not in `data`.
    """
    name = fields["type"]
    if name.startswith(DATA_PREFIX) and len(name) > len(DATA_PREFIX):
        return {**fields, "type": "data", "name": name.removeprefix(DATA_PREFIX), "inChat": True}
    if name not in DOMAIN_TYPES:
        return None
    place: dict[str, Any] = {key: fields[key] for key in ("sessionId", "turnId", "seq") if key in fields}
    data = {key: value for key, value in fields.items() if key not in (*place, "type")}
    return {**place, "type": "data", "name": name.replace(".", "-"), "data": data, "inChat": False}
