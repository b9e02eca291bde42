"""Prices by provider and model, from the configuration or the library `genai-prices`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from dragoman.accounts.price import Price, TokenRates
from dragoman.accounts.price_catalog import CatalogModel, PriceCatalog

MAX_CACHED = 4_096
REFRESH_SECONDS = 60.0  # for which a price that depends on the date or the time of day is cached
SELF_HOSTED_TYPES = ("local", "scripted", "ollama")


class PriceOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A configured price, in US dollars per million tokens; of `web_search` per thousand searches."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    hour_cache_write: float | None = None
    web_search: float | None = None


class CachedPrice(NamedTuple):
    """A cached price, and the catalog entry to ask again when it expires."""

    price: Price | None
    model: CatalogModel | None = None
    expires_at: float = 0.0


class PriceList:
    """Prices by provider and model, cached. The library is loaded at first use."""

    def __init__(
        self, overrides: Mapping[str, PriceOverride] | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`overrides` maps patterns of `provider/model` or of the model alone (`qwen3*`) to prices.

        A pattern without a `*` counts before one with; otherwise the first that matches.
        """
        overrides = overrides or {}
        ordered = sorted(overrides, key=lambda pattern: any(sign in pattern for sign in "*?["))
        self._overrides = [(pattern, override_price(pattern, overrides[pattern])) for pattern in ordered]
        self._clock = clock
        self._catalog: PriceCatalog | None = None
        self._load_lock = threading.Lock()
        self._cache: dict[tuple[str, str], CachedPrice] = {}

    async def preload(self) -> None:
        """Load the library in a thread; otherwise the first look-up waits 0.3 s to 0.6 s for it."""
        await asyncio.to_thread(self._load_catalog)

    def find(
        self, provider: str, model: str, *, base_url: str | None = None, type: str | None = None
    ) -> Price | None:
        """Return the price of a provider's model; None when it is unknown.

        The provider is recognised by its address, else by its name. Self-hosted models (types `local`,
        `scripted` and `ollama`) have a price only by an override.
        """
        key = (provider, model)
        cached = self._cache.get(key)
        if cached is None:
            cached = self._find_override(provider, model) or self._look_up(key, base_url=base_url, type=type)
        elif cached.model is not None and self._clock() >= cached.expires_at:
            cached = self._price_now(cached.model)
        else:
            return cached.price
        if len(self._cache) >= MAX_CACHED:  # clients choose the names of models
            self._cache.clear()
        self._cache[key] = cached
        return cached.price

    def _find_override(self, provider: str, model: str) -> CachedPrice | None:
        full_name = f"{provider}/{model}"
        for pattern, price in self._overrides:
            if fnmatchcase(full_name, pattern) or fnmatchcase(model, pattern):
                return CachedPrice(price)
        return None

    def _look_up(self, key: tuple[str, str], *, base_url: str | None, type: str | None) -> CachedPrice:
        provider, model = key
        if (type or provider) in SELF_HOSTED_TYPES:
            return CachedPrice(None)
        entry = self._load_catalog().find(provider, model, base_url=base_url, type=type)
        return CachedPrice(None) if entry is None else self._price_now(entry)

    def _price_now(self, model: CatalogModel) -> CachedPrice:
        now = self._clock()
        price = model.price(now)
        return CachedPrice(price, model, now + REFRESH_SECONDS) if model.price_varies else CachedPrice(price)

    def _load_catalog(self) -> PriceCatalog:
        with self._load_lock:  # threads that need it at once wait for the first one
            if self._catalog is None:
                self._catalog = PriceCatalog()
            return self._catalog


def override_price(pattern: str, override: PriceOverride) -> Price:
    rates = TokenRates(
        input=to_picos(override.input),
        output=to_picos(override.output),
        cache_read=None if override.cache_read is None else to_picos(override.cache_read),
        cache_write=None if override.cache_write is None else to_picos(override.cache_write),
        hour_cache_write=None if override.hour_cache_write is None else to_picos(override.hour_cache_write),
    )
    return Price(name=pattern, rates=(rates,), web_search=to_picos(override.web_search or 0.0))


def to_picos(usd_per_million: float) -> int:
    """Convert dollars per million tokens to picodollars a token, by their decimal notation, not the float."""
    return round(Decimal(str(usd_per_million)) * 1_000_000)
