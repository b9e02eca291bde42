"""A spoke in its own process."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman.operations import Context, operation
from tests.faults.operations_chain import noted


@operation("far", effect="once")
async def relay(context: Context) -> Any:
    """Have the hub call something that does not end."""
    with noted("relay"):
        return await context.call("near.wait")


@operation("far", effect="once")
async def act() -> None:
    """Begin something that does not end."""
    with noted("act"):
        await asyncio.Event().wait()


@operation("far", effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
