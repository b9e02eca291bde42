"""An MCP server for the examples beside it: `mcp_server.py`, or `mcp_server.py http PORT`."""

from __future__ import annotations

import sys

import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("weather")


@server.tool()
def forecast(city: str) -> str:
    """Tell tomorrow's weather."""
    return f"sun in {city}"


if sys.argv[1:2] == ["http"]:
    app = server.streamable_http_app()
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
else:
    server.run("stdio")
