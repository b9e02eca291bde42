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

from dragoman.accounts.ledger import Ledger
from dragoman.accounts.price import NANO, TOLD, Price
from dragoman.accounts.prices import Prices
from dragoman.accounts.spool import Settlement, Spool
from dragoman.accounts.table import LimitTable, Tally, charges_of
from dragoman.accounts.windows import Bound, Denial, Stay, Windows
from dragoman.errors import BadRequest, BudgetExhausted, DragomanError, LimitReached, StoreError, Unavailable
from dragoman.events import Usage
from dragoman.limits import Limits
from dragoman.operations.identity import Identity
from dragoman.store.budgets import Charge, Refusal
from dragoman.store.store import Store
from dragoman.store.usage import UsageRecord

KEPT = 10_000
MEASURES = {
    "requests": "may ask {limit} times a minute",
    "tokens": "may use {limit} tokens a minute",
    "parallel": "may have {limit} requests under way at once",
}


class Admission:
    """A request that was let in. It ends with `settle` or, when it never reached a provider, `release`."""

    __slots__ = ("_meter", "_over", "_settled", "charges", "pledged", "price", "reserved", "stay")

    def __init__(self, meter: Meter, price: Price | None, *, stay: Stay | None = None) -> None:
        self.price = price
        self.stay = stay
        self.charges: tuple[Charge, ...] = ()
        self.reserved = 0
        """Nano-dollars that the database has reserved."""
        self.pledged = 0
        """Nano-dollars that were reserved in this process, because the database was down."""
        self._meter = meter
        self._over = False
        self._settled: UsageRecord | None = None

    def settle(
        self,
        record: UsageRecord,
        *,
        price: Price | EllipsisType | None = ...,
        told: float | None = None,
    ) -> UsageRecord:
        """Write down what the request took, and give back what it held; the record with its cost.

        `price` is that of the model that answered, None when that has none; without it, it is the price of
        the one that was asked. A cost that the record has stays. Where no price gives one, it is what the
        provider has `told`. The second time, and after `release`, nothing happens.
        """
        if not self._over:
            self._over = True
            paid = self.price if isinstance(price, EllipsisType) else price
            self._settled = self._meter.finish(self, record, price=paid, told=told)
        return self._settled or record

    def release(self) -> None:
        """Nothing was spent: give back what the request held. It counts as a request all the same."""
        if not self._over:
            self._over = True
            self._meter.drop(self)


class Meter:
    """Limits, budgets and usage of one hub. Use it in `async with`, inside that of the store."""

    def __init__(
        self,
        store: Store,
        prices: Prices,
        *,
        spool: Spool,
        limits: LimitTable | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` tells the day, `ticks` how long ago something was."""
        self.ledger = Ledger(store, spool)
        self.observers: list[Callable[[UsageRecord], None]] = []
        """Each hears every record that is settled."""
        self._store = store
        self._clock = clock
        self._ticks = ticks
        self._windows = Windows()
        self._tally = Tally()
        self.replace(limits or LimitTable(), prices)

    def replace(self, limits: LimitTable, prices: Prices) -> None:
        """Go by other limits and prices from now on; what was counted so far counts."""
        self.limits = limits
        self.prices = prices
        self._unlimited = limits.is_empty
        self._bounds: dict[tuple[str | None, str], tuple[Limits | None, Sequence[Bound]]] = {}

    async def __aenter__(self) -> Meter:
        await self.ledger.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ledger.close()

    def is_limited(self, identity: Identity) -> bool:
        """Whether any limit stands for a caller; the requests of others need not be estimated."""
        if self._unlimited and identity.limits is None:
            return False
        return bool(self._bounds_of(identity))

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
        bounds = self._bounds_of(identity)
        if not bounds:
            return Admission(self, price)
        stay = self._windows.enter(self._ticks(), bounds, tokens=input_tokens)
        if isinstance(stay, Denial):
            raise limit_reached(stay, tokens=input_tokens)
        admission = Admission(self, price, stay=stay)
        admission.charges = charges_of(bounds, self._clock())
        if admission.charges:
            try:
                if price is not None:
                    await self._reserve(admission, price.ceiling(input_tokens, max_output))
                elif self.limits.unpriced == "refuse":
                    raise unpriced(model, admission.charges[0])
            except BaseException:
                admission.release()
                raise
        return admission

    def _bounds_of(self, identity: Identity) -> Sequence[Bound]:
        """The limits that stand for a caller, kept for the next request."""
        name = (identity.key_id, identity.owner)
        kept = self._bounds.get(name)
        if kept is not None and kept[0] is identity.limits:
            return kept[1]
        if len(self._bounds) >= KEPT:
            self._bounds.clear()
        bounds = self.limits.bounds(identity)
        self._bounds[name] = (identity.limits, bounds)
        return bounds

    def finish(
        self, admission: Admission, record: UsageRecord, *, price: Price | None, told: float | None
    ) -> UsageRecord:
        """What `Admission.settle` does, once."""
        record = costed(record, price, told=told)
        cost = None if record.cost is None else round(record.cost * NANO)
        if admission.stay is None:
            self.ledger.add(Settlement(record))
        else:
            free = price is None and self.limits.unpriced == "allow"
            self._settle(admission, record, cost=0 if cost is None and free else cost)
        for observe in self.observers:
            observe(record)
        return record

    def drop(self, admission: Admission) -> None:
        """What `Admission.release` does, once."""
        if admission.stay is not None:
            self._windows.leave(self._ticks(), admission.stay, tokens=0)
        if admission.pledged:
            self._tally.settle(admission.charges, reserved=admission.pledged, spent=0)
        if admission.reserved:
            self.ledger.give_back(admission.charges, admission.reserved)

    def _settle(self, admission: Admission, record: UsageRecord, *, cost: int | None) -> None:
        answered = record.first_byte is not None or record.status == "finished"
        if admission.stay is not None:
            tokens = count(record.tokens)
            if tokens is None and not answered:
                tokens = 0
            self._windows.leave(self._ticks(), admission.stay, tokens=tokens)
        charges, reserved = admission.charges, admission.reserved
        spent = cost or 0
        if cost is None and answered:
            spent = max(reserved, admission.pledged)  # something was consumed, and nobody says how much
        if charges:
            self._tally.settle(charges, reserved=admission.pledged, spent=spent)
        self.ledger.add(Settlement(record, charges, reserved, spent, self.ledger.boot))

    async def _reserve(self, admission: Admission, amount: int) -> None:
        charges = admission.charges
        reserving = asyncio.ensure_future(self._store.budgets.reserve(charges, amount))
        try:
            refusal = await asyncio.shield(reserving)
        except asyncio.CancelledError:
            reserving.add_done_callback(partial(self._take_back, charges=charges, amount=amount))
            raise
        except (StoreError, Unavailable):
            refusal = await self._pledge(charges, amount)
            admission.pledged = 0 if refusal else amount
        else:
            admission.reserved = 0 if refusal else amount
        if refusal is not None:
            self._tally.learn(refusal.charge, refusal.spent)
            raise exhausted(refusal, amount)

    async def _pledge(self, charges: Sequence[Charge], amount: int) -> Refusal | None:
        """Reserve in this process, by what is known here, or in a database that can still be read."""
        for charge in charges:
            if not self._tally.knows(charge):
                with suppress(StoreError, Unavailable):
                    spent, _ = await self._store.budgets.standing(charge.scope, charge.window)
                    self._tally.learn(charge, spent)
        return self._tally.reserve(charges, amount)

    def _take_back(self, done: asyncio.Future[Any], *, charges: Sequence[Charge], amount: int) -> None:
        """Whoever asked for it has gone before it was reserved."""
        if not done.cancelled() and done.exception() is None and done.result() is None:
            self.ledger.give_back(charges, amount)


def costed(record: UsageRecord, price: Price | None, *, told: float | None) -> UsageRecord:
    """The record with its cost: its own, else by the price, else as its provider has told it."""
    if record.cost is not None:
        return record
    cost = price.cost(record.tokens) if price is not None else None
    if price is not None and cost is not None:
        return replace(record, cost=cost / NANO, price_model=record.price_model or price.name)
    return record if told is None else replace(record, cost=told, price_model=TOLD)


def count(usage: Usage) -> int | None:
    """All tokens, as far as they are known."""
    if usage.total_tokens is not None:
        return usage.total_tokens
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    return (usage.input_tokens or 0) + (usage.output_tokens or 0)


def who(scope: str) -> str:
    """A scope in words."""
    kind, _, name = scope.partition(":")
    return f"the {kind} {name!r}"


def limit_reached(denial: Denial, *, tokens: int) -> LimitReached:
    said = f"{who(denial.scope)} {MEASURES[denial.measure].format(limit=denial.limit)}"
    if isinf(denial.wait):
        error = LimitReached(f"{said}, and this request alone has about {tokens}")
        error.transient = False
        return error
    return LimitReached(said, retry_after=denial.wait)


def exhausted(refusal: Refusal, amount: int) -> DragomanError:
    charge = refusal.charge
    window = charge.window.partition(":")[0]
    span = "in total" if window == "total" else f"this {window}"
    has = f"{who(charge.scope)} may spend {usd(charge.limit)} {span} and has spent {usd(refusal.spent)}"
    if refusal.spent + amount > charge.limit:
        return BudgetExhausted(f"{has}; this request may cost up to {usd(amount)}")
    held = f"{usd(refusal.reserved)} is reserved by requests under way"
    return BudgetExhausted(f"{has}; {held}", transient=True, hint="try again when they have ended")


def unpriced(model: str, charge: Charge) -> BadRequest:
    return BadRequest(
        f"{model!r} has no price, and the money of {who(charge.scope)} is limited",
        field="model",
        hint="set its price under `prices` in dragoman.yaml (0 for a model of your own), "
        "or say `unpriced: allow` under `limits`",
    )


def usd(nanos: int) -> str:
    """An amount in dollars, to the cent and, where it is small, further."""
    amount = nanos / NANO
    return f"${amount:.2f}" if amount >= 1 or not nanos else f"${amount:.6f}".rstrip("0").rstrip(".")
