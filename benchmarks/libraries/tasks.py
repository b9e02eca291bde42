"""What is measured of each library, as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.libraries.task import PIECES

Group = Literal["scripted", "http", "many", "memory", "import"]
GROUPS: Sequence[Group] = ("scripted", "http", "many", "memory", "import")
MODEL = f"bench-n{len(PIECES)}-tool1"


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Turns with a tool call: of whom they ask, how the answer is taken, how many at a time."""

    group: Group
    title: str
    http: bool = False
    stream: bool = False
    at_once: int = 1


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Agents that do nothing."""

    title: str
    options: Sequence[str] = ()
    share: float = 1.0  # of as many agents as are asked for


TURNS: Sequence[Turns] = (
    Turns(group="scripted", title="Scripted model, the answer as a whole"),
    Turns(group="scripted", title="Scripted model, the answer streamed", stream=True),
    Turns(group="http", title="Over HTTP, the answer as a whole", http=True),
    Turns(group="http", title="Over HTTP, the answer streamed", http=True, stream=True),
    Turns(group="many", title="Scripted model, streamed", stream=True, at_once=200),
    Turns(group="many", title="Over HTTP, streamed", http=True, stream=True, at_once=200),
)

IDLE: Sequence[Idle] = (
    Idle(title="one tool for all"),
    Idle(title="one tool for all, by tracemalloc", options=["--traced"], share=0.2),
    Idle(title="a tool for each", options=["--own-tool"], share=0.2),
    Idle(title="one tool for all, after a turn each", options=["--used"], share=0.2),
)
