"""A hub whose agent has sub-agents that ask for approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.cli.program import scripted

MARKS = Path(__file__).parent / "marks.py"
ASK = ("user_question", {"text": "Which colour?"})


def step(name: str, input: Any) -> dict[str, Any]:
    return {"tools": [{"name": name, "input": input}]}


def mark(word: str) -> dict[str, Any]:
    return step("marks_add", {"word": word})


def each(*calls: tuple[str, Any]) -> tuple[str, Any]:
    """A batch."""
    return "hub_call", {"calls": [{"tool": tool, "input": input} for tool, input in calls]}


CLERK = ("agents_clerk", {"prompt": "paint"})
BOSS = ("agents_boss", {"prompt": "paint"})
BATCH = each(("agents.clerk", CLERK[1]), ("marks.add", {"word": "beside"}), ("agents.boss", BOSS[1]))
WAYS: dict[str, tuple[tuple[str, Any], list[str], int]] = {
    "a question": (ASK, [], 1),
    "a question in a batch": (each(("user.question", ASK[1])), [], 1),
    "an agent's": (CLERK, ["before", "after"], 1),
    "an agent's agent's": (BOSS, ["boss", "before", "after"], 1),
    "an agent's in a batch": (each(("agents.clerk", CLERK[1])), ["before", "after"], 1),
    "two agents' in a batch": (BATCH, ["beside", "boss", "before", "before", "after", "after"], 2),
}


def configure(
    folder: Path,
    lead: tuple[str, Any],
    *,
    asks: tuple[str, Any] = ASK,
    policy: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """A hub with an agent that leads, one that works, and one between them; `asks` is what has to wait."""
    scripts = {
        "lead": [step(*lead), {"text": "All done."}],
        "clerk": [mark("before"), step(*asks), mark("after"), {"text": "Painted."}],
        "boss": [mark("boss"), step(*CLERK), {"text": "It was painted."}],
    }
    workers = {
        "clerk": ["marks.add", "user.question", "marks.wipe"],
        "boss": ["marks.add", "agents.clerk"],
    }
    config = {
        "providers": {name: scripted(folder, name, steps) for name, steps in scripts.items()},
        "model": "lead/x",
        "operations": [str(MARKS)],
        "pinned": ["user.question", "agents.clerk", "agents.boss"],
        "policy": list(policy),
        "agents": {
            name: {"model": f"{name}/x", "description": "Works.", "operations": pinned}
            for name, pinned in workers.items()
        },
    }
    path = folder / "dragoman.yaml"
    path.write_bytes(msgspec.json.encode(config))
    return path
