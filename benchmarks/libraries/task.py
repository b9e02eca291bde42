"""The task that every library is given: one tool call, then an answer. Nothing but the standard library."""

from collections.abc import Callable
from typing import Any

QUESTION = "What is 2 + 2?"
INSTRUCTIONS = "You answer questions about sums, and call the tool for each sum."
DESCRIPTION = "Add two whole numbers."
INPUT = {"a": 2, "b": 2}
STAMP = "t@"

PIECES = [f"word{number:02} " for number in range(19)] + ["4."]
"""What the scripted models say after the tool has answered; as many pieces as the upstream streams."""

ANSWER = "".join(PIECES)


class Ran:
    """Counts how often tools ran."""

    def __init__(self) -> None:
        self.times = 0

    def add(self, a: int, b: int) -> int:
        """The sum; AssertionError for other numbers than the model was to send."""
        assert (a, b) == (2, 2), f"the tool was called with {a!r} and {b!r}"
        self.times += 1
        return a + b


def check(text: Any, *, scripted: bool, streamed: bool) -> None:
    """AssertionError, unless this is the whole answer."""
    if scripted:
        assert text == ANSWER, f"the answer was {text!r}"
        return
    stamps = len(PIECES) if streamed else 1
    assert isinstance(text, str), f"the answer was {text!r}"
    assert text.count(STAMP) == stamps, f"{stamps} stamps are due, the answer was {text!r}"


def shaped(ran: Ran) -> Callable[[int, int], Any]:
    """The tool as a function of its own, for libraries that make a tool of one."""

    async def add(a: int, b: int) -> int:
        return ran.add(a, b)

    add.__doc__ = DESCRIPTION
    return add
