"""A metered provider: each model call of a run is let in under its caller's limits, and written down."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import cached_property

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.accounts.meter import Admission, Meter
from dragoman.accounts.payment import CHARACTERS, UNGATED, Pledge
from dragoman.accounts.price import DEFAULT_OUTPUT_TOKENS, Price, provider_cost, usage_of_error
from dragoman.errors import BadRequest, BudgetExhausted, DragomanError, LimitReached, ProviderError
from dragoman.ids import sortable_id
from dragoman.model_request import ModelRequest
from dragoman.operations.context import Context
from dragoman.providers.fallback import FallbackProvider
from dragoman.providers.provider import Provider
from dragoman.providers.wrapper import ProviderWrapper
from dragoman.store.usage import UsageRecord
from dragoman.wire.token_estimate import ANTHROPIC_FACTOR, estimate_input

# ---- The bill of a run: what its model calls cost, as each of them is settled; nothing is paid here.


class Bill:
    """A `Payer` for the loop: the calls of a run are paid for where they are made, and noted here."""

    def __init__(self) -> None:
        self.calls = 0
        """How many model calls were begun."""
        self.costs: list[float | None] = []
        """US dollars of each that is settled; None where nobody knows."""

    @property
    def cost(self) -> float | None:
        """See `Payer.cost`."""
        return self.since(0)

    def since(self, at: int) -> float | None:
        """The same for the calls from this one on."""
        known = [usd for usd in self.costs[at:] if usd is not None]
        return round(sum(known), 9) if known else None

    async def ready(self) -> None:
        """Nothing: a call is settled before its answer is over."""

    def pay(self, request: ModelRequest, provider: Provider) -> Receipt:
        """See `Payer.pay`; a budget that is spent refuses the call itself."""
        return Receipt(self)


class Receipt:
    """A `Paying`: what one step came to."""

    def __init__(self, bill: Bill) -> None:
        self._bill = bill
        self._at = len(bill.costs)

    def note(self, batch: Sequence[e.Event]) -> None:
        """Nothing: whoever meters the call counts it."""

    def settle(self, finish: e.FinishStep) -> tuple[e.Usage | None, float | None]:
        """See `Paying.settle`."""
        return finish.usage, self._bill.since(self._at)


Priced = Callable[[str, str], Price | None]


class Purse(msgspec.Struct, frozen=True, kw_only=True):
    """Who pays: `context` says for whom it is, and what it belongs to. `price` finds that of a model.

    `bill` is where the run reads what it cost.
    """

    meter: Meter
    price: Priced
    context: Context
    asked: str
    bill: Bill


class Till(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs pay. `price` finds that of a provider's model."""

    meter: Meter
    price: Priced

    def charge(self, provider: Provider, model: str, *, asked: str, context: Context) -> Metered:
        """The provider, paid for by whom the context is for, out of its budget too if it has one."""
        purse = Purse(meter=self.meter, price=self.price, context=context, asked=asked, bill=Bill())
        return Metered(provider, purse, model=model)


class Metered(ProviderWrapper[Provider]):
    """A `Provider` whose requests are paid for."""

    def __init__(self, provider: Provider, purse: Purse, *, model: str) -> None:
        super().__init__(provider)
        self._purse = purse
        self._model = model

    @property
    def bill(self) -> Bill:
        """What the run cost until now."""
        return self._purse.bill

    def other(self, provider: Provider, model: str, *, asked: str) -> Metered:
        """Another provider or model for the same run, paid for in the same way."""
        return Metered(provider, replace(self._purse, asked=asked), model=model)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        """See `Provider.stream`. BudgetExhausted when the run may spend no more.

        A limit of whom it is for is a ProviderError `rate_limit`.
        """
        self.bill.calls += 1
        count = _Count(request, self._pledge(), step=self.bill.calls, family=self.family)
        admission = await self._admit(request, count)
        try:
            async with aclosing(self._provider.stream(request)) as answer:
                async for batch in answer:
                    count.note(batch)
                    yield batch
        except BudgetExhausted as error:
            self._settle(admission, count, status="aborted", error=error)
            raise
        except DragomanError as error:
            self._settle(admission, count, status="failed", error=error)
            raise
        finally:
            self._settle(admission, count, status="finished" if count.finish else "aborted")

    async def close(self) -> None:
        """Nothing: the provider belongs to others."""

    def _asked(self) -> tuple[str, str]:
        """The provider that was asked last, and its own name for the model: prices go by that."""
        if isinstance(self._provider, FallbackProvider):
            return self._provider.current_route.provider.name, self._provider.current_route.model
        return self.name, self._model

    def _pledge(self) -> Pledge:
        """What is kept back of the run's budget; nothing for a provider that sees to its budget itself."""
        return Pledge(self._purse.context.budget, None if self.family in UNGATED else self._dearest())

    def _dearest(self) -> Price | None:
        """The price of the dearest model that may be asked: one that fails has the next one asked."""
        asked = [(self.name, self._model)]
        if isinstance(self._provider, FallbackProvider):
            asked = [(route.provider.name, route.model) for route in self._provider.routes]
        found = [price for each in asked if (price := self._purse.price(*each)) is not None]
        return max(
            found,
            key=lambda price: price.max_cost(DEFAULT_OUTPUT_TOKENS, DEFAULT_OUTPUT_TOKENS),
            default=None,
        )

    async def _admit(self, request: ModelRequest, count: _Count) -> Admission:
        purse = self._purse
        limit = request.options.get("max_completion_tokens") or request.options.get("max_tokens")
        most = limit if isinstance(limit, int) else None
        count.pledge.take(lambda: count.tokens, most)
        try:
            return await purse.meter.admit(
                purse.context.identity,
                price=purse.price(self.name, self._model),
                input_tokens=count.tokens if purse.meter.is_limited(purse.context.identity) else 0,
                max_output=most,
                model=purse.asked,
            )
        except (LimitReached, BudgetExhausted, BadRequest) as error:
            count.pledge.settle(None, answered=False)
            raise refused(error) from error
        except BaseException:
            count.pledge.settle(None, answered=False)
            raise

    def _settle(
        self, admission: Admission, count: _Count, *, status: str, error: DragomanError | None = None
    ) -> None:
        """Write it down; only the first time counts."""
        purse, step = self._purse, count.finish or e.FinishStep()
        context = purse.context
        provider, model = self._asked()
        record = UsageRecord(
            id=sortable_id("use"),
            owner=context.identity.owner,
            status=status,
            started_at=count.wall,
            run_id=context.run_id,
            session_id=context.session_id,
            key_id=context.identity.key_id,
            step=count.step,
            provider=provider,
            model_asked=purse.asked,
            model_served=step.model or model,
            tokens=usage_of_error(error) or count.usage(),
            duration=time.perf_counter() - count.began,
            finish_reason=step.finish_reason,
            key_name=step.key,
            door="chat",
            first_byte=count.first,
            upstream_status=error.upstream_status if isinstance(error, ProviderError) else None,
            error=error.code if error is not None else None,
            call_id=context.call_id,
        )
        told = error.cost if isinstance(error, ProviderError) else provider_cost(step)
        settled = admission.settle(record, price=purse.price(provider, model), provider_cost=told)
        if count.settled:
            return
        count.settled = True
        purse.bill.costs.append(settled.cost)
        count.pledge.settle(settled.cost, answered=count.first is not None)


class _Count:
    """What is known of one answer. `pledge` is what is kept back for it."""

    def __init__(self, request: ModelRequest, pledge: Pledge, *, step: int, family: str) -> None:
        self.step = step
        self.pledge = pledge
        self._factor = ANTHROPIC_FACTOR if family == "anthropic" else 1.0
        self._request = request
        self.wall = time.time()
        self.began = time.perf_counter()
        self.first: float | None = None
        self.finish: e.FinishStep | None = None
        self._said = 0
        self.settled = False

    @cached_property
    def tokens(self) -> int:
        """An estimate of the prompt; made when it is needed, for it reads the whole history."""
        return estimate_input(self._request, factor=self._factor)

    def note(self, batch: Sequence[e.Event]) -> None:
        """A batch has come. BudgetExhausted when the answer outgrows what is left."""
        if self.first is None:
            self.first = time.perf_counter() - self.began
        for event in batch:
            if isinstance(event, e.TextDelta | e.ReasoningDelta):
                self._said += len(event.delta)
            elif isinstance(event, e.ToolInputDelta):
                self._said += len(event.input_text_delta)
            elif isinstance(event, e.FinishStep):
                self.finish = event
        if self.finish is None:
            self.pledge.note(self._said)

    def usage(self) -> e.Usage:
        """What the provider counted; an estimate where an answer broke off; nothing where none began."""
        if self.finish is not None:
            return self.finish.usage or e.Usage()
        if self.first is None:
            return e.Usage()
        output = -(-self._said // CHARACTERS)
        return e.Usage(self.tokens, output, self.tokens + output, estimated=True)


def refused(error: DragomanError) -> ProviderError:
    """The error of a model call that a limit or a budget does not let through; that stays its cause."""
    said = ProviderError(error.message, category="rate_limit", hint=error.hint)
    said.transient = error.transient
    return said
