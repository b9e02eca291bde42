"""The frames of a session's socket: what clients send, and what the hub sends for the events of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.errors import BadRequest, DragomanError
from dragoman.json_decoding import decode_typed
from dragoman.json_limits import check_shape
from dragoman.wire.ui.client_request import WhenBusy

AgentStatus: TypeAlias = Literal["idle", "thinking", "streaming", "tool_calling", "error"]


class SocketFrame(msgspec.Struct, frozen=True, tag_field="type"):
    """A frame of a client; `request_id` comes back in the answer to it."""


class SocketKey(SocketFrame, frozen=True, tag="auth"):
    """The first frame of a client without a header: its key, and the last event that it has."""

    token: str
    after: str | None = None

    def __repr__(self) -> str:
        """Without the key."""
        return f"SocketKey(after={self.after!r})"


class SocketPrompt(SocketFrame, frozen=True, tag="prompt", rename="camel", kw_only=True):
    """A message of the user, as text or as a `UIMessage`; `channel_type` and `channel_id` say where from."""

    text: str | None = None
    message: dict[str, Any] | None = None
    id: str | None = None
    model: str | None = None
    agent: str | None = None
    when_busy: WhenBusy | None = None
    channel_type: str | None = None
    channel_id: str | None = None
    request_id: str | None = None


class SocketAbort(SocketFrame, frozen=True, tag="abort", rename="camel", kw_only=True):
    """Stop the answer under way."""

    request_id: str | None = None


class SocketAnswer(SocketFrame, frozen=True, tag="answer", rename="camel", kw_only=True):
    """The answer to an approval, or to a question."""

    approval_id: str
    approved: bool | None = None
    answer: str | None = None
    reason: str | None = None
    request_id: str | None = None


class SocketPing(SocketFrame, frozen=True, tag="ping"):
    """Answered by a pong."""


AnyFrame: TypeAlias = SocketKey | SocketPrompt | SocketAbort | SocketAnswer | SocketPing
_decoder = msgspec.json.Decoder(AnyFrame)


def decode_frame(raw: bytes) -> AnyFrame:
    """Return the frame in a message of a client. Raises BadRequest, TooLarge."""
    check_shape(raw)
    try:
        frame: AnyFrame = decode_typed(raw, _decoder)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadRequest(
            f"this is not a frame of a session's socket: {error}",
            hint="a frame is JSON with a `type`: prompt, abort, answer or ping",
        ) from None
    return frame


def encode_frame(type: str, **fields: Any) -> str:
    """Return a frame of the hub as text."""
    return msgspec.json.encode({"type": type, **fields}).decode()


def error_frame(error: DragomanError, *, request_id: str | None = None) -> str:
    """Return the frame of an error."""
    return encode_frame("error", requestId=request_id, error=error.to_json())


def run_frames(events: Sequence[e.Event], *, message_id: str) -> Iterator[str]:
    """Yield the frames of a batch of a run: text as chunks, everything else as the event itself."""
    for event in events:
        if isinstance(event, e.TextDelta):
            yield encode_frame("chunk", content=event.delta, messageId=message_id, partId=event.id)
        else:
            yield encode_frame("event", messageId=message_id, event=msgspec.Raw(e.encode(event)))


def agent_status(events: Sequence[e.Event], current: AgentStatus) -> AgentStatus:
    """Return what the agent does after these events."""
    for event in events:
        match event:
            case e.TextStart() | e.TextDelta():
                current = "streaming"
            case e.StartStep() | e.ReasoningStart() | e.ReasoningDelta():
                current = "thinking"
            case e.ToolInputStart() | e.ToolInputAvailable():
                current = "tool_calling"
            case e.ErrorEvent():
                current = "error"
            case e.Finish():
                current = "error" if current == "error" else "idle"
            case _:
                pass
    return current
