"""Aborting one call ends everything below it; its caller continues."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman.errors import CallError
from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.ledger import MemoryLedger
from tests.waiting import LIMIT


class Chain:
    """outer -> middle -> inner, which never ends."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended: list[str] = []
        self.ids: dict[str, str] = {}
        self.ledger = MemoryLedger()

    def registry(self) -> Registry:
        @operation("t", effect="read")
        async def inner(context: Context) -> None:
            self.ids["inner"] = context.call_id or ""
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.append("inner")

        @operation("t", effect="read")
        async def middle(context: Context) -> Any:
            self.ids["middle"] = context.call_id or ""
            try:
                return await context.call("t.inner")
            finally:
                self.ended.append("middle")

        @operation("t", effect="read")
        async def outer(context: Context) -> str:
            self.ids["outer"] = context.call_id or ""
            try:
                await context.call("t.middle")
            except CallError as error:
                return f"went on: {error}"
            return "nothing happened"

        return Registry(inner, middle, outer)


async def test_one_call_is_stopped_with_all_below_it_and_its_caller_goes_on() -> None:
    chain = Chain()
    async with asyncio.timeout(LIMIT), Calls(chain.registry(), chain.ledger) as calls:
        task = asyncio.create_task(calls.call("t.outer", context=Context()))
        await chain.began.wait()
        assert calls.abort(chain.ids["middle"], "changed my mind")
        outcome = await task
    assert (outcome.ok, outcome.result) == (True, "went on: The call was aborted.")
    assert chain.ended == ["inner", "middle"]
    statuses = {name: chain.ledger.get(id).status for name, id in chain.ids.items()}
    assert statuses == {"outer": "done", "middle": "aborted", "inner": "aborted"}
    error = chain.ledger.get(chain.ids["middle"]).error
    assert error is not None
    assert error.hint == "changed my mind"


async def test_the_root_of_a_tree_is_stopped_and_says_so() -> None:
    chain = Chain()
    async with asyncio.timeout(LIMIT), Calls(chain.registry(), chain.ledger) as calls:
        task = asyncio.create_task(calls.call("t.outer", context=Context()))
        await chain.began.wait()
        assert calls.abort(chain.ids["outer"])
        assert not calls.abort(chain.ids["outer"])
        outcome = await task
        assert not calls.abort(chain.ids["outer"])
    assert (outcome.ok, outcome.status, chain.ended) == (False, "aborted", ["inner", "middle"])


async def test_cancelling_the_task_wins_over_stopping_a_call() -> None:
    chain = Chain()
    async with asyncio.timeout(LIMIT), Calls(chain.registry(), chain.ledger) as calls:
        task = asyncio.create_task(calls.call("t.outer", context=Context()))
        await chain.began.wait()
        calls.abort(chain.ids["inner"])
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def test_nothing_is_left_after_a_hundred_stopped_chains() -> None:
    before = asyncio.all_tasks()
    chain = Chain()
    async with asyncio.timeout(LIMIT), Calls(chain.registry(), chain.ledger) as calls:
        for _ in range(100):
            chain.began.clear()
            task = asyncio.create_task(calls.call("t.outer", context=Context()))
            await chain.began.wait()
            task.cancel()
            await asyncio.wait([task])
    assert len(chain.ended) == 200
    assert asyncio.all_tasks() == before


async def test_an_operation_whose_task_group_failed_has_not_been_stopped() -> None:
    @operation("t", effect="read")
    async def several() -> str:
        async def fail() -> None:
            await asyncio.sleep(0)
            raise ValueError("no")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        except ExceptionGroup:
            return "went on"
        return "nothing happened"

    @operation("t", effect="read")
    async def outer(context: Context) -> list[Any]:
        return [await context.call("t.several") for _ in range(2)]

    async with asyncio.timeout(LIMIT), Calls(Registry(several, outer), MemoryLedger()) as calls:
        outcome = await calls.call("t.outer", context=Context())
        assert (outcome.status, outcome.result) == ("done", ["went on", "went on"])
