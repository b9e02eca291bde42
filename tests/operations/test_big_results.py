"""Big results are read and written off the event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.artifact_overflow import ArtifactOverflow
from dragoman.operations.concurrency import LARGE_SIZE, estimate_size
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.results.artifact import MemoryArtifactStore

ROWS = [
    {"row": number, "words": "lorem ipsum dolor sit amet " * 3, "part": number / 7}
    for number in range(40_000)
]
TIMES = 40


async def longest_pause(work: asyncio.Task[Any]) -> float:
    """How long the event loop did nothing else while this was done, in CPU seconds of all threads."""
    longest, before = 0.0, time.process_time()
    while not work.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    return longest


async def test_many_big_results_at_once_leave_the_event_loop_to_others() -> None:
    @operation("t", effect="read")
    async def pile() -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        return ROWS

    async with asyncio.timeout(60), Calls(Registry(pile), MemoryLedger()) as calls:
        making = (calls.call("t.pile", context=Context(for_model=True)) for _ in range(TIMES))
        piling = asyncio.create_task(asyncio.wait([asyncio.ensure_future(each) for each in making]))
        assert await longest_pause(piling) < 1.0
        done, _ = piling.result()
        summaries = [task.result().result for task in done]
        stored = await calls.overflow.artifacts.read(summaries[0]["artifact"], owner="local")
    assert {each["size"] for each in summaries} == {len(msgspec.json.encode(ROWS))}
    assert msgspec.json.decode(stored) == ROWS


@pytest.mark.parametrize(
    "value",
    [
        "x" * LARGE_SIZE,
        ["x" * 20] * 10_000,
        {"a": 1, "text": "x" * LARGE_SIZE},
        [{"a": {"b": "x" * 200}}] * 1_000,
        ROWS,
    ],
)
def test_what_is_big_is_known_without_reading_all_of_it(value: Any) -> None:
    assert estimate_size(value) >= LARGE_SIZE


@pytest.mark.parametrize("value", [None, 7, "", "x" * 1_000, [], {}, [1, 2, 3], {"a": [{"b": "c"}] * 20}])
def test_what_is_small_is_done_at_once(value: Any) -> None:
    assert estimate_size(value) < LARGE_SIZE


async def test_a_big_result_for_a_program_is_given_whole() -> None:
    @operation("t", effect="read")
    async def pile() -> list[dict[str, Any]]:
        return ROWS

    async with Calls(Registry(pile), MemoryLedger()) as calls:
        assert (await calls.call("t.pile", context=Context())).result == ROWS


async def test_a_big_result_that_fits_a_generous_limit_reaches_the_model_whole() -> None:
    @operation("t", effect="read")
    async def pile() -> list[dict[str, Any]]:
        return ROWS

    spill = ArtifactOverflow(MemoryArtifactStore(), limit=50_000_000)
    async with Calls(Registry(pile), MemoryLedger(), overflow=spill) as calls:
        assert (await calls.call("t.pile", context=Context(for_model=True))).result == ROWS
