"""What the spoke serves."""

from dragoman import operation


@operation("far", effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@operation("far", effect="once")
async def put(a: int, b: int) -> int:
    """Add two numbers, as if that changed something."""
    return a + b
