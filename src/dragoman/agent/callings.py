"""The tool calls of one step, all at once: what they say meanwhile, and their outputs as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.agent.toolbox import Toolbox
from dragoman.messages import ToolPart
from dragoman.operations.context import Context
from dragoman.operations.outcome import CallFailure, Outcome

PAUSE = 0.05  # seconds between two tellings of how far the calls are


class Callings:
    """Runs tool calls; closing the generator cancels those that still run. `notes` are of their inputs."""

    def __init__(self, toolbox: Toolbox, context: Context, *, notes: Mapping[str, str]) -> None:
        self._toolbox = toolbox
        self._context = context
        self._notes = notes
        self._progress: dict[str, Any] = {}
        self._said = asyncio.Event()
        self._ended: set[str] = set()

    async def run(self, calls: Sequence[ToolPart]) -> AsyncGenerator[Sequence[e.Event], None]:
        """The events of the calls, a batch for all that happened at once."""
        running = {asyncio.create_task(self._call(call)) for call in calls}
        listening = asyncio.ensure_future(self._said.wait())
        try:
            while running:
                await asyncio.wait({*running, listening}, return_when=asyncio.FIRST_COMPLETED)
                done = {task for task in running if task.done()}
                running -= done
                ended = [task.result() for task in done]
                if batch := [*self._preliminary(), *ended]:
                    yield batch
                if listening.done():
                    await self._pause(running)
                    self._said.clear()
                    listening = asyncio.ensure_future(self._said.wait())
        finally:
            for task in (*running, listening):
                task.cancel()
            await asyncio.gather(*running, listening, return_exceptions=True)

    async def _pause(self, running: set[asyncio.Task[e.Event]]) -> None:
        """Let progress gather for a moment, unless a call ends."""
        if running:
            await asyncio.wait(running, timeout=PAUSE, return_when=asyncio.FIRST_COMPLETED)

    def _preliminary(self) -> list[e.Event]:
        said, self._progress = self._progress, {}
        return [e.ToolOutputAvailable(key, value, preliminary=True) for key, value in said.items()]

    def _note(self, call: ToolPart, value: Any) -> None:
        if call.tool_call_id not in self._ended:
            self._progress[call.tool_call_id] = value
            self._said.set()

    async def _call(self, call: ToolPart) -> e.Event:
        key, approval = call.tool_call_id, call.approval
        if approval is not None and approval.approved is False:
            return e.ToolOutputDenied(key)
        noted = self._notes.get(key)
        context = msgspec.structs.replace(
            self._context,
            tool_call_id=key,
            approval=approval.id if approval is not None else None,
            notes=(noted,) if noted else (),
        )
        try:
            outcome = await self._toolbox.run(
                call.name, call.input, context=context, on_progress=lambda value: self._note(call, value)
            )
        finally:
            self._ended.add(key)
            self._progress.pop(key, None)
        return event_of(key, outcome)


def event_of(tool_call_id: str, outcome: Outcome) -> e.Event:
    """What came of a call, as an event; one that waits for an answer is a request for it."""
    if outcome.status == "pending" and outcome.approval_id is not None:
        return e.ToolApprovalRequest(outcome.approval_id, tool_call_id)
    if outcome.error is None:
        return e.ToolOutputAvailable(tool_call_id, outcome.result)
    return e.ToolOutputError(tool_call_id, told(outcome.error))


def told(error: CallFailure) -> str:
    """A failure in words for the model: what is wrong, where, and what would be right."""
    if not error.problems and error.input_schema is None:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return msgspec.json.encode(error.to_json()).decode()
