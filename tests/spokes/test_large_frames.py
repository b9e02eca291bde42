"""Large inputs and results of spokes hold no event loop, at either end, and arrive whole."""

from __future__ import annotations

from functools import partial
from typing import Any

from dragoman.operations import Registry, operation
from dragoman.spokes import Spoke
from tests.loop_lag import MOST, best_lag
from tests.spokes.hubs import house

SIZE = 8_000_000
KINDS: dict[str, Any] = {
    "plain": "word " * (SIZE // 5),
    "escapes": '\n"' * (SIZE // 4),
    "wide": "\u00e9\u20ac" * (SIZE // 6),
    "values": [{"id": number, "name": "x"} for number in range(60_000)],
}


async def test_large_inputs_and_results_of_spokes_hold_no_event_loop() -> None:
    @operation("far")
    async def give(kind: str) -> Any:
        """Return a large value."""
        return KINDS[kind]

    @operation("far")
    async def take(value: Any) -> int:
        """Return how long a value is."""
        return len(value)

    lags: dict[str, float] = {}
    async with house() as hub, Spoke(Registry(give, take), hub=hub.url, key="key-a"):
        for kind, value in KINDS.items():
            result, lags[f"{kind}, result"] = await best_lag(partial(hub.result, "far.give", {"kind": kind}))
            assert result == value
            sent = value[: len(value) // 3]
            length, lags[f"{kind}, input"] = await best_lag(partial(hub.result, "far.take", {"value": sent}))
            assert length == len(sent)
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}
