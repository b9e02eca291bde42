"""The fields of a request that a model has rejected once: they are not sent to it again."""

from __future__ import annotations

from collections.abc import Set

NONE: Set[str] = frozenset()


class RejectedFields:
    """Remembers the fields that each model has rejected."""

    def __init__(self) -> None:
        self._by_model: dict[str, frozenset[str]] = {}

    def of(self, model: str) -> Set[str]:
        """Return the fields that a model has rejected."""
        return self._by_model.get(model, NONE)

    def add(self, model: str, field: str) -> None:
        """Note that a model has rejected a field."""
        self._by_model[model] = frozenset({*self.of(model), field})
