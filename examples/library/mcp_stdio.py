"""MCP over stdio: a server that the agent starts, asks for its tools, and ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dragoman import Agent, ScriptedModel

# A script plays the model, so that this needs no key. A real one is a name: model = "openai/gpt-5.1"
model = ScriptedModel([("mcp_server_forecast", {"city": "Rome"}), "Take a hat: {outputs}."])
program = Path(__file__).with_name("mcp_server.py")  # or a command: ["npx", "-y", "…"]


async def main() -> None:
    async with Agent(model, mcp=[program]) as agent:
        server = agent.servers[0]
        print(server.name, server.state, "mcp_server_forecast" in agent.overhead().names)
        print((await agent.spawn("What will the weather be in Rome?").result).text)


asyncio.run(main())
