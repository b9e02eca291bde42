"""Load balancing of one operation over the spokes that serve it: each call goes to the least busy one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

from msgspec.structs import replace

from dragoman.errors import CallError, CallUncertain, Unavailable
from dragoman.operations.context import Context
from dragoman.operations.operation import Effect, Operation
from dragoman.spokes.hub.call import MAX_DEPTH, SpokeCall, SpokeLost, calling_spokes
from dragoman.spokes.hub.remote_spoke import RemoteSpoke, SlotWaiter
from dragoman.spokes.protocol import ErrorFrame, OperationOffer, ResultFrame

CHANGED_HINT = "look at the operation again before you call it"


class CompiledOffer:
    """An offer with its schemas compiled; it may be made in a thread. Raises ConfigError."""

    def __init__(self, offer: OperationOffer) -> None:
        self.offer = offer
        self.operation = Operation.from_schema(
            not_bound,
            offer.input_schema,
            namespace=offer.namespace,
            name=offer.name,
            description=offer.description,
            output_schema=offer.output_schema,
            effect=offer.effect,
            timeout=offer.timeout,
            approval=offer.approval,
            identity_aware=False,
            provider="spoke",
        )


async def not_bound(_: Any, context: Context) -> Any:
    """Stand for the function of an operation that nobody serves yet."""
    raise Unavailable(f"no spoke serves the call {context.call_id}")


class SpokeBalancer:
    """Runs an operation at one of its owner's spokes that offer it.

    `is_shared`: callers of all owners may use it; else only those of its own. `effect` is what a repeated
    call does, as the configuration or else the offer says; `effect_claimed` as in `Operation`.
    """

    def __init__(
        self, compiled: CompiledOffer, *, owner: str, call_numbers: Iterator[int] | None = None
    ) -> None:
        self.compiled = compiled
        self.owner = owner
        self.is_shared = False
        self.effect: Effect = compiled.offer.effect
        self.effect_claimed = True
        self.spokes: list[RemoteSpoke] = []
        self._call_numbers = call_numbers or count(1)
        self._waiters: dict[SlotWaiter, None] = {}

    @property
    def offer(self) -> OperationOffer:
        """The offer that is served."""
        return self.compiled.offer

    @property
    def terms(self) -> tuple[bool, Effect, bool]:
        """What the configuration says of the operation."""
        return self.is_shared, self.effect, self.effect_claimed

    def add_spoke(self, spoke: RemoteSpoke) -> None:
        """Add a spoke that serves the operation."""
        self.spokes.append(spoke)
        for waiter in self._waiters:
            spoke.enqueue(waiter)
        spoke.assign_slots()

    def remove_spoke(self, spoke: RemoteSpoke) -> None:
        """Remove a spoke; calls that wait for it alone fail."""
        self.spokes.remove(spoke)
        for waiter in list(self._waiters):
            waiter.remove_spoke(spoke)

    def operation(self) -> Operation:
        """Return the operation of the hub."""
        return replace(
            self.compiled.operation,
            run=partial(self._run_offer, offer=self.offer),
            effect=self.effect,
            source=f"spoke:{self.spokes[0].name if self.spokes else '?'}",
            owner=self.owner,
            private=not self.is_shared,
            effect_claimed=self.effect_claimed,
        )

    async def _run_offer(self, input: Mapping[str, Any], context: Context, *, offer: OperationOffer) -> Any:
        """Run the operation as it was offered; raises Unavailable once it is offered differently."""
        if offer is not self.offer:
            raise Unavailable(
                f"{offer.id} was not called: its spoke has changed its definition since", hint=CHANGED_HINT
            )
        return await self.run(input, context)

    async def run(self, input: Mapping[str, Any], context: Context) -> Any:
        """Return the result of a call. Raises Unavailable, CallUncertain, or the spoke's error.

        When the spoke goes away, a call that it cannot have begun, or that may be repeated, is handed on.
        """
        begun = 0
        while True:
            remote = await self._reserve_spoke()
            ticket = SpokeCall(
                self.offer.id,
                self.effect,
                context=context,
                subcall_context=remote.subcall_context(context),
            )
            came = await remote.run_call(ticket, input)
            if isinstance(came, ResultFrame | ErrorFrame) and came.cost:
                context.spend(came.cost)
            if isinstance(came, ResultFrame):
                return came.result
            if not isinstance(came, SpokeLost):
                raise ticket.error_from_reply(came)
            begun += came.may_have_started
            if came.may_have_started and self.effect == "once":
                raise CallUncertain(
                    f"the spoke {remote.id!r} went away while it ran {self.offer.id}; it is not known whether"
                    " it took effect",
                    hint="look at what it would have changed before you call it again",
                )
            if begun >= remote.settings.attempts:
                raise Unavailable(f"spokes went away {begun} times while they ran {self.offer.id}")

    async def _reserve_spoke(self) -> RemoteSpoke:
        """Reserve a slot at a spoke, waiting for one as long as the caller does."""
        if len(calling_spokes.get()) >= MAX_DEPTH:
            raise CallError(
                f"{self.offer.id} was not called: calls go {MAX_DEPTH} deep through spokes already"
            )
        free = [
            each
            for each in self.spokes
            if each.available or (each.connected and each.id in calling_spokes.get())
        ]
        if free:
            remote = min(free, key=lambda each: (each.active_calls, each.last_call_number))
            remote.reserve_slot()
        else:
            remote = await self._wait_for_spoke()
        remote.last_call_number = next(self._call_numbers)
        return remote

    async def _wait_for_spoke(self) -> RemoteSpoke:
        """Return the first spoke with a free slot."""
        staying = [each for each in self.spokes if not each.leaving]
        if not staying:
            raise Unavailable(f"no spoke serves {self.offer.id} any more")
        waiter = SlotWaiter()
        self._waiters[waiter] = None
        try:
            for remote in staying:
                remote.enqueue(waiter)
            return await waiter.slot
        except BaseException:
            waiter.cancel()
            raise
        finally:
            del self._waiters[waiter]
