"""Events of tool calls while they run."""

from __future__ import annotations

import asyncio

from dragoman import Agent, Context, ScriptedModel, operation
from dragoman.events import ToolOutputAvailable
from tests.waiting import LIMIT


async def test_progress_right_after_progress_is_reported_too() -> None:
    heard = {"one": asyncio.Event(), "two": asyncio.Event()}

    @operation("lab", effect="read")
    async def count(context: Context) -> str:
        for word, event in heard.items():
            context.progress(word)
            await event.wait()
        return "done"

    agent = Agent(ScriptedModel([("count", {}), "Done."]), operations=[count])
    batches = []
    async with asyncio.timeout(LIMIT):
        async for event in agent.spawn("Count.").events():
            if isinstance(event, ToolOutputAvailable):
                batches.append((event.output, event.preliminary))
                if event.preliminary:
                    heard[event.output].set()
    assert batches == [("one", True), ("two", True), ("done", None)]
