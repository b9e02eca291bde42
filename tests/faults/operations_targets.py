"""Operations that the attacks aim at."""

from __future__ import annotations

from typing import Any

from dragoman import operation
from dragoman.operations.context import Context


@operation("danger", effect="once", approval=True)
async def wipe(disk: str) -> str:
    """Wipe a disk."""
    return f"wiped {disk}"


@operation("mail", effect="once")
async def send(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


@operation("relay", effect="once")
async def pass_on(tool: str, input: dict[str, Any], context: Context) -> Any:
    """Call another operation."""
    return await context.call(tool, input)


@operation("lab", effect="read")
async def echo(value: Any = None) -> Any:
    """Give the value back."""
    return value
