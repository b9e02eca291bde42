"""Runs the tool calls of one step concurrently and yields their progress and outputs as events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.agent import approval_events
from dragoman.agent.approval_events import ApprovalAnswer
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.errors import TooLarge
from dragoman.ids import new_id
from dragoman.messages import ToolPart
from dragoman.operations.approval import Grant, SuspendedCall
from dragoman.operations.context import Context
from dragoman.operations.outcome import CallFailure, CallOutcome

MIN_PROGRESS_INTERVAL = 0.05  # seconds between two batches of progress
MAX_PROGRESS_INTERVAL = 5.0
MAX_DATA_NAMES = 20  # different data parts that the calls of one step may put into the answer
PROGRESS_BYTES_PER_SECOND = 100_000  # bytes of progress a second; large values are sent less often


class NestedApprovals(msgspec.Struct, frozen=True):
    """The approvals that a turn inside a call shares with that call, by tool call id.

    `grants` are answers passed down to waiting calls; calls that have to wait are added to `waiting`.
    """

    grants: Mapping[str, Grant]
    waiting: dict[str, SuspendedCall]


class NoBatches:
    """An iterator without items. Cheaper than a generator, which the event loop registers and removes."""

    def __aiter__(self) -> NoBatches:
        return self

    async def __anext__(self) -> Sequence[e.Event]:
        raise StopAsyncIteration


NO_BATCHES = NoBatches()


class ToolExecution:
    """Runs tool calls. Closing the generator of `run` cancels the calls still running.

    `notes` describe repairs of the arguments, by tool call id; `answers` are those to waiting calls.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        context: Context,
        *,
        notes: Mapping[str, str],
        answers: Mapping[str, ApprovalAnswer],
        nested_approvals: NestedApprovals | None = None,
    ) -> None:
        self._toolbox = toolbox
        self._context = context
        self._notes = notes
        self._answers = answers
        self._nested_approvals = nested_approvals
        self._previewed_ids: set[str] = set()
        self._progress: dict[str, Any] = {}
        self._data: dict[str, Any] = {}
        self._data_names: set[str] = set()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._next_progress_at = 0.0
        self._wakeup: asyncio.Future[None] | None = None
        self._finished_ids: set[str] = set()

    async def run(self, calls: Sequence[ToolPart]) -> AsyncGenerator[Sequence[e.Event], None]:
        """Yield the events of the calls, one batch for everything that happened at once."""
        running = {asyncio.create_task(self._run_call(call)) for call in calls}
        for task in running:
            task.add_done_callback(self._wake)
        try:
            while running:
                await self._wait_for_news(running)
                done = {task for task in running if task.done()}
                running -= done
                ended = [event for task in done for event in task.result()]
                if batch := [*self._progress_events(is_due=bool(done)), *ended]:
                    yield batch
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _wait_for_news(self, running: set[asyncio.Task[list[e.Event]]]) -> None:
        """Wait until a call ends, or until collected progress is due."""
        if any(task.done() for task in running):
            return
        loop = asyncio.get_running_loop()
        self._wakeup = loop.create_future()
        if self._progress or self._data:
            await asyncio.wait([self._wakeup], timeout=max(0.0, self._next_progress_at - loop.time()))
        else:
            await self._wakeup

    def _wake(self, _: object = None) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _progress_events(self, *, is_due: bool) -> list[e.Event]:
        """Return the collected data and progress; before their time only the data, if they are due."""
        now = self._loop.time()
        if not (self._progress or self._data) or (now < self._next_progress_at and not is_due):
            return []
        data, self._data = self._data, {}
        events: list[e.Event] = [e.Data(f"data-{name}", value, name) for name, value in data.items()]
        if now < self._next_progress_at:
            return events
        progress, self._progress = self._progress, {}
        self._previewed_ids.update(progress)
        self._next_progress_at = now + progress_interval(len(msgspec.json.encode((progress, data))))
        events += [e.ToolOutputAvailable(key, value, preliminary=True) for key, value in progress.items()]
        return events

    def _on_data(self, name: str, value: Any) -> None:
        """Take a data part of the answer; operations that run in a thread call it there. Raises TooLarge."""
        if name not in self._data_names and len(self._data_names) >= MAX_DATA_NAMES:
            raise TooLarge(f"the calls of a step may put {MAX_DATA_NAMES} data parts into the answer")
        self._data_names.add(name)
        if threading.get_ident() == self._thread:
            self._collect_data(name, value)
        else:
            self._loop.call_soon_threadsafe(self._collect_data, name, value)

    def _collect_data(self, name: str, value: Any) -> None:
        self._data[name] = value
        self._wake()

    def _on_progress(self, call: ToolPart, value: Any) -> None:
        if call.tool_call_id not in self._finished_ids:
            is_first = not self._progress
            self._progress[call.tool_call_id] = value
            if is_first:  # what comes later is collected until it is due
                self._wake()

    async def _run_call(self, call: ToolPart) -> list[e.Event]:
        call_id = call.tool_call_id
        answer = self._answers.get(call_id) or approval_events.approval_answer(call)
        grant = self._nested_approvals.grants.get(call_id) if self._nested_approvals is not None else None
        if answer is not None and not answer.approved and not await self._has_started(answer, grant):
            return [approval_events.denial_event(call, answer)]
        note = self._notes.get(call_id)
        context = msgspec.structs.replace(
            self._context,
            tool_call_id=call_id,
            call_key=call_id,
            approval=answer.id if answer is not None and grant is None else None,
            grant=grant,
            notes=(note,) if note else (),
            on_data=self._context.on_data or self._on_data,
        )
        try:
            outcome = await self._toolbox.run(
                call.name,
                call.input,
                context=context,
                on_progress=lambda value: self._on_progress(call, value),
            )
        finally:
            self._finished_ids.add(call_id)
            self._progress.pop(call_id, None)
        return self._outcome_events(call, outcome)

    async def _has_started(self, answer: ApprovalAnswer, grant: Grant | None) -> bool:
        """Return whether a declined call had started, so that it has to receive the answer itself."""
        if grant is None:
            return await self._toolbox.has_started(answer.id)
        if grant.state is None and grant.call_id is not None:
            await self._toolbox.decline_call(grant.call_id, answer.text)
        return grant.state is not None

    def _outcome_events(self, call: ToolPart, outcome: CallOutcome) -> list[e.Event]:
        """Return the events of an outcome; for a pending call, the request for an answer."""
        call_id = call.tool_call_id
        waiting = outcome.suspended_call
        if outcome.status != "pending" or waiting is None:
            return [output_event(call_id, outcome)]
        if outcome.approval_id is None and self._nested_approvals is not None:
            self._nested_approvals.waiting[call_id] = waiting
        question = waiting.items[0].question if waiting.items else None
        id = outcome.approval_id or new_id("apr")
        has_output = call_id in self._previewed_ids or call.state != "input-available"
        return approval_events.request_events(id, call_id, question=question, has_output=has_output)


def progress_interval(size: int) -> float:
    """Return the seconds to wait after sending `size` bytes of progress."""
    return min(max(MIN_PROGRESS_INTERVAL, size / PROGRESS_BYTES_PER_SECOND), MAX_PROGRESS_INTERVAL)


def output_event(tool_call_id: str, outcome: CallOutcome) -> e.Event:
    """Return the output event of an outcome."""
    if outcome.error is None:
        return e.ToolOutputAvailable(tool_call_id, outcome.result)
    return e.ToolOutputError(tool_call_id, failure_text(outcome.error))


def failure_text(failure: CallFailure) -> str:
    """Return a failure as text for the model: what is wrong, where, and what would be right."""
    if not failure.problems and failure.input_schema is None:
        return f"{failure.message} ({failure.hint})" if failure.hint else failure.message
    return msgspec.json.encode(failure.to_json()).decode()
