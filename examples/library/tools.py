"""Tools: a function with type hints, one that is described by hand, and what the model calls of them."""

from __future__ import annotations

import asyncio

from dragoman import Agent, ScriptedModel, operation, tool
from dragoman import events as e


@operation(namespace="math", effect="read")
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


double = tool("double", "Double a number").param("a", "number").build(lambda a: 2 * a, effect="read")

# A script plays the model, so that this needs no key. A real one is a name: model = "openai/gpt-5.1"
model = ScriptedModel([[("math_add", {"a": 2, "b": 2}), ("tools_double", {"a": 21})], "4 and 42."])


async def main() -> None:
    async with Agent(model, operations=[add, double]) as agent:
        run = agent.spawn("What is 2 + 2, and twice 21?")
        async for event in run.events():
            if isinstance(event, e.ToolInputAvailable):
                print(f"calls {event.tool_name} with {event.input}")
        result = await run.result
    print(f"{result.text} ({result.tool_calls.total} calls in {result.steps} steps)")


asyncio.run(main())
