"""Chat: the answer as it is written, and a second question in the same conversation."""

from __future__ import annotations

import asyncio

from dragoman import Agent, ScriptedModel
from dragoman import events as e

# A script plays the model, so that this needs no key. A real one is a name: model = "openai/gpt-5.1"
model = ScriptedModel(["Bonn was the capital.", "About 335,000 people."])


async def main() -> None:
    async with Agent(model, instructions="Answer in one sentence.") as agent:
        run = agent.spawn("Which city was the capital before Berlin?")
        async for event in run.events():
            if isinstance(event, e.TextDelta):
                print(event.delta, end="", flush=True)
        result = await run.result
        print(f"\n{result.exit_reason} after {result.steps} step")

        more = {"role": "user", "content": "How many live there?"}
        print((await agent.spawn([*result.messages, more]).result).text)


asyncio.run(main())
