"""A remote: a spoke as the hub knows it, connected or away, with the calls that it has."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.errors import DragomanError, RateLimited, Unavailable
from dragoman.operations.context import Context
from dragoman.operations.identity import Identity
from dragoman.spokes.hub.line import Line
from dragoman.spokes.hub.settings import SpokeSettings
from dragoman.spokes.hub.ticket import Came, Lost, Ticket, above
from dragoman.spokes.protocol import Abort, Answer, Offer, Progress

log = logging.getLogger(__name__)


class Waiter:
    """A call that waits for one of some spokes to have a place."""

    def __init__(self) -> None:
        self.remotes: set[Remote] = set()
        self.turn: asyncio.Future[Remote] = asyncio.get_running_loop().create_future()

    def forget(self, remote: Remote) -> None:
        """This spoke will have no place for it any more."""
        self.remotes.discard(remote)
        if not self.remotes and not self.turn.done():
            self.turn.set_exception(Unavailable(f"the spoke {remote.id!r}, which served it, is gone"))

    def leave(self) -> None:
        """Wait no more; a place that was just given goes to the next."""
        if not self.turn.done():
            self.turn.cancel()
        elif not self.turn.cancelled() and self.turn.exception() is None:
            self.turn.result().give_back()


class Remote:
    """A spoke, which stays the same over its connections."""

    def __init__(self, id: str, owner: str, *, settings: SpokeSettings) -> None:
        self.id = id
        self.owner = owner
        self.name = id
        self.key_id: str | None = None
        self.settings = settings
        self.window = settings.window
        self.line: Line | None = None
        self.leaving = False
        self.offers: dict[str, Offer] = {}  # by small-letter id
        self.tickets: dict[str, Ticket] = {}
        self.used = 0  # when it last got a call, counted
        self._waiters: deque[Waiter] = deque()
        self._reserved = 0  # places that are given, with no ticket yet
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def busy(self) -> int:
        """How many places are taken."""
        return len(self.tickets) + self._reserved

    @property
    def here(self) -> bool:
        """Whether it is connected and takes calls."""
        return self.line is not None and not self.leaving

    @property
    def free(self) -> bool:
        """Whether a call can go there now."""
        return self.here and self.busy < self.window

    def acting(self, context: Context) -> Context:
        """The context of a call in which the spoke makes others: only those that it may make itself, too."""
        itself = (self.owner, self.key_id)
        if itself == (context.identity.owner, context.identity.key_id):
            return context
        return replace(context, through=(*context.through, Identity(self.owner, self.key_id)))

    def attach(self, line: Line, *, calls: tuple[str, ...]) -> tuple[str, ...]:
        """It is connected. What it does not have of its calls any more is lost; gives those that it has."""
        if self.line is not None:
            self.detach(self.lose)
        self.line, self.leaving = line, False
        self._stop_timers()
        kept = [self.tickets[id] for id in calls if id in self.tickets and not self.tickets[id].abandoned]
        for ticket in [each for each in self.tickets.values() if each not in kept]:
            self.settle(ticket, Lost())
        self.invite()
        return tuple(ticket.id for ticket in kept)

    def detach(self, gone: Callable[[], None]) -> None:
        """The connection is lost; `gone` is called when it did not come back within the grace."""
        line, self.line = self.line, None
        for ticket in list(self.tickets.values()):
            unsent = line is not None and line.outbox.withdraw(ticket.id)
            if unsent or ticket.abandoned or ticket.effect != "once" or not ticket.handed:
                self.settle(ticket, Lost(begun=not unsent and ticket.handed))
        loop = asyncio.get_running_loop()
        if self.leaving:
            gone()
            return
        self._timers = [
            loop.call_later(min(self.settings.claim, self.settings.grace), self.lose),
            loop.call_later(self.settings.grace, gone),
        ]

    def lose(self) -> None:
        """Nobody knows what came of the calls that are left."""
        for ticket in list(self.tickets.values()):
            self.settle(ticket, Lost())

    def retire(self) -> None:
        """It will not come back."""
        self._stop_timers()
        self.leaving = True
        self.lose()
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.forget(self)

    def settle(self, ticket: Ticket, came: Came) -> None:
        """This came of a call; its place is free."""
        ticket.end(came)
        if self.tickets.pop(ticket.id, None) is not None:
            self.invite()

    def answer(self, answer: Answer) -> None:
        """The spoke's word on a call; one for which nobody waits is passed over."""
        ticket = self.tickets.get(answer.id)
        if ticket is not None:
            self.settle(ticket, answer)

    def progress(self, said: Progress) -> None:
        """How far a call is."""
        ticket = self.tickets.get(said.id)
        if ticket is not None and not ticket.abandoned:
            ticket.context.progress(said.value)

    def take(self) -> None:
        """Keep a place for a call that comes at once."""
        self._reserved += 1

    def give_back(self) -> None:
        """The place is not needed."""
        self._reserved -= 1
        self.invite()

    def queue(self, waiter: Waiter) -> None:
        """Let a call wait for a place here. RateLimited when too many do."""
        while self._waiters and self._waiters[0].turn.done():
            self._waiters.popleft()
        if len(self._waiters) >= self.settings.queue:
            raise RateLimited(
                f"the spoke {self.id!r} is busy, and {len(self._waiters)} calls wait for it already",
                retry_after=1.0,
            )
        waiter.remotes.add(self)
        self._waiters.append(waiter)

    def invite(self) -> None:
        """Give the free places to those who wait longest."""
        while self._waiters and self.free:
            waiter = self._waiters.popleft()
            if self in waiter.remotes and not waiter.turn.done():
                self.take()
                waiter.turn.set_result(self)

    async def carry(self, ticket: Ticket, input: Mapping[str, Any]) -> Came:
        """Have the spoke do a call, for which a place was taken. Cancelling tells it to stop."""
        self._reserved -= 1
        self.tickets[ticket.id] = ticket
        line = self.line
        if line is None:
            self.settle(ticket, Lost(begun=False))
            return await ticket.came
        ticket.surroundings.run(above.set, (*above.get(), self.id))
        try:
            await line.outbox.put(ticket.frame(input), key=ticket.id)
            ticket.handed = True
            await asyncio.wait([ticket.came])
            return ticket.came.result()
        except asyncio.CancelledError:
            await self._abort(ticket, line)
            raise
        except DragomanError:
            self.settle(ticket, Lost(begun=False))
            raise
        finally:
            line.subcalls.end(ticket)

    async def _abort(self, ticket: Ticket, line: Line) -> None:
        """Tell the spoke to stop, and wait a moment for its word; until then its place stays taken."""
        line.subcalls.end(ticket)
        told = ticket.handed and not line.outbox.withdraw(ticket.id)
        if not told or self.line is not line:  # one that is away learns of it when it comes back
            self.settle(ticket, Lost(begun=told))
        if ticket.came.done():
            return
        ticket.abandoned = True
        line.outbox.post(Abort(id=ticket.id))
        timer = asyncio.get_running_loop().call_later(self.settings.patience, self.settle, ticket, Lost())
        ticket.came.add_done_callback(lambda _: timer.cancel())
        await asyncio.wait([ticket.came], timeout=self.settings.acknowledge)

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
