"""What a connection of a spoke may hold at the hub."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

from dragoman.spokes.hub.remote_spoke import RemoteSpoke, SlotWaiter
from dragoman.spokes.hub.settings import SpokeSettings
from dragoman.spokes.hub.subcalls import Subcalls
from dragoman.spokes.protocol import SubcallFrame
from dragoman.spokes.send_queue import MAX_URGENT, FrameSizes, Outbox


async def test_a_spoke_that_reads_nothing_cannot_start_and_abort_calls_without_end() -> None:
    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    parent: Any = SimpleNamespace(
        abandoned=False, task_context=copy_context(), subcall_context=SimpleNamespace(call=never)
    )
    outbox = Outbox(never, sizes=FrameSizes(frame=1_000, message=1_000), limit=10_000)
    subcalls = Subcalls(outbox, limit=10)
    aborted = 0

    async def flood() -> None:
        nonlocal aborted
        while aborted < 3 * MAX_URGENT:
            await subcalls.start(SubcallFrame(id="s1", parent="c1", operation="any.one"), parent)
            await asyncio.sleep(0)
            subcalls.abort("s1")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            aborted += 1

    task = asyncio.create_task(flood())
    for _ in range(20 * MAX_URGENT):
        await asyncio.sleep(0)
    assert aborted == MAX_URGENT
    outbox.close()
    subcalls.cancel()
    await task


async def test_calls_that_no_longer_wait_for_a_spoke_take_no_place_in_its_queue() -> None:
    spoke = RemoteSpoke("s", "ann", settings=SpokeSettings(queue=2))
    first, second, third = SlotWaiter(), SlotWaiter(), SlotWaiter()
    spoke.enqueue(first)
    spoke.enqueue(second)
    second.cancel()
    spoke.enqueue(third)
    assert third.spokes == {spoke}
