"""Contexts: how many tokens a model reads and writes, by configuration or library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from dragoman.accounts.price_catalog import PriceCatalog
from dragoman.accounts.price_list import SELF_HOSTED_TYPES


class Contexts:
    """Context sizes by provider and model; what was found once is kept, the library is loaded when needed.

    `given` is by pattern of `provider/model` or of the model alone (`gpt-*`); the first that fits counts.
    """

    def __init__(self, given: Mapping[str, int] | None = None) -> None:
        self._overrides = dict(given or {})
        self._cache: dict[tuple[str, str], int | None] = {}
        self._catalog: PriceCatalog | None = None

    def find(
        self, provider: str, model: str, *, base_url: str | None = None, type: str | None = None
    ) -> int | None:
        """The tokens that a provider's model takes, the answer included; None when nobody says.

        What runs on machines of our own has the size that it was started with, which only `given` says.
        """
        key = (provider, model)
        if key not in self._cache:
            said = self._find_override(f"{provider}/{model}", model)
            self._cache[key] = said or self._look_up(key, base_url=base_url, type=type)
        return self._cache[key]

    def at(
        self, provider: str, *, base_url: str | None = None, type: str | None = None
    ) -> Callable[[str], int | None]:
        """The sizes of one provider's models, by the model alone: the `windows` of a `ContextPolicy`."""
        return lambda model: self.find(provider, model, base_url=base_url, type=type)

    def _find_override(self, full_name: str, model: str) -> int | None:
        fits = (
            size
            for pattern, size in self._overrides.items()
            if fnmatchcase(full_name, pattern) or fnmatchcase(model, pattern)
        )
        return next(fits, None)

    def _look_up(self, key: tuple[str, str], *, base_url: str | None, type: str | None) -> int | None:
        provider, model = key
        if (type or provider) in SELF_HOSTED_TYPES:
            return None
        if self._catalog is None:
            self._catalog = PriceCatalog()
        offer = self._catalog.find(provider, model, base_url=base_url, type=type)
        return None if offer is None else offer.context_window
