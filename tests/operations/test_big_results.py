"""Big results are read and written off the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import Any

import msgspec
import pytest

from dragoman.errors import CallError
from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.artifact_overflow import ArtifactOverflow
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.outcome import to_jsonable
from dragoman.operations.results.artifact import MemoryArtifactStore
from dragoman.operations.worker_threads import LARGE_SIZE, LargeValueWorker
from tests.loop_lag import MOST, best_lag
from tests.waiting import LIMIT

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

    async with asyncio.timeout(LIMIT), Calls(Registry(pile), MemoryLedger()) as calls:
        making = (calls.call("t.pile", context=Context(for_model=True)) for _ in range(TIMES))
        piling = asyncio.create_task(asyncio.wait([asyncio.ensure_future(each) for each in making]))
        assert await longest_pause(piling) < 1.0
        done, _ = piling.result()
        summaries = [task.result().result for task in done]
        stored = await calls.overflow.artifacts.read(summaries[0]["artifact"], owner="local")
    assert {each["size"] for each in summaries} == {len(msgspec.json.encode(ROWS))}
    assert msgspec.json.decode(stored) == ROWS


@pytest.mark.parametrize(
    ("value", "is_large"),
    [
        ("x" * LARGE_SIZE, True),
        (["x" * 20] * 10_000, True),
        ({"a": 1, "text": "x" * LARGE_SIZE}, True),
        ([{"a": {"b": "x" * 200}}] * 1_000, True),
        (["a", "b" * LARGE_SIZE, "c", "d", "e", "f"], True),
        (ROWS, True),
        *(
            (value, False)
            for value in (None, 7, "", "x" * 1_000, [], {}, [1, 2, 3], {"a": [{"b": "c"}] * 20})
        ),
    ],
)
async def test_a_function_on_a_large_value_runs_in_a_thread(value: Any, is_large: bool) -> None:
    worker = LargeValueWorker()
    thread = await worker.run(lambda _: threading.get_ident(), value)
    worker.close()
    assert (thread != threading.get_ident()) == is_large


LARGE_RESULTS: dict[str, Any] = {
    "escapes": '\n"' * 2_000_000,
    "values": [{"id": number} for number in range(200_000)],
    "nested": {"all": [[{"id": number} for number in range(1_000)] for _ in range(100)], "half \ud83d": "x"},
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(6_000_000),
}


async def test_a_result_of_megabytes_does_not_hold_the_event_loop() -> None:
    @operation("t", effect="read")
    async def give(kind: str) -> Any:
        return LARGE_RESULTS[kind]

    lags: dict[str, float] = {}
    async with Calls(Registry(give), MemoryLedger()) as calls:
        for kind, value in LARGE_RESULTS.items():
            call = partial(calls.call, "t.give", {"kind": kind}, context=Context())
            outcome, lags[kind] = await best_lag(call)
            assert outcome.ok, outcome.error
            if kind in ("escapes", "values"):
                assert outcome.result == value
        nested = (await calls.call("t.give", {"kind": "nested"}, context=Context())).result
        assert nested == {"all": LARGE_RESULTS["nested"]["all"], "half \ufffd": "x"}
    assert {kind: lag for kind, lag in lags.items() if lag > MOST} == {}


@pytest.mark.parametrize("levels", [150, 5_000])
def test_a_large_result_that_is_nested_deep_is_given_or_refused_as_a_small_one(levels: int) -> None:
    deep: Any = "x" * 300_000
    for _ in range(levels):
        deep = [deep]
    if levels > 1_000:
        with pytest.raises(CallError, match="cannot be encoded as JSON"):
            to_jsonable(deep)
    else:
        assert to_jsonable(deep) == deep


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
