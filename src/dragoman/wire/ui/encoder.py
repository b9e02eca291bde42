"""Encode events as the AI SDK's UI message stream.

Uses the subset that every v6 and v7 client accepts, with the keys of 6.0.1 only, unless the client asked for
`sdk=7`. Source: wire notes on the AI SDK, sections a and c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.wire.encoder import SSE_HEADERS
from dragoman.wire.sse import DONE_FRAME
from dragoman.wire.step_splitting import DENIED

SdkVersion = Literal[6, 7]
FINISH_REASONS = frozenset({"stop", "length", "content-filter", "tool-calls", "error", "other"})

_encoder = msgspec.json.Encoder()
_FRAME_END = b"\n\n"
# AI SDK 6 cannot drop what it has. What is withdrawn stays until the next load, in a step of its own that
# ends with a data part: by it a page knows what not to show. Without an id, since parts of one id are merged.
_STEP_CHANGE = (
    b'data: {"type":"data-reset-step","data":{}}\n\n'
    b'data: {"type":"finish-step"}\n\ndata: {"type":"start-step"}\n\n'
)


class UIStreamEncoder:
    """Encodes one response as a UI message stream."""

    headers: Mapping[str, str] = {**SSE_HEADERS, "x-vercel-ai-ui-message-stream": "v1"}

    def __init__(self, *, sdk: SdkVersion = 6) -> None:
        self._converters = _SDK7_CONVERTERS if sdk == 7 else _SDK6_CONVERTERS
        self._denials: dict[str, str | None] = {}

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """Return the batch as `data:` frames."""
        frames = bytearray()
        for event in batch:
            convert = self._converters.get(type(event))
            converted = convert(event) if convert else event
            if converted is None:
                if type(event) is e.ToolApprovalResponse:
                    self._drop_request(frames, event)
                elif type(event) is e.ToolOutputDenied:
                    frames += self._encode_denial(event)
                elif type(event) is e.ResetStep:
                    frames += _STEP_CHANGE
                continue
            payload = _encoder.encode(converted)
            if b"__proto__" in payload or b'"prototype"' in payload:
                payload = _encoder.encode(remove_unsafe_keys(msgspec.json.decode(payload)))
            frames += b"data: " + payload + b"\n\n"
        return bytes(frames)

    def _drop_request(self, frames: bytearray, response: e.ToolApprovalResponse) -> None:
        """Remove a request from the frames of a replay that has its response too.

        AI SDK 6 knows no frame for a response: a call with a request, without a response and with an output
        fails its `validateUIMessages`.
        """
        prefix = b"data: " + _encoder.encode(e.ToolApprovalRequest(response.approval_id, ""))[:-2]
        start = frames.rfind(prefix)
        if start < 0:
            return
        end = frames.index(_FRAME_END, start)
        request = msgspec.json.decode(frames[start + len(b"data: ") : end])
        del frames[start : end + len(_FRAME_END)]
        if not response.approved:
            self._denials[request["toolCallId"]] = response.reason

    def _encode_denial(self, event: e.ToolOutputDenied) -> bytes:
        """Return the frame of a denial: an error if the client has not got the request."""
        frame: e.Event = event
        if event.tool_call_id in self._denials:
            reason = self._denials.pop(event.tool_call_id)
            frame = e.ToolOutputError(event.tool_call_id, f"{DENIED}: {reason}" if reason else DENIED)
        return b"data: " + _encoder.encode(frame) + _FRAME_END

    def end(self) -> bytes:
        """Return `[DONE]`, as the SDK's own server does."""
        return DONE_FRAME


def remove_unsafe_keys(value: Any) -> Any:
    """Remove the keys that the SDK's JSON parser rejects: `__proto__` and `constructor.prototype`."""
    if isinstance(value, list):
        return [remove_unsafe_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: remove_unsafe_keys(item) for key, item in value.items() if not _is_unsafe(key, item)}


def _is_unsafe(key: str, value: Any) -> bool:
    return key == "__proto__" or (key == "constructor" and isinstance(value, dict) and "prototype" in value)


def _convert_finish(event: e.Finish) -> e.Finish:
    event_reason = event.finish_reason
    finish_reason = event_reason if event_reason is None or event_reason in FINISH_REASONS else "other"
    return e.Finish(finish_reason=finish_reason, message_metadata=event.message_metadata)


def _without_provider_metadata(event: Any) -> Any:
    return event if event.provider_metadata is None else replace(event, provider_metadata=None)


EventConverter = Callable[[Any], "e.Event | None"]

_SDK7_CONVERTERS: Mapping[type, EventConverter] = {
    e.FinishStep: lambda _: e.FinishStep(),
    e.ErrorEvent: lambda event: e.ErrorEvent(event.error_text),
    e.Finish: _convert_finish,
}
_SDK6_CONVERTERS: Mapping[type, EventConverter] = {
    **_SDK7_CONVERTERS,
    e.ToolInputStart: _without_provider_metadata,
    e.ToolOutputAvailable: _without_provider_metadata,
    e.ToolOutputError: _without_provider_metadata,
    e.ToolApprovalResponse: lambda _: None,
    e.ToolOutputDenied: lambda _: None,
    e.ResetStep: lambda _: None,
    e.Abort: lambda _: e.Abort(),
}
