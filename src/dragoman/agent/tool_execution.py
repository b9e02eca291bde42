"""The tool calls of one step, all at once: what they say meanwhile, and their outputs as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.agent import approvals
from dragoman.agent.approvals import ApprovalAnswer
from dragoman.agent.toolbox import Toolbox
from dragoman.ids import new_id
from dragoman.messages import ToolPart
from dragoman.operations.approval import Grant, SuspendedCall
from dragoman.operations.context import Context
from dragoman.operations.outcome import CallFailure, CallOutcome

MIN_PROGRESS_INTERVAL = 0.05  # seconds between two tellings of how far the calls are
MAX_PROGRESS_INTERVAL = 5.0
PROGRESS_BYTES_PER_SECOND = 100_000  # bytes a second that such tellings take; bigger ones are told less often


class NestedApprovals(msgspec.Struct, frozen=True):
    """What a turn that is made within a call has of it: what was said of calls, and where those that wait go.

    Both are by tool call.
    """

    grants: Mapping[str, Grant]
    waiting: dict[str, SuspendedCall]


class ToolExecution:
    """Runs tool calls; closing the generator cancels those that still run.

    `notes` are of their inputs. `words` are what was said of those that waited, `task` what the call has to
    do with it that all of this is made in.
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
        self._next_progress_at = 0.0
        self._wakeup: asyncio.Future[None] | None = None
        self._finished_ids: set[str] = set()

    async def run(self, calls: Sequence[ToolPart]) -> AsyncGenerator[Sequence[e.Event], None]:
        """The events of the calls, a batch for all that happened at once."""
        running = {asyncio.create_task(self._run_call(call)) for call in calls}
        try:
            while running:
                await self._wait_for_news(running)
                done = {task for task in running if task.done()}
                running -= done
                ended = [event for task in done for event in task.result()]
                if batch := [*self._progress_events(), *ended]:
                    yield batch
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _wait_for_news(self, running: set[asyncio.Task[list[e.Event]]]) -> None:
        """Wait for a call's end, or for progress, which gathers until it is time to tell it."""
        loop = asyncio.get_running_loop()
        left = max(0.0, self._next_progress_at - loop.time()) if self._progress else None
        self._wakeup = loop.create_future()
        news = () if self._progress else (self._wakeup,)
        await asyncio.wait({*running, *news}, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _progress_events(self) -> list[e.Event]:
        now = asyncio.get_running_loop().time()
        if not self._progress or now < self._next_progress_at:
            return []
        said, self._progress = self._progress, {}
        self._previewed_ids.update(said)
        self._next_progress_at = now + progress_interval(len(msgspec.json.encode(said)))
        return [e.ToolOutputAvailable(key, value, preliminary=True) for key, value in said.items()]

    def _on_progress(self, call: ToolPart, value: Any) -> None:
        if call.tool_call_id not in self._finished_ids:
            self._progress[call.tool_call_id] = value
            if self._wakeup is not None and not self._wakeup.done():
                self._wakeup.set_result(None)

    async def _run_call(self, call: ToolPart) -> list[e.Event]:
        key = call.tool_call_id
        said = self._answers.get(key) or approvals.approval_answer(call)
        grant = self._nested_approvals.grants.get(key) if self._nested_approvals is not None else None
        if said is not None and not said.approved and not await self._has_started(said, grant):
            return [approvals.denial_event(call, said)]
        noted = self._notes.get(key)
        context = msgspec.structs.replace(
            self._context,
            tool_call_id=key,
            approval=said.id if said is not None and grant is None else None,
            grant=grant,
            notes=(noted,) if noted else (),
        )
        try:
            outcome = await self._toolbox.run(
                call.name,
                call.input,
                context=context,
                on_progress=lambda value: self._on_progress(call, value),
            )
        finally:
            self._finished_ids.add(key)
            self._progress.pop(key, None)
        return self._outcome_events(call, outcome)

    async def _has_started(self, answer: ApprovalAnswer, grant: Grant | None) -> bool:
        """Whether a call that somebody did not want had begun already, so that it has to hear of it."""
        if grant is None:
            return await self._toolbox.has_started(answer.id)
        if grant.state is None and grant.call_id is not None:
            await self._toolbox.decline_call(grant.call_id, answer.text)
        return grant.state is not None

    def _outcome_events(self, call: ToolPart, outcome: CallOutcome) -> list[e.Event]:
        """What came of a call, as events; of one that waits for an answer, the request for it."""
        key = call.tool_call_id
        waiting = outcome.suspended_call
        if outcome.status != "pending" or waiting is None:
            return [output_event(key, outcome)]
        if outcome.approval_id is None and self._nested_approvals is not None:
            self._nested_approvals.waiting[key] = waiting
        question = waiting.items[0].question if waiting.items else None
        id = outcome.approval_id or new_id("apr")
        shown = key in self._previewed_ids or call.state != "input-available"
        return approvals.request_events(id, key, question=question, has_output=shown)


def progress_interval(size: int) -> float:
    """Seconds until the next telling, after one of so many bytes."""
    return min(max(MIN_PROGRESS_INTERVAL, size / PROGRESS_BYTES_PER_SECOND), MAX_PROGRESS_INTERVAL)


def output_event(tool_call_id: str, outcome: CallOutcome) -> e.Event:
    """What came of a call, as an event."""
    if outcome.error is None:
        return e.ToolOutputAvailable(tool_call_id, outcome.result)
    return e.ToolOutputError(tool_call_id, failure_text(outcome.error))


def failure_text(failure: CallFailure) -> str:
    """A failure in words for the model: what is wrong, where, and what would be right."""
    if not failure.problems and failure.input_schema is None:
        return f"{failure.message} ({failure.hint})" if failure.hint else failure.message
    return msgspec.json.encode(failure.to_json()).decode()
