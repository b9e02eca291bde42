"""How large a model request and its answer are, in tokens, where nobody has counted them yet."""

from __future__ import annotations

from dragoman.model_request import ModelRequest
from dragoman.providers.routing import Route
from dragoman.wire.token_estimate import ANTHROPIC_FACTOR

CHARACTERS_PER_TOKEN = 4


def token_factor(route: Route) -> float:
    """Return by how much a family counts more tokens than others do."""
    return ANTHROPIC_FACTOR if route.provider.family == "anthropic" else 1.0


def max_output_of(request: ModelRequest) -> int | None:
    """Return how many tokens the answer may have, where the request limits it."""
    limit = request.options.get("max_completion_tokens") or request.options.get("max_tokens")
    return limit if isinstance(limit, int) and limit > 0 else None
