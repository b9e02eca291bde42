"""MCP over Streamable HTTP. First `python mcp_server.py http 8931`, then give this the server's address."""

from __future__ import annotations

import asyncio
import sys

from dragoman import Agent, ScriptedModel, ServerSpec

# A script plays the model, so that this needs no key. A real one is a name: model = "openai/gpt-5.1"
model = ScriptedModel([("weather_forecast", {"city": "Rome"}), "Take a hat: {outputs}."])
url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8931/mcp"
spec = ServerSpec(name="weather", url=url)  # a URL alone will do; so it has a name, headers, secrets


async def main() -> None:
    async with Agent(model, mcp=[spec]) as agent:
        server = agent.servers[0]
        print(server.name, server.state, "weather_forecast" in agent.overhead().names)
        print((await agent.spawn("What will the weather be in Rome?").result).text)


asyncio.run(main())
