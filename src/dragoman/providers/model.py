"""A model: a provider, the provider's own name for it, and the options that each request to it carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.providers.provider import Provider


@dataclass(frozen=True, eq=False)
class Model:
    """What an agent thinks with. `options` are those of `ModelRequest`; nothing is sent until it is asked."""

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
        """The same model with other options on top of these; None takes one away."""
        said = {**self.options, **options}
        kept = {name: value for name, value in said.items() if value is not None}
        return Model(self.provider, self.name, kept)
