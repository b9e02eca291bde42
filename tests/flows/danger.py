"""An operation that somebody has to approve."""

from dragoman import operation


@operation("danger", effect="once", approval=True)
async def wipe(disk: str) -> str:
    """Wipe a disk."""
    return f"wiped {disk}"
