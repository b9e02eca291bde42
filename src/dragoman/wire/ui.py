"""The AI SDK's UI message stream out. Source: wire notes on the AI SDK, sections a and c.

Speaks the subset that every v6 and v7 client takes, with the keys of 6.0.1 only, unless the client
asked for `sdk=7`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.wire.dialect import DONE, SSE_HEADERS

Sdk = Literal[6, 7]
FINISH_REASONS = frozenset({"stop", "length", "content-filter", "tool-calls", "error", "other"})

_encoder = msgspec.json.Encoder()


class UIStream:
    """One response in the UI dialect."""

    headers: Mapping[str, str] = {**SSE_HEADERS, "x-vercel-ai-ui-message-stream": "v1"}

    def __init__(self, *, sdk: Sdk = 6) -> None:
        self._spellings = _SEVEN if sdk == 7 else _SIX

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """The batch as `data:` frames."""
        frames = bytearray()
        for event in batch:
            spell = self._spellings.get(type(event))
            spoken = spell(event) if spell else event
            if spoken is None:
                continue
            payload = _encoder.encode(spoken)
            if b"__proto__" in payload or b'"prototype"' in payload:
                payload = _encoder.encode(harmless(msgspec.json.decode(payload)))
            frames += b"data: " + payload + b"\n\n"
        return bytes(frames)

    def end(self) -> bytes:
        """`[DONE]`, as the SDK's own server ends."""
        return DONE


def harmless(value: Any) -> Any:
    """The value without the keys that the SDK's JSON reader refuses: `__proto__`, `constructor.prototype`."""
    if isinstance(value, list):
        return [harmless(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: harmless(item) for key, item in value.items() if not _harmful(key, item)}


def _harmful(key: str, value: Any) -> bool:
    return key == "__proto__" or (key == "constructor" and isinstance(value, dict) and "prototype" in value)


def _finish(event: e.Finish) -> e.Finish:
    reason = event.finish_reason
    spoken = reason if reason is None or reason in FINISH_REASONS else "other"
    return e.Finish(finish_reason=spoken, message_metadata=event.message_metadata)


def _unsigned(event: Any) -> Any:
    return event if event.provider_metadata is None else replace(event, provider_metadata=None)


Spelling = Callable[[Any], "e.Event | None"]

_SEVEN: Mapping[type, Spelling] = {
    e.FinishStep: lambda _: e.FinishStep(),
    e.ErrorEvent: lambda event: e.ErrorEvent(event.error_text),
    e.Finish: _finish,
}
_SIX: Mapping[type, Spelling] = {
    **_SEVEN,
    e.ToolInputStart: _unsigned,
    e.ToolOutputAvailable: _unsigned,
    e.ToolOutputError: _unsigned,
    e.ToolApprovalResponse: lambda _: None,
    e.ResetStep: lambda _: None,
    e.Abort: lambda _: e.Abort(),
}
