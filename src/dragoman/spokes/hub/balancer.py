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
    """An offer with its schemas compiled. May be constructed in a thread. Raises ConfigError."""

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
    """The function of an operation before it is bound to the spokes that serve it."""
    raise Unavailable(f"no spoke serves the call {context.call_id}")


class SpokeBalancer:
    """Runs an operation at one of its owner's spokes that offer it.

    `is_shared`: callers of all owners may use it, else only its own owner. `effect` is that of the
    configuration, else of the offer; `effect_claimed` as in `Operation`.
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
        """The current offer."""
        return self.compiled.offer

    @property
    def terms(self) -> tuple[bool, Effect, bool]:
        """Who may call the operation, its effect, and whether that is only claimed."""
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
        """Return the operation for the hub's registry."""
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
        """Run the operation. Raises Unavailable once the spokes offer another definition than `offer`."""
        if offer is not self.offer:
            raise Unavailable(
                f"{offer.id} was not called: its spoke has changed its definition since", hint=CHANGED_HINT
            )
        return await self.run(input, context)

    async def run(self, input: Mapping[str, Any], context: Context) -> Any:
        """Return the result of a call. Raises Unavailable, CallUncertain, or the spoke's error.

        When the spoke goes away, a call that it cannot have started, or that may be repeated, is handed on.
        """
        started = 0
        while True:
            remote = await self._reserve_spoke()
            call = SpokeCall(
                self.offer.id,
                self.effect,
                context=context,
                subcall_context=remote.subcall_context(context),
            )
            outcome = await remote.run_call(call, input)
            if isinstance(outcome, ResultFrame | ErrorFrame) and outcome.cost:
                context.spend(outcome.cost)
            if isinstance(outcome, ResultFrame):
                return outcome.result
            if not isinstance(outcome, SpokeLost):
                raise call.error_from_reply(outcome)
            started += outcome.may_have_started
            if outcome.may_have_started and self.effect == "once":
                raise CallUncertain(
                    f"the spoke {remote.id!r} went away while it ran {self.offer.id}; it is not known whether"
                    " it took effect",
                    hint="look at what it would have changed before you call it again",
                )
            if started >= remote.settings.attempts:
                raise Unavailable(f"spokes went away {started} times while they ran {self.offer.id}")

    async def _reserve_spoke(self) -> RemoteSpoke:
        """Reserve a slot at a spoke, waiting for one as long as the caller does."""
        if len(calling_spokes.get()) >= MAX_DEPTH:
            raise CallError(
                f"{self.offer.id} was not called: calls go {MAX_DEPTH} deep through spokes already"
            )
        # A spoke that waits for this call is free even with a full window: the two could wait for each other.
        free = [
            spoke
            for spoke in self.spokes
            if spoke.available or (spoke.connected and spoke.id in calling_spokes.get())
        ]
        if free:
            remote = min(free, key=lambda spoke: (spoke.active_calls, spoke.last_call_number))
            remote.reserve_slot()
        else:
            remote = await self._wait_for_spoke()
        remote.last_call_number = next(self._call_numbers)
        return remote

    async def _wait_for_spoke(self) -> RemoteSpoke:
        """Wait for the first spoke with a free slot, and return it."""
        candidates = [spoke for spoke in self.spokes if not spoke.leaving]
        if not candidates:
            raise Unavailable(f"no spoke serves {self.offer.id} any more")
        waiter = SlotWaiter()
        self._waiters[waiter] = None
        try:
            for remote in candidates:
                remote.enqueue(waiter)
            return await waiter.slot
        except BaseException:
            waiter.cancel()
            raise
        finally:
            del self._waiters[waiter]
