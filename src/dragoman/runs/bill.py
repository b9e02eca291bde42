"""The bill of a run: what its model calls cost, as each of them is settled; nothing is paid here."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman import events as e
from dragoman.providers.provider import Provider
from dragoman.request import ModelRequest


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
