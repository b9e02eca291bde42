"""Subcalls: what a spoke has the hub call, below the calls that it serves."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from dragoman.errors import ApprovalNeeded, CallError, DragomanError, RateLimited, TooLarge
from dragoman.operations.outcome import failure_of, to_jsonable
from dragoman.spokes.hub.ticket import Ticket
from dragoman.spokes.outbox import Outbox
from dragoman.spokes.protocol import Aborted, Answer, Error, Failure, Progress, Result, Subcall

log = logging.getLogger(__name__)


class Subcalls:
    """Those of one connection that are under way, by the spoke's ids."""

    def __init__(self, outbox: Outbox, *, limit: int) -> None:
        self._outbox = outbox
        self._limit = limit
        self._tasks: dict[str, tuple[asyncio.Task[None], Ticket]] = {}

    async def start(self, asked: Subcall, ticket: Ticket | None) -> None:
        """Call what is asked for, as a child of the call that the ticket stands for."""
        if ticket is None or ticket.abandoned:
            await self._refuse(asked, CallError(f"the call {asked.parent!r} has ended; it can call no more"))
        elif asked.id in self._tasks:
            await self._refuse(asked, CallError(f"the id {asked.id!r} is in use by another call"))
        elif len(self._tasks) >= self._limit:
            words = f"the spoke has {self._limit} calls under way at the hub already"
            await self._refuse(asked, RateLimited(words, retry_after=1.0))
        else:
            made = self._make(asked, ticket)
            task = asyncio.get_running_loop().create_task(made, context=ticket.surroundings.copy())
            self._tasks[asked.id] = (task, ticket)
            task.add_done_callback(partial(self._over, asked.id))

    def abort(self, id: str) -> None:
        """The spoke wants this one no more."""
        known = self._tasks.get(id)
        if known is not None:
            known[0].cancel("the spoke wants it no more")

    def end(self, ticket: Ticket | None = None) -> None:
        """Stop those below this call, or all."""
        for task, parent in list(self._tasks.values()):
            if ticket is None or parent is ticket:
                task.cancel("the call that made this one has ended")

    def _over(self, id: str, task: asyncio.Task[None]) -> None:
        """The task has ended; one that was stopped, perhaps before it began, is told of."""
        del self._tasks[id]
        if task.cancelled():
            self._outbox.post(Aborted(id=id))
        elif error := task.exception():
            log.error("the answer to a call of a spoke was not sent", exc_info=error)

    async def _refuse(self, asked: Subcall, error: CallError) -> None:
        failure = Failure(code=error.code, message=error.message, transient=error.transient)
        await self._outbox.put(Error(id=asked.id, error=failure))

    async def _make(self, asked: Subcall, ticket: Ticket) -> None:
        answer = await self._answer(asked, ticket)
        try:
            await self._outbox.put(answer)
        except TooLarge as error:
            await self._outbox.put(Error(id=asked.id, error=Failure.of(failure_of(error))))

    async def _answer(self, asked: Subcall, ticket: Ticket) -> Answer:
        report = partial(self._progress, asked.id)
        try:
            result = await ticket.context.call(asked.operation, asked.input, on_progress=report)
            return Result(id=asked.id, result=result)
        except DragomanError as error:
            if isinstance(error, ApprovalNeeded):
                ticket.approval = error
            return Error(id=asked.id, error=Failure.of(failure_of(error)))
        except Exception as error:
            log.exception("a call of %s for a spoke failed", asked.operation)
            return Error(id=asked.id, error=Failure.of(failure_of(error)))

    def _progress(self, id: str, value: object) -> None:
        try:
            self._outbox.progress(Progress(id=id, value=to_jsonable(value)))
        except DragomanError as error:
            log.debug("progress of %s is not told to the spoke: %s", id, error.message)
