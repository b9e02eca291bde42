"""A model: a provider, the provider's own name for it, and the options that each request to it carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.providers.provider import Provider


@dataclass(frozen=True, eq=False)
class Model:
    """A model of a provider. `options` are those of `ModelRequest`; creating a model sends nothing."""

    provider: Provider
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def id(self) -> str:
        """`provider/model`, as a configuration writes it."""
        return f"{self.provider.name}/{self.name}"

    def using(self, **options: Any) -> Model:
        """Return the model with additional options; None removes one."""
        merged = {**self.options, **options}
        present = {name: value for name, value in merged.items() if value is not None}
        return Model(self.provider, self.name, present)
