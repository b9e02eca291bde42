"""A setting: all that one configuration says of models, made into what the gateway and the agents use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from dragoman.accounts.price import Price
from dragoman.accounts.prices import PriceOverride, Prices
from dragoman.accounts.table import LimitTable
from dragoman.agent.roster import Roster
from dragoman.config import Config
from dragoman.providers.routing import Routing
from dragoman.server.app.agents import agents_of
from dragoman.server.app.fleet import Fleet
from dragoman.server.gateway.record import Book

Fell = Callable[[str, str], None]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration at work. `price` finds the price of a provider's model."""

    fleet: Fleet
    roster: Roster
    book: Book
    prices: Prices
    limits: LimitTable
    price: Callable[[str, str], Price | None]

    @classmethod
    def of(
        cls, config: Config, environ: Mapping[str, str], *, secrets: Mapping[str, str], fell: Fell
    ) -> Setting:
        """The setting of a configuration; `secrets` are of the encrypted table, `fell` hears of fallbacks."""
        agents = agents_of(config)
        fleet = Fleet(config, environ, secrets=secrets)
        prices = prices_of(config)
        routing = Routing(
            fleet.providers,
            aliases=config.routes,
            fallbacks=config.fallbacks,
            default=config.default_provider,
            fall_on=config.fallback_on,
            only={name: place.models for name, place in config.providers.items() if place.only},
        )
        options = {name: provider.options for name, provider in config.providers.items()}
        price = pricer(config, prices)
        return cls(
            fleet=fleet,
            roster=Roster(agents, routing, options=options, fell=fell),
            book=Book(
                routing=routing,
                options=options,
                price=lambda route: price(route.provider.name, route.model),
                models=shown(config),
            ),
            prices=prices,
            limits=limits_of(config),
            price=price,
        )


def prices_of(config: Config) -> Prices:
    """The prices: those of the configuration, then those of the library."""
    return Prices(
        {
            pattern: PriceOverride(
                input=said.input,
                output=said.output,
                cache_read=said.cache_read,
                cache_write=said.cache_write,
            )
            for pattern, said in config.price_list.items()
        }
    )


def pricer(config: Config, prices: Prices) -> Callable[[str, str], Price | None]:
    """What finds the price of a provider's model."""

    def price(provider: str, model: str) -> Price | None:
        said = config.providers.get(provider)
        if said is None:
            return prices.find(provider, model)
        return prices.find(provider, model, base_url=said.url, type=said.type)

    return price


def shown(config: Config) -> Sequence[str]:
    """The names under which clients may ask: aliases, the models that are listed, and the hub's own."""
    names = [*config.routes]
    names += [f"{name}/{model}" for name, said in config.providers.items() for model in said.models]
    names += [config.model] if config.model else []
    return list(dict.fromkeys(names))


def limits_of(config: Config) -> LimitTable:
    """Who may ask how much."""
    said = config.limits
    return LimitTable(keys=said.key, owners=said.owner, owner=said.owners, unpriced=said.unpriced)
