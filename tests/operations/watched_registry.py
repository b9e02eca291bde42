"""Watches what is in a registry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from dragoman.operations import Registry


@asynccontextmanager
async def never_without(registry: Registry, namespace: str, names: Sequence[str]) -> AsyncIterator[None]:
    """Look at the registry in each iteration of the event loop: it always has all these names."""
    missed: list[set[str]] = []

    async def watch() -> None:
        while True:
            missing = set(names) - {each.name for each in registry.list(namespace)}
            if missing:
                missed.append(missing)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    yield
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    assert not missed
