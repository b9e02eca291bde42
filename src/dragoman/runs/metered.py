"""A metered provider: each model call of a run is let in under its caller's limits, and written down."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import cached_property

import msgspec

from dragoman import events as e
from dragoman.accounts.meter import Admission, Meter
from dragoman.accounts.price import Price
from dragoman.errors import BadRequest, BudgetExhausted, DragomanError, LimitReached, ProviderError
from dragoman.ids import ordered_id
from dragoman.operations.budget import Budget
from dragoman.operations.identity import Identity
from dragoman.providers.chain import Chain
from dragoman.providers.provider import Provider
from dragoman.request import ModelRequest
from dragoman.store.runs import Run
from dragoman.store.usage import UsageRecord
from dragoman.wire.estimate import estimate_input

CHARACTERS = 4  # of an answer, for one token

Priced = Callable[[str, str], Price | None]


class Purse(msgspec.Struct, frozen=True, kw_only=True):
    """Who pays. `price` finds that of a provider's model."""

    meter: Meter
    price: Priced
    identity: Identity
    run_id: str
    session_id: str
    asked: str
    budget: Budget | None = None


class Till(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs pay. `price` finds that of a provider's model."""

    meter: Meter
    price: Priced

    def charge(
        self,
        provider: Provider,
        model: str,
        *,
        row: Run,
        identity: Identity,
        budget: Budget | None = None,
    ) -> Metered:
        """The provider, paid for by whom the run is for, out of the run's own budget too if it has one."""
        purse = Purse(
            meter=self.meter,
            price=self.price,
            identity=identity,
            run_id=row.id,
            session_id=row.session_id,
            asked=row.model or model,
            budget=budget,
        )
        return Metered(provider, purse, model=model)


class Metered:
    """A `Provider` whose requests are paid for."""

    def __init__(self, provider: Provider, purse: Purse, *, model: str) -> None:
        self._provider = provider
        self._purse = purse
        self._model = model
        self._step = 0

    @property
    def name(self) -> str:
        """See `Provider.name`."""
        return self._provider.name

    @property
    def family(self) -> str:
        """See `Provider.family`."""
        return self._provider.family

    @property
    def resting(self) -> bool:
        """See `Provider.resting`."""
        return self._provider.resting

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return self._provider.check(request)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[e.Event], None]:
        """See `Provider.stream`. A limit that is reached is a ProviderError `rate_limit`."""
        self._step += 1
        count = _Count(request, step=self._step)
        admission = await self._admit(request, count)
        try:
            async with aclosing(self._provider.stream(request)) as answer:
                async for batch in answer:
                    count.note(batch)
                    yield batch
        except DragomanError as error:
            self._settle(admission, count, status="failed", error=error)
            raise
        finally:
            self._settle(admission, count, status="finished" if count.finish else "aborted")

    async def close(self) -> None:
        """Nothing: the provider belongs to others."""

    def _asked(self) -> tuple[str, str]:
        """The provider that was asked last, and its own name for the model: prices go by that."""
        if isinstance(self._provider, Chain):
            return self._provider.asked.provider.name, self._provider.asked.model
        return self.name, self._model

    async def _admit(self, request: ModelRequest, count: _Count) -> Admission:
        purse = self._purse
        if purse.budget is not None and purse.budget.is_spent:
            raise ProviderError("the budget of this run is spent", category="rate_limit")
        limit = request.options.get("max_completion_tokens") or request.options.get("max_tokens")
        try:
            return await purse.meter.admit(
                purse.identity,
                price=purse.price(self.name, self._model),
                input_tokens=count.tokens if purse.meter.is_limited(purse.identity) else 0,
                max_output=limit if isinstance(limit, int) else None,
                model=purse.asked,
            )
        except (LimitReached, BudgetExhausted, BadRequest) as error:
            refused = ProviderError(error.message, category="rate_limit", hint=error.hint)
            refused.transient = error.transient
            raise refused from None

    def _settle(
        self, admission: Admission, count: _Count, *, status: str, error: DragomanError | None = None
    ) -> None:
        """Write it down; only the first time counts."""
        purse, step = self._purse, count.finish or e.FinishStep()
        provider, model = self._asked()
        record = UsageRecord(
            id=ordered_id("use"),
            owner=purse.identity.owner,
            status=status,
            started_at=count.wall,
            run_id=purse.run_id,
            session_id=purse.session_id,
            key_id=purse.identity.key_id,
            step=count.step,
            provider=provider,
            model_asked=purse.asked,
            model_served=step.model or model,
            tokens=count.usage(),
            duration=time.perf_counter() - count.began,
            finish_reason=step.finish_reason,
            key_name=step.key,
            door="chat",
            first_byte=count.first,
            upstream_status=error.upstream_status if isinstance(error, ProviderError) else None,
            error=error.code if error is not None else None,
        )
        settled = admission.settle(record, price=purse.price(provider, model))
        if purse.budget is not None and settled.cost and not count.paid:
            count.paid = True
            with suppress(BudgetExhausted):  # the next model call is refused
                purse.budget.spend(settled.cost)


class _Count:
    """What is known of one answer."""

    def __init__(self, request: ModelRequest, *, step: int) -> None:
        self.step = step
        self._request = request
        self.wall = time.time()
        self.began = time.perf_counter()
        self.first: float | None = None
        self.finish: e.FinishStep | None = None
        self._said = 0
        self.paid = False

    @cached_property
    def tokens(self) -> int:
        """An estimate of the prompt; made when it is needed, for it reads the whole history."""
        return estimate_input(self._request)

    def note(self, batch: Sequence[e.Event]) -> None:
        """A batch has come."""
        if self.first is None:
            self.first = time.perf_counter() - self.began
        for event in batch:
            if isinstance(event, e.TextDelta | e.ReasoningDelta):
                self._said += len(event.delta)
            elif isinstance(event, e.ToolInputDelta):
                self._said += len(event.input_text_delta)
            elif isinstance(event, e.FinishStep):
                self.finish = event

    def usage(self) -> e.Usage:
        """What the provider counted; an estimate where an answer broke off; nothing where none began."""
        if self.finish is not None:
            return self.finish.usage or e.Usage()
        if self.first is None:
            return e.Usage()
        output = -(-self._said // CHARACTERS)
        return e.Usage(self.tokens, output, self.tokens + output, estimated=True)
