"""Prices and context sizes of an agent's models, loaded when they are first needed."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from dragoman.accounts.call_origin import CallOrigin
from dragoman.accounts.context_sizes import Contexts
from dragoman.accounts.payment import SELF_BUDGETED, Payment, unpriced
from dragoman.accounts.price import Price
from dragoman.accounts.price_lookup import SELF_HOSTED_TYPES, PriceList, PriceOverride
from dragoman.agent.context.policy import ContextFitter, ContextPolicy, ContextSizes
from dragoman.agent.context.summary import Summariser
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context
from dragoman.providers.model import Model
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider


class ModelPrices:
    """Prices and context sizes by model. `overrides` take precedence over the price list."""

    def __init__(self, overrides: Mapping[str, PriceOverride]) -> None:
        self._overrides = overrides
        self._prices: PriceList | None = None
        self._contexts: Contexts | None = None
        self._is_loaded = False

    async def load(self) -> None:
        """Load the price list in a thread, once; the first run would otherwise block on it.

        Runs that start before it is loaded, in any event loop, each wait for it in a thread.
        """
        if not self._is_loaded:
            await self._price_list().preload()
            self._is_loaded = True

    def payment(self, model: Model, context: Context) -> Payment:
        """Return what pays for a run. ConfigError for a limited budget and a model without a price."""
        limited = self._is_limited(model.provider, model.name, budget=context.budget)
        needed = not self._is_loaded and not limited and may_be_listed(model.provider)
        return Payment(
            CallOrigin.of_run(context),
            price=lambda route: self._price(route.provider, route.model),
            budget=context.budget,
            unpriced="refuse",
            load_prices=self.load if needed else None,
        )

    def context_fitter(
        self, model: Model, policy: ContextPolicy | None, *, payment: Payment
    ) -> ContextFitter | None:
        """Return what keeps a conversation within the context of its model, also where a step uses another
        provider.

        Its summaries are written by this model and paid for like steps.
        """
        if policy is None or policy.kind == "off":
            return None
        if policy.kind == "summarise":
            summarise = policy.summarise or Summariser(model.provider, model.name)
            if isinstance(summarise, Summariser):
                self._is_limited(summarise.provider, summarise.model, budget=payment.budget)
                summarise = summarise.paid_by(payment)
            policy = replace(policy, summarise=summarise)
        if policy.limit is not None or policy.windows is not None:
            return ContextFitter(policy)
        return ContextFitter(policy, sizes=self._context_sizes)

    async def _context_sizes(self, provider: Provider) -> ContextSizes | None:
        """Return the context sizes of a provider's models; loaded in a thread."""
        if provider.family in SELF_HOSTED_TYPES:
            return None
        await self.load()
        if self._contexts is None:
            self._contexts = Contexts()
        return self._contexts.at(provider.name, base_url=base_url_of(provider), type=provider.family)

    def _is_limited(self, provider: Provider, model: str, *, budget: Budget | None) -> bool:
        """Return whether a budget applies to this model. Raises ConfigError if it does and has no price."""
        limited = budget is not None and budget.is_limited and provider.family not in SELF_BUDGETED
        if limited and self._price(provider, model) is None:
            raise unpriced(f"{provider.name}/{model}")
        return limited

    def _price(self, provider: Provider, model: str) -> Price | None:
        base_url = base_url_of(provider)
        return self._price_list().find(provider.name, model, base_url=base_url, type=provider.family)

    def _price_list(self) -> PriceList:
        if self._prices is None:
            self._prices = PriceList(self._overrides)
        return self._prices


def may_be_listed(provider: Provider) -> bool:
    """Return whether the price list may have the models of this provider."""
    return isinstance(provider, RemoteProvider) and provider.family != "ollama"


def base_url_of(provider: Provider) -> str | None:
    """Return a provider's base URL, by which the price list finds its models."""
    return provider.server.base_url if isinstance(provider, RemoteProvider) else None
