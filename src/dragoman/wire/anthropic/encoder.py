"""Encode events as an Anthropic answer: stream events for a streaming client, or one message.

A finish is never invented: an answer without one is an error. Generated files and sources have no block type
and are omitted; citations of Anthropic's models are sent unchanged. Source: wire notes on providers, §3 and
§6.3 to §6.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.errors import (
    BadRequest,
    BudgetExhausted,
    DragomanError,
    OutOfOrder,
    ProviderError,
    UnknownThread,
)
from dragoman.wire import json_codec
from dragoman.wire.anthropic.encoder_blocks import INVALID_JSON_KEY, BlockEncoder, parse_arguments
from dragoman.wire.anthropic.usage import SERVICE_TIERS
from dragoman.wire.encoder import SSE_HEADERS
from dragoman.wire.provider_errors import incomplete_answer_error

_PING_FRAME = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP_FRAME = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_encode = msgspec.json.Encoder().encode


class AnthropicStreamEncoder:
    """Encodes one message as stream events. Pure.

    `input_tokens` is the estimate in `message_start`; the finish has the provider's count. `request_id` goes
    into an error event.
    """

    headers: Mapping[str, str] = SSE_HEADERS

    def __init__(
        self, *, id: str, model: str, input_tokens: int | None, request_id: str | None = None
    ) -> None:
        self._request_id = request_id
        self._message = _empty_message(
            id, model, usage={"input_tokens": input_tokens or 0, "output_tokens": 0}
        )
        self._frame_writer = _FrameSink()
        self._block_encoder = BlockEncoder(self._frame_writer)
        self._text_length = 0  # characters
        self._started = False
        self._finished = False
        self._failed = False

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """Return the frames for a batch; empty once the stream has failed.

        Raises ProviderError for an invalid finish, and OutOfOrder if blocks that were sent are reset.
        """
        if self._failed or not batch:
            return b""
        frames, blocks = self._frame_writer, self._block_encoder
        if not self._started:
            self._started = True
            frames.write_frame(b"message_start", {"type": "message_start", "message": self._message})
        for event in batch:
            if (
                type(event) is e.TextDelta
                and event.id == blocks.open_text_id
                and event.provider_metadata is None
            ):
                frames.pending += (frames.text_delta_prefix, _encode(event.delta), b"}}\n\n")
                self._text_length += len(event.delta)
            else:
                self._encode_event(event)
        return frames.take_bytes()

    def encode_error(self, error: DragomanError, *, request_id: str | None = None) -> bytes:
        """Return the frame that reports the failure of the answer; nothing follows it."""
        if self._failed:
            return b""
        self._failed = True
        self._frame_writer.write_frame(b"error", error_body(error, request_id=request_id or self._request_id))
        return self._frame_writer.take_bytes()

    def ping(self) -> bytes:
        """Return the frame that keeps an idle connection open."""
        return _PING_FRAME

    def end(self) -> bytes:
        """Return `message_stop`; empty after a failure. Raises ProviderError if the answer has no finish."""
        if self._failed:
            return b""
        if not self._finished:
            raise incomplete_answer_error("ended without a finish")
        return _STOP_FRAME

    def _encode_event(self, event: e.Event) -> None:
        match event:
            case e.FinishStep():
                self._encode_finish(event)
            case e.ResetStep() if self._block_encoder.started:
                raise OutOfOrder("an Anthropic stream cannot take back blocks that were sent")
            case e.ResetStep():
                self._block_encoder = BlockEncoder(self._frame_writer)
            case e.ErrorEvent():
                raise error_from_event(event)
            case _:
                self._text_length += event_text_length(event)
                self._block_encoder.add_event(event)

    def _encode_finish(self, event: e.FinishStep) -> None:
        self._block_encoder.finish()
        stop = encode_stop(event, lacks_calls=self._block_encoder.lacks_calls)
        self._finished = True
        usage = encode_usage_or_estimate(event.usage, self._text_length) | _encode_tier(event)
        self._frame_writer.write_frame(
            b"message_delta", {"type": "message_delta", "delta": stop, "usage": usage}
        )


def encode_document(
    events: Iterable[e.Event], *, id: str, model: str, input_tokens: int | None = None
) -> bytes:
    """Encode the events as one message. Raises ProviderError if they have no finish, or contain an error.

    `input_tokens` is used if the finish does not report them.
    """
    content = _MessageSink()
    blocks = BlockEncoder(content)
    finish: e.FinishStep | None = None
    text_length = 0
    for event in events:
        text_length += event_text_length(event)
        match event:
            case e.FinishStep():
                finish = event
            case e.ErrorEvent():
                raise error_from_event(event)
            case e.ResetStep():
                content = _MessageSink()
                blocks = BlockEncoder(content)
            case _:
                blocks.add_event(event)
    if finish is None:
        raise incomplete_answer_error("ended without a finish")
    blocks.finish()
    stop = encode_stop(finish, lacks_calls=blocks.lacks_calls)
    counts = encode_usage_or_estimate(finish.usage, text_length)
    usage = {"input_tokens": input_tokens or 0, **counts, **_encode_tier(finish)}
    return json_codec.encode_document(
        {**_empty_message(id, model, usage=usage), "content": content.blocks, **stop}
    )


def error_from_event(event: e.ErrorEvent) -> ProviderError:
    """Return the ProviderError for an error event."""
    return ProviderError(event.error_text, category="api_error", transient=bool(event.transient))


def _empty_message(id: str, model: str, *, usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without content."""
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


class _FrameSink:
    """Writes blocks as stream events. `text_delta_prefix` is the start of a text delta of the open block."""

    def __init__(self) -> None:
        self.pending: list[bytes] = []
        self.text_delta_prefix = b""
        self._index = -1
        self._delta_prefix = b""

    def write_frame(self, name: bytes, body: Mapping[str, Any]) -> None:
        """Add a frame."""
        self.pending += (b"event: ", name, b"\ndata: ", _encode(body), b"\n\n")

    def take_bytes(self) -> bytes:
        """Return the bytes since the last call."""
        frames = b"".join(self.pending)
        self.pending.clear()
        return frames

    def start_block(self, block: Mapping[str, Any]) -> None:
        """See `BlockSink.start_block`."""
        self._index += 1
        prefix = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
        self._delta_prefix = prefix % self._index
        self.text_delta_prefix = self._delta_prefix + b'{"type":"text_delta","text":'
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        self.write_frame(b"content_block_start", start)

    def add_delta(self, delta: Mapping[str, Any]) -> None:
        """See `BlockSink.add_delta`."""
        self.pending += (self._delta_prefix, _encode(delta), b"}\n\n")

    def end_block(self) -> None:
        """See `BlockSink.end_block`."""
        self.write_frame(b"content_block_stop", {"type": "content_block_stop", "index": self._index})


class _MessageSink:
    """Collects blocks as the content of a message."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._deltas: list[str] = []  # deltas of the open block
        self._field = ""  # the field of the block that they belong to

    def start_block(self, block: Mapping[str, Any]) -> None:
        """See `BlockSink.start_block`."""
        self.blocks.append(dict(block))

    def add_delta(self, delta: Mapping[str, Any]) -> None:
        """See `BlockSink.add_delta`."""
        match delta:
            case {"type": "citations_delta", "citation": citation}:
                self.blocks[-1].setdefault("citations", []).append(citation)
            case {"type": "signature_delta", "signature": signature}:
                self.blocks[-1]["signature"] = signature
            case {"text": text} | {"thinking": text} | {"partial_json": text}:
                self._field = "input" if "partial_json" in delta else str(delta["type"]).split("_")[0]
                self._deltas.append(text)
            case _:
                pass

    def end_block(self) -> None:
        """See `BlockSink.end_block`."""
        text, self._deltas = "".join(self._deltas), []
        if self._field == "input":
            value = parse_arguments(text)
            self.blocks[-1]["input"] = value if isinstance(value, dict) else {INVALID_JSON_KEY: text}
        elif self._field:
            self.blocks[-1][self._field] = text
        self._field = ""


# ---- Errors: the body and status that Anthropic's SDK recognises
# Source: wire notes on providers, §6.6.

_CATEGORY_STATUSES: Mapping[str, int] = {  # by category
    "rate_limit": 429,
    "overloaded": 529,
    "auth": 401,
    "bad_request": 400,
    "context_limit": 400,
    "content_filter": 400,
    "timeout": 504,
}
_STATUS_TYPES: Mapping[int, str] = {  # by status
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
_ERROR_TYPES = frozenset({*_STATUS_TYPES.values(), "api_error"})
_TOO_LONG = "prompt is too long"


def error_status(error: DragomanError) -> int:
    """Return the HTTP status: the provider's own, else that of the error's category or class."""
    if not isinstance(error, ProviderError):
        return error.status
    upstream_status = error.upstream_status
    if upstream_status is not None and 400 <= upstream_status <= 599:
        return upstream_status
    return _CATEGORY_STATUSES.get(error.category, 502)


def error_body(error: DragomanError, *, request_id: str | None) -> dict[str, object]:
    """Return `{"type": "error", "error": {type, message}, "request_id"}`; Anthropic's own error is kept."""
    inner = _upstream_error(error.details) if isinstance(error, ProviderError) else None
    if inner is not None and error.hint:
        inner["message"] = f"{inner['message']} ({error.hint})"
    return {"type": "error", "error": inner or _own_error(error), "request_id": request_id}


def _upstream_error(details: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The error if it has Anthropic's shape; OpenAI's has other fields beside a type that can be the same."""
    fields = details or {}
    if fields.get("type") == "error" and isinstance(fields.get("error"), Mapping):
        fields = fields["error"]
    if fields.get("type") not in _ERROR_TYPES or not isinstance(fields.get("message"), str):
        return None
    return None if "code" in fields or "param" in fields else dict(fields)


def _own_error(error: DragomanError) -> dict[str, Any]:
    status = error_status(error)
    error_type = _STATUS_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    if isinstance(error, BudgetExhausted):
        error_type = "billing_error"
    message = error.message
    if isinstance(error, ProviderError) and error.category == "context_limit" and _TOO_LONG not in message:
        message = f"{_TOO_LONG}: {message}"  # clients recognise this text and shorten the conversation
    if isinstance(error, BadRequest) and error.field and error.field not in message:
        message = f"{error.field}: {message}"
    body: dict[str, Any] = {
        "type": error_type,
        "message": f"{message} ({error.hint})" if error.hint else message,
    }
    if isinstance(error, UnknownThread):
        body["details"] = {"error_code": "thread_not_found"}  # SDKs send the whole conversation then
    return body


# ---- Stop reason and usage
# The SDKs require numbers: without a count, the input is the estimate from the message's start, and the
# output is estimated too and marked `estimated`. A known count is never replaced by an estimate.

_CHARACTERS_PER_TOKEN = 4
_STOP_REASONS: Mapping[e.FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool-calls": "tool_use",
    "content-filter": "refusal",
    "max-steps": "end_turn",
    "other": "end_turn",
}


def encode_stop(finish: e.FinishStep, *, lacks_calls: bool) -> dict[str, Any]:
    """Return stop reason and stop sequence; Anthropic's own if it gave them. Raises ProviderError if there is
    none.

    Some servers say `tool_calls` after a plain text: clients would look for a call to answer (`lacks_calls`).
    """
    metadata = (finish.provider_metadata or {}).get("anthropic", {})
    stop_sequence = metadata.get("stopSequence")
    stop_reason = metadata.get("stopReason")
    if stop_reason is None and stop_sequence is not None:
        stop_reason = "stop_sequence"
    if stop_reason is None and finish.finish_reason is not None:
        reason = "stop" if lacks_calls and finish.finish_reason == "tool-calls" else finish.finish_reason
        stop_reason = _STOP_REASONS.get(reason)
    if stop_reason is None:
        raise incomplete_answer_error(f"ended with {finish.finish_reason!r}, which is not a finish reason")
    stop = {
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "stop_details": metadata.get("stopDetails"),
    }
    return {**stop, "container": metadata["container"]} if metadata.get("container") else stop


def _encode_tier(finish: e.FinishStep) -> dict[str, str]:
    """Encode the service tier as a part of usage; nothing for one that Anthropic does not have."""
    found = next((word for word, tier in SERVICE_TIERS.items() if tier == finish.service_tier), None)
    return {} if found is None else {"service_tier": found}


def encode_usage(usage: e.Usage | None) -> dict[str, Any]:
    """Encode the known counts in Anthropic's format: input tokens exclude cache reads and writes."""
    if usage is None:
        return {}
    cache_read, cache_write, uncached = (
        usage.cached_input_tokens,
        usage.cache_write_tokens,
        usage.input_tokens,
    )
    if uncached is not None:
        uncached = max(0, uncached - (cache_read or 0) - (cache_write or 0))
    reasoning = usage.reasoning_tokens
    counts = {
        "input_tokens": uncached,
        "cache_creation_input_tokens": cache_write,
        "cache_read_input_tokens": cache_read,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": None if reasoning is None else {"thinking_tokens": reasoning},
        "cache_creation": _cache_creation(usage),
        "server_tool_use": {"web_search_requests": usage.web_searches} if usage.web_searches else None,
    }
    return {name: count for name, count in counts.items() if count is not None}


def _cache_creation(usage: e.Usage) -> dict[str, int] | None:
    """Encode the cache writes by lifetime, if some are for an hour."""
    hour = usage.hour_cache_write_tokens
    if not hour:
        return None
    short = max(0, (usage.cache_write_tokens or 0) - hour)
    return {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": hour}


def encode_usage_or_estimate(usage: e.Usage | None, text_length: int) -> dict[str, Any]:
    """Encode the counts; an unknown output count is estimated from `text_length`, in characters."""
    counts = encode_usage(usage)
    if text_length and not counts.get("output_tokens"):
        return {**counts, "output_tokens": -(-text_length // _CHARACTERS_PER_TOKEN), "estimated": True}
    return {"output_tokens": 0, **counts}


def event_text_length(event: e.Event) -> int:
    """Return the number of characters that an event adds to the answer."""
    match event:
        case e.TextDelta() | e.ReasoningDelta():
            return len(event.delta)
        case e.ToolInputDelta():
            return len(event.input_text_delta)
        case _:
            return 0
