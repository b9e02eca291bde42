"""The hub's own stream dialect, as seed 000 names it: `step-start`, `step-finish`, `finish` with usage.

Everything else is spelled as the AI SDK does. Finish reasons are said as they are, `max-steps` included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.wire.encoder import DONE_FRAME, SSE_HEADERS

_encoder = msgspec.json.Encoder()


class HubStreamEncoder:
    """One response in the hub dialect."""

    headers: Mapping[str, str] = {**SSE_HEADERS, "x-dragoman-stream": "hub-v1"}

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """The batch as `data:` frames."""
        frames = bytearray()
        for event in batch:
            spell = _CONVERTERS.get(type(event))
            frames += b"data: " + _encoder.encode(spell(event) if spell else event) + b"\n\n"
        return bytes(frames)

    def end(self) -> bytes:
        """`[DONE]`."""
        return DONE_FRAME


def encode_usage(usage: e.Usage | None) -> dict[str, int] | None:
    """Usage in the seed's words: promptTokens, completionTokens, totalTokens; what is unknown is left out."""
    if usage is None:
        return None
    known = {
        "promptTokens": usage.input_tokens,
        "completionTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
    }
    return {word: count for word, count in known.items() if count is not None}


def _encode_step_finish(event: e.FinishStep) -> dict[str, Any]:
    said = {"finishReason": event.finish_reason, "usage": encode_usage(event.usage), "model": event.model}
    return {"type": "step-finish", **_without_none(said)}


def _encode_finish(event: e.Finish) -> dict[str, Any]:
    said = {
        "finishReason": event.finish_reason,
        "usage": encode_usage(event.usage),
        "cost": event.cost,
        "steps": event.steps,
        "metadata": event.message_metadata,
    }
    return {"type": "finish", **_without_none(said)}


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {word: value for word, value in fields.items() if value is not None}


_CONVERTERS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    e.StartStep: lambda _: {"type": "step-start"},
    e.FinishStep: _encode_step_finish,
    e.Finish: _encode_finish,
}
