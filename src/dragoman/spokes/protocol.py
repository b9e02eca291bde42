"""The spoke protocol: the frames that a hub and a spoke exchange, one JSON object a WebSocket message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dragoman.errors import CallError, CallTimeout, CallUncertain, InvalidInput, RateLimited, WireError
from dragoman.json_decoding import DECODE_ERRORS, decode_json, decode_typed, mend_json
from dragoman.large_json import LARGE, encode_large, measure
from dragoman.operations.operation import Effect, Operation
from dragoman.operations.outcome import MAX_MESSAGE_LENGTH, CallFailure
from dragoman.operations.sanitize import sanitize_text

VERSION = 1
PATH = "/api/spoke"
HELLO_BYTES = 65_536
PART_TAG = "part"

# Why a connection was closed, as WebSocket close codes.
NORMAL_CLOSURE = 1000
HUB_RESTART = 1012
TRY_AGAIN_LATER = 1013
BAD_FRAME = 4400
UNAUTHORIZED = 4401
FORBIDDEN = 4403
BAD_VERSION = 4406
HEARTBEAT_TIMEOUT = 4408
ID_TAKEN = 4409
REPLACED = 4410

CLOSE_CODES: Mapping[str, int] = {
    "unavailable": TRY_AGAIN_LATER,
    "unauthorized": UNAUTHORIZED,
    "forbidden": FORBIDDEN,
    "bad_version": BAD_VERSION,
    "conflict": ID_TAKEN,
}

Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128)]
SpokeId: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}\Z")]
Cost: TypeAlias = Annotated[float, Meta(ge=0, le=1_000_000_000)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]


class SpokeFrame(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel", omit_defaults=True
):
    """One message. Unknown fields are ignored."""


class OperationOffer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An operation that a spoke offers. `timeout` is in seconds."""

    namespace: str
    name: str
    input_schema: Mapping[str, Any]
    description: str = ""
    output_schema: Mapping[str, Any] | None = None
    effect: Effect = "once"
    timeout: Annotated[float, Meta(gt=0)] | None = None
    approval: bool = False

    @property
    def id(self) -> str:
        """`namespace.name`."""
        return f"{self.namespace}.{self.name}"

    @classmethod
    def from_operation(cls, operation: Operation) -> OperationOffer:
        """Return the offer of an operation."""
        return cls(
            namespace=operation.namespace,
            name=operation.name,
            input_schema=operation.input_schema,
            description=operation.description,
            output_schema=operation.output_schema,
            effect=operation.effect,
            timeout=operation.timeout,
            approval=operation.approval,
        )


class SpokeFailure(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A failure: a code for programs, a message for people and models."""

    code: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")] = "call_failed"
    message: str
    transient: bool = False
    hint: str | None = None
    problems: Sequence[dict[str, Any]] = ()
    retry_after: float | None = None

    @classmethod
    def from_call_failure(cls, failure: CallFailure) -> SpokeFailure:
        """Return the failure without the schema, which the other side knows."""
        return cls(
            code=failure.code,
            message=failure.message,
            transient=failure.transient,
            hint=failure.hint,
            problems=[dict(each) for each in failure.problems],
        )


class RefusedOperation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An operation that the hub refuses, and why."""

    operation: str
    error: SpokeFailure


class HelloFrame(SpokeFrame, frozen=True, kw_only=True, tag="hello"):
    """Spoke, first message. `token` is for spokes that cannot set a header.

    `calls` are calls of an earlier connection that still run or have a result. `window` is how many calls it
    runs at a time, `message` the bytes of the longest message that it accepts; messages above the hub's
    `frame` come in parts.
    """

    protocol: int
    id: SpokeId
    name: SpokeId | None = None
    token: str | None = None
    window: Count | None = None
    message: Annotated[int, Meta(ge=1024)] | None = None
    calls: tuple[Id, ...] = ()

    def __repr__(self) -> str:
        """Without the token."""
        return f"Hello({self.id!r}, protocol={self.protocol})"


class WelcomeFrame(SpokeFrame, frozen=True, kw_only=True, tag="welcome"):
    """Hub, reply to a hello: the limits. `waiting` are those of the spoke's `calls` that the hub waits for.

    Sizes are in bytes, times in seconds. `publishes`: the hub accepts `publish` frames.
    """

    protocol: int
    window: int
    frame: Annotated[int, Meta(ge=1024)]
    message: Annotated[int, Meta(ge=1024)]
    heartbeat: Annotated[float, Meta(ge=0.01)]
    timeout: Annotated[float, Meta(ge=0.01)]
    grace: Annotated[float, Meta(ge=0)]
    waiting: tuple[str, ...] = ()
    publishes: bool = False


class RefusedFrame(SpokeFrame, frozen=True, kw_only=True, tag="refused"):
    """Hub, instead of a welcome; it closes afterwards."""

    error: SpokeFailure


class RegisterFrame(SpokeFrame, frozen=True, kw_only=True, tag="register"):
    """Spoke: operations that it serves from now on; with `all` only these. The reply has the same `id`."""

    id: Id
    operations: tuple[OperationOffer, ...] = ()
    all: bool = False


class UnregisterFrame(SpokeFrame, frozen=True, kw_only=True, tag="unregister"):
    """Spoke: operations, `namespace.name`, that it no longer serves."""

    operations: tuple[str, ...]


class RegisteredFrame(SpokeFrame, frozen=True, kw_only=True, tag="registered"):
    """Hub: the result of a `register`."""

    id: str
    operations: tuple[str, ...] = ()
    refused: tuple[RefusedOperation, ...] = ()


class CallFrame(SpokeFrame, frozen=True, kw_only=True, tag="call"):
    """Hub: run this operation. `remaining` are the seconds until the deadline, None without one.

    A frame with the same `idempotency_key` is the same call again. `call_id` is the call in the hub's ledger.
    """

    id: Id
    operation: str
    input: Any
    owner: str
    effect: Effect
    idempotency_key: str
    call_id: str
    remaining: float | None = None
    run_id: str | None = None
    session_id: str | None = None
    agent: str | None = None


class SubcallFrame(SpokeFrame, frozen=True, kw_only=True, tag="subcall"):
    """Spoke: run this operation of the hub below my call `parent`; the replies have my `id`."""

    id: Id
    parent: Id
    operation: str
    input: Any = None


class ProgressFrame(SpokeFrame, frozen=True, kw_only=True, tag="progress"):
    """Either: progress of a call; the newest value replaces earlier ones."""

    id: Id
    value: Any = None


class PublishFrame(SpokeFrame, frozen=True, kw_only=True, tag="publish"):
    """Spoke: a domain event in the session of a call that it serves; to a hub whose welcome says `publishes`.

    With `in_answer` it is also a data part of the answer that makes the call: one for each name, replaced by
    the next of the name. `again`: it was sent over an earlier connection, so it is only the data part.
    """

    id: Id
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    data: dict[str, Any]
    in_answer: bool = False
    again: bool = False


class ResultFrame(SpokeFrame, frozen=True, kw_only=True, tag="result"):
    """Either: the call succeeded. `cost` is what the spoke spent for it, in US dollars."""

    id: Id
    result: Any = None
    cost: Cost | None = None


class ErrorFrame(SpokeFrame, frozen=True, kw_only=True, tag="error"):
    """Either: the call failed; `cost` as in a result."""

    id: Id
    error: SpokeFailure
    cost: Cost | None = None


class AbortFrame(SpokeFrame, frozen=True, kw_only=True, tag="abort"):
    """Either: stop this call. The reply is `aborted`, or the call's end if that came first."""

    id: Id


class AbortedFrame(SpokeFrame, frozen=True, kw_only=True, tag="aborted"):
    """Either: the call has stopped; nothing of it is running."""

    id: Id


class PingFrame(SpokeFrame, frozen=True, kw_only=True, tag="ping"):
    """Either: heartbeat."""

    n: int = 0


class PongFrame(SpokeFrame, frozen=True, kw_only=True, tag="pong"):
    """Either: reply to a ping, with its `n`."""

    n: int = 0


class PartFrame(SpokeFrame, frozen=True, kw_only=True, tag=PART_TAG):
    """Either: a part of a message above the frame size; the joined parts are its JSON."""

    text: str
    last: bool = False


class ByeFrame(SpokeFrame, frozen=True, kw_only=True, tag="bye"):
    """Either: I am leaving. From a spoke: send no more calls; it answers the running ones and closes.

    From a hub: it closes now; `again` says whether to come back.
    """

    code: str = "leaving"
    message: str = ""
    again: bool = True


ReplyFrame: TypeAlias = ResultFrame | ErrorFrame | AbortedFrame
FrameFromSpoke: TypeAlias = (
    HelloFrame
    | RegisterFrame
    | UnregisterFrame
    | SubcallFrame
    | ProgressFrame
    | PublishFrame
    | ReplyFrame
    | AbortFrame
    | PingFrame
    | PongFrame
    | PartFrame
    | ByeFrame
)
FrameFromHub: TypeAlias = (
    WelcomeFrame
    | RefusedFrame
    | RegisteredFrame
    | CallFrame
    | ProgressFrame
    | ReplyFrame
    | AbortFrame
    | PingFrame
    | PongFrame
    | PartFrame
    | ByeFrame
)

_encoder = msgspec.json.Encoder()
_spoke_decoder = msgspec.json.Decoder(FrameFromSpoke)
_hub_decoder = msgspec.json.Decoder(FrameFromHub)


def encode_frame(frame: SpokeFrame) -> bytes:
    """Encode a frame as JSON."""
    return _encoder.encode(frame)


def encode_long(frame: SpokeFrame) -> bytes:
    """Encode a frame with a large value in many short calls; for a thread."""
    for field in ("input", "result", "value"):
        if hasattr(frame, field):
            frame = replace(frame, **{field: msgspec.Raw(encode_large(getattr(frame, field)))})
    return _encoder.encode(frame)


def frame_size(frame: SpokeFrame) -> int:
    """Return about how many bytes the value in a frame has; see `measure`."""
    match frame:
        case CallFrame(input=value) | SubcallFrame(input=value) | ResultFrame(result=value):
            return value_size(value)
        case ProgressFrame(value=value) | PublishFrame(data=value):
            return value_size(value)
        case _:
            return 0


def value_size(value: Any) -> int:
    """Return about how many bytes a value has; it may be encoded already."""
    return len(bytes(value)) if isinstance(value, msgspec.Raw) else measure(value)


def decode_from_spoke(text: str | bytes) -> FrameFromSpoke:
    """Decode a frame of a spoke. Raises WireError."""
    frame: FrameFromSpoke = _decode(_spoke_decoder, text)
    return frame


def decode_from_hub(text: str | bytes) -> FrameFromHub:
    """Decode a frame of a hub. Raises WireError."""
    frame: FrameFromHub = _decode(_hub_decoder, text)
    return frame


class HelloVersion(msgspec.Struct):
    """The fields that a hello of every version has."""

    type: str
    protocol: int = VERSION


_version_decoder = msgspec.json.Decoder(HelloVersion)


def check_version(text: str | bytes) -> None:
    """Raise WireError `bad_version` for a hello of another version, whatever else it holds."""
    try:
        greeting = decode_json(text, _version_decoder)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    if greeting.type != "hello" or greeting.protocol == VERSION:
        return
    error = WireError(
        f"this hub speaks version {VERSION} of the spoke protocol, not {greeting.protocol}",
        hint="use the same release of dragoman on both sides",
    )
    error.code = "bad_version"
    raise error


def error_from_failure(failure: SpokeFailure) -> CallError | InvalidInput:
    """Return the error for a failure from the other side, with its texts sanitized."""
    message = sanitize_text(failure.message, MAX_MESSAGE_LENGTH) or "the call failed without a message"
    hint = sanitize_text(failure.hint, MAX_MESSAGE_LENGTH) if failure.hint else None
    if failure.code == InvalidInput.code:
        return InvalidInput(message, problems=list(failure.problems), hint=hint)
    if failure.code == RateLimited.code:
        return RateLimited(message, retry_after=failure.retry_after, hint=hint)
    if failure.code == CallTimeout.code:
        return CallTimeout(message, hint=hint)
    if failure.code == CallUncertain.code:
        return CallUncertain(message, hint=hint)
    error = CallError(message, hint=hint)
    error.code, error.transient, error.retry_after = failure.code, failure.transient, failure.retry_after
    return error


def close_code(code: str) -> int:
    """Return the WebSocket close code for an error's code."""
    return CLOSE_CODES.get(code, BAD_FRAME)


def _decode(decoder: msgspec.json.Decoder[Any], text: str | bytes) -> Any:
    try:
        if len(text) > LARGE:
            raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
            return decode_typed(raw, decoder)
        try:
            return decoder.decode(text)
        except (msgspec.DecodeError, UnicodeError):
            return _cut_part(text) or decode_json(text, decoder)
    except DECODE_ERRORS as error:
        raise WireError(f"this is not a frame of the spoke protocol: {error}") from None


def _cut_part(text: str | bytes) -> PartFrame | None:
    """Decode a part that was cut inside a surrogate pair, as half of the pair; None for anything else."""
    if mend_json(text) is None:
        return None
    try:
        frame = json.loads(text)
        return msgspec.convert(frame, PartFrame) if frame["type"] == PART_TAG else None
    except (ValueError, TypeError, KeyError):
        return None
