"""Anthropic's answer out: events as the frames of a streaming client, or as one whole message.

A finish is never invented: an answer without one is an error. Files that a model made and sources that it
names have no blocks here and are left out; citations of Anthropic's models are told as they came.
Source: wire notes on providers, §3 and §6.3 to §6.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.errors import BadRequest, BudgetExhausted, DragomanError, OutOfOrder, ProviderError
from dragoman.events import (
    Event,
    FinishReason,
    FinishStep,
    ReasoningDelta,
    TextDelta,
    ToolInputDelta,
    Usage,
)
from dragoman.wire.anthropic.reply_blocks import BROKEN, Blocks, parse
from dragoman.wire.dialect import SSE_HEADERS

# ---- Finishes out to an Anthropic client: why the answer stopped, and what it took.
# The SDKs' types demand numbers, so where nobody has counted the input stays the estimate of the message's
# start, and the output is one too, which `estimated` says. What is known is never an estimate of ours.

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


# ---- Errors out to an Anthropic client: the body and status that its SDK knows how to raise.
# Source: wire notes on providers, §6.6.

_STATUSES: Mapping[str, int] = {  # by category
    "rate_limit": 429,
    "overloaded": 529,
    "auth": 401,
    "bad_request": 400,
    "context_limit": 400,
    "content_filter": 400,
    "timeout": 504,
}
_TYPES: Mapping[int, str] = {  # by status
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_THEIRS = frozenset({*_TYPES.values(), "api_error"})
_TOO_LONG = "prompt is too long"


def status_of(error: DragomanError) -> int:
    """The HTTP status: the provider's own if it gave one, else what its category or the error stands for."""
    if not isinstance(error, ProviderError):
        return error.status
    given = error.upstream_status
    if given is not None and 400 <= given <= 599:
        return given
    return _STATUSES.get(error.category, 502)


def error_body(error: DragomanError, *, request_id: str | None) -> dict[str, object]:
    """`{"type": "error", "error": {type, message}, "request_id"}`; Anthropic's own error as it came."""
    inner = _theirs(error.details) if isinstance(error, ProviderError) else None
    return {"type": "error", "error": inner or _ours(error), "request_id": request_id}


def _theirs(details: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The error if it has Anthropic's shape; OpenAI's has other fields beside a type that can be the same."""
    found = details or {}
    if found.get("type") == "error" and isinstance(found.get("error"), Mapping):
        found = found["error"]
    if found.get("type") not in _THEIRS or not isinstance(found.get("message"), str):
        return None
    return None if "code" in found or "param" in found else dict(found)


def _ours(error: DragomanError) -> dict[str, Any]:
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    if isinstance(error, BudgetExhausted):
        kind = "billing_error"
    message = error.message
    if isinstance(error, ProviderError) and error.category == "context_limit" and _TOO_LONG not in message:
        message = f"{_TOO_LONG}: {message}"  # by these words clients know that they have to shorten it
    if isinstance(error, BadRequest) and error.field and error.field not in message:
        message = f"{error.field}: {message}"
    return {"type": kind, "message": f"{message} ({error.hint})" if error.hint else message}


__all__ = ["MessageStream", "error_body", "status_of", "whole"]

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_encode = msgspec.json.Encoder().encode


class MessageStream:
    """One message as frames; pure. `input_tokens` is what the start says until the finish knows better.

    `request_id` goes into the frame of an error.
    """

    headers: Mapping[str, str] = SSE_HEADERS

    def __init__(
        self, *, id: str, model: str, input_tokens: int | None, request_id: str | None = None
    ) -> None:
        self._request_id = request_id
        self._message = _message(id, model, usage={"input_tokens": input_tokens or 0, "output_tokens": 0})
        self._frames = _Frames()
        self._blocks = Blocks(self._frames)
        self._said = 0  # characters
        self._begun = False
        self._finished = False
        self._failed = False

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """The frames for a batch; empty once the stream has failed.

        ProviderError for a finish that is none, and OutOfOrder when blocks that were sent are taken back.
        """
        if self._failed or not batch:
            return b""
        frames, blocks = self._frames, self._blocks
        if not self._begun:
            self._begun = True
            frames.put(b"message_start", {"type": "message_start", "message": self._message})
        for event in batch:
            if type(event) is e.TextDelta and event.id == blocks.text and event.provider_metadata is None:
                frames.out += (frames.text, _encode(event.delta), b"}}\n\n")
                self._said += len(event.delta)
            else:
                self._add(event)
        return frames.take()

    def fail(self, error: DragomanError, *, request_id: str | None = None) -> bytes:
        """The frame that tells the client that the answer failed; nothing comes after it."""
        if self._failed:
            return b""
        self._failed = True
        self._frames.put(b"error", error_body(error, request_id=request_id or self._request_id))
        return self._frames.take()

    def ping(self) -> bytes:
        """The frame that keeps a quiet connection alive."""
        return _PING

    def end(self) -> bytes:
        """`message_stop`; empty after a failure. ProviderError when the answer has no finish."""
        if self._failed:
            return b""
        if not self._finished:
            raise unfinished("ended without a finish")
        return _STOP

    def _add(self, event: e.Event) -> None:
        match event:
            case e.FinishStep():
                self._finish(event)
            case e.ResetStep() if self._blocks.begun:
                raise OutOfOrder("an Anthropic stream cannot take back what it has said")
            case e.ResetStep():
                self._blocks = Blocks(self._frames)
            case e.ErrorEvent():
                raise broken(event)
            case _:
                self._said += length_of(event)
                self._blocks.add(event)

    def _finish(self, event: e.FinishStep) -> None:
        stop = write_stop(event)
        self._blocks.settle()
        self._finished = True
        usage = filled_usage(event.usage, self._said)
        self._frames.put(b"message_delta", {"type": "message_delta", "delta": stop, "usage": usage})


def whole(events: Iterable[e.Event], *, id: str, model: str, input_tokens: int | None = None) -> bytes:
    """The events as one message. ProviderError when they have no finish, or tell of a failure.

    `input_tokens` stands in where the finish does not know them.
    """
    content = _Content()
    blocks = Blocks(content)
    finish: e.FinishStep | None = None
    said = 0
    for event in events:
        said += length_of(event)
        match event:
            case e.FinishStep():
                finish = event
            case e.ErrorEvent():
                raise broken(event)
            case e.ResetStep():
                content = _Content()
                blocks = Blocks(content)
            case _:
                blocks.add(event)
    if finish is None:
        raise unfinished("ended without a finish")
    blocks.settle()
    usage = {"input_tokens": input_tokens or 0, **filled_usage(finish.usage, said)}
    return _encode({**_message(id, model, usage=usage), "content": content.blocks, **write_stop(finish)})


def broken(event: e.ErrorEvent) -> ProviderError:
    """The failure that an event tells of."""
    return ProviderError(event.error_text, category="api_error", transient=bool(event.transient))


def _message(id: str, model: str, *, usage: Mapping[str, Any]) -> dict[str, Any]:
    """A message without content yet."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "usage": usage,
    }


class _Frames:
    """Blocks as frames. `text` is the start of the frames of the block that is open."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.text = b""
        self._index = -1
        self._grow = b""

    def put(self, name: bytes, body: Mapping[str, Any]) -> None:
        """Add a frame."""
        self.out += (b"event: ", name, b"\ndata: ", _encode(body), b"\n\n")

    def take(self) -> bytes:
        """What was written since the last time."""
        written = b"".join(self.out)
        self.out.clear()
        return written

    def open(self, block: Mapping[str, Any]) -> None:
        """See `Sink.open`."""
        self._index += 1
        head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
        self._grow = head % self._index
        self.text = self._grow + b'{"type":"text_delta","text":'
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        self.put(b"content_block_start", start)

    def grow(self, delta: Mapping[str, Any]) -> None:
        """See `Sink.grow`."""
        self.out += (self._grow, _encode(delta), b"}\n\n")

    def close(self) -> None:
        """See `Sink.close`."""
        self.put(b"content_block_stop", {"type": "content_block_stop", "index": self._index})


class _Content:
    """Blocks as the content of a message."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._pieces: list[str] = []  # of what the open block grows by
        self._field = ""  # where they go

    def open(self, block: Mapping[str, Any]) -> None:
        """See `Sink.open`."""
        self.blocks.append(dict(block))

    def grow(self, delta: Mapping[str, Any]) -> None:
        """See `Sink.grow`."""
        match delta:
            case {"type": "citations_delta", "citation": citation}:
                self.blocks[-1].setdefault("citations", []).append(citation)
            case {"type": "signature_delta", "signature": signature}:
                self.blocks[-1]["signature"] = signature
            case {"text": piece} | {"thinking": piece} | {"partial_json": piece}:
                self._field = "input" if "partial_json" in delta else str(delta["type"]).split("_")[0]
                self._pieces.append(piece)
            case _:
                pass

    def close(self) -> None:
        """See `Sink.close`."""
        said, self._pieces = "".join(self._pieces), []
        if self._field == "input":
            value = parse(said)
            self.blocks[-1]["input"] = value if isinstance(value, dict) else {BROKEN: said}
        elif self._field:
            self.blocks[-1][self._field] = said
        self._field = ""
