"""An MCP server made with the SDK: `sdk_server.py stdio`, or `http PORT`, or `sse PORT`."""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("sdk", log_level="CRITICAL")  # a traceback that its log draws takes a second of CPU time
added: list[str] = []
stopped: list[str] = []


class Sum(BaseModel):
    sum: int


class Name(BaseModel):
    name: str


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(sum=a + b)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no such city")


@server.tool()
async def steps(ctx: Context) -> str:
    """Tell how far it is."""
    await ctx.report_progress(1, 2, "half")
    return "done"


@server.tool()
def headers(ctx: Context) -> dict[str, str]:
    """The headers of the request."""
    return dict(ctx.headers or {})


@server.tool()
def big(size: int) -> str:
    """A text of this many characters."""
    return "x" * size


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask for a name."""
    elicitation = await ctx.elicit("What is your name?", Name)
    return str(elicitation)


@server.tool()
async def grow(ctx: Context) -> str:
    """Add a tool."""
    name = f"grown_{len(added)}"
    added.append(name)
    server.add_tool(lambda: name, name=name, description="New.")
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return name


@server.tool()
async def wait() -> str:
    """Wait until it is stopped."""
    stopped.append("began")
    try:
        await asyncio.Event().wait()
    finally:
        stopped.append("stopped")
    return "never"


@server.tool()
def waits() -> list[str]:
    """What became of the waits."""
    return stopped


@server.resource("note://one")
def one() -> str:
    """The first note."""
    return "note one"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Say hello to {name}."


def main() -> None:
    way = sys.argv[1]
    if way == "stdio":
        server.run("stdio")
        return
    app = server.sse_app() if way == "sse" else server.streamable_http_app()
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")


if __name__ == "__main__":
    main()
