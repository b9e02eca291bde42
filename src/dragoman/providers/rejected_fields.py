"""Fields that a model has rejected: they are not sent to it again."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence, Set
from typing import TypeVar

from dragoman.model_request import ModelRequest

T = TypeVar("T")
MAX_MODELS = 4_096
NONE: Set[str] = frozenset()
OPTIONS: Mapping[str, Sequence[str]] = {
    "effort": ("reasoning_effort",),
    "format": ("response_format",),
    "reasoning": ("reasoning_effort", "reasoning"),
    "reasoning.effort": ("reasoning_effort",),
    "text.verbosity": ("verbosity",),
    "think": ("reasoning_effort", "think"),
    "thinking": ("reasoning_effort", "thinking"),
}
"""The options that a field of a request body comes from; other fields have the name of their option."""


class RejectedFields:
    """Remembers the fields that each model has rejected."""

    def __init__(self) -> None:
        self._by_model: dict[str, frozenset[str]] = {}

    def of(self, model: str) -> Set[str]:
        """Return the fields that a model has rejected."""
        return self._by_model.get(model, NONE)

    def add(self, model: str, field: str) -> None:
        """Record that a model has rejected a field."""
        remember_model(self._by_model, model, value=frozenset({*self.of(model), field}))

    def options_of(self, request: ModelRequest) -> list[str]:
        """Return the options of a request that are not sent, since its model has rejected them."""
        rejected = self.of(request.model)
        if not rejected:
            return []
        options = {name for name, value in request.options.items() if value is not None}
        options |= {"tool_choice"} if request.tool_choice is not None else set()
        options |= {"strict"} if any(tool.strict for tool in request.tools) else set()
        names = (name for field in sorted(rejected) for name in OPTIONS.get(field, (field,)))
        return list(dict.fromkeys(name for name in names if name in options))


def remember_model(by_model: MutableMapping[str, T], model: str, *, value: T) -> None:
    """Store a value for a model, and drop the oldest above `MAX_MODELS`: clients choose the names."""
    by_model.pop(model, None)
    by_model[model] = value
    if len(by_model) > MAX_MODELS:
        del by_model[next(iter(by_model))]
