"""Operations that wait until a test lets them go on. All hubs of the process share what they write down."""

from __future__ import annotations

import asyncio

from dragoman import operation
from tests.hosts import gate


@operation("lab", effect="read")
async def look(name: str) -> str:
    """Look at something."""
    gate.MADE.append(f"look {name}")
    return f"saw {name}"


@operation("lab", effect="read")
async def read(name: str) -> str:
    """Read something; the first time it takes for ever."""
    gate.MADE.append(f"read {name}")
    if gate.MADE.count(f"read {name}") == 1:
        await asyncio.Event().wait()
    return f"read {name}"


@operation("lab", effect="once")
async def act(name: str) -> str:
    """Do something that takes for ever."""
    gate.MADE.append(f"act {name}")
    await asyncio.Event().wait()
    return "done"


@operation("lab", effect="idempotent", approval=True)
async def sign(name: str) -> str:
    """Sign something, once `gate.opened` is set."""
    gate.MADE.append(f"sign {name}")
    await gate.opened.wait()
    return f"signed {name}"


@operation("lab", effect="once")
async def note(name: str) -> str:
    """Note something."""
    gate.MADE.append(f"note {name}")
    return f"noted {name}"
