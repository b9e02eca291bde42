"""Spending: what the model calls of a run cost, reserved in its budget before and settled after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from dragoman import events as e
from dragoman.accounts.price import DEFAULT_OUTPUT_TOKENS, NANOS_PER_DOLLAR, Price, provider_cost
from dragoman.errors import BudgetExhausted, ConfigError
from dragoman.model_request import ModelRequest
from dragoman.operations.budget import Budget
from dragoman.providers.provider import Provider
from dragoman.wire.token_estimate import ANTHROPIC_FACTOR, estimate_input

PriceOf: TypeAlias = Callable[[Provider, str], Price | None]
UNGATED = ("claude-code",)  # families that see to their budget themselves
CHARACTERS = 4  # of an answer, for one token


class Paying(Protocol):
    """A request being paid for: `note` each batch of its answer, then `settle`."""

    def note(self, batch: Sequence[e.Event]) -> None:
        """A batch has come. BudgetExhausted when the answer outgrows what there is."""
        ...

    def settle(self, finish: e.FinishStep) -> tuple[e.Usage | None, float | None]:
        """What it used and cost, as far as that is known; only the first time counts."""
        ...


class Payer(Protocol):
    """Who counts what the model calls of a run cost: `Spending`, or in the hub its bill."""

    @property
    def cost(self) -> float | None:
        """US dollars until now; None while no price is known."""
        ...

    async def ready(self) -> None:
        """Wait until costs can be told."""
        ...

    def pay(self, request: ModelRequest, provider: Provider) -> Paying:
        """Begin to pay for a request. BudgetExhausted."""
        ...


class Spending:
    """Pays for the model calls of a run. `price_of` finds the price of a provider's model.

    Without a budget, or a limit to it, nothing is estimated and nothing refused: costs are only counted, and
    not before prices are `loaded`.
    """

    def __init__(
        self,
        price_of: PriceOf,
        budget: Budget | None = None,
        *,
        loaded: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.budget = budget
        self.price_of = price_of
        self._loaded = loaded
        self._cost: float | None = None
        self._owed: list[Callable[[], float | None]] = []

    async def ready(self) -> None:
        """Wait until prices can be looked up without holding anybody up."""
        if self._loaded is not None:
            await self._loaded()
            self._loaded = None

    @property
    def cost(self) -> float | None:
        """What it came to, in US dollars; None while no price is known."""
        owed, self._owed = self._owed, []
        for told in owed:
            self._add(told())
        return self._cost

    def pay(self, request: ModelRequest, provider: Provider) -> Payment:
        """Begin to pay for a request. BudgetExhausted when what it may cost does not fit any more."""
        payment = Payment(self, request, provider=provider)
        payment.reserve()
        return payment

    def settle(self, told: Callable[[], float | None], *, reserved: float) -> float | None:
        """What something cost; at once where somebody waits for it or it is known, else when it is asked."""
        limited = self.budget is not None and self.budget.is_limited
        if self._loaded is not None and not limited:
            self._owed.append(told)
            return None
        usd = told()
        if self.budget is not None:
            self.budget.settle(reserved, usd or 0.0)
        self._add(usd)
        return usd

    def _add(self, usd: float | None) -> None:
        if usd is not None:
            self._cost = (self._cost or 0.0) + usd


class Payment:
    """One request being paid for. `note` each batch of its answer, then `settle`."""

    def __init__(self, spending: Spending, request: ModelRequest, *, provider: Provider) -> None:
        self._spending = spending
        self._request = request
        self._provider = provider
        self._reserved = 0.0
        self._room = 0  # tokens of the answer that are paid for
        self._said = 0
        self._began = False
        self._open = True
        self._input: int | None = None

    def reserve(self) -> None:
        """Keep back what the request may cost. BudgetExhausted; ConfigError where that cannot be told."""
        budget = self._limited()
        if budget is None:
            return
        self._room = limit_of(self._request) or DEFAULT_OUTPUT_TOKENS
        wanted = self._dear().max_cost(self._tokens(), self._room) / NANOS_PER_DOLLAR
        budget.reserve(wanted)
        self._reserved = wanted

    def note(self, batch: Sequence[e.Event]) -> None:
        """A batch has come. BudgetExhausted when the answer outgrows what is left of the budget."""
        self._began = True
        for event in batch:
            if isinstance(event, (e.TextDelta, e.ReasoningDelta)):
                self._said += len(event.delta)
            elif isinstance(event, e.ToolInputDelta):
                self._said += len(event.input_text_delta)
        if self._reserved and self._said > self._room * CHARACTERS:
            self._grow()

    def settle(self, finish: e.FinishStep) -> tuple[e.Usage | None, float | None]:
        """What it used, and what that cost as far as it is known; only the first time counts.

        An answer that broke off is estimated, unless it says what it took: what was said has to be paid for.
        So is, out of a budget, one whose provider does not count.
        """
        if not self._open:
            return None, None
        self._open = False
        usage = finish.usage
        if finish.finish_reason is None and usage is None and self._began:
            usage = self._estimated()
        paid = self._estimated() if usage is None and self._began and self._reserved else usage

        def told() -> float | None:
            price = self._spending.price_of(self._provider, self._request.model)
            nanos = price.cost(paid) if price is not None and paid is not None else None
            return provider_cost(finish) if nanos is None else nanos / NANOS_PER_DOLLAR

        return usage, self._spending.settle(told, reserved=self._reserved)

    def _dear(self) -> Price:
        price = self._spending.price_of(self._provider, self._request.model)
        if price is None:
            raise unpriced(self._request.model)
        return price

    def _limited(self) -> Budget | None:
        budget = self._spending.budget
        if budget is None or not budget.is_limited or self._provider.family in UNGATED:
            return None
        return budget

    def _grow(self) -> None:
        budget = self._limited()
        if budget is None:
            return
        more = self._dear().max_cost(0, DEFAULT_OUTPUT_TOKENS) / NANOS_PER_DOLLAR
        budget.reserve(more)
        self._reserved += more
        self._room += DEFAULT_OUTPUT_TOKENS

    def _tokens(self) -> int:
        if self._input is None:
            factor = ANTHROPIC_FACTOR if self._provider.family == "anthropic" else 1.0
            self._input = estimate_input(self._request, factor=factor)
        return self._input

    def _estimated(self) -> e.Usage:
        output = -(-self._said // CHARACTERS)
        return e.Usage(self._tokens(), output, self._tokens() + output, estimated=True)


def limit_of(request: ModelRequest) -> int | None:
    """How many tokens the answer may have, where the request says it."""
    said = request.options.get("max_completion_tokens") or request.options.get("max_tokens")
    return said if isinstance(said, int) and said > 0 else None


def unpriced(model: str) -> ConfigError:
    """The error of a model that a budget cannot be kept for."""
    return ConfigError(
        f"there is no price for the model {model!r}, so a budget in US dollars cannot be kept",
        hint="say one: prices={'provider/model': PriceOverride(input=1, output=2)}, or leave the budget out",
    )


# ---- A pledge: what is kept back of a run's budget for one model call, until it is known what that cost.

CHARACTERS = 4  # of an answer, for one token


class Pledge:
    """Money of a budget for one model call: as much as it may cost, more while its answer outgrows that.

    Without a price nothing can be kept back: such a call is paid for when its provider has told what it cost.
    """

    def __init__(self, budget: Budget | None, price: Price | None) -> None:
        self._budget = budget
        self._price = price if budget is not None and budget.is_limited else None
        self._held = 0.0
        self._room = 0  # tokens of the answer that are paid for
        self._open = True

    def take(self, tokens: Callable[[], int], most: int | None) -> None:
        """Keep it back: for so many `tokens` of the prompt, and an answer of `most`. BudgetExhausted."""
        budget, price = self._budget, self._price
        if budget is not None and budget.is_spent:
            raise BudgetExhausted("the budget of this run is spent")
        if price is not None:
            self._room = DEFAULT_OUTPUT_TOKENS if most is None else most
            self._keep(price.max_cost(tokens(), self._room))

    def note(self, said: int) -> None:
        """The answer has so many characters. BudgetExhausted when it outgrows what is left."""
        price = self._price
        while price is not None and said > self._room * CHARACTERS:
            self._keep(price.max_cost(0, DEFAULT_OUTPUT_TOKENS))
            self._room += DEFAULT_OUTPUT_TOKENS

    def settle(self, usd: float | None, *, answered: bool) -> None:
        """What it cost; None: nobody knows, and what was kept back counts if it was `answered`.

        Only the first time counts.
        """
        if not self._open or self._budget is None:
            return
        self._open = False
        unknown = self._held if answered else 0.0
        self._budget.settle(self._held, unknown if usd is None else usd)

    def _keep(self, nanos: int) -> None:
        if self._budget is not None:
            self._budget.reserve(nanos / NANOS_PER_DOLLAR)
            self._held += nanos / NANOS_PER_DOLLAR
