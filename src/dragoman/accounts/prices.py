"""Prices: which one a model has, from the configuration or from the library `genai-prices`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from dragoman.accounts.catalogue import Catalogue, Offer
from dragoman.accounts.price import Price, Rates

CACHED = 4_096
STANDING = 60.0  # seconds that a price stands which depends on the date or the time of the day
OF_OUR_OWN = ("local", "scripted", "ollama")


class PriceOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A price of the configuration, in US dollars per million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None


class Found(NamedTuple):
    """A price, and what it is to be asked again of once it does not stand any more."""

    price: Price | None
    offer: Offer | None = None
    until: float = 0.0


class Prices:
    """Prices by provider and model. What was found once is kept; the library is loaded when first needed."""

    def __init__(
        self, overrides: Mapping[str, PriceOverride] | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`overrides` are by pattern of `provider/model` or of the model alone: `openai/gpt-*`, `qwen3*`.
        One without a `*` comes before one with; else the first that fits is taken.
        """
        given = overrides or {}
        ordered = sorted(given, key=lambda pattern: any(sign in pattern for sign in "*?["))
        self._overrides = [(pattern, as_price(pattern, given[pattern])) for pattern in ordered]
        self._clock = clock
        self._catalogue: Catalogue | None = None
        self._found: dict[tuple[str, str], Found] = {}

    async def warm(self) -> None:
        """Load the library in a thread: else the first that is looked up waits 0.3 s to 0.6 s for it."""
        await asyncio.to_thread(self._load)

    def find(
        self, provider: str, model: str, *, base_url: str | None = None, type: str | None = None
    ) -> Price | None:
        """The price of a provider's model; None when nobody has said one.

        Whose prices they are is told by the address, else by the provider's name when it is one that the
        library knows. Models of types `local`, `scripted` and `ollama` run on machines of our own and have
        a price only by an override.
        """
        key = (provider, model)
        found = self._found.get(key)
        if found is None:
            found = self._override(provider, model) or self._look_up(key, base_url=base_url, type=type)
        elif found.offer is not None and self._clock() >= found.until:
            found = self._ask(found.offer)
        else:
            return found.price
        if len(self._found) >= CACHED:  # clients choose the names of models
            self._found.clear()
        self._found[key] = found
        return found.price

    def _override(self, provider: str, model: str) -> Found | None:
        whole = f"{provider}/{model}"
        for pattern, price in self._overrides:
            if fnmatchcase(whole, pattern) or fnmatchcase(model, pattern):
                return Found(price)
        return None

    def _look_up(self, key: tuple[str, str], *, base_url: str | None, type: str | None) -> Found:
        provider, model = key
        if (type or provider) in OF_OUR_OWN:
            return Found(None)
        offer = self._load().find(provider, model, base_url=base_url, type=type)
        return Found(None) if offer is None else self._ask(offer)

    def _ask(self, offer: Offer) -> Found:
        now = self._clock()
        price = offer.price(now)
        return Found(price, offer, now + STANDING) if offer.changes else Found(price)

    def _load(self) -> Catalogue:
        if self._catalogue is None:
            self._catalogue = Catalogue()
        return self._catalogue


def as_price(pattern: str, override: PriceOverride) -> Price:
    rates = Rates(
        input=picos(override.input),
        output=picos(override.output),
        cache_read=None if override.cache_read is None else picos(override.cache_read),
        cache_write=None if override.cache_write is None else picos(override.cache_write),
    )
    return Price(name=pattern, rates=(rates,))


def picos(usd_per_million: float) -> int:
    """Dollars per million tokens as picodollars a token; as they were written, not as floats have them."""
    return round(Decimal(str(usd_per_million)) * 1_000_000)
