"""A spoke at the hub, connected or away, with its calls."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.errors import DragomanError, RateLimited, Unavailable
from dragoman.identity import Identity
from dragoman.operations.context import Context, Intermediary
from dragoman.spokes.hub.call import SpokeCall, SpokeLost, SpokeOutcome, calling_spokes, without_caller
from dragoman.spokes.hub.connection import SpokeConnection
from dragoman.spokes.hub.settings import SpokeSettings
from dragoman.spokes.protocol import AbortFrame, OperationOffer, ProgressFrame, PublishFrame, ReplyFrame

log = logging.getLogger(__name__)


class SlotWaiter:
    """A call that waits for a free slot at one of several spokes."""

    def __init__(self) -> None:
        self.spokes: set[RemoteSpoke] = set()
        self.slot: asyncio.Future[RemoteSpoke] = asyncio.get_running_loop().create_future()

    def remove_spoke(self, spoke: RemoteSpoke) -> None:
        """Stop waiting for this spoke."""
        self.spokes.discard(spoke)
        if not self.spokes and not self.slot.done():
            self.slot.set_exception(Unavailable(f"the spoke {spoke.id!r}, which served it, is gone"))

    def cancel(self) -> None:
        """Stop waiting; a slot that was assigned already goes to the next waiter."""
        if not self.slot.done():
            self.slot.cancel()
        elif not self.slot.cancelled() and self.slot.exception() is None:
            self.slot.result().release_slot()


class RemoteSpoke:
    """A spoke; it stays the same object across its connections."""

    def __init__(self, id: str, owner: str, *, settings: SpokeSettings) -> None:
        self.id = id
        self.owner = owner
        self.name = id
        self.key_id: str | None = None
        self.settings = settings
        self.window = settings.window
        self.connection: SpokeConnection | None = None
        self.leaving = False
        self.offers: dict[str, OperationOffer] = {}  # by lower-case id
        self.calls: dict[str, SpokeCall] = {}
        self.last_call_number = 0  # the number of its last call; the hub numbers the calls of all spokes
        self._waiters: deque[SlotWaiter] = deque()
        self._reserved_slots = 0  # slots of calls that are not in `calls` yet
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def active_calls(self) -> int:
        """The number of slots in use."""
        return len(self.calls) + self._reserved_slots

    @property
    def connected(self) -> bool:
        """Whether it is connected and takes calls."""
        return self.connection is not None and not self.leaving

    @property
    def available(self) -> bool:
        """Whether it can take a call now."""
        return self.connected and self.active_calls < self.window

    def subcall_context(self, context: Context) -> Context:
        """Return the context for calls that the spoke makes while it serves a call.

        In a call of its own owner it calls as the caller, limited to what its own key may call. In a call of
        another owner it calls as itself: nothing that belongs to the caller is passed on, and both must be
        allowed to make the call.
        """
        itself = Identity(self.owner, self.key_id)
        if self.owner != context.identity.owner:
            caller = Intermediary(context.identity, context.agent)
            return replace(
                without_caller(context), identity=itself, intermediaries=(*context.intermediaries, caller)
            )
        if self.key_id == context.identity.key_id:
            return context
        return replace(context, intermediaries=(*context.intermediaries, Intermediary(itself, context.agent)))

    def attach(self, connection: SpokeConnection, *, call_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Use a new connection. Calls that are not in `call_ids` fail; return the ids of the others."""
        if self.connection is not None:
            self.detach(self.fail_calls)
        self.connection, self.leaving = connection, False
        self._stop_timers()
        resumed = [self.calls[id] for id in call_ids if id in self.calls and not self.calls[id].abandoned]
        for call in [call for call in self.calls.values() if call not in resumed]:
            self.finish_call(call, SpokeLost())
        self.assign_slots()
        return tuple(call.id for call in resumed)

    def detach(self, on_expired: Callable[[], None]) -> None:
        """Handle a lost connection; `on_expired` is called if the spoke stays away for the grace period."""
        connection, self.connection = self.connection, None
        for call in list(self.calls.values()):
            unsent = connection is not None and connection.outbox.withdraw(call.id)
            if unsent or call.abandoned or call.effect != "once" or not call.sent:
                self.finish_call(call, SpokeLost(may_have_started=not unsent and call.sent))
        loop = asyncio.get_running_loop()
        if self.leaving:
            on_expired()
            return
        self._timers = [
            loop.call_later(min(self.settings.claim_timeout, self.settings.grace), self.fail_calls),
            loop.call_later(self.settings.grace, on_expired),
        ]

    def fail_calls(self) -> None:
        """Fail all calls. It is not known whether they took effect."""
        for call in list(self.calls.values()):
            self.finish_call(call, SpokeLost())

    def close(self) -> None:
        """Fail the calls and waiters of a spoke that does not come back."""
        self._stop_timers()
        self.leaving = True
        self.fail_calls()
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.remove_spoke(self)

    def finish_call(self, call: SpokeCall, outcome: SpokeOutcome) -> None:
        """Set the outcome of a call and free its slot."""
        call.set_outcome(outcome)
        if self.calls.pop(call.id, None) is not None:
            self.assign_slots()

    def receive_reply(self, reply: ReplyFrame) -> None:
        """Handle a reply; a reply to a call that has ended is ignored."""
        call = self.calls.get(reply.id)
        if call is not None:
            self.finish_call(call, reply)

    def receive_progress(self, frame: ProgressFrame) -> None:
        """Report the progress of a call."""
        call = self.calls.get(frame.id)
        if call is not None and not call.abandoned:
            call.context.progress(frame.value)

    def receive_publish(self, frame: PublishFrame) -> None:
        """Publish an event in the session of a call, and in the answer that makes it.

        Only for calls of the spoke's own owner: a spoke learns nothing of the sessions of other owners, and
        puts nothing into them. The first refused event of a call is logged; the call continues.
        """
        call = self.calls.get(frame.id)
        if call is None or call.abandoned or call.context.identity.owner != self.owner:
            return
        try:
            if frame.again:
                call.context.put_in_answer(frame.name, frame.data)
            else:
                call.context.publish(frame.name, frame.data, in_answer=frame.in_answer)
        except DragomanError as error:
            level = logging.DEBUG if call.has_refused_event else logging.WARNING
            call.has_refused_event = True
            text = "an event of %s of the spoke %s is refused: %s"
            log.log(level, text, call.operation, self.id, error.message)

    def reserve_slot(self) -> None:
        """Reserve a slot for a call that starts at once."""
        self._reserved_slots += 1

    def release_slot(self) -> None:
        """Release a reserved slot."""
        self._reserved_slots -= 1
        self.assign_slots()

    def enqueue(self, waiter: SlotWaiter) -> None:
        """Let a call wait for a slot. Raises RateLimited if too many wait."""
        if len(self._waiters) >= self.settings.queue:  # perhaps only with those that no longer wait
            self._waiters = deque(other for other in self._waiters if not other.slot.done())
        if len(self._waiters) >= self.settings.queue:
            raise RateLimited(
                f"the spoke {self.id!r} is busy, and {len(self._waiters)} calls wait for it already",
                retry_after=1.0,
            )
        waiter.spokes.add(self)
        self._waiters.append(waiter)

    def assign_slots(self) -> None:
        """Assign free slots to the calls that have waited longest."""
        while self._waiters and self.available:
            waiter = self._waiters.popleft()
            if self in waiter.spokes and not waiter.slot.done():
                self.reserve_slot()
                waiter.slot.set_result(self)

    async def run_call(self, call: SpokeCall, input: Mapping[str, Any]) -> SpokeOutcome:
        """Run a call for which a slot was reserved. Cancelling it aborts the call at the spoke."""
        self._reserved_slots -= 1
        self.calls[call.id] = call
        connection = self.connection
        if connection is None:
            self.finish_call(call, SpokeLost(may_have_started=False))
            return await call.outcome
        call.task_context.run(calling_spokes.set, (*calling_spokes.get(), self.id))
        try:
            await connection.outbox.send(call.to_frame(input), key=call.id)
            call.sent = True
            await asyncio.wait([call.outcome])
            return call.outcome.result()
        except asyncio.CancelledError:
            await self._abort(call, connection)
            raise
        except DragomanError:
            self.finish_call(call, SpokeLost(may_have_started=False))
            raise
        finally:
            connection.subcalls.cancel(call)

    async def _abort(self, call: SpokeCall, connection: SpokeConnection) -> None:
        """Abort a call and wait up to `abort_wait` for the reply; until then its slot stays in use."""
        connection.subcalls.cancel(call)
        was_sent = call.sent and not connection.outbox.withdraw(call.id)
        # A spoke that is away learns of it when it reconnects.
        if not was_sent or self.connection is not connection:
            self.finish_call(call, SpokeLost(may_have_started=was_sent))
        if call.outcome.done():
            return
        call.abandoned = True
        connection.outbox.send_urgent(AbortFrame(id=call.id))
        timer = asyncio.get_running_loop().call_later(
            self.settings.abandon_timeout, self.finish_call, call, SpokeLost()
        )
        call.outcome.add_done_callback(lambda _: timer.cancel())
        await asyncio.wait([call.outcome], timeout=self.settings.abort_wait)

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
