"""Overhead: what an agent's tools and instructions take of each request, before anything is said."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.request import ModelRequest, Tool
from dragoman.wire.estimate import estimate_input, estimate_text


class ToolCost(msgspec.Struct, frozen=True):
    """A tool as the model is shown it, and about how many tokens it takes."""

    name: str
    tokens: int
    description: str = ""


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that a model is shown, and what they and the instructions take: estimates, in tokens."""

    tools: tuple[ToolCost, ...] = ()
    instructions: int = 0

    @property
    def tokens(self) -> int:
        """All of it."""
        return self.instructions + sum(tool.tokens for tool in self.tools)

    @property
    def names(self) -> list[str]:
        """The tools' names."""
        return [tool.name for tool in self.tools]


def overhead_of(tools: Sequence[Tool], instructions: str | None) -> Overhead:
    """What these take."""
    return Overhead(
        tools=tuple(ToolCost(tool.name, cost_of(tool), tool.description) for tool in tools),
        instructions=estimate_text(instructions or ""),
    )


def cost_of(tool: Tool) -> int:
    return estimate_input(ModelRequest(model="", messages=(), tools=(tool,)))
