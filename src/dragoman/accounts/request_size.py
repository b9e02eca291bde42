"""How large a model request and its answer are, in tokens, where nobody has counted them yet."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dragoman.model_request import ModelRequest
from dragoman.providers.routing import Route
from dragoman.wire.client_request import count_searches
from dragoman.wire.token_estimate import ANTHROPIC_FACTOR

CHARACTERS_PER_TOKEN = 4


class PromptSize(msgspec.Struct, frozen=True):
    """The tokens of a prompt: estimated before its call, and counted by its provider."""

    estimated: int
    counted: int

    def expect_next(self, estimate: int) -> int:
        """Return the tokens of the run's next prompt: no fewer than this one's, unless it was cut."""
        return estimate if estimate < self.estimated else max(estimate, self.counted)


def token_factor(route: Route) -> float:
    """Return by how much a family counts more tokens than others do."""
    return ANTHROPIC_FACTOR if route.provider.family == "anthropic" else 1.0


class AnswerBounds(msgspec.Struct, frozen=True):
    """The most that an answer may have: tokens, if its request limits them, and searches of its provider."""

    output_tokens: int | None = None
    searches: int = 0


UNBOUNDED = AnswerBounds()


def bounds_of(request: ModelRequest) -> AnswerBounds:
    """Return the most that the answer to a request may have."""
    limit = request.options.get("max_completion_tokens") or request.options.get("max_tokens")
    extra = request.options.get("extra_body")
    tools = extra.get("tools") if isinstance(extra, Mapping) else None
    return AnswerBounds(
        limit if isinstance(limit, int) and limit > 0 else None,
        count_searches(tools, request.options.get("max_tool_calls")) if tools else 0,
    )
