"""Many values in the arguments of one call hold no event loop, whether they fit the schema or not."""

from __future__ import annotations

from functools import partial
from typing import Any

from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.operation import Operation
from tests.effort import rounds
from tests.loop_lag import MOST, best_lag

COUNT = rounds(quick=60_000, thorough=100_000)  # three values each
ITEM = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
SCHEMA = {"type": "object", "properties": {"all": {"type": "array", "items": ITEM}}, "required": ["all"]}


async def count(input: Any, _: Context) -> int:
    return len(input["all"])


@operation("x")
def add(all: list[dict[str, Any]]) -> int:
    """Count them."""
    return len(all)


async def test_many_values_in_one_call_hold_no_event_loop() -> None:
    foreign = Operation.from_schema(count, SCHEMA, namespace="x", name="count", description="Count them.")
    good = {"all": [{"id": number, "name": "x"} for number in range(COUNT)]}
    wrong = {"all": [*good["all"], {"id": "x", "name": "x"}]}
    lags: dict[str, float] = {}
    async with Calls(Registry(foreign, add), MemoryLedger()) as calls:
        for id in ("x.count", "x.add"):
            outcome, lags[id] = await best_lag(partial(calls.call, id, good, context=Context()))
            assert outcome.result == COUNT, outcome.error
        outcome, lags["wrong"] = await best_lag(partial(calls.call, "x.count", wrong, context=Context()))
        assert outcome.error is not None
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}
