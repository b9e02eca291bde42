"""Context window sizes of models, from the configuration or the library `genai-prices`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from dragoman.accounts.price_catalog import PriceCatalog
from dragoman.accounts.price_lookup import SELF_HOSTED_TYPES

MAX_CACHED = 4_096


class Contexts:
    """Context window sizes by provider and model, cached. The library is loaded at first use.

    `overrides` maps patterns of `provider/model` or of the model alone (`gpt-*`) to tokens; the first pattern
    that matches counts.
    """

    def __init__(self, overrides: Mapping[str, int] | None = None) -> None:
        self._overrides = dict(overrides or {})
        self._cache: dict[tuple[str, str], int | None] = {}
        self._catalog: PriceCatalog | None = None

    def find(
        self, provider: str, model: str, *, base_url: str | None = None, type: str | None = None
    ) -> int | None:
        """Return a model's context window in tokens, the answer included; None when it is unknown.

        A self-hosted model has the size that it was started with, which only `overrides` can state.
        """
        key = (provider, model)
        if key not in self._cache:
            if len(self._cache) >= MAX_CACHED:  # clients choose the names of models
                self._cache.clear()
            override = self._find_override(f"{provider}/{model}", model)
            self._cache[key] = override or self._look_up(key, base_url=base_url, type=type)
        return self._cache[key]

    def at(
        self, provider: str, *, base_url: str | None = None, type: str | None = None
    ) -> Callable[[str], int | None]:
        """Return a function from a model of this provider to its size: the `windows` of a `ContextPolicy`."""
        return lambda model: self.find(provider, model, base_url=base_url, type=type)

    def _find_override(self, full_name: str, model: str) -> int | None:
        sizes = (
            size
            for pattern, size in self._overrides.items()
            if fnmatchcase(full_name, pattern) or fnmatchcase(model, pattern)
        )
        return next(sizes, None)

    def _look_up(self, key: tuple[str, str], *, base_url: str | None, type: str | None) -> int | None:
        provider, model = key
        if (type or provider) in SELF_HOSTED_TYPES:
            return None
        if self._catalog is None:
            self._catalog = PriceCatalog()
        entry = self._catalog.find(provider, model, base_url=base_url, type=type)
        return None if entry is None else entry.context_window
