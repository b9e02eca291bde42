"""One run of the hub: drives the agent loop, independent of the request that started it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from contextvars import copy_context
from functools import partial
from typing import TypeAlias

import msgspec

from dragoman import events as e
from dragoman.agent import run_end as closing
from dragoman.agent.hooks.invocation import TurnHooks
from dragoman.agent.loop import Batch
from dragoman.errors import CallDenied, DragomanError, HostFenced, RunnerGone, TooLarge
from dragoman.flag import Flag
from dragoman.fold import merge_metadata
from dragoman.messages import Message
from dragoman.operations.worker_threads import wait_done
from dragoman.runs.active_run import hash_action
from dragoman.runs.answer_source import AnswerSource
from dragoman.runs.journal import Journal
from dragoman.runs.live_tail import Follower, LiveTail
from dragoman.store import runs as rows
from dragoman.store.connection import DatabaseJob
from dragoman.store.sessions.run_ends import FinalStatus, RunEnding
from dragoman.store.sessions.spill_file import AnswerSpill
from dragoman.store.store import Store
from dragoman.tracing.interface import NO_TRACING, Tracing
from dragoman.unfold import START_POSITION, FoldPosition, current_position
from dragoman.wire.ui.client_request import ChatAction

log = logging.getLogger(__name__)
WITHDRAW_INTERVAL = 0.01  # seconds between two checks whether all parts are stored
CHECK_INTERVAL = 65_536  # characters of an answer between two checks of limits and slow readers
OPENINGS = (e.Start, e.StartStep)  # before the model's answer
COMPLETIONS = frozenset({
    e.TextEnd, e.ReasoningEnd, e.ToolInputAvailable, e.ToolInputError, e.ToolApprovalRequest,
    e.ToolApprovalResponse, e.ToolOutputAvailable, e.ToolOutputError, e.ToolOutputDenied, e.SourceUrl,
    e.SourceDocument, e.File, e.Data,
})  # fmt: skip
"""Events that report something complete: a client sees them only after it is stored."""


class RunSettings(msgspec.Struct, frozen=True):
    """`disconnect_grace`: seconds that a run continues without followers; None: without limit, 0: not at all.

    `hooks` are those of the loop. `max_answer` is the most characters of an answer; one that is `read_ahead`
    characters ahead of all its readers waits for them, those that take nothing for `reader_timeout` seconds
    are disconnected.
    """

    disconnect_grace: float | None = 15.0
    max_answer: int = 64_000_000
    read_ahead: int = 500_000
    reader_timeout: float = 60.0
    tracing: Tracing = NO_TRACING
    hooks: TurnHooks | None = None
    webhook: str | None = None
    """Where the ends of background runs are posted to that name no webhook."""
    write_usage: Callable[[], Awaitable[None]] | None = None
    """Writes the usage of ended model calls; otherwise the next host of a run would estimate it again."""
    submit_usage: Callable[[], None] | None = None
    """Queues the usage of model calls that have ended, to be written in one transaction with a run's end."""


OnStop: TypeAlias = Callable[[str], Awaitable[None]]
"""Stops, for a reason, what answers elsewhere; returns when it has stopped or was waited for long enough."""

OnEnding: TypeAlias = Callable[["HubRun", rows.RunRecord], Awaitable[DatabaseJob[None] | None]]
"""Returns what is written in the transaction that ends a run; it is not if that was refused."""


class HubRun:
    """Drives the loop; folds, stores and publishes its batches.

    `done` is set when all is closed and written. `on_ending` is called with the row of the run before its end
    is stored; `is_end_stored`: the database has the end, with what `on_ending` returned. `is_elsewhere`: it
    was left unwritten, for another host or process to continue; `is_replayed`: its next host replays it from
    its beginning.
    """

    # With more than thirty attributes in its dict, an instance keeps a table of their names: 1.4 KiB.
    __slots__ = (
        "_check_at", "_error_text", "_is_ending", "_journal", "_loop", "_on_end", "_opening", "_released_at",
        "_settings", "_spill", "_start_position", "_stop_error", "_stop_reason", "_store", "_stored",
        "_task", "_timer", "action", "done", "ended", "first_message", "fold", "is_elsewhere",
        "is_end_stored", "is_replayed", "is_unattended", "no_followers", "on_ending", "on_stop",
        "on_stopping", "released", "row", "tail",
    )  # fmt: skip

    def __init__(
        self,
        row: rows.RunRecord,
        loop: AnswerSource,
        *,
        store: Store,
        settings: RunSettings,
        on_end: Callable[[HubRun], None],
        action: ChatAction | None = None,
    ) -> None:
        """`action` is what the run was started for."""
        self.row = row
        self.action = action
        self.is_unattended = loop.turn.restored is not None and not row.background
        """True while nobody has followed it since a crash, and somebody should."""
        self.fold = loop.turn.fold
        self._start_position = current_position(self.fold)
        self.first_message = self.fold.message()
        """The message that the run began with; a continued answer has parts already."""
        self.tail = LiveTail(self.fold, on_empty=self._last_follower_left, on_follow=self._follower_joined)
        self.done, self.no_followers = Flag(), Flag()
        self._loop = loop
        self._store = store
        self._settings = settings
        self._on_end = on_end
        self.on_ending: OnEnding | None = None
        self.is_end_stored = self._is_ending = False
        self.is_replayed = False
        self.on_stopping: Callable[[HubRun], None] | None = None
        """Called at once when the run is stopped, but not when another host continues it."""
        self.on_stop: OnStop | None = None
        """Called before a run that was stopped, or has failed, is closed."""
        self._journal = Journal(store, self.fold, run=row, on_written=self.tail.release_held)
        self._spill = AnswerSpill(store.folder)
        self._stop_reason: str | None = None
        self._stop_error: DragomanError | None = None
        self._released_at: float | None = None
        self.released: rows.RunRecord | None = None
        """The row of a run that was handed over, once it is stored without a host."""
        self._error_text: str | None = None
        self.ended: rows.RunRecord | None = None
        """The row of a run that has ended, once it is stored, or spooled while the database is down."""
        self.is_elsewhere = False
        self._timer: asyncio.TimerHandle | None = None
        self._stored: asyncio.Future[None] | None = None
        self._opening: list[Batch] = []
        self._check_at = CHECK_INTERVAL
        self._task = asyncio.create_task(self._drive(), name=row.id)
        if loop.turn.context.deadline is not None:
            self.stop_at(loop.turn.context.deadline)

    def await_begin(self) -> None:
        """Ask the model, but show nothing and run no tool before `begin`: the run is still being stored."""
        self._stored = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Continue: the run is stored. Show its opening before the model's answer, which may take long."""
        # Not before the caller, who follows the run next, can see it.
        asyncio.get_running_loop().call_soon(self._show_opening)
        self._end_wait()

    def _end_wait(self) -> None:
        if self._stored is not None and not self._stored.done():
            self._stored.set_result(None)

    def _show_opening(self) -> None:
        for batch in self._opening:
            self.tail.release(batch)
        self._opening.clear()

    def abandon(self) -> None:
        """End a run that could not be stored, as if it had not been begun."""
        self._on_end = lambda _: None
        self.stop_unwritten()
        self._end_wait()

    def stop(self, reason: str) -> None:
        """Stop the run now, unless it is ending already. Await `done` for its end."""
        if self._stop_reason is None:
            self._stop_reason = reason
            asyncio.get_running_loop().call_soon(self._cancel)
            continues = self.is_elsewhere or self._released_at is not None
            if self.on_stopping is not None and not continues:
                self.on_stopping(self)

    def _cancel(self) -> None:
        """Cancel the task, once it has started, or it would never run its cleanup.

        A run that has begun to end since then is not interrupted: nobody else would end it.
        """
        if not self._is_ending:
            self._task.cancel()

    def release(self) -> None:
        """Hand the run over now, for another host to continue, unless it is ending. Await `done` for the end.

        Its message stays open. Its followers are disconnected, so that they look for the run's next host.
        """
        if self._stop_reason is None:
            self._released_at = time.time()
            self.stop("the host of the run is shutting down")

    def end_after_step(self, event: e.Data) -> None:
        """End the run before its next model request; `event` says in the message why."""
        self._loop.end_after_step(event)

    def announce(self, event: e.Data) -> None:
        """Show a transient event to those who follow the run."""
        if self.fold.is_open and self._stop_reason is None:
            self.tail.announce(event)

    def stop_with_error(self, error: DragomanError) -> None:
        """Stop the run now; its message ends with this error."""
        if self._stop_reason is None:
            self._stop_error = error
        self.stop(error.message)

    def stop_unwritten(self) -> None:
        """Stop the run in this process without writing anything of it: another host has it.

        The connections of its followers are closed, so that they continue with the run where it is.
        """
        self.is_elsewhere = True
        self._journal.close()
        self.tail.disconnect()
        self.stop("another host has the run")

    def stop_at(self, deadline: float) -> None:
        """Stop the run at this time of the event loop's clock."""
        timer = asyncio.get_running_loop().call_at(
            deadline, self.stop, "the time limit of the agent was reached"
        )
        self._task.add_done_callback(lambda _: timer.cancel())

    def follow(self, *, replay: bool = False, position: FoldPosition = START_POSITION) -> Follower:
        """Follow the run: from now on, or with `replay` from a position, by default the message's start.

        The first follower of a run that has just begun has its opening at once, to send it with its headers.
        """
        follower = self.tail.follow(replay=replay, position=position)
        if self._opening and self._stored is not None and self._stored.done():
            self._show_opening()
        return follower

    def follow_from_start(self, *, is_retold: bool = True) -> Follower:
        """Follow the run from its own start: without what earlier runs have added to the message."""
        return self.tail.follow(replay=True, position=self._start_position._replace(is_retold=is_retold))

    @property
    def action_hash(self) -> str | None:
        """`hash_action` of what the run was started for; None when it continued after a crash."""
        return hash_action(self.action)

    def message(self) -> Message:
        """Return the message so far."""
        return self.fold.message()

    async def stop_and_wait(self, reason: str) -> None:
        """Stop the run and wait until it is closed and stored."""
        self.stop(reason)
        await self.done.wait()

    async def wait_ended(self) -> None:
        """Wait until the run is closed and stored."""
        await self.done.wait()

    async def wait_abandoned(self, seconds: float) -> bool:
        """Wait up to `seconds` for the last follower to leave; return `is_abandoned`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.no_followers.wait(), seconds)
        return self.is_abandoned

    @property
    def is_abandoned(self) -> bool:
        """True when the last follower has left and the grace period is running."""
        return self._timer is not None

    async def _drive(self) -> None:
        row, tracing = self.row, self._settings.tracing
        name = row.agent or "default"
        with tracing.run(name, run_id=row.id, session_id=row.session_id, model=row.model) as span:
            try:
                await self._consume_loop()
            except asyncio.CancelledError:
                if self.is_elsewhere:
                    self._end()
                elif self._released_at is not None:
                    await asyncio.shield(asyncio.ensure_future(self._hand_over(self._released_at)))
                elif self._stop_error is not None:
                    await self._fail(self._stop_error, code=self._stop_error.code)
                else:
                    await self._abort(self._stop_reason or "the hub stopped the run")
            except (TooLarge, CallDenied, RunnerGone) as error:
                log.warning("run %s was stopped: %s", row.id, error.message)
                self._stop_error = error
                await self._fail(error, code=error.code)
            except Exception as error:
                log.exception("run %s failed", row.id)
                await self._fail(error)
            if self._error_text is not None:
                span.set_error("failed", self._error_text)

    async def _consume_loop(self) -> None:
        # `_take_delta` is called from a socket's read, so it gets the context variables of this task.
        on_delta = partial(copy_context().run, self._take_delta)  # type: ignore[call-arg]  # its ParamSpec
        async with aclosing(self._loop.run(on_delta)) as batches:
            async for batch in batches:
                if self._stored is not None and await self._is_held(self._stored, batch):
                    continue
                if isinstance(batch[-1], e.Finish):
                    await self._finish(await self._withdraw_dropped(batch))
                    continue
                if not (len(batch) == 1 and type(batch[0]) in e.TEXT_DELTAS and self._take_delta(batch)):
                    self._publish(batch)
                if self.fold.size >= self._check_at:
                    await self._make_room()
                    self._check_at = self.fold.size + CHECK_INTERVAL

    def _take_delta(self, batch: Batch) -> bool:
        """Fold, store and show a delta of text at once; False if something has to be waited for first."""
        if self._stored is not None or self._stop_reason is not None or self.fold.size >= self._check_at:
            return False
        self.tail.add(batch)
        self._journal.schedule()
        self.tail.release(batch)
        return True

    async def _is_held(self, stored: asyncio.Future[None], batch: Batch) -> bool:
        """Hold a batch that comes before the model's answer; with the first other one, wait for `begin`."""
        if not stored.done() and all(type(event) in OPENINGS for event in batch):
            self.tail.add(batch)
            self._opening.append(batch)
            return True
        await self._release_opening(stored)
        return False

    async def _release_opening(self, stored: asyncio.Future[None]) -> None:
        """Wait until the run is stored, and release what came before that."""
        await wait_done(stored)
        self._stored = None
        self._show_opening()

    def _publish(self, batch: Batch) -> None:
        """Fold and release a batch; hold events of complete parts until the database has them."""
        first = next((at for at, event in enumerate(batch) if type(event) in COMPLETIONS), len(batch))
        self.tail.add(batch, is_held=first < len(batch))
        self._journal.schedule()
        write = self._journal.pending_write
        if write is None:
            first = len(batch)
        if first:
            self.tail.release(batch[:first])
        if write is not None and first < len(batch):
            self.tail.hold(batch[first:], write)

    async def _withdraw_dropped(self, last_batch: Batch) -> Batch:
        """Fold and release events that drop parts, once all earlier ones are released; return the last."""
        if not any(type(event) is e.ResetStep for event in last_batch):
            return last_batch
        while self.tail.is_holding:  # noqa: ASYNC110 # rare, and as short as a write
            await asyncio.sleep(WITHDRAW_INTERVAL)
        self.tail.withdraw(last_batch[:-1])
        self._journal.schedule()
        return last_batch[-1:]

    async def _make_room(self) -> None:
        """Wait while the database, or every reader, is too far behind. Raises TooLarge."""
        settings = self._settings
        if self.fold.size > settings.max_answer:
            raise TooLarge(
                f"the answer has more than {settings.max_answer} characters, the limit of this hub",
                hint="`limits.answer` sets it",
            )
        await self._spill.spill(self.fold)
        await self._journal.make_room()
        await self.tail.make_room(settings.read_ahead, timeout=settings.reader_timeout)

    async def _hand_over(self, released_at: float) -> None:
        """Write everything and release the run. While the database is down, a later sweep finds the run."""
        cut_off_calls = self._store.calls.cut_off_job(self.row.id, released_at)
        try:
            if self._settings.write_usage is not None:
                await self._settings.write_usage()
            self.released = await self._journal.release(cut_off_calls)
        except (DragomanError, OSError) as error:
            log.warning("run %s could not be handed over: %s", self.row.id, error)
        finally:
            self._on_end(self)
            self._follower_joined()
            self.done.set()
            self.tail.disconnect()

    async def _stop_source(self, reason: str) -> None:
        """Stop what answers outside this process; shielded, since the task may be cancelled meanwhile."""
        self._is_ending, self._stop_reason = True, self._stop_reason or reason
        if self.on_stop is not None:
            await asyncio.shield(asyncio.ensure_future(self.on_stop(reason)))

    async def _abort(self, reason: str) -> None:
        await self._stop_source(reason)
        metadata = self._loop.message_metadata("aborted")
        await self._finish(closing.abort_events(self.fold, reason=reason, metadata=metadata))
        await self._loop.hooks.run_end("aborted", self._loop.so_far(), error=reason)

    async def _fail(self, error: Exception, *, code: str = "internal") -> None:
        text = error.message if isinstance(error, DragomanError) else "an internal error of the hub"
        await self._stop_source(text)
        metadata = self._loop.message_metadata("interrupted" if isinstance(error, RunnerGone) else "error")
        reason = "the model's answer failed" if self._stop_error is None else text
        await self._finish(
            closing.failure_events(self.fold, text=text, code=code, metadata=metadata, reason=reason)
        )
        await self._loop.hooks.run_end("error", self._loop.so_far(), error=text)

    async def _finish(self, last_batch: Batch) -> None:
        """Fold and store the last batch, then publish it; shielded, so that cancelling cannot stop it."""
        self._is_ending, self._stop_reason = True, self._stop_reason or "the run has ended"
        if self._stored is not None:
            await self._release_opening(self._stored)
        self._journal.leave_to_end()
        self.tail.add(last_batch)
        self.tail.hold_end(last_batch)
        await asyncio.shield(asyncio.ensure_future(self._write_end(last_batch)))

    async def _write_end(self, last_batch: Batch) -> None:
        try:
            outcome = self._end_row(last_batch)
            self._error_text = outcome.error
            ended = msgspec.structs.replace(self.row, **msgspec.structs.asdict(outcome))
            last_job = None if self.on_ending is None else await self.on_ending(self, ended)
            if self._settings.submit_usage is not None:
                self._settings.submit_usage()
            self.is_end_stored = await self._journal.finish(outcome, last_job=last_job)
            self.ended = ended
        except HostFenced:
            self.is_elsewhere = True
            self.tail.disconnect()
        except (DragomanError, OSError) as error:
            log.exception("could not write the end of run %s", self.row.id)
            last_batch = self._unstored_end(last_batch, error)
        finally:
            self.tail.release_end(last_batch)
            self._end()

    def _end(self) -> None:
        """Report the end to the registry and to all who wait for it."""
        self._on_end(self)
        self._follower_joined()
        self.tail.close()
        self.done.set()

    def _unstored_end(self, last_batch: Batch, error: Exception) -> Batch:
        """Return the last batch of a run whose end neither the database nor the disk took: an error."""
        last = last_batch[-1]
        if not isinstance(last, e.Finish) or last.finish_reason in _STATUS:
            return last_batch
        why = error.message if isinstance(error, DragomanError) else "the disk does not accept it"
        text = f"the answer could not be stored and may be lost: {why}"
        metadata = merge_metadata(last.message_metadata, {"finishReason": "error"})
        end: list[e.Event] = [e.ErrorEvent(text, "store", True), e.Finish("error", message_metadata=metadata)]
        self.fold.end_events = end
        self.fold.metadata = merge_metadata(self.fold.metadata, metadata)
        self._error_text = text
        return [*last_batch[:-1], *end]

    def _follower_joined(self) -> None:
        self.is_unattended = False
        self.no_followers.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _last_follower_left(self) -> None:
        self.no_followers.set()
        grace = None if self.row.background else self._settings.disconnect_grace
        if not self.done.is_set() and grace is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(grace, self.stop, "no client is following the run")

    def _end_row(self, last_batch: Batch) -> RunEnding:
        last = last_batch[-1]
        reason = last.finish_reason if isinstance(last, e.Finish) else None
        errors = [event.error_text for event in last_batch if isinstance(event, e.ErrorEvent)]
        metadata = last.message_metadata if isinstance(last, e.Finish) else None
        is_interrupted = isinstance(metadata, dict) and metadata.get("finishReason") == "interrupted"
        return RunEnding(
            status="interrupted" if is_interrupted else _STATUS.get(reason or "", "finished"),
            finished_at=time.time(),
            finish_reason=reason,
            error=errors[0] if errors else None,
            steps=self._loop.step_count,
            usage=self._loop.usage,
            cost=self._loop.cost,
        )


_STATUS: dict[str, FinalStatus] = {"error": "failed", "aborted": "stopped"}
