"""An operation that holds its caller until the test lets it go: for hubs in the process of the test."""

import asyncio
from collections import defaultdict

from dragoman import Context, operation

doors: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
callers: dict[str, list[str]] = defaultdict(list)
"""The names of the doors at which somebody has stood, with the agents that did."""
stopped: list[str] = []
"""The doors at which somebody was stopped, in order."""


@operation("gate", effect="idempotent")
async def hold(name: str, context: Context) -> str:
    """Wait at a door."""
    callers[name].append(context.agent or "")
    try:
        await doors[name].wait()
    except asyncio.CancelledError:
        stopped.append(name)
        raise
    return f"passed {name}"


@operation("gate", effect="read")
async def look(context: Context) -> str:
    """Look around."""
    return f"{context.agent} looks"


@operation("gate", effect="once", approval=True)
async def sign(context: Context) -> str:
    """Sign, once a person agrees."""
    return f"{context.agent} signed"
