"""Progress and preliminary output of calls, also within batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from tests.waiting import LIMIT


@operation("t", effect="read")
async def count(to: int) -> AsyncIterator[dict[str, int]]:
    """Count."""
    for number in range(1, to + 1):
        yield {"at": number}


@operation("t", effect="read")
def spell(word: str) -> Iterator[str]:
    """Spell a word; runs in a thread."""
    for end in range(1, len(word) + 1):
        yield word[:end]


@operation("t", effect="read")
async def tell(context: Context) -> str:
    """Say how far it is, in words of one's own."""
    context.progress({"done": 0.5})
    await asyncio.sleep(0)
    return "told"


@operation("t", effect="read")
async def wrap(context: Context) -> Any:
    """Hand on what another one says."""
    return await context.call("t.count", {"to": 2}, on_progress=context.progress)


async def follow(name: str, input: dict[str, Any]) -> tuple[list[Any], Any]:
    reports: list[Any] = []
    async with Calls(Registry(count, spell, tell, wrap), MemoryLedger()) as calls:
        outcome = await calls.call(name, input, context=Context(), on_progress=reports.append)
    return reports, outcome.result


async def test_the_values_of_a_generator_are_progress_and_the_last_one_is_the_result() -> None:
    assert await follow("t.count", {"to": 3}) == ([{"at": 1}, {"at": 2}, {"at": 3}], {"at": 3})
    assert await follow("t.count", {"to": 0}) == ([], None)


async def test_a_sync_generator_runs_in_a_thread_and_tells_as_well() -> None:
    assert await follow("t.spell", {"word": "tea"}) == (["t", "te", "tea"], "tea")


async def test_the_schema_of_a_generator_is_that_of_its_values() -> None:
    found = Registry(count).get("t.count")
    assert found.output_schema == {"type": "object", "additionalProperties": {"type": "integer"}}


async def test_an_operation_says_how_far_it_is_and_hands_on_what_others_say() -> None:
    assert await follow("t.tell", {}) == ([{"done": 0.5}], "told")
    assert await follow("t.wrap", {}) == ([{"at": 1}, {"at": 2}], {"at": 2})


async def test_a_batch_tells_of_all_its_calls_in_one_list() -> None:
    reports: list[Any] = []
    registry = Registry(count, tell)
    batch = {"calls": [{"tool": "t.count", "input": {"to": 1}}, {"tool": "t.nothing"}]}
    async with Calls(registry, MemoryLedger()) as calls:
        outcome = await MetaTools(registry, calls).run(
            "hub.call", batch, context=Context(), on_progress=reports.append
        )
    assert reports[0][0] == {"tool": "t.count", "progress": {"at": 1}}
    assert [entry["tool"] for entry in reports[-1]] == ["t.count", "t.nothing"]
    assert reports[-1][0] == {"tool": "t.count", "success": True, "result": {"at": 1}}
    assert outcome.result[0] == {"success": True, "result": {"at": 1}}


async def test_a_generator_that_is_stopped_cleans_up() -> None:
    closed = asyncio.Event()
    begun = asyncio.Event()

    @operation("t", effect="read")
    async def endless() -> AsyncIterator[int]:
        try:
            yield 1
            begun.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with asyncio.timeout(LIMIT), Calls(Registry(endless), MemoryLedger()) as calls:
        task = asyncio.create_task(calls.call("t.endless", context=Context()))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert closed.is_set()
