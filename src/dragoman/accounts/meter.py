"""Metering: admits model requests under the limits and budgets of their callers, and records their usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import EllipsisType
from typing import Self

from dragoman.accounts.limit_errors import budget_error, limit_error, unpriced_error
from dragoman.accounts.limit_table import LimitTable, LocalBudgets, charged_budgets
from dragoman.accounts.price import DEFAULT_OUTPUT_TOKENS, Price, to_nanos, with_cost
from dragoman.accounts.price_lookup import PriceList
from dragoman.accounts.request_limiter import LimitLease, LimitRejection, RequestLimiter, ScopeLimits
from dragoman.accounts.request_size import CHARACTERS_PER_TOKEN, UNBOUNDED, AnswerBounds
from dragoman.accounts.shared_budgets import SharedBudgets
from dragoman.accounts.shared_rates import CountedRate, SharedRates
from dragoman.accounts.spool import Settlement, Spool
from dragoman.accounts.usage_ledger import UsageLedger
from dragoman.errors import LimitReached, StoreError, Unavailable
from dragoman.events import Usage
from dragoman.identity import Identity
from dragoman.store.accounts.budgets import BudgetRefusal, ChargedBudget
from dragoman.store.store import Store
from dragoman.usage_limits import Limits
from dragoman.usage_record import UsageRecord

MAX_CACHED_LIMITS = 10_000
NO_ENTRY: nullcontext[None] = nullcontext()


class Entry:
    """A request that is counted against its caller's limits, and not admitted yet. Use it in `with`.

    At the end of the block it is released, unless an admission has taken it over.
    """

    __slots__ = ("_limiter", "_monotonic", "lease", "scope_limits")

    def __init__(
        self,
        limiter: RequestLimiter,
        lease: LimitLease,
        *,
        scope_limits: Sequence[ScopeLimits],
        monotonic: Callable[[], float],
    ) -> None:
        self.lease: LimitLease | None = lease
        self.scope_limits = scope_limits
        self._limiter = limiter
        self._monotonic = monotonic

    def take(self, tokens: int) -> LimitLease | LimitRejection:
        """Count the prompt's tokens and hand the lease over; a rejection leaves it with the entry."""
        if self.lease is None:
            raise RuntimeError("the request is already admitted")
        lease = self._limiter.add_tokens(
            self._monotonic(), self.lease, limits=self.scope_limits, tokens=tokens
        )
        if isinstance(lease, LimitLease):
            self.lease = None
        return lease

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.lease is not None:
            self._limiter.release(self._monotonic(), self.lease, tokens=0)
            self.lease = None


class Admission:
    """An admitted request. End it with `settle` or, if it never reached a provider, with `release`."""

    __slots__ = (
        "_final_record",
        "_is_closed",
        "_meter",
        "charges",
        "lease",
        "lost_tokens",
        "output_tokens",
        "price",
        "rates",
        "reserved",
        "reserved_locally",
        "shares",
    )

    def __init__(self, meter: Meter, price: Price | None, *, lease: LimitLease | None = None) -> None:
        self.price = price
        self.lease = lease
        self.rates: Sequence[CountedRate] = ()
        """Its amounts in the rate limits that all hosts share."""
        self.charges: tuple[ChargedBudget, ...] = ()
        self.shares: tuple[tuple[ChargedBudget, int], ...] = ()
        self.reserved = 0
        """Nano-dollars reserved in the database."""
        self.reserved_locally = 0
        """Nano-dollars reserved in this process only, because the database was down."""
        self.output_tokens = 0
        """Tokens of the answer that the reservation covers."""
        self.lost_tokens = 0
        """Tokens of attempts whose answers had begun and failed."""
        self._meter = meter
        self._is_closed = False
        self._final_record: UsageRecord | None = None

    def settle(
        self,
        record: UsageRecord,
        *,
        price: Price | EllipsisType | None = ...,
        provider_cost: float | None = None,
        shares: Sequence[tuple[ChargedBudget, int]] = (),
    ) -> UsageRecord:
        """Record the usage and release what was reserved; return the record with its cost.

        `price` is that of the model that answered, None if it has none; by default that of the requested
        model. A cost that the record has stays; without a price, `provider_cost` counts. `shares` are shared
        budgets that pay, too, each with what is reserved of it. Does nothing the second time, or after
        `release`.
        """
        if not self._is_closed:
            self._is_closed = True
            model_price = self.price if isinstance(price, EllipsisType) else price
            self.shares = tuple(shares)
            self._final_record = self._meter.settle_admission(
                self, record, price=model_price, provider_cost=provider_cost
            )
        return self._final_record or record

    def charge(
        self,
        record: UsageRecord,
        *,
        price: Price | None,
        provider_cost: float | None,
        shared: Sequence[ChargedBudget],
    ) -> UsageRecord:
        """Record an attempt that failed after its answer had begun; the request continues by another route.

        Return the record with its cost, which the `shared` budgets pay, too.
        """
        record = with_cost(record, price, provider_cost=provider_cost)
        self.lost_tokens += count_tokens(record.tokens) or 0
        self._meter.charge_attempt(self, record, shared=shared)
        return record

    def release(self) -> None:
        """Release what was reserved; nothing was spent. The request still counts against its rate limit."""
        if not self._is_closed:
            self._is_closed = True
            self._meter.release_admission(self)


class Meter:
    """Limits, budgets and usage of one hub. Use it as an async context manager, inside the store's."""

    def __init__(
        self,
        store: Store,
        prices: PriceList,
        *,
        spool: Spool,
        limits: LimitTable | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` returns unix seconds, `monotonic` seconds for the rate limits."""
        self.ledger = UsageLedger(store, spool)
        self.shared_budgets = SharedBudgets(store.budgets, self.ledger)
        self.observers: list[Callable[[UsageRecord], None]] = []
        """Each is called with every settled record."""
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._limiter = RequestLimiter()
        self._receiving = RequestLimiter()
        self._local_budgets = LocalBudgets()
        self._shared_rates: SharedRates | None = None
        self._sharing: asyncio.Task[None] | None = None
        self.reconfigure(limits or LimitTable(), prices)

    def reconfigure(self, limits: LimitTable, prices: PriceList) -> None:
        """Replace limits and prices. Requests counted so far still count."""
        self.limits = limits
        self.prices = prices
        self._unlimited = limits.is_empty
        self._limits_cache: dict[tuple[str | None, str], tuple[Limits | None, Sequence[ScopeLimits]]] = {}

    async def __aenter__(self) -> Meter:
        await self.ledger.open()
        if self._store.host_id is not None:
            self._shared_rates = SharedRates(
                self._store.host_rates, self._store.host_id, monotonic=self._monotonic
            )
            self._sharing = asyncio.create_task(self._shared_rates.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.wait([self._sharing])
        await self.ledger.close()

    def is_limited(self, identity: Identity) -> bool:
        """Whether the caller has any limit. Requests of other callers need no token estimate."""
        if self._unlimited and identity.limits is None:
            return False
        return bool(self._limits_of(identity))

    def enter(self, identity: Identity) -> AbstractContextManager[Entry | None]:
        """Count a request before its body is read. Pass the entry to `admit`. LimitReached."""
        bounds = () if self._unlimited and identity.limits is None else self._limits_of(identity)
        return self._acquire(self._limiter, bounds) if bounds else NO_ENTRY

    def receiving(self, identity: Identity) -> AbstractContextManager[object]:
        """Count a request of any endpoint while its body is read. LimitReached.

        A caller may send as many bodies at once as its `parallel` says; what its requests do after that is
        counted elsewhere.
        """
        if self._unlimited and identity.limits is None:
            return NO_ENTRY
        bounds = [
            ScopeLimits(scope, Limits(parallel=limits.parallel))
            for scope, limits in self._limits_of(identity)
            if limits.parallel is not None
        ]
        return self._acquire(self._receiving, bounds) if bounds else NO_ENTRY

    def _acquire(self, limiter: RequestLimiter, bounds: Sequence[ScopeLimits]) -> Entry:
        lease = limiter.acquire(self._monotonic(), bounds, tokens=0)
        if isinstance(lease, LimitRejection):
            raise limit_error(lease, tokens=0)
        return Entry(limiter, lease, scope_limits=bounds, monotonic=self._monotonic)

    async def admit(
        self,
        identity: Identity,
        *,
        price: Price | None,
        entry: Entry | None = None,
        input_tokens: int = 0,
        answer: AnswerBounds = UNBOUNDED,
        model: str = "this model",
    ) -> Admission:
        """Admit a request with an estimate of its `input_tokens`; `entry` if it was counted before.

        Raises LimitReached for rates and concurrency; BudgetExhausted for money, `transient` if reservations
        of other requests are in the way; BadRequest for a model without a price where money is limited. While
        the database is down, budgets are checked against what this process knows of them.
        """
        if self._unlimited and identity.limits is None:
            return Admission(self, price)
        bounds = self._limits_of(identity)
        if not bounds:
            return Admission(self, price)
        rates = await self._count_shared(bounds, tokens=input_tokens)
        try:
            admission = Admission(self, price, lease=self._lease(bounds, entry, tokens=input_tokens))
        except LimitReached:
            self._withdraw_shared(rates)
            raise
        admission.rates = rates
        admission.charges = charged_budgets(bounds, self._clock())
        if admission.charges:
            try:
                self._check_priced(price, answer, model=model, budget=admission.charges[0])
                if price is not None:
                    least, most = (
                        cost(price, input_tokens) for cost in (answer.max_cost, answer.likely_cost)
                    )
                    await self._reserve(admission, least, most=most)
                    admission.output_tokens = answer.assumed_tokens
            except BaseException:
                admission.release()
                raise
        return admission

    async def reserve_more(
        self,
        admission: Admission,
        price: Price | None,
        *,
        input_tokens: int,
        answer: AnswerBounds,
        model: str,
    ) -> None:
        """Reserve what a request may cost with another model, above what is reserved for it.

        Raises BudgetExhausted and BadRequest as `admit` does.
        """
        self._check_priced(price, answer, model=model, budget=admission.charges[0])
        if price is not None:
            reserved = admission.reserved + admission.reserved_locally
            most = answer.max_cost(price, input_tokens)
            if most > reserved:
                await self._reserve(admission, most - reserved)

    async def grow(
        self, admission: Admission, price: Price | None, *, input_tokens: int, text_length: int
    ) -> None:
        """Reserve more for an answer of so many characters, if it outgrows that. BudgetExhausted."""
        covered = admission.output_tokens
        missing = text_length // CHARACTERS_PER_TOKEN + 1 - covered
        if price is None or missing <= 0:
            return
        tokens = covered - (-missing // DEFAULT_OUTPUT_TOKENS) * DEFAULT_OUTPUT_TOKENS
        amount = price.max_cost(input_tokens, tokens) - price.max_cost(input_tokens, covered)
        await self._reserve(admission, amount)
        admission.output_tokens = tokens

    def _check_priced(
        self, price: Price | None, answer: AnswerBounds, *, model: str, budget: ChargedBudget
    ) -> None:
        """Raise BadRequest for a model without a price, or one whose advice has none, if that is refused."""
        unpriced = model if price is None else answer.unpriced(price)
        if unpriced is not None and self.limits.unpriced == "refuse":
            raise unpriced_error(unpriced, budget)

    async def _count_shared(self, bounds: Sequence[ScopeLimits], *, tokens: int) -> Sequence[CountedRate]:
        """Count a request in the rates of all hosts together. LimitReached."""
        if self._shared_rates is None:
            return ()
        counted = await self._shared_rates.acquire(bounds, tokens=tokens)
        if isinstance(counted, LimitRejection):
            raise limit_error(counted, tokens=tokens)
        return counted

    def _withdraw_shared(self, rates: Sequence[CountedRate]) -> None:
        if self._shared_rates is not None:
            self._shared_rates.withdraw(rates)

    def _release_rates(self, admission: Admission, *, tokens: int | None) -> None:
        """Count the tokens that a request used, None if only the estimate is known."""
        if tokens is not None:
            tokens += admission.lost_tokens
        if admission.lease is not None:
            self._limiter.release(self._monotonic(), admission.lease, tokens=tokens)
        if self._shared_rates is not None:
            self._shared_rates.settle(admission.rates, tokens=tokens)

    def admit_lost(self, identity: Identity, price: Price | None) -> Admission:
        """Admit a request that a crash interrupted, without limits: its provider has been asked already."""
        admission = Admission(self, price)
        admission.charges = charged_budgets(self._limits_of(identity), self._clock())
        return admission

    def _lease(self, bounds: Sequence[ScopeLimits], entry: Entry | None, *, tokens: int) -> LimitLease:
        """Return the lease of a request, which was counted at its entry or is now. LimitReached."""
        if entry is not None:
            lease = entry.take(tokens)
        else:
            lease = self._limiter.acquire(self._monotonic(), bounds, tokens=tokens)
        if isinstance(lease, LimitRejection):
            raise limit_error(lease, tokens=tokens)
        return lease

    def _limits_of(self, identity: Identity) -> Sequence[ScopeLimits]:
        """Return the limits that apply to a caller, cached for its next request."""
        name = (identity.key_id, identity.owner)
        cached = self._limits_cache.get(name)
        if cached is not None and cached[0] is identity.limits:
            return cached[1]
        if len(self._limits_cache) >= MAX_CACHED_LIMITS:
            self._limits_cache.clear()
        bounds = self.limits.limits_of(identity)
        self._limits_cache[name] = (identity.limits, bounds)
        return bounds

    def counts_prompts(self, identity: Identity) -> bool:
        """Return whether a limit of a caller counts the size of its prompts."""
        return any(limits.counts_prompts for _, limits in self._limits_of(identity))

    def settle_admission(
        self, admission: Admission, record: UsageRecord, *, price: Price | None, provider_cost: float | None
    ) -> UsageRecord:
        """Do what `Admission.settle` does, once."""
        record = with_cost(record, price, provider_cost=provider_cost)
        if admission.lease is None and not admission.charges and not admission.shares:
            self.ledger.add(Settlement(record))
        else:
            cost = None if record.cost is None else to_nanos(record.cost)
            free = price is None and self.limits.unpriced == "allow"
            self._settle_limited(admission, record, cost=cost, is_free=free)
        for observe in self.observers:
            observe(record)
        return record

    def charge_attempt(
        self, admission: Admission, record: UsageRecord, *, shared: Sequence[ChargedBudget]
    ) -> None:
        """Do what `Admission.charge` does."""
        charges, spent = admission.charges, to_nanos(record.cost or 0.0)
        if charges:
            self._local_budgets.settle(charges, reserved=0, spent=spent)
        parts = tuple((charge, 0) for charge in shared)
        self.ledger.add(
            Settlement(record, charges, 0, spent, self.ledger.boot_id, shared=parts, shared_spent=spent)
        )
        for observe in self.observers:
            observe(record)

    def release_admission(self, admission: Admission) -> None:
        """Do what `Admission.release` does, once."""
        self._release_rates(admission, tokens=0)
        if admission.reserved_locally:
            self._local_budgets.settle(admission.charges, reserved=admission.reserved_locally, spent=0)
        if admission.reserved:
            self.ledger.release_reservation(admission.charges, admission.reserved)

    def _settle_limited(
        self, admission: Admission, record: UsageRecord, *, cost: int | None, is_free: bool
    ) -> None:
        answered = record.first_byte is not None or record.status == "finished"
        tokens = count_tokens(record.tokens)
        self._release_rates(admission, tokens=0 if tokens is None and not answered else tokens)
        charges, reserved = admission.charges, admission.reserved
        spent = cost or 0
        shared_spent = max((part for _, part in admission.shares), default=0) if answered else 0
        if cost is None and answered and not is_free:
            spent = reserved + admission.reserved_locally  # something was consumed, but not reported
        if charges:
            self._local_budgets.settle(charges, reserved=admission.reserved_locally, spent=spent)
        self.ledger.add(
            Settlement(
                record,
                charges,
                reserved,
                spent,
                self.ledger.boot_id,
                shared=admission.shares,
                shared_spent=shared_spent if cost is None else cost,
            )
        )

    async def _reserve(self, admission: Admission, amount: int, *, most: int = 0) -> None:
        """Reserve the amount, or up to `most` if there is room. BudgetExhausted."""
        refusal = await self._try_reserve(admission, max(amount, most))
        if refusal is not None and most > amount:
            left = refusal.charge.limit - refusal.spent - refusal.reserved
            refusal = await self._try_reserve(admission, max(amount, min(left, most)))
            if refusal is not None and left > amount:  # others were quicker, or another budget has less
                refusal = await self._try_reserve(admission, amount)
        if refusal is not None:
            self._local_budgets.record_spent(refusal.charge, refusal.spent)
            raise budget_error(refusal, amount, own=admission.reserved + admission.reserved_locally)

    async def _try_reserve(self, admission: Admission, amount: int) -> BudgetRefusal | None:
        charges = admission.charges
        try:
            refusal = await self.ledger.reserve(charges, amount)
        except (StoreError, Unavailable):
            refusal = await self._reserve_locally(charges, amount)
            admission.reserved_locally += 0 if refusal else amount
        else:
            admission.reserved += 0 if refusal else amount
        return refusal

    async def _reserve_locally(self, charges: Sequence[ChargedBudget], amount: int) -> BudgetRefusal | None:
        """Reserve in this process, from the spent amounts it knows or can still read from the database."""
        for charge in charges:
            if not self._local_budgets.is_known(charge):
                with suppress(StoreError, Unavailable):
                    spent, _ = await self._store.budgets.get_balance(charge.scope, charge.window)
                    self._local_budgets.record_spent(charge, spent)
        return self._local_budgets.reserve(charges, amount)


def count_tokens(usage: Usage) -> int | None:
    """Return the total of known tokens; None if none is known."""
    if usage.total_tokens is not None:
        return usage.total_tokens
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    return (usage.input_tokens or 0) + (usage.output_tokens or 0)
