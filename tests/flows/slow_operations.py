"""Operations that are slow, fail, or return too much."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

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


@operation("lab", effect="read")
async def pass_gate() -> str:
    """Wait until the file exists that the environment names as GATE."""
    while not Path(os.environ["GATE"]).exists():  # noqa: ASYNC110, ASYNC240 - the test makes it
        await asyncio.sleep(0.01)
    return "through"
