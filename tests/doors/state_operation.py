"""Operations that share state with the front end."""

from dragoman import operation
from dragoman.operations.context import current


@operation("board", effect="once")
async def fill(count: int) -> str:
    """Put cards on the board."""
    for done in range(1, count + 1):
        current().publish("state", {"cards": done, "of": count}, in_answer=True)
    return "filled"


@operation("board", effect="once")
def clear() -> str:
    """Take the cards off the board; in a thread."""
    current().publish("state", {"cards": 0}, in_answer=True)
    return "cleared"


@operation("board", effect="once")
def ask() -> str:
    """Try to write a part of the hub's own."""
    current().publish("question", {"id": "q"}, in_answer=True)
    return "asked"
