"""The hub's own stream dialect, as seed 000 names it: `step-start`, `step-finish`, `finish` with usage.

Everything else is spelled as the AI SDK does. Finish reasons are said as they are, `max-steps` included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.wire.dialect import DONE, SSE_HEADERS

_encoder = msgspec.json.Encoder()


class HubStream:
    """One response in the hub dialect."""

    headers: Mapping[str, str] = {**SSE_HEADERS, "x-dragoman-stream": "hub-v1"}

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """The batch as `data:` frames."""
        frames = bytearray()
        for event in batch:
            spell = _SPELLINGS.get(type(event))
            frames += b"data: " + _encoder.encode(spell(event) if spell else event) + b"\n\n"
        return bytes(frames)

    def end(self) -> bytes:
        """`[DONE]`."""
        return DONE


def tokens(usage: e.Usage | None) -> dict[str, int] | None:
    """Usage in the seed's words: promptTokens, completionTokens, totalTokens; what is unknown is left out."""
    if usage is None:
        return None
    known = {
        "promptTokens": usage.input_tokens,
        "completionTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
    }
    return {word: count for word, count in known.items() if count is not None}


def _step_finish(event: e.FinishStep) -> dict[str, Any]:
    said = {"finishReason": event.finish_reason, "usage": tokens(event.usage), "model": event.model}
    return {"type": "step-finish", **_known(said)}


def _finish(event: e.Finish) -> dict[str, Any]:
    said = {
        "finishReason": event.finish_reason,
        "usage": tokens(event.usage),
        "cost": event.cost,
        "steps": event.steps,
        "metadata": event.message_metadata,
    }
    return {"type": "finish", **_known(said)}


def _known(said: dict[str, Any]) -> dict[str, Any]:
    return {word: value for word, value in said.items() if value is not None}


_SPELLINGS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    e.StartStep: lambda _: {"type": "step-start"},
    e.FinishStep: _step_finish,
    e.Finish: _finish,
}
