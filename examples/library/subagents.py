"""Sub-agents: an agent that another one calls like any tool, within the same budget, deadline and abort."""

from __future__ import annotations

import asyncio

from dragoman import Agent, ScriptedModel
from dragoman import events as e

# Scripts play the models, so that this needs no key. A real one is a name: Agent("openai/gpt-5.1", ...)
researcher = Agent(ScriptedModel(["Bonn, on the Rhine."]), instructions="Find it out.", name="researcher")
research = researcher.as_operation("Finds things out. Tell it all that it needs to know.")

model = ScriptedModel([("agents_researcher", {"prompt": "Which was the capital?"}), "It was {outputs}"])


async def main() -> None:
    async with researcher, Agent(model, operations=[research]) as lead:
        run = lead.spawn("Ask about the capital before Berlin.")
        async for event in run.events():
            if isinstance(event, e.ToolOutputAvailable) and event.preliminary:
                print("meanwhile:", len(event.output["parts"]), "parts")  # its message so far
            elif isinstance(event, e.ToolOutputAvailable):
                print("told:", event.output)  # only this reaches the lead
        result = await run.result
        print(result.text)
        print(result.exit_reason, result.steps, result.tool_calls.total)


asyncio.run(main())
