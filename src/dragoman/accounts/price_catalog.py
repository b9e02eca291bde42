"""The price catalog: list prices of providers' models, from the library `genai-prices`.

Costs count tokens of text, the price of a request and the provider's web searches. Whatever else providers
charge (audio, pages) is not in our costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from dragoman.accounts.price import NANOS_PER_DOLLAR, Price, TokenRates

if TYPE_CHECKING:
    from genai_prices.types import MatchLogic, ModelInfo, ModelPrice, Provider, TieredPrices

PICOS_PER_MILLIONTH = 1_000_000  # in a dollar per million, a token
PROVIDER_ALIASES = {
    "bedrock": "aws",
    "gemini": "google",
    "moonshot": "moonshotai",
    "vertex": "google",
    "xai": "x-ai",
}
# What a model's name may have in addition to the library's name of the same model.
NAME_VARIANT = re.compile(
    r"\d{2,8}|v\d+(:\d+)?|latest|preview|exp|beta|us|eu|au|jp|apac|global|anthropic|publishers|models"
)
DATE_SUFFIX = re.compile(r"-(20\d\d)(\d\d)(\d\d)$")


class CatalogModel:
    """A model of a provider in the catalog."""

    def __init__(self, provider: Provider, model: ModelInfo) -> None:
        self._name = f"{provider.id}/{model.id}"
        self._model = model
        self.price_varies = isinstance(model.prices, list)
        """Whether the price depends on the date or the time of day."""
        self.context_window = model.context_window
        """The context window in tokens; None when the library does not know it."""

    def price(self, time: float) -> Price | None:
        """Return the price at a unix time; None when the model is not charged by tokens."""
        prices = self._model.get_prices(datetime.fromtimestamp(time, UTC))
        if prices.input_mtok is None:
            return None
        steps = sorted({-1, *tier_starts(prices)})
        return Price(
            name=self._name,
            rates=tuple(tier_rates(prices, above) for above in steps),
            request=nanos_per_piece(prices.requests_kcount),
            web_search=nanos_per_piece(prices.web_searches_kcount),
        )


class PriceCatalog:
    """All models of the library. Creating a catalog loads the library, which takes 0.3 s to 0.6 s."""

    def __init__(self) -> None:
        from genai_prices.data_snapshot import get_snapshot  # late: 0.3 s that only prices should cost

        self._providers = get_snapshot().providers

    def find(
        self, provider: str, model: str, *, base_url: str | None, type: str | None
    ) -> CatalogModel | None:
        """Return a model's entry, or None. A name that the library only guesses at has none."""
        seller = self._find_provider(provider, base_url, type=type)
        if seller is None:
            return None
        entry = seller.find_model(model, all_providers=self._providers)
        if entry is None or not any(matches_exactly(entry.match, name) for name in name_spellings(model)):
            return None
        return CatalogModel(seller, entry)

    def _find_provider(self, provider: str, base_url: str | None, *, type: str | None) -> Provider | None:
        """Return the provider whose prices apply: by the address, else by the name."""
        for seller in self._providers:
            if base_url and re.match(seller.api_pattern, base_url):
                return seller
        name = "anthropic" if type == "anthropic" else provider.lower()
        name = PROVIDER_ALIASES.get(name, name)
        return next((seller for seller in self._providers if seller.id == name), None)


def matches_exactly(match: MatchLogic, model: str) -> bool:
    """Whether a library entry is for exactly this name.

    The library also matches prefixes and parts of names, which would price a new model like an old one.
    """
    from genai_prices import types  # late: as above

    match match:
        case types.ClauseOr(or_=clauses):
            return any(matches_exactly(clause, model) for clause in clauses)
        case types.ClauseAnd(and_=clauses):
            return match.is_match(model) and any(matches_exactly(clause, model) for clause in clauses)
        case types.ClauseEquals():
            return match.is_match(model)
        case types.ClauseRegex(regex=regex):
            return "(?!" not in regex and match.is_match(model)
        case types.ClauseStartsWith(starts_with=part):
            return match.is_match(model) and is_variant(model, part)
        case types.ClauseEndsWith(ends_with=part) | types.ClauseContains(contains=part):
            return match.is_match(model) and is_variant(model, part)


def is_variant(model: str, part: str) -> bool:
    """Whether the name has nothing in addition to the part but a date, a region or the like."""
    if part.startswith("ft:"):
        return True  # the name of a fine-tuned model ends with its owner's
    rest = model.lower().replace(part.lower(), "", 1)
    return all(NAME_VARIANT.fullmatch(word) for word in re.split(r"[-_./@]+", rest) if word)


def name_spellings(model: str) -> Iterable[str]:
    """Return a name as it is, and with its date in the library's format."""
    lower = model.lower()
    return {lower, DATE_SUFFIX.sub(r"-\1-\2-\3", lower)}


def tier_starts(prices: ModelPrice) -> Iterable[int]:
    """Return the prompt lengths above which another tier applies."""
    from genai_prices.types import TieredPrices  # late: as above

    for each in (
        prices.input_mtok,
        prices.output_mtok,
        prices.cache_read_mtok,
        prices.cache_write_mtok,
        prices.cache_write_1h_mtok,
    ):
        if isinstance(each, TieredPrices):
            yield from (tier.start for tier in each.tiers)


def tier_rates(prices: ModelPrice, above: int) -> TokenRates:
    def rate(price: Decimal | TieredPrices | None) -> int | None:
        return None if price is None else round(tier_price(price, above) * PICOS_PER_MILLIONTH)

    return TokenRates(
        above=above,
        input=rate(prices.input_mtok) or 0,
        output=rate(prices.output_mtok) or 0,
        cache_read=rate(prices.cache_read_mtok),
        cache_write=rate(prices.cache_write_mtok),
        hour_cache_write=rate(prices.cache_write_1h_mtok),
    )


def nanos_per_piece(price: Decimal | TieredPrices | None) -> int:
    """Return nano-dollars for one piece, from dollars for a thousand."""
    return 0 if price is None else round(tier_price(price, -1) * NANOS_PER_DOLLAR / 1_000)


def tier_price(price: Decimal | TieredPrices, above: int) -> Decimal:
    """Return the price for prompts of more than `above` tokens."""
    if isinstance(price, Decimal):
        return price
    reached = [tier.price for tier in price.tiers if tier.start <= above]
    return reached[-1] if reached else price.base
