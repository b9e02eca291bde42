"""A JSON request of the gateway takes few calls of Python functions."""

from __future__ import annotations

from benchmarks.gateway_request import FunctionCounter, measure

MAX_CALLS = 255  # a request, with what the hub does beside it in the meantime; some ten send the response
REQUESTS = 20


async def test_a_json_request_takes_few_calls() -> None:
    counter = FunctionCounter()
    await measure(REQUESTS, counter)
    path = {call: count for call, count in counter.calls.items() if count >= REQUESTS}
    assert sum(path.values()) / REQUESTS <= MAX_CALLS, path
