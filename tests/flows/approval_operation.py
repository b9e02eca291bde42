"""An operation that needs approval."""

from dragoman import operation


@operation("danger", effect="once", approval=True)
async def wipe(disk: str) -> str:
    """Wipe a disk."""
    return f"wiped {disk}"
