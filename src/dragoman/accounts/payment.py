"""Who pays for model calls, and what they have cost so far."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.accounts.budget_reservation import BudgetReservation
from dragoman.accounts.call_origin import CallOrigin
from dragoman.accounts.price import DEFAULT_OUTPUT_TOKENS, Price
from dragoman.accounts.request_size import UNBOUNDED, AnswerBounds
from dragoman.errors import ConfigError
from dragoman.events import Usage
from dragoman.operations.budget import Budget
from dragoman.operations.context import Context
from dragoman.providers.routing import ModelRoutes, Route

if TYPE_CHECKING:  # a program without a hub has no meter, and loads no database
    from dragoman.accounts.meter import Meter
    from dragoman.accounts.shared_budgets import SharedReservation

PriceOf: TypeAlias = Callable[[Route], Price | None]

SELF_BUDGETED = ("claude-code",)  # provider families that keep to a budget of their own


def _no_price(_: Route) -> Price | None:
    return None


class Payment:
    """Who pays for the model calls of a run or of a gateway request, and what they have cost so far.

    `price` finds the price of a route. With a `meter` the caller's limits hold and usage records are written;
    without one, in the library, records are kept in memory only. A `budget` is reserved before and settled
    after each call. `unpriced` says what happens to a call that a limited budget should pay for and that has
    no price. `load_prices` is awaited, once, before the first cost is looked up.
    """

    def __init__(
        self,
        origin: CallOrigin | None = None,
        *,
        price: PriceOf = _no_price,
        meter: Meter | None = None,
        budget: Budget | None = None,
        unpriced: Literal["refuse", "allow"] = "allow",
        load_prices: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.origin = origin or CallOrigin()
        self.price = price
        self.meter = meter
        self.budget = budget
        self.calls = 0
        """The number of the step that the last model call belongs to."""
        self._unpriced = unpriced
        self._load_prices = load_prices
        self._cost: float | None = None
        self._later_costs: list[Callable[[], float | None]] = []

    def price_of(self, route: Route | None, usage: Usage, *, price: Price | None = None) -> Price | None:
        """Return the price of a route, with those of other models that its provider has asked for advice."""
        if route is None:
            return None
        own = price or self.price(route)
        if own is None or not usage.other_models:
            return own
        return self._with_others(own, route, names={other.model for other in usage.other_models})

    def price_to_reserve(self, route: Route, answer: AnswerBounds) -> Price | None:
        """Return the price of a route, with those of the models that its provider may ask for advice."""
        own = self.price(route)
        if own is None or not answer.advisors:
            return own
        return self._with_others(own, route, names={each.model for each in answer.advisors})

    def _with_others(self, price: Price, route: Route, *, names: Collection[str]) -> Price:
        return replace(price, others={name: self.price(route._replace(model=name)) for name in names})

    @property
    def cost(self) -> float | None:
        """US dollars of all calls that have ended; None while no cost is known."""
        later_costs, self._later_costs = self._later_costs, []
        for cost in later_costs:
            self.add(cost())
        return None if self._cost is None else round(self._cost, 9)

    @property
    def is_limited(self) -> bool:
        """Whether a budget limits what the calls may cost."""
        return self.budget is not None and self.budget.is_limited

    @property
    def named_documents(self) -> int:
        """The most tokens of the documents that a request only names; 0 in the library."""
        return 0 if self.meter is None else self.meter.limits.named_documents

    @property
    def prices_loaded(self) -> bool:
        """Whether a price can be looked up without blocking the event loop."""
        return self._load_prices is None

    async def ready(self) -> None:
        """Wait until prices can be looked up without blocking the event loop."""
        if self._load_prices is not None:
            await self._load_prices()
            self._load_prices = None

    def add(self, cost: float | None) -> None:
        """Count the cost of a call that has ended."""
        if cost is not None:
            self._cost = (self._cost or 0.0) + cost

    def add_later(self, cost: Callable[[], float | None]) -> None:
        """Count what `cost` returns, of a call that has ended, when somebody asks for it."""
        self._later_costs.append(cost)

    def reservation(self, routes: ModelRoutes, answer: AnswerBounds = UNBOUNDED) -> BudgetReservation | None:
        """Return the reservation of a call; None without a budget. Raises ConfigError without a price."""
        if self.budget is None:
            return None
        if routes.first.provider.family in SELF_BUDGETED:
            return BudgetReservation(self.budget, None)
        price = self._highest_price(routes, answer)
        missing = routes.first.model if price is None else answer.unpriced(price)
        if missing is not None and self.is_limited and self._unpriced == "refuse":
            raise unpriced(missing)
        return BudgetReservation(self.budget, price)

    def shared_reservation(self, own: BudgetReservation) -> SharedReservation | None:
        """Return the reservation of a call in the budgets that its run shares; None in the library."""
        return None if self.meter is None else self.meter.shared_budgets.reservation(own)

    def _highest_price(self, routes: ModelRoutes, answer: AnswerBounds) -> Price | None:
        """Return the price of the most expensive route: the call may fall back to it."""
        typical = AnswerBounds(DEFAULT_OUTPUT_TOKENS, advisors=answer.advisors)
        prices = [self.price_to_reserve(route, answer) for route in routes.routes]
        return max(
            (price for price in prices if price is not None),
            key=lambda price: typical.max_cost(price, DEFAULT_OUTPUT_TOKENS),
            default=None,
        )


class Billing(msgspec.Struct, frozen=True):
    """Where the runs of a hub pay: its meter, and the prices of its providers' models."""

    meter: Meter
    price: PriceOf

    def payment(self, context: Context) -> Payment:
        """Return the payment of a run: by its caller, and out of its budget if it has one."""
        origin = CallOrigin.of_run(context)
        return Payment(origin, price=self.price, meter=self.meter, budget=context.budget)


def unpriced(model: str) -> ConfigError:
    """Return the error for a model without a price under a limited budget."""
    return ConfigError(
        f"there is no price for the model {model!r}, so a budget in US dollars cannot be kept",
        hint="pass one: prices={'provider/model': PriceOverride(input=1, output=2)}, or omit the budget",
    )
