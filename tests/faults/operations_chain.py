"""Operations that call a spoke, which calls the hub again; they log to a file."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman.operations import Context, operation

arrived = asyncio.Event()
released = asyncio.Event()


def note(line: str) -> None:
    with Path(os.environ["CHAIN_LOG"]).open("a") as file:
        file.write(f"{line}\n")


@contextmanager
def noted(word: str) -> Iterator[None]:
    """A line when it begins, and one when it is stopped."""
    note(f"begin {word}")
    try:
        yield
    except asyncio.CancelledError:
        note(f"stopped {word}")
        raise


@operation("near", effect="once")
async def start(context: Context) -> Any:
    """Call a spoke that calls the hub."""
    with noted("start"):
        return await context.call("far.relay")


@operation("near", effect="once")
async def patient(context: Context) -> str:
    """Call the chain, and go on whatever becomes of it."""
    with noted("patient"):
        try:
            await context.call("near.start")
        except Exception as error:  # noqa: BLE001 - it is told
            return f"went on: {error}"
    return "nothing happened"


@operation("near", effect="read")
async def wait() -> None:
    """Wait until it is stopped."""
    with noted("wait"):
        arrived.set()
        await asyncio.Event().wait()


@operation("near", effect="read")
async def meet() -> None:
    """Be done once the other one waits."""
    await arrived.wait()


@operation("near", effect="once")
async def hold() -> str:
    """Be done once it is released."""
    with noted("hold"):
        await released.wait()
    return "held"


@operation("near", effect="once")
async def relay(context: Context) -> str:
    """Wait, and then call something that acts."""
    await context.call("near.hold")
    return str(await context.call("danger.quick", {"disk": "b"}))


@operation("danger", effect="once", name="quick")
async def harm(disk: str) -> str:
    """Wipe a disk, and ask nobody."""
    note(f"wiped {disk}")
    return f"wiped {disk}"


@operation("near", effect="read")
async def quick() -> str:
    """Be done at once."""
    return "quick"


@operation("danger", effect="once", approval=True)
async def wipe(disk: str) -> str:
    """Wipe a disk."""
    note(f"wiped {disk}")
    return f"wiped {disk}"


@operation("danger", effect="once", approval=True)
async def burn(disk: str) -> None:
    """Wipe a disk, and take the whole process down."""
    note(f"burnt {disk}")
    os.kill(os.getpid(), signal.SIGKILL)


@operation("big", effect="read")
async def pile(rows: int) -> list[dict[str, object]]:
    """Give a lot of rows, once it is released."""
    with noted("pile"):
        await released.wait()
    return [{"row": number, "words": "lorem ipsum dolor sit amet " * 3} for number in range(rows)]
