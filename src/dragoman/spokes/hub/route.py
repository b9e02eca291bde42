"""A route: one operation and the spokes that serve it; each call goes to the one that has least to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from dragoman.errors import CallError, CallUncertain, Unavailable
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.spokes.hub.remote import Remote, Waiter
from dragoman.spokes.hub.ticket import DEEPEST, Lost, Ticket, above
from dragoman.spokes.protocol import Error, Offer, Result


class Route:
    """Runs an operation at one of the spokes that offer it."""

    def __init__(self, offer: Offer, *, turns: Iterator[int] | None = None) -> None:
        self.offer = offer
        self.remotes: list[Remote] = []
        self._turns = turns or count(1)
        self._waiting: dict[Waiter, None] = {}

    def join(self, remote: Remote) -> None:
        """This spoke serves it too, from now on."""
        self.remotes.append(remote)
        for waiter in self._waiting:
            remote.queue(waiter)
        remote.invite()

    def part(self, remote: Remote) -> None:
        """This spoke serves it no more; what waits for it alone is told so."""
        self.remotes.remove(remote)
        for waiter in list(self._waiting):
            waiter.forget(remote)

    def operation(self) -> Operation:
        """It as an operation of the hub. ConfigError when its name or schema cannot be used."""
        offer = self.offer
        name = self.remotes[0].name if self.remotes else "?"
        return Operation.from_schema(
            self.run,
            offer.input_schema,
            namespace=offer.namespace,
            name=offer.name,
            description=offer.description,
            output_schema=offer.output_schema,
            effect=offer.effect,
            timeout=offer.timeout,
            approval=offer.approval,
            source=f"spoke:{name}",
        )

    async def run(self, input: Mapping[str, Any], context: Context) -> Any:
        """The result of a call. Unavailable, CallUncertain, or the error that the spoke tells of.

        When the spoke goes away, a call that it cannot have begun, or that may be repeated, is handed on.
        """
        begun = 0
        while True:
            remote = await self._place()
            ticket = Ticket(self.offer.id, self.offer.effect, context=remote.acting(context))
            came = await remote.carry(ticket, input)
            if isinstance(came, Result | Error) and came.cost:
                context.spend(came.cost)
            if isinstance(came, Result):
                return came.result
            if not isinstance(came, Lost):
                raise ticket.error_of(came)
            begun += came.begun
            if came.begun and self.offer.effect == "once":
                raise CallUncertain(
                    f"the spoke {remote.id!r} went away while it ran {self.offer.id}; it is not known whether"
                    " it took effect",
                    hint="look at what it would have changed before you call it again",
                )
            if begun >= remote.settings.attempts:
                raise Unavailable(f"spokes went away {begun} times while they ran {self.offer.id}")

    async def _place(self) -> Remote:
        """A spoke with a place for a call, which is taken. Waits for one as long as the caller does."""
        if len(above.get()) >= DEEPEST:
            raise CallError(f"{self.offer.id} was not called: calls go {DEEPEST} deep through spokes already")
        free = [each for each in self.remotes if each.free or (each.here and each.id in above.get())]
        if free:
            remote = min(free, key=lambda each: (each.busy, each.used))
            remote.take()
        else:
            remote = await self._turn()
        remote.used = next(self._turns)
        return remote

    async def _turn(self) -> Remote:
        """The spoke that has a place first."""
        staying = [each for each in self.remotes if not each.leaving]
        if not staying:
            raise Unavailable(f"no spoke serves {self.offer.id} any more")
        waiter = Waiter()
        self._waiting[waiter] = None
        try:
            for remote in staying:
                remote.queue(waiter)
            return await waiter.turn
        except BaseException:
            waiter.leave()
            raise
        finally:
            del self._waiting[waiter]
