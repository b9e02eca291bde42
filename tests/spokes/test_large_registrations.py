"""Spokes with large schemas, or with thousands of operations, hold no event loop when they come and go."""

from __future__ import annotations

from typing import Any

from dragoman.operations import Context, Registry
from dragoman.operations.operation import Operation
from dragoman.spokes import Spoke
from dragoman.spokes.hub.settings import SpokeSettings
from tests.effort import rounds
from tests.loop_lag import MOST, best_lag
from tests.operations.large_schemas import LARGE
from tests.spokes.hubs import house
from tests.waiting import until

COUNT = rounds(quick=1_000, thorough=5_000)
SETTINGS = SpokeSettings(grace=0.0, operations=COUNT, owner_operations=2 * COUNT)


async def run(_: Any, __: Context) -> str:
    return "done"


def offered(name: str, schema: dict[str, Any]) -> Operation:
    return Operation.from_schema(run, schema, namespace="far", name=name, description="Do one thing. " * 5)


async def test_large_and_many_operations_of_a_spoke_hold_no_event_loop_when_it_comes_and_goes() -> None:
    small = {"type": "object", "properties": {"a": {"type": "string"}}}
    offers = {
        "large": [offered(name.replace(" ", "-"), schema) for name, schema in LARGE.items()],
        "many": [offered(f"go-{number}", small) for number in range(COUNT)],
    }
    lags: dict[str, float] = {}
    async with house(settings=SETTINGS) as hub:
        for kind, operations in offers.items():
            registry = Registry()
            for each in operations:
                registry.add(each)
            spoke = Spoke(registry, hub=hub.url, key="key-a")

            async def come_and_go(spoke: Spoke = spoke, count: int = len(operations)) -> None:
                async with spoke:
                    await until(lambda: hub.registry.namespaces() == {"far": count})
                    assert spoke.refused == {}
                await until(lambda: hub.registry.namespaces() == {})

            _, lags[kind] = await best_lag(come_and_go)
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}
