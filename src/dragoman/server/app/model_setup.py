"""The models of one configuration: providers, routing, prices, limits and agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from dragoman.accounts.limit_table import LimitTable
from dragoman.accounts.price import Price
from dragoman.accounts.price_lookup import PriceList, PriceOverride
from dragoman.agent.agent_registry import AgentRegistry
from dragoman.config import Config
from dragoman.providers.balance import BalancedModels
from dragoman.providers.routing import ANY_MODEL, Routing
from dragoman.server.app.agents import build_agents
from dragoman.server.app.providers import ProviderSet
from dragoman.server.app.teams import HubAgents, TeamServices
from dragoman.server.gateway.model_catalog import ModelCatalog

OnFallback = Callable[[str, str], None]


class ModelSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The providers, routing, prices, limits and agents built from one configuration."""

    providers: ProviderSet
    agent_registry: AgentRegistry
    catalog: ModelCatalog
    prices: PriceList
    limits: LimitTable

    @classmethod
    def build(
        cls,
        config: Config,
        environ: Mapping[str, str],
        *,
        secrets: Mapping[str, str],
        on_fallback: OnFallback,
        teams: TeamServices,
    ) -> ModelSetup:
        """Build the setup; `secrets` are those of the table, `on_fallback` is called on each fallback."""
        agents = HubAgents(build_agents(config), teams, config=config)
        provider_set = ProviderSet(config, environ, secrets=secrets)
        prices = build_prices(config)
        routing = Routing(
            provider_set.providers,
            aliases={**config.routes, **build_balance(config)},
            fallbacks=config.fallbacks,
            default=config.default_provider,
            fallback_categories=config.fallback_on,
            listed_models={name: place.models for name, place in config.providers.items() if place.only},
        )
        price = price_lookup(config, prices)
        options = {name: provider.options for name, provider in config.providers.items()}
        return cls(
            providers=provider_set,
            agent_registry=AgentRegistry(agents, routing, options=options, on_fallback=on_fallback),
            catalog=ModelCatalog(
                routing=routing,
                options=options,
                price=lambda route: price(route.provider.name, route.model),
                models=listed_models(config),
            ),
            prices=prices,
            limits=build_limits(config),
        )


def build_balance(config: Config) -> Mapping[str, BalancedModels]:
    """Build the aliases that choose among their models."""
    return {
        name: BalancedModels(alias.models, alias.balance, alias.weights)
        for name, alias in config.balanced.items()
    }


def build_prices(config: Config) -> PriceList:
    """Build the price list: prices of the configuration override those of the library."""
    return PriceList(
        {
            pattern: PriceOverride(
                input=price.input,
                output=price.output,
                cache_read=price.cache_read,
                cache_write=price.cache_write,
                hour_cache_write=price.hour_cache_write,
                web_search=price.web_search,
            )
            for pattern, price in config.price_list.items()
        }
    )


def price_lookup(config: Config, prices: PriceList) -> Callable[[str, str], Price | None]:
    """Return a function that finds the price of a provider's model."""

    addresses = {name: (settings.url, settings.type) for name, settings in config.providers.items()}

    def price(provider: str, model: str) -> Price | None:
        base_url, type = addresses.get(provider, (None, None))
        return prices.find(provider, model, base_url=base_url, type=type)

    return price


def listed_models(config: Config) -> Sequence[str]:
    """Return the model names for clients: aliases, the listed models, and the hub's own."""
    names = [name for name in config.routes if name != ANY_MODEL]
    names += [f"{name}/{model}" for name, provider in config.providers.items() for model in provider.models]
    names += [config.model] if config.model else []
    return list(dict.fromkeys(names))


def build_limits(config: Config) -> LimitTable:
    """Build the table of limits by owner and key."""
    limits = config.limits
    return LimitTable(
        default_key=limits.key,
        default_owner=limits.owner,
        by_owner=limits.owners,
        unpriced=limits.unpriced,
        named_documents=limits.named_documents,
    )
