"""Calls that a spoke makes at the hub, below the calls that it serves."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from dragoman.errors import ApprovalNeeded, CallError, DragomanError, RateLimited, TooLarge
from dragoman.operations.outcome import to_failure, to_jsonable
from dragoman.spokes.hub.call import SpokeCall
from dragoman.spokes.protocol import (
    AbortedFrame,
    ErrorFrame,
    ProgressFrame,
    ReplyFrame,
    ResultFrame,
    SpokeFailure,
    SubcallFrame,
)
from dragoman.spokes.send_queue import Outbox

log = logging.getLogger(__name__)


class Subcalls:
    """The running subcalls of one connection, by the spoke's ids."""

    def __init__(self, outbox: Outbox, *, limit: int) -> None:
        self._outbox = outbox
        self._limit = limit
        self._tasks: dict[str, tuple[asyncio.Task[None], SpokeCall]] = {}

    async def start(self, subcall: SubcallFrame, parent: SpokeCall | None) -> None:
        """Start a call as a child of `parent`; wait while the spoke does not read the ends of others."""
        await self._outbox.wait_for_urgent()
        if parent is None or parent.abandoned:
            await self._refuse(
                subcall, CallError(f"the call {subcall.parent!r} has ended; it cannot make further calls")
            )
        elif subcall.id in self._tasks:
            await self._refuse(subcall, CallError(f"the id {subcall.id!r} is in use by another call"))
        elif len(self._tasks) >= self._limit:
            message = f"the spoke already runs {self._limit} calls at the hub"
            await self._refuse(subcall, RateLimited(message, retry_after=1.0))
        else:
            task = asyncio.get_running_loop().create_task(
                self._run(subcall, parent), context=parent.task_context.copy()
            )
            self._tasks[subcall.id] = (task, parent)
            task.add_done_callback(partial(self._task_done, subcall.id))

    def abort(self, id: str) -> None:
        """Abort a subcall."""
        entry = self._tasks.get(id)
        if entry is not None:
            entry[0].cancel("aborted by the spoke")

    def cancel(self, call: SpokeCall | None = None) -> None:
        """Cancel the subcalls of a call, or all."""
        for task, parent in list(self._tasks.values()):
            if call is None or parent is call:
                task.cancel("the call that made this one has ended")

    def _task_done(self, id: str, task: asyncio.Task[None]) -> None:
        """Tell the spoke that a subcall was stopped, perhaps before it started."""
        del self._tasks[id]
        if task.cancelled():
            self._outbox.send_urgent(AbortedFrame(id=id))
        elif error := task.exception():
            log.error("the reply to a call of a spoke was not sent", exc_info=error)

    async def _refuse(self, subcall: SubcallFrame, error: CallError) -> None:
        failure = SpokeFailure(code=error.code, message=error.message, transient=error.transient)
        await self._outbox.send(ErrorFrame(id=subcall.id, error=failure))

    async def _run(self, subcall: SubcallFrame, parent: SpokeCall) -> None:
        answer = await self._reply(subcall, parent)
        try:
            await self._outbox.send(answer)
        except TooLarge as error:
            await self._outbox.send(
                ErrorFrame(id=subcall.id, error=SpokeFailure.from_call_failure(to_failure(error)))
            )

    async def _reply(self, subcall: SubcallFrame, parent: SpokeCall) -> ReplyFrame:
        report = partial(self._send_progress, subcall.id)
        try:
            result = await parent.subcall_context.call(subcall.operation, subcall.input, on_progress=report)
            return ResultFrame(id=subcall.id, result=result)
        except DragomanError as error:
            if isinstance(error, ApprovalNeeded):
                parent.approval = error
            return ErrorFrame(id=subcall.id, error=SpokeFailure.from_call_failure(to_failure(error)))
        except Exception as error:
            log.exception("a call of %s for a spoke failed", subcall.operation)
            return ErrorFrame(id=subcall.id, error=SpokeFailure.from_call_failure(to_failure(error)))

    def _send_progress(self, id: str, value: object) -> None:
        try:
            self._outbox.send_progress(ProgressFrame(id=id, value=to_jsonable(value)))
        except DragomanError as error:
            log.debug("cannot send the progress of %s to the spoke: %s", id, error.message)
