"""A spoke: this process brings operations to a hub. `python examples/spoke.py http://127.0.0.1:8000`."""

import asyncio
import os
import platform
import sys
from collections.abc import Sequence

from dragoman.operations import Context, Registry, operation
from dragoman.spokes import Spoke


@operation("machine", effect="read")
async def describe() -> dict[str, str]:
    """Describe the machine that this process runs on."""
    return {"node": platform.node(), "system": platform.system(), "python": platform.python_version()}


@operation("machine", effect="read")
async def countdown(context: Context, start: int = 3) -> str:
    """Count down, and tell of each number."""
    for number in range(start, 0, -1):
        context.progress({"number": number})
        await asyncio.sleep(0.1)
    return "lift-off"


@operation("machine", effect="read")
async def total(numbers: list[float], context: Context) -> float:
    """Add numbers, with the hub's calculator: one call tree, wherever its parts run."""
    return float(await context.call("math.calculate", {"expression": " + ".join(map(str, numbers))}))


registry = Registry(describe, countdown, total)


async def main(arguments: Sequence[str]) -> None:
    hub = arguments[0] if arguments else "http://127.0.0.1:8000"
    await Spoke(registry, hub=hub, key=os.environ.get("DRAGOMAN_KEY"), name="machine").run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
