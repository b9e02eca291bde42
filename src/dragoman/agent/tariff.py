"""The tariff: what an agent's models cost and how much they read, and what keeps its runs within that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from dragoman.accounts.contexts import Contexts
from dragoman.accounts.payment import UNGATED, Spending, unpriced
from dragoman.accounts.price import Price
from dragoman.accounts.prices import OF_OUR_OWN, PriceOverride, Prices
from dragoman.agent.context.context import ContextPolicy, Fitting, Windows
from dragoman.agent.context.summary import Summariser
from dragoman.operations.budget import Budget
from dragoman.providers.model import Model
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider


class Tariff:
    """Prices and context sizes by model, looked up when they are first needed. `given` prices come first."""

    def __init__(self, given: Mapping[str, PriceOverride]) -> None:
        self._given = given
        self._prices: Prices | None = None
        self._contexts: Contexts | None = None
        self._loading: asyncio.Future[None] | None = None

    async def load(self) -> None:
        """Load the price list in a thread, once: else the first run that needs it would wait for it."""
        if self._loading is None or self._loading.cancelled():
            self._loading = asyncio.ensure_future(self._known().warm())
        await asyncio.shield(self._loading)

    def spending(self, model: Model, budget: Budget | None) -> Spending:
        """What counts the money of a run. ConfigError where a budget is to be kept without a price."""
        limited = self._limited(model.provider, model.name, budget=budget)
        loading = self._loading is None or not self._loading.done()
        needed = loading and not limited and is_priced(model.provider)
        return Spending(self._price, budget, loaded=self.load if needed else None)

    def window(self, model: Model, policy: ContextPolicy | None, *, spending: Spending) -> Fitting | None:
        """What keeps a conversation within the context of the model that is asked, also where a step asks
        another provider's; its summaries are made by this model, and paid like steps.
        """
        if policy is None or policy.kind == "off":
            return None
        if policy.kind == "summarise":
            summarise = policy.summarise or Summariser(model.provider, model.name)
            if isinstance(summarise, Summariser):
                self._limited(summarise.provider, summarise.model, budget=spending.budget)
                summarise = summarise.paid_by(spending)
            policy = replace(policy, summarise=summarise)
        if policy.limit is not None or policy.windows is not None:
            return Fitting(policy)
        return Fitting(policy, sizes=self._sizes)

    async def _sizes(self, provider: Provider) -> Windows | None:
        """The sizes of a provider's models; loaded in a thread, which holds nobody up."""
        if provider.family in OF_OUR_OWN:
            return None
        await self.load()
        if self._contexts is None:
            self._contexts = Contexts()
        return self._contexts.at(provider.name, base_url=address_of(provider), type=provider.family)

    def _limited(self, provider: Provider, model: str, *, budget: Budget | None) -> bool:
        """Whether a budget is kept for this model. ConfigError where it cannot be, without a price."""
        limited = budget is not None and budget.is_limited and provider.family not in UNGATED
        if limited and self._price(provider, model) is None:
            raise unpriced(f"{provider.name}/{model}")
        return limited

    def _price(self, provider: Provider, model: str) -> Price | None:
        base_url = address_of(provider)
        return self._known().find(provider.name, model, base_url=base_url, type=provider.family)

    def _known(self) -> Prices:
        if self._prices is None:
            self._prices = Prices(self._given)
        return self._prices


def is_priced(provider: Provider) -> bool:
    """Whether the price list may know its models."""
    return isinstance(provider, RemoteProvider) and provider.family != "ollama"


def address_of(provider: Provider) -> str | None:
    """Where a provider is, as far as that says whose prices and sizes its models have."""
    return provider.server.base_url if isinstance(provider, RemoteProvider) else None
