"""Manual mode: your program runs the calls, and hands their outputs in."""

from __future__ import annotations

import asyncio

from dragoman import Agent, ScriptedModel, Tool
from dragoman import events as e

schema = {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}
read_sensor = Tool("read_sensor", "Tell the temperature of a room.", schema)
sensors = {"kitchen": 21.5}

# A script plays the model, so that this needs no key. A real one is a name: model = "openai/gpt-5.1"
calls = [("read_sensor", {"room": "kitchen"}), ("read_sensor", {"room": "attic"})]
model = ScriptedModel([calls, "The kitchen has 21.5 degrees; the attic has no sensor."])


async def main() -> None:
    async with Agent(model, client_tools=[read_sensor]) as agent:  # manual=True does it for operations
        run = agent.spawn("How warm is it?")
        async for event in run.events():
            if isinstance(event, e.ToolInputAvailable):
                room = event.input["room"]
                if room in sensors:
                    run.add_tool_result(event.tool_call_id, sensors[room])
                else:
                    run.add_tool_result(event.tool_call_id, error=f"no sensor in the {room}")
            elif event.type.startswith("tool-output"):
                print(event.type)
        print((await run.result).text)


asyncio.run(main())
