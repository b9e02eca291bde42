"""An operation that never ends."""

from __future__ import annotations

import asyncio

from dragoman import operation


@operation("lab", effect="once")
async def hang() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()
