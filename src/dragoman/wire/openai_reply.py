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
from dragoman.errors import DragomanError, ProviderError
from dragoman.wire.dialect import DONE, SSE_HEADERS
from dragoman.wire.openai_reply_calls import Fragment
from dragoman.wire.openai_reply_delta import FINISHES, Delta, Deltas
from dragoman.wire.openai_reply_error import error_body, status_of

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
