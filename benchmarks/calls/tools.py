"""What the hub and the spoke serve: an addition, which costs nothing itself."""

from dragoman import operation


@operation("bench", effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@operation("bench", effect="once")
async def put(a: int, b: int) -> int:
    """Add two numbers, as if that changed something: the hub writes it down for sure before it runs."""
    return a + b
