"""`python -m tests.mcp.server.stdio_program [URL]`: an MCP server over stdio, or the bridge to a hub's."""

from __future__ import annotations

import asyncio
import sys

from dragoman.cli.mcp import run_bridge
from dragoman.mcp.server import stdio
from tests.mcp.server.hub import Hub


async def serve() -> None:
    hub = Hub(pinned=("math.*",))
    print("an operation that prints")
    await stdio.serve_stdio(hub.server)
    await hub.calls.close()


if __name__ == "__main__":
    asyncio.run(run_bridge(sys.argv[1], None) if len(sys.argv) > 1 else serve())
