"""A JSON request of the gateway takes few calls of Python functions."""

from __future__ import annotations

import pytest

from benchmarks.gateway_request import FunctionCounter, measure
from dragoman.accounts import usage_ledger
from dragoman.http import disconnect
from tests.waiting import LIMIT

MAX_CALLS = 256  # a request, with what the hub does beside it; some ten send it, two are the fence of hosts
REQUESTS = 20


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a request of an idle machine does not wait for, one of a busy machine does not either."""
    monkeypatch.setattr(usage_ledger, "BATCH_SECONDS", LIMIT)
    monkeypatch.setattr(disconnect, "WATCH_DELAY", LIMIT)


@pytest.mark.usefixtures("long_waits")
async def test_a_json_request_takes_few_calls() -> None:
    counter = FunctionCounter()
    await measure(REQUESTS, counter)
    path = {call: count for call, count in counter.calls.items() if count >= REQUESTS}
    assert sum(path.values()) / REQUESTS <= MAX_CALLS, path
