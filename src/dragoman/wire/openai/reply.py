"""OpenAI's chat.completions answer out: events as chunks for a streaming client, or as one whole object.

A finish, a usage or a `[DONE]` is never invented: an answer without its finish is an error. Of the hub's
finish reasons `other` becomes `stop`, for the provider did end the answer; `error` and `aborted` are none.
Source: wire notes on providers, §4.2, §10.2 and §10.5.
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
    Unauthorized,
)
from dragoman.wire.dialect import DONE, SSE_HEADERS
from dragoman.wire.openai.reply_delta import FINISHES, Delta, Deltas, Fragment

# ---- Errors out to an OpenAI client: the body and status that its SDK knows how to raise.
# Source: wire notes on providers, §4.7 and §10.5.

_INVALID = "invalid_request_error"
_SERVER = "server_error"
_STATUSES: Mapping[str, int] = {
    "rate_limit": 429,
    "overloaded": 503,
    "auth": 401,
    "bad_request": 400,
    "context_limit": 400,
    "content_filter": 400,
    "timeout": 504,
}
_KINDS: Mapping[str, tuple[str, str | None]] = {  # by category: type and code
    "rate_limit": ("rate_limit_error", "rate_limit_exceeded"),
    "overloaded": (_SERVER, "overloaded"),
    "api_error": (_SERVER, "api_error"),
    "auth": ("authentication_error", "provider_auth"),
    "bad_request": (_INVALID, None),
    "context_limit": (_INVALID, "context_length_exceeded"),
    "content_filter": (_INVALID, "content_filter"),
    "timeout": (_SERVER, "timeout"),
}
_TYPES: Mapping[int, str] = {403: "permission_error", 429: "rate_limit_error"}
_QUOTA = "insufficient_quota"


def status_of(error: DragomanError) -> int:
    """The HTTP status: the provider's own if it gave one, else what its category or the error stands for."""
    if not isinstance(error, ProviderError):
        return error.status
    given = error.upstream_status
    if given is not None and 400 <= given <= 599:
        return given
    return _STATUSES.get(error.category, 502)


def error_body(error: DragomanError) -> dict[str, object]:
    """`{"error": {message, type, param, code}}`, strings or null; the provider's own words if it has them."""
    details = error.details if isinstance(error, ProviderError) else None
    if details is not None and _is_openais(details):
        return {"error": {"message": error.message, **{key: _word(details.get(key)) for key in _WORDS}}}
    kind, code = _kind(error)
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    param = error.field if isinstance(error, BadRequest) else None
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_WORDS = ("type", "param", "code")


def _is_openais(details: Mapping[str, Any]) -> bool:
    return "type" in details and ("code" in details or "param" in details)


def _word(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _kind(error: DragomanError) -> tuple[str, str | None]:
    match error:
        case ProviderError(category="rate_limit", transient=False) | BudgetExhausted():
            return _QUOTA, _QUOTA
        case ProviderError():
            return _KINDS.get(error.category, (_SERVER, error.category))
        case LimitReached():
            return _KINDS["rate_limit"]
        case Unauthorized():
            return "authentication_error", "invalid_api_key"
        case NotFound():
            return _INVALID, "model_not_found"  # there is nothing else to be found behind this door
        case _:
            other = _SERVER if error.status >= 500 else _INVALID
            return _TYPES.get(error.status, other), error.code


__all__ = ["ChatStream", "error_body", "status_of", "whole"]

_encode = msgspec.json.Encoder().encode
_UNUSED = b',"usage":null'


class ChatStream:
    """One answer as chunks; pure. `include_usage`: the client asked for the usage chunk."""

    headers: Mapping[str, str] = SSE_HEADERS

    def __init__(self, *, id: str, model: str, created: int, include_usage: bool) -> None:
        head = b'{"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _encode(id),
            created,
            _encode(model),
        )
        self._head = b"data: " + head
        self._open = self._head + b'{"index":0,"delta":'
        self._shut = b',"finish_reason":null}]' + (_UNUSED if include_usage else b"") + b"}\n\n"
        self._content = self._open + b'{"content":'
        self._reasoning = self._open + b'{"reasoning_content":'
        self._close = b"}" + self._shut
        self._include_usage = include_usage
        self._deltas = Deltas()
        self._failed = False

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """The chunks for a batch; empty when the client has no words for it, or the stream is over."""
        if self._failed:
            return b""
        deltas = self._deltas
        frames: list[bytes] = []
        for event in batch:
            if type(event) is e.TextDelta and event.id == deltas.text:
                deltas.length += len(event.delta)
                frames += (self._content, _encode(event.delta), self._close)
            else:
                frames += self._frames(event)
        return b"".join(frames)

    def fail(self, error: DragomanError) -> bytes:
        """The frame that tells the client that the answer failed; nothing comes after it."""
        if self._failed:
            return b""
        self._failed = True
        return b"data: " + _encode(error_body(error)) + b"\n\n"

    def end(self) -> bytes:
        """The usage, if it is asked for and known, and `[DONE]`; ProviderError when there was no finish."""
        finish = _finished(self._deltas)
        if self._failed:
            return b""
        usage = write_usage(finish.usage) if self._include_usage else None
        if usage is None:
            return DONE
        return self._head + b'],"usage":' + _encode(usage) + b"}\n\n" + DONE

    def _frames(self, event: e.Event) -> Sequence[bytes]:
        """The same for any event."""
        if type(event) is e.ReasoningDelta and self._deltas.think(event):
            return self._reasoning, _encode(event.delta), self._close
        if type(event) is e.ToolInputDelta and (index := self._deltas.calls.write(event)) is not None:
            begin = b'%b{"tool_calls":[{"index":%d,"function":{"arguments":' % (self._open, index)
            return begin, _encode(event.input_text_delta), b"}}]", self._close
        over = self._deltas.finish is not None
        delta = self._deltas.tell(event)
        if delta is None:
            return ()
        if self._deltas.finish is None or over:
            return self._open, _encode(delta), self._shut
        reason = b'"finish_reason":"%b"' % FINISHES[self._deltas.finish.finish_reason].encode()
        return self._open, _encode(delta), self._shut.replace(b'"finish_reason":null', reason)


def whole(events: Sequence[e.Event], *, id: str, model: str, created: int) -> bytes:
    """The chat.completion object; ProviderError when the answer has no finish."""
    deltas = Deltas()
    told = [delta for event in events if (delta := deltas.tell(event)) is not None]
    finish = _finished(deltas)
    choice = {
        "index": 0,
        "message": _message(told),
        "logprobs": None,
        "finish_reason": FINISHES[finish.finish_reason],
    }
    return _encode(
        {
            "id": id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": write_usage(finish.usage),
        }
    )


def write_usage(usage: e.Usage | None) -> dict[str, Any] | None:
    """Usage in OpenAI's words. What is unknown is left out; None when nothing is known."""
    if usage is None or (usage.input_tokens is None and usage.output_tokens is None):
        return None
    total = usage.total_tokens
    if total is None and usage.input_tokens is not None and usage.output_tokens is not None:
        total = usage.input_tokens + usage.output_tokens
    prompt = _known(cached_tokens=usage.cached_input_tokens, cache_write_tokens=usage.cache_write_tokens)
    completion = _known(reasoning_tokens=usage.reasoning_tokens)
    return _known(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=total,
        prompt_tokens_details=prompt or None,
        completion_tokens_details=completion or None,
        estimated=usage.estimated or None,
    )


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _finished(deltas: Deltas) -> e.FinishStep:
    if deltas.finish is None:
        raise ProviderError(
            "the provider's answer ended without a finish reason", category="network", transient=True
        )
    return deltas.finish


def _message(told: Sequence[Delta]) -> dict[str, Any]:
    """The sum of the deltas."""
    texts: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning_content": []}
    lists: dict[str, list[dict[str, Any]]] = {}
    arguments: list[list[str]] = []
    for delta in told:
        for name, value in delta.items():
            if name in texts and value is not None:
                texts[name].append(value)
            elif name == "tool_calls":
                _call(lists.setdefault(name, []), arguments, fragments=value)
            elif isinstance(value, list):
                lists.setdefault(name, []).extend(value)
    for call, pieces in zip(lists.get("tool_calls", ()), arguments, strict=True):
        call["function"]["arguments"] = "".join(pieces)
    content, refusal, reasoning = ("".join(pieces) if pieces else None for pieces in texts.values())
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal}
    return message | ({"reasoning_content": reasoning} if reasoning else {}) | lists


def _call(calls: list[dict[str, Any]], arguments: list[list[str]], *, fragments: Sequence[Fragment]) -> None:
    for fragment in fragments:
        index = fragment["index"]
        if index == len(calls):
            calls.append({key: value for key, value in fragment.items() if key != "index"})
            arguments.append([])
        arguments[index].append(fragment["function"]["arguments"])
