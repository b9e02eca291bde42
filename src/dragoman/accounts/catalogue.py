"""The catalogue: what providers ask for their models, out of the library `genai-prices`.

Of what the library knows, tokens of text and the price of a request are counted. What providers charge
beside (searches, audio, pages, writing a cache for an hour instead of five minutes) is not in a usage object,
and not in our costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from dragoman.accounts.price import NANO, Price, Rates

if TYPE_CHECKING:
    from genai_prices.types import MatchLogic, ModelInfo, ModelPrice, Provider, TieredPrices

PICOS = 1_000_000  # in a dollar per million, a token
ALSO_KNOWN_AS = {
    "bedrock": "aws",
    "gemini": "google",
    "moonshot": "moonshotai",
    "vertex": "google",
    "xai": "x-ai",
}
# What a model's name may have beside the part that the library knows it by, without being another model.
SAME = re.compile(
    r"\d{2,8}|v\d+(:\d+)?|latest|preview|exp|beta|us|eu|au|jp|apac|global|anthropic|publishers|models"
)
DATE = re.compile(r"-(20\d\d)(\d\d)(\d\d)$")


class Offer:
    """A model of a provider, as the library has it."""

    def __init__(self, provider: Provider, model: ModelInfo) -> None:
        self._name = f"{provider.id}/{model.id}"
        self._model = model
        self.changes = isinstance(model.prices, list)
        """Whether the price depends on the date or the time of the day."""
        self.context = model.context_window
        """How many tokens the model reads and writes; None when the library does not say."""

    def price(self, at: float) -> Price | None:
        """The price at a moment in unix seconds; None when tokens are not what is paid for."""
        asked = self._model.get_prices(datetime.fromtimestamp(at, UTC))
        if asked.input_mtok is None:
            return None
        steps = sorted({-1, *starts(asked)})
        request = asked.requests_kcount
        return Price(
            name=self._name,
            rates=tuple(rates_at(asked, over) for over in steps),
            request=0 if request is None else round(at_step(request, -1) * NANO / 1_000),
        )


class Catalogue:
    """All offers. Making one loads the library, which takes 0.3 s to 0.6 s."""

    def __init__(self) -> None:
        from genai_prices.data_snapshot import get_snapshot  # late: 0.3 s that only prices should cost

        self._providers = get_snapshot().providers

    def find(self, provider: str, model: str, *, base_url: str | None, type: str | None) -> Offer | None:
        """The offer for a model. A name that the library only guesses at has none."""
        seller = self._seller(provider, base_url, type=type)
        if seller is None:
            return None
        found = seller.find_model(model, all_providers=self._providers)
        if found is None or not any(is_named(found.match, name) for name in spellings(model)):
            return None
        return Offer(seller, found)

    def _seller(self, provider: str, base_url: str | None, *, type: str | None) -> Provider | None:
        """Whose prices these are: the address says it, else the name."""
        for seller in self._providers:
            if base_url and re.match(seller.api_pattern, base_url):
                return seller
        name = "anthropic" if type == "anthropic" else provider.lower()
        name = ALSO_KNOWN_AS.get(name, name)
        return next((seller for seller in self._providers if seller.id == name), None)


def is_named(match: MatchLogic, model: str) -> bool:
    """Whether the library means this very name.

    It also matches by the beginning or a part of a name, which would price a new model like an old one.
    """
    from genai_prices import types  # late: as above

    match match:
        case types.ClauseOr(or_=clauses):
            return any(is_named(clause, model) for clause in clauses)
        case types.ClauseAnd(and_=clauses):
            return match.is_match(model) and any(is_named(clause, model) for clause in clauses)
        case types.ClauseEquals():
            return match.is_match(model)
        case types.ClauseRegex(regex=regex):
            return "(?!" not in regex and match.is_match(model)
        case types.ClauseStartsWith(starts_with=part):
            return match.is_match(model) and is_same(model, part)
        case types.ClauseEndsWith(ends_with=part) | types.ClauseContains(contains=part):
            return match.is_match(model) and is_same(model, part)


def is_same(model: str, part: str) -> bool:
    """Whether what the name has beside the part is no more than a date, a region or the like."""
    if part.startswith("ft:"):
        return True  # a fine-tuned model has its owner's name behind
    rest = model.lower().replace(part.lower(), "", 1)
    return all(SAME.fullmatch(word) for word in re.split(r"[-_./@]+", rest) if word)


def spellings(model: str) -> Iterable[str]:
    """A name as it is, and with its date as the library writes it."""
    lower = model.lower()
    return {lower, DATE.sub(r"-\1-\2-\3", lower)}


def starts(asked: ModelPrice) -> Iterable[int]:
    """The lengths of a prompt above which it costs more."""
    from genai_prices.types import TieredPrices  # late: as above

    for each in (asked.input_mtok, asked.output_mtok, asked.cache_read_mtok, asked.cache_write_mtok):
        if isinstance(each, TieredPrices):
            yield from (tier.start for tier in each.tiers)


def rates_at(asked: ModelPrice, over: int) -> Rates:
    def rate(price: Decimal | TieredPrices | None) -> int | None:
        return None if price is None else round(at_step(price, over) * PICOS)

    return Rates(
        over=over,
        input=rate(asked.input_mtok) or 0,
        output=rate(asked.output_mtok) or 0,
        cache_read=rate(asked.cache_read_mtok),
        cache_write=rate(asked.cache_write_mtok),
    )


def at_step(price: Decimal | TieredPrices, over: int) -> Decimal:
    """The price for prompts of more than `over` tokens."""
    if isinstance(price, Decimal):
        return price
    reached = [tier.price for tier in price.tiers if tier.start <= over]
    return reached[-1] if reached else price.base
