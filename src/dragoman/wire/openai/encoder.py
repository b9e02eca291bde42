"""Encode events as a chat.completions answer: chunks for a streaming client, or one object.

A finish, usage or `[DONE]` is never invented: an answer without a finish is an error. The finish reason
`other` becomes `stop`, since the provider ended the answer; `error` and `aborted` are not finishes. Source:
wire notes on providers, §4.2, §10.2 and §10.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.errors import (
    BadRequest,
    BudgetExhausted,
    DragomanError,
    LimitReached,
    NotFound,
    ProviderError,
    ResponseNotFound,
    Unauthorized,
    UnknownAddress,
)
from dragoman.wire import json_codec
from dragoman.wire.encoder import SSE_HEADERS
from dragoman.wire.openai.encoder_deltas import FINISH_REASONS, CallFragment, DeltaEncoder, MessageDelta
from dragoman.wire.sse import DONE_FRAME

_encode = msgspec.json.Encoder().encode
_NULL_USAGE = b',"usage":null'


class OpenAIStreamEncoder:
    """Encodes one answer as chunks; pure.

    `include_usage`: the client asked for the usage chunk. `calls_functions`: it reads a call in its old form.
    """

    headers: Mapping[str, str] = SSE_HEADERS

    def __init__(
        self, *, id: str, model: str, created: int, include_usage: bool, calls_functions: bool = False
    ) -> None:
        prefix = b'{"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _encode(id),
            created,
            _encode(model),
        )
        self._chunk_prefix = b"data: " + prefix
        self._delta_prefix = self._chunk_prefix + b'{"index":0,"delta":'
        self._chunk_suffix = b',"finish_reason":null}]' + (_NULL_USAGE if include_usage else b"") + b"}\n\n"
        self._content_prefix = self._delta_prefix + b'{"content":'
        self._reasoning_prefix = self._delta_prefix + b'{"reasoning_content":'
        self._delta_suffix = b"}" + self._chunk_suffix
        self._include_usage = include_usage
        self._calls_functions = calls_functions
        self._delta_encoder = DeltaEncoder()
        self._failed = False

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """Return the chunks for a batch; empty if the protocol has none for it, or the stream has failed."""
        if self._failed:
            return b""
        deltas = self._delta_encoder
        frames: list[bytes] = []
        for event in batch:
            if type(event) is e.TextDelta and event.id == deltas.open_text_id:
                deltas.text_length += len(event.delta)
                frames += (self._content_prefix, _encode(event.delta), self._delta_suffix)
            else:
                frames += self._encode_event(event)
        return b"".join(frames)

    def encode_error(self, error: DragomanError) -> bytes:
        """Return the frame that reports the failure of the answer; nothing follows it."""
        if self._failed:
            return b""
        self._failed = True
        return b"data: " + _encode(error_body(error)) + b"\n\n"

    def end(self) -> bytes:
        """Return the usage, if requested and known, and `[DONE]`; ProviderError if there was no finish."""
        finish = _require_finish(self._delta_encoder)
        if self._failed:
            return b""
        usage = encode_usage(finish.usage) if self._include_usage else None
        if usage is None:
            return DONE_FRAME
        tier = _encode_tier(finish)
        return self._chunk_prefix + b"]" + tier + b',"usage":' + _encode(usage) + b"}\n\n" + DONE_FRAME

    def _encode_event(self, event: e.Event) -> Sequence[bytes]:
        """Encode any single event."""
        if type(event) is e.ReasoningDelta and self._delta_encoder.append_reasoning(event):
            return self._reasoning_prefix, _encode(event.delta), self._delta_suffix
        if (
            type(event) is e.ToolInputDelta
            and not self._calls_functions
            and (index := self._delta_encoder.tool_calls.append_arguments(event)) is not None
        ):
            prefix = b'%b{"tool_calls":[{"index":%d,"function":{"arguments":' % (self._delta_prefix, index)
            return prefix, _encode(event.input_text_delta), b"}}]", self._delta_suffix
        was_finished = self._delta_encoder.finish is not None
        delta = self._delta_encoder.encode(event)
        if delta is None:
            return ()
        if self._calls_functions:
            delta = to_function_call(delta)
        if self._delta_encoder.finish is None or was_finished:
            return self._delta_prefix, _encode(delta), self._chunk_suffix
        finish = self._delta_encoder.finish
        end = b'"finish_reason":"%b"}]%b' % (self._finish_reason(finish).encode(), _encode_tier(finish))
        return self._delta_prefix, _encode(delta), self._chunk_suffix.replace(b'"finish_reason":null}]', end)

    def _finish_reason(self, finish: e.FinishStep) -> str:
        return finish_reason(finish, calls_functions=self._calls_functions)


def encode_document(
    events: Sequence[e.Event], *, id: str, model: str, created: int, calls_functions: bool = False
) -> bytes:
    """Encode the chat.completion object. Raises ProviderError if the answer has no finish."""
    deltas = DeltaEncoder()
    message_deltas = [delta for event in events if (delta := deltas.encode(event)) is not None]
    finish, message = _require_finish(deltas), _join_deltas(message_deltas)
    choice = {
        "index": 0,
        "message": to_function_call(message) if calls_functions else message,
        "logprobs": None,
        "finish_reason": finish_reason(finish, calls_functions=calls_functions),
    }
    return json_codec.encode_document(
        {
            "id": id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": encode_usage(finish.usage),
            **({} if finish.service_tier is None else {"service_tier": finish.service_tier}),
        }
    )


def _encode_tier(finish: e.FinishStep) -> bytes:
    """Return the field of a chunk for the service tier; nothing where it is not known."""
    return b"" if finish.service_tier is None else b',"service_tier":' + _encode(finish.service_tier)


def finish_reason(finish: e.FinishStep, *, calls_functions: bool) -> str:
    """Return the finish reason; for a client of `functions` a call has another one."""
    reason = FINISH_REASONS[finish.finish_reason]
    return "function_call" if calls_functions and reason == "tool_calls" else reason


def to_function_call(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message or delta with its first call as a `function_call`, the form before `tools`.

    Further calls stay as they are: that form has room for one.
    """
    calls = message.get("tool_calls") or ()
    others = [call for position, call in enumerate(calls) if call.get("index", position) > 0]
    first = next((call["function"] for call in calls if call not in others), None)
    found = {name: value for name, value in message.items() if name != "tool_calls"}
    if first is not None:
        found["function_call"] = first
    return {**found, "tool_calls": others} if others else found


def encode_usage(usage: e.Usage | None) -> dict[str, Any] | None:
    """Encode usage in OpenAI's format. Unknown counts are omitted; None if nothing is known."""
    if usage is None or (usage.input_tokens is None and usage.output_tokens is None):
        return None
    total = usage.total_tokens
    if total is None and usage.input_tokens is not None and usage.output_tokens is not None:
        total = usage.input_tokens + usage.output_tokens
    prompt = _without_none(
        cached_tokens=usage.cached_input_tokens, cache_write_tokens=usage.cache_write_tokens
    )
    completion = _without_none(reasoning_tokens=usage.reasoning_tokens)
    return _without_none(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=total,
        prompt_tokens_details=prompt or None,
        completion_tokens_details=completion or None,
        estimated=usage.estimated or None,
    )


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _require_finish(deltas: DeltaEncoder) -> e.FinishStep:
    if deltas.finish is None:
        raise ProviderError(
            "the provider's answer ended without a finish reason", category="network", transient=True
        )
    return deltas.finish


def _join_deltas(message_deltas: Sequence[MessageDelta]) -> dict[str, Any]:
    """Join the deltas to one message."""
    texts: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning_content": []}
    lists: dict[str, list[dict[str, Any]]] = {}
    opaque: dict[str, Any] = {}
    arguments: list[list[str]] = []
    for delta in message_deltas:
        for name, value in delta.items():
            if name in texts and value is not None:
                texts[name].append(value)
            elif name == "tool_calls":
                _merge_call(lists.setdefault(name, []), arguments, fragments=value)
            elif isinstance(value, list):
                lists.setdefault(name, []).extend(value)
            elif name == "reasoning_opaque":
                opaque[name] = value
    for call, pieces in zip(lists.get("tool_calls", ()), arguments, strict=True):
        call["function"]["arguments"] = "".join(pieces)
    content, refusal, reasoning = ("".join(pieces) if pieces else None for pieces in texts.values())
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal}
    return message | ({"reasoning_content": reasoning} if reasoning else {}) | opaque | lists


def _merge_call(
    calls: list[dict[str, Any]], arguments: list[list[str]], *, fragments: Sequence[CallFragment]
) -> None:
    for fragment in fragments:
        index = fragment["index"]
        if index == len(calls):
            calls.append({key: value for key, value in fragment.items() if key != "index"})
            arguments.append([])
        arguments[index].append(fragment["function"]["arguments"])


# ---- Errors: the body and status that OpenAI's SDK recognises
# Source: wire notes on providers, §4.7 and §10.5.

_INVALID_REQUEST = "invalid_request_error"
_SERVER_ERROR = "server_error"
_CATEGORY_STATUSES: Mapping[str, int] = {
    "rate_limit": 429,
    "overloaded": 503,
    "auth": 401,
    "bad_request": 400,
    "context_limit": 400,
    "content_filter": 400,
    "timeout": 504,
}
_CATEGORY_TYPES: Mapping[str, tuple[str, str | None]] = {  # by category: type and code
    "rate_limit": ("rate_limit_error", "rate_limit_exceeded"),
    "overloaded": (_SERVER_ERROR, "overloaded"),
    "api_error": (_SERVER_ERROR, "api_error"),
    "auth": ("authentication_error", "provider_auth"),
    "bad_request": (_INVALID_REQUEST, None),
    "context_limit": (_INVALID_REQUEST, "context_length_exceeded"),
    "content_filter": (_INVALID_REQUEST, "content_filter"),
    "timeout": (_SERVER_ERROR, "timeout"),
}
_STATUS_TYPES: Mapping[int, str] = {403: "permission_error", 429: "rate_limit_error"}
_QUOTA = "insufficient_quota"


def error_status(error: DragomanError) -> int:
    """Return the HTTP status: the provider's own, else that of the error's category or class."""
    if not isinstance(error, ProviderError):
        return error.status
    upstream_status = error.upstream_status
    if upstream_status is not None and 400 <= upstream_status <= 599:
        return upstream_status
    return _CATEGORY_STATUSES.get(error.category, 502)


def error_body(error: DragomanError) -> dict[str, object]:
    """Return `{"error": {message, type, param, code}}`, strings or null; the provider's own fields if
    known.
    """
    message = error.message_and_hint
    details = error.details if isinstance(error, ProviderError) else None
    if details is not None and _is_openai_error(details):
        return {
            "error": {
                "message": message,
                **{key: _text_or_none(details.get(key)) for key in _DETAIL_FIELDS},
            }
        }
    error_type, code = _type_and_code(error)
    param = error.field if isinstance(error, BadRequest) else None
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


_DETAIL_FIELDS = ("type", "param", "code")


def _is_openai_error(details: Mapping[str, Any]) -> bool:
    return "type" in details and ("code" in details or "param" in details)


def _text_or_none(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _type_and_code(error: DragomanError) -> tuple[str, str | None]:
    match error:
        case ProviderError(category="rate_limit", transient=False) | BudgetExhausted():
            return _QUOTA, _QUOTA
        case ProviderError():
            return _CATEGORY_TYPES.get(error.category, (_SERVER_ERROR, error.category))
        case LimitReached():
            return _CATEGORY_TYPES["rate_limit"]
        case Unauthorized():
            return "authentication_error", "invalid_api_key"
        case ResponseNotFound():
            return _INVALID_REQUEST, error.code
        case UnknownAddress():
            return _INVALID_REQUEST, "unknown_url"
        case NotFound():
            return _INVALID_REQUEST, "model_not_found"  # all that other requests name
        case _:
            default_type = _SERVER_ERROR if error.status >= 500 else _INVALID_REQUEST
            return _STATUS_TYPES.get(error.status, default_type), error.code
