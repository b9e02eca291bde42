"""The meter: lets requests in under their limits and budgets, and writes down what they took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import isinf
from types import EllipsisType
from typing import Any

from msgspec.structs import replace

from dragoman.accounts.limit_table import LimitTable, LocalBudgets, charged_budgets
from dragoman.accounts.price import NANOS_PER_DOLLAR, PROVIDER_PRICE, Price
from dragoman.accounts.price_list import PriceList
from dragoman.accounts.request_limiter import LimitLease, LimitRejection, RequestLimiter, ScopeLimits
from dragoman.accounts.spool import Settlement, Spool
from dragoman.accounts.usage_ledger import UsageLedger
from dragoman.errors import BadRequest, BudgetExhausted, DragomanError, LimitReached, StoreError, Unavailable
from dragoman.events import Usage
from dragoman.identity import Identity
from dragoman.limits import Limits
from dragoman.store.budgets import BudgetRefusal, ChargedBudget
from dragoman.store.store import Store
from dragoman.store.usage import UsageRecord

MAX_CACHED_LIMITS = 10_000
LIMIT_TEXTS = {
    "requests": "may ask {limit} times a minute",
    "tokens": "may use {limit} tokens a minute",
    "parallel": "may have {limit} requests under way at once",
}


class Admission:
    """A request that was let in. It ends with `settle` or, when it never reached a provider, `release`."""

    __slots__ = (
        "_final_record",
        "_is_closed",
        "_meter",
        "charges",
        "lease",
        "price",
        "reserved",
        "reserved_locally",
    )

    def __init__(self, meter: Meter, price: Price | None, *, lease: LimitLease | None = None) -> None:
        self.price = price
        self.lease = lease
        self.charges: tuple[ChargedBudget, ...] = ()
        self.reserved = 0
        """Nano-dollars that the database has reserved."""
        self.reserved_locally = 0
        """Nano-dollars that were reserved in this process, because the database was down."""
        self._meter = meter
        self._is_closed = False
        self._final_record: UsageRecord | None = None

    def settle(
        self,
        record: UsageRecord,
        *,
        price: Price | EllipsisType | None = ...,
        provider_cost: float | None = None,
    ) -> UsageRecord:
        """Write down what the request took, and give back what it held; the record with its cost.

        `price` is that of the model that answered, None when that has none; without it, it is the price of
        the one that was asked. A cost that the record has stays. Where no price gives one, it is what the
        provider has `told`. The second time, and after `release`, nothing happens.
        """
        if not self._is_closed:
            self._is_closed = True
            paid = self.price if isinstance(price, EllipsisType) else price
            self._final_record = self._meter.settle_admission(
                self, record, price=paid, provider_cost=provider_cost
            )
        return self._final_record or record

    def release(self) -> None:
        """Nothing was spent: give back what the request held. It counts as a request all the same."""
        if not self._is_closed:
            self._is_closed = True
            self._meter.release_admission(self)


class Meter:
    """Limits, budgets and usage of one hub. Use it in `async with`, inside that of the store."""

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
        """`clock` tells the day, `ticks` how long ago something was."""
        self.ledger = UsageLedger(store, spool)
        self.observers: list[Callable[[UsageRecord], None]] = []
        """Each hears every record that is settled."""
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._limiter = RequestLimiter()
        self._local_budgets = LocalBudgets()
        self.reconfigure(limits or LimitTable(), prices)

    def reconfigure(self, limits: LimitTable, prices: PriceList) -> None:
        """Go by other limits and prices from now on; what was counted so far counts."""
        self.limits = limits
        self.prices = prices
        self._unlimited = limits.is_empty
        self._limits_cache: dict[tuple[str | None, str], tuple[Limits | None, Sequence[ScopeLimits]]] = {}

    async def __aenter__(self) -> Meter:
        await self.ledger.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ledger.close()

    def is_limited(self, identity: Identity) -> bool:
        """Whether any limit stands for a caller; the requests of others need not be estimated."""
        if self._unlimited and identity.limits is None:
            return False
        return bool(self._limits_of(identity))

    async def admit(
        self,
        identity: Identity,
        *,
        price: Price | None,
        input_tokens: int = 0,
        max_output: int | None = None,
        model: str = "this model",
    ) -> Admission:
        """Let a request in, or say why not; `input_tokens` are estimated.

        LimitReached for what is limited by the minute or in parallel, BudgetExhausted for money (`transient`
        when only what others have reserved is in the way), BadRequest for a model that has no price where
        money is limited. While the database is down, budgets go by what this process has seen of them.
        """
        if self._unlimited and identity.limits is None:
            return Admission(self, price)
        bounds = self._limits_of(identity)
        if not bounds:
            return Admission(self, price)
        stay = self._limiter.acquire(self._monotonic(), bounds, tokens=input_tokens)
        if isinstance(stay, LimitRejection):
            raise limit_error(stay, tokens=input_tokens)
        admission = Admission(self, price, lease=stay)
        admission.charges = charged_budgets(bounds, self._clock())
        if admission.charges:
            try:
                if price is not None:
                    await self._reserve(admission, price.max_cost(input_tokens, max_output))
                elif self.limits.unpriced == "refuse":
                    raise unpriced_error(model, admission.charges[0])
            except BaseException:
                admission.release()
                raise
        return admission

    def _limits_of(self, identity: Identity) -> Sequence[ScopeLimits]:
        """The limits that stand for a caller, kept for the next request."""
        name = (identity.key_id, identity.owner)
        kept = self._limits_cache.get(name)
        if kept is not None and kept[0] is identity.limits:
            return kept[1]
        if len(self._limits_cache) >= MAX_CACHED_LIMITS:
            self._limits_cache.clear()
        bounds = self.limits.limits_of(identity)
        self._limits_cache[name] = (identity.limits, bounds)
        return bounds

    def settle_admission(
        self, admission: Admission, record: UsageRecord, *, price: Price | None, provider_cost: float | None
    ) -> UsageRecord:
        """What `Admission.settle` does, once."""
        record = with_cost(record, price, provider_cost=provider_cost)
        cost = None if record.cost is None else round(record.cost * NANOS_PER_DOLLAR)
        if admission.lease is None:
            self.ledger.add(Settlement(record))
        else:
            free = price is None and self.limits.unpriced == "allow"
            self._settle_limited(admission, record, cost=0 if cost is None and free else cost)
        for observe in self.observers:
            observe(record)
        return record

    def release_admission(self, admission: Admission) -> None:
        """What `Admission.release` does, once."""
        if admission.lease is not None:
            self._limiter.release(self._monotonic(), admission.lease, tokens=0)
        if admission.reserved_locally:
            self._local_budgets.settle(admission.charges, reserved=admission.reserved_locally, spent=0)
        if admission.reserved:
            self.ledger.release_reservation(admission.charges, admission.reserved)

    def _settle_limited(self, admission: Admission, record: UsageRecord, *, cost: int | None) -> None:
        answered = record.first_byte is not None or record.status == "finished"
        if admission.lease is not None:
            tokens = count_tokens(record.tokens)
            if tokens is None and not answered:
                tokens = 0
            self._limiter.release(self._monotonic(), admission.lease, tokens=tokens)
        charges, reserved = admission.charges, admission.reserved
        spent = cost or 0
        if cost is None and answered:
            spent = max(
                reserved, admission.reserved_locally
            )  # something was consumed, and nobody says how much
        if charges:
            self._local_budgets.settle(charges, reserved=admission.reserved_locally, spent=spent)
        self.ledger.add(Settlement(record, charges, reserved, spent, self.ledger.boot_id))

    async def _reserve(self, admission: Admission, amount: int) -> None:
        charges = admission.charges
        reserving = asyncio.ensure_future(self._store.budgets.reserve(charges, amount))
        try:
            refusal = await asyncio.shield(reserving)
        except asyncio.CancelledError:
            reserving.add_done_callback(partial(self._release_late, charges=charges, amount=amount))
            raise
        except (StoreError, Unavailable):
            refusal = await self._reserve_locally(charges, amount)
            admission.reserved_locally = 0 if refusal else amount
        else:
            admission.reserved = 0 if refusal else amount
        if refusal is not None:
            self._local_budgets.record_spent(refusal.charge, refusal.spent)
            raise budget_error(refusal, amount)

    async def _reserve_locally(self, charges: Sequence[ChargedBudget], amount: int) -> BudgetRefusal | None:
        """Reserve in this process, by what is known here, or in a database that can still be read."""
        for charge in charges:
            if not self._local_budgets.is_known(charge):
                with suppress(StoreError, Unavailable):
                    spent, _ = await self._store.budgets.get_balance(charge.scope, charge.window)
                    self._local_budgets.record_spent(charge, spent)
        return self._local_budgets.reserve(charges, amount)

    def _release_late(
        self, reservation: asyncio.Future[Any], *, charges: Sequence[ChargedBudget], amount: int
    ) -> None:
        """Whoever asked for it has gone before it was reserved."""
        if not reservation.cancelled() and reservation.exception() is None and reservation.result() is None:
            self.ledger.release_reservation(charges, amount)


def with_cost(record: UsageRecord, price: Price | None, *, provider_cost: float | None) -> UsageRecord:
    """The record with its cost: its own, else by the price, else as its provider has told it."""
    if record.cost is not None:
        return record
    cost = price.cost(record.tokens) if price is not None else None
    if price is not None and cost is not None:
        return replace(record, cost=cost / NANOS_PER_DOLLAR, price_model=record.price_model or price.name)
    return (
        record if provider_cost is None else replace(record, cost=provider_cost, price_model=PROVIDER_PRICE)
    )


def count_tokens(usage: Usage) -> int | None:
    """All tokens, as far as they are known."""
    if usage.total_tokens is not None:
        return usage.total_tokens
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    return (usage.input_tokens or 0) + (usage.output_tokens or 0)


def scope_text(scope: str) -> str:
    """A scope in words."""
    kind, _, name = scope.partition(":")
    return f"the {kind} {name!r}"


def limit_error(rejection: LimitRejection, *, tokens: int) -> LimitReached:
    said = f"{scope_text(rejection.scope)} {LIMIT_TEXTS[rejection.kind].format(limit=rejection.limit)}"
    if isinf(rejection.retry_after):
        error = LimitReached(f"{said}, and this request alone has about {tokens}")
        error.transient = False
        return error
    return LimitReached(said, retry_after=rejection.retry_after)


def budget_error(refusal: BudgetRefusal, amount: int) -> DragomanError:
    charge = refusal.charge
    window = charge.window.partition(":")[0]
    span = "in total" if window == "total" else f"this {window}"
    has = (
        f"{scope_text(charge.scope)} may spend {format_usd(charge.limit)} "
        f"{span} and has spent {format_usd(refusal.spent)}"
    )
    if refusal.spent + amount > charge.limit:
        return BudgetExhausted(f"{has}; this request may cost up to {format_usd(amount)}")
    held = f"{format_usd(refusal.reserved)} is reserved by requests under way"
    return BudgetExhausted(f"{has}; {held}", transient=True, hint="try again when they have ended")


def unpriced_error(model: str, budget: ChargedBudget) -> BadRequest:
    return BadRequest(
        f"{model!r} has no price, and the money of {scope_text(budget.scope)} is limited",
        field="model",
        hint="set its price under `prices` in dragoman.yaml (0 for a model of your own), "
        "or say `unpriced: allow` under `limits`",
    )


def format_usd(nanos: int) -> str:
    """An amount in dollars, to the cent and, where it is small, further."""
    amount = nanos / NANOS_PER_DOLLAR
    return f"${amount:.2f}" if amount >= 1 or not nanos else f"${amount:.6f}".rstrip("0").rstrip(".")
