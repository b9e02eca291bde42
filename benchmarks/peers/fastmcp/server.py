"""A plain FastMCP server with one tool that adds: what a call costs without a hub, a key or a ledger."""

import sys

from fastmcp import FastMCP

mcp = FastMCP("bench")


@mcp.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    mcp.run(
        transport="http",
        host="127.0.0.1",
        port=int(sys.argv[1]),
        show_banner=False,
        log_level="WARNING",
        uvicorn_config={"access_log": False},
    )
