"""The hub's own stream dialect."""

from __future__ import annotations

import msgspec

from dragoman import events as e
from dragoman.wire.hub_encoder import HubStreamEncoder


def test_the_hub_dialect_encodes_steps_and_usage_as_in_seed_000() -> None:
    encoded = HubStreamEncoder().encode(
        [
            e.Start("m"),
            e.StartStep(),
            e.TextStart("t"),
            e.TextDelta("t", "hi"),
            e.TextEnd("t"),
            e.FinishStep("stop", usage=e.Usage(3, 4, 7), model="x"),
            e.Finish("max-steps", usage=e.Usage(3, 4), steps=10),
        ]
    )
    assert [msgspec.json.decode(frame[6:]) for frame in encoded.split(b"\n\n") if frame] == [
        {"type": "start", "messageId": "m"},
        {"type": "step-start"},
        {"type": "text-start", "id": "t"},
        {"type": "text-delta", "id": "t", "delta": "hi"},
        {"type": "text-end", "id": "t"},
        {
            "type": "step-finish",
            "finishReason": "stop",
            "usage": {"promptTokens": 3, "completionTokens": 4, "totalTokens": 7},
            "model": "x",
        },
        {
            "type": "finish",
            "finishReason": "max-steps",
            "usage": {"promptTokens": 3, "completionTokens": 4},
            "steps": 10,
        },
    ]
    assert HubStreamEncoder().end() == b"data: [DONE]\n\n"
