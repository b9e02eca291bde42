"""One run: one answer being made. It belongs to its session, not to the request that began it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing

import msgspec

from dragoman import events as e
from dragoman.agent import closing
from dragoman.agent.hooks.hooks import LoopHooks
from dragoman.agent.loop import Batch, Loop
from dragoman.errors import DragomanError
from dragoman.runs.journal import Journal
from dragoman.runs.live import Follower, Tail
from dragoman.store import runs as rows
from dragoman.store.store import Store
from dragoman.tracing.tracing import OFF, Tracing

log = logging.getLogger(__name__)


class RunSettings(msgspec.Struct, frozen=True):
    """`grace`: seconds that a run goes on while nobody follows it; None: for ever, 0: not at all.

    `hooks` are asked by the loop of each run.
    """

    grace: float | None = 15.0
    tracing: Tracing = OFF
    hooks: LoopHooks | None = None


class Run:
    """Drives the loop; folds, keeps and publishes what it says. `done`: all is closed and written."""

    def __init__(
        self,
        row: rows.Run,
        loop: Loop,
        *,
        store: Store,
        settings: RunSettings,
        on_end: Callable[[Run], None],
    ) -> None:
        self.row = row
        self.fold = loop.turn.fold
        self.tail = Tail(self.fold, on_empty=self._left, on_follow=self._joined)
        self.done = asyncio.Event()
        self.vacant = asyncio.Event()
        self._loop = loop
        self._store = store
        self._settings = settings
        self._on_end = on_end
        self._journal = Journal(store, self.fold, session_id=row.session_id)
        self._stopping: str | None = None
        self._problem: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._drive(), name=row.id)

    def stop(self, reason: str) -> None:
        """Stop it now, unless it is ending already; await `done` to know that it is closed."""
        if self._stopping is None:
            self._stopping = reason
            asyncio.get_running_loop().call_soon(self._task.cancel)  # not before its first step has run

    def end_by(self, deadline: float) -> None:
        """Stop it when the loop's clock says so."""
        timer = asyncio.get_running_loop().call_at(deadline, self.stop, "it took as long as the agent may")
        self._task.add_done_callback(lambda _: timer.cancel())

    def follow(self, *, replay: bool = False) -> Follower:
        """Follow the run: from now on, or with `replay` the whole message first."""
        return self.tail.follow(replay=replay)

    @property
    def abandoned(self) -> bool:
        """True when it was followed, nobody does any more, and it is not meant to run on without."""
        return self._timer is not None

    async def _drive(self) -> None:
        row, tracing = self.row, self._settings.tracing
        name = row.agent or "default"
        with tracing.agent(name, run_id=row.id, session_id=row.session_id, model=row.model) as span:
            await self._live()
            if self._problem is not None:
                span.failed("failed", self._problem)

    async def _live(self) -> None:
        try:
            await self._play()
        except asyncio.CancelledError:
            reason = self._stopping or "the hub stopped it"
            ending = closing.abort(self.fold, reason=reason, metadata=self._loop.metadata("aborted"))
            await self._end(ending)
            await self._loop.listening.ended("aborted", self._loop.so_far(), error=reason)
        except Exception as error:
            log.exception("run %s failed", self.row.id)
            text = error.message if isinstance(error, DragomanError) else "an internal error of the hub"
            metadata = self._loop.metadata("error")
            await self._end(closing.fail(self.fold, text=text, code="internal", metadata=metadata))
            await self._loop.listening.ended("error", self._loop.so_far(), error=text)

    async def _play(self) -> None:
        async with aclosing(self._loop.run()) as batches:
            async for batch in batches:
                if isinstance(batch[-1], e.Finish):
                    await self._end(batch)
                else:
                    self._take(batch)

    def _take(self, batch: Batch) -> None:
        self.fold.add(batch)
        self._journal.note()
        self.tail.publish(batch)

    async def _end(self, ending: Batch) -> None:
        """Fold the last batch, keep it, then let it be seen; shielded: a run ends, whoever cancels."""
        self._stopping = self._stopping or "it had ended"
        self.tail.hold()
        self.fold.add(ending)
        await asyncio.shield(asyncio.ensure_future(self._settle(ending)))

    async def _settle(self, ending: Batch) -> None:
        try:
            outcome = self._outcome(ending)
            self._problem = outcome.error
            await self._store.runs.finish(self.row.id, outcome, also=self._journal.rest())
        except DragomanError:
            log.exception("run %s ended, but its end could not be written", self.row.id)
        finally:
            self._on_end(self)
            self._joined()
            self.tail.publish(ending)
            self.tail.close()
            self.done.set()

    def _joined(self) -> None:
        self.vacant.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _left(self) -> None:
        self.vacant.set()
        grace = self._settings.grace
        if not self.done.is_set() and grace is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(grace, self.stop, "nobody was listening any more")

    def _outcome(self, ending: Batch) -> rows.Ending:
        last = ending[-1]
        reason = last.finish_reason if isinstance(last, e.Finish) else None
        errors = [event.error_text for event in ending if isinstance(event, e.ErrorEvent)]
        return rows.Ending(
            status=_STATUS.get(reason or "", "finished"),
            finished_at=time.time(),
            finish_reason=reason,
            error=errors[0] if errors else None,
            steps=self._loop.steps,
            usage=self._loop.usage,
        )


_STATUS: dict[str, rows.FinalStatus] = {"error": "failed", "aborted": "stopped"}
