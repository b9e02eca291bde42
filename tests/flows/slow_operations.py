"""Operations that are slow, fail, or return too much."""

import asyncio
from collections.abc import AsyncIterator

from dragoman import Context, operation


@operation("lab", effect="read")
async def count(to: int) -> AsyncIterator[dict[str, int]]:
    """Count, and say how far it is."""
    for number in range(1, to + 1):
        yield {"at": number}
        await asyncio.sleep(0.06)  # longer than the pause between two tellings


@operation("lab", effect="read")
async def pile(size: int) -> str:
    """Give a lot of text."""
    return "0123456789" * (size // 10)


@operation("lab", effect="read")
async def fail(name: str) -> str:
    """Fail."""
    raise ValueError(f"no {name}")


@operation("lab", effect="read")
async def wait(context: Context) -> None:
    """Wait until it is stopped."""
    context.progress("waiting")
    await asyncio.Event().wait()
