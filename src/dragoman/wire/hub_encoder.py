"""Encode events in the hub's own stream dialect (seed 000): `step-start`, `step-finish`, `finish` with usage.

All other events are encoded as in the AI SDK's stream. Finish reasons are unchanged, `max-steps` included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.wire.encoder import SSE_HEADERS
from dragoman.wire.sse import DONE_FRAME

_encoder = msgspec.json.Encoder()


class HubStreamEncoder:
    """Encodes one response in the hub dialect."""

    headers: Mapping[str, str] = {**SSE_HEADERS, "x-dragoman-stream": "hub-v1"}

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """Return the batch as `data:` frames."""
        frames = bytearray()
        for event in batch:
            convert = _CONVERTERS.get(type(event))
            frames += b"data: " + _encoder.encode(convert(event) if convert else event) + b"\n\n"
        return bytes(frames)

    def end(self) -> bytes:
        """Return `[DONE]`."""
        return DONE_FRAME


def encode_usage(usage: e.Usage | None) -> dict[str, int] | None:
    """Encode usage as promptTokens, completionTokens and totalTokens; unknown counts are omitted."""
    if usage is None:
        return None
    counts = {
        "promptTokens": usage.input_tokens,
        "completionTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
    }
    return {name: count for name, count in counts.items() if count is not None}


def _encode_step_finish(event: e.FinishStep) -> dict[str, Any]:
    fields = {"finishReason": event.finish_reason, "usage": encode_usage(event.usage), "model": event.model}
    return {"type": "step-finish", **_without_none(fields)}


def _encode_finish(event: e.Finish) -> dict[str, Any]:
    fields = {
        "finishReason": event.finish_reason,
        "usage": encode_usage(event.usage),
        "cost": event.cost,
        "steps": event.steps,
        "metadata": event.message_metadata,
    }
    return {"type": "finish", **_without_none(fields)}


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


_CONVERTERS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    e.StartStep: lambda _: {"type": "step-start"},
    e.FinishStep: _encode_step_finish,
    e.Finish: _encode_finish,
}
