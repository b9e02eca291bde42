"""An MCP server made with the SDK: over stdio, HTTP or SSE."""

from __future__ import annotations

import socket
import sys

import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("items")
items = ["hat"]


def list_items() -> list[str]:
    """List all items."""
    return items


def create_item(name: str) -> str:
    """Create an item."""
    items.append(name)
    return f"created {name}"


def main() -> None:
    for tool in (list_items, create_item):
        server.add_tool(tool)
    if len(sys.argv) < 2:
        server.run("stdio")
        return
    app = server.sse_app() if sys.argv[1] == "sse" else server.streamable_http_app()
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])


if __name__ == "__main__":
    main()
