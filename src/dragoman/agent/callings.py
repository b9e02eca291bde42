"""The tool calls of one step, all at once: what they say meanwhile, and their outputs as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.agent import word
from dragoman.agent.toolbox import Toolbox
from dragoman.agent.word import Word
from dragoman.ids import new_id
from dragoman.messages import ToolPart
from dragoman.operations.approval import Grant, Waiting
from dragoman.operations.context import Context
from dragoman.operations.outcome import CallFailure, Outcome

PAUSE = 0.05  # seconds between two tellings of how far the calls are
LONGEST_PAUSE = 5.0
PACE = 100_000  # bytes a second that such tellings take; bigger ones are told less often


class Task(msgspec.Struct, frozen=True):
    """What a turn that is made within a call has of it: what was said of calls, and where those that wait go.

    Both are by tool call.
    """

    grants: Mapping[str, Grant]
    waiting: dict[str, Waiting]


class Callings:
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
        words: Mapping[str, Word],
        task: Task | None = None,
    ) -> None:
        self._toolbox = toolbox
        self._context = context
        self._notes = notes
        self._words = words
        self._task = task
        self._shown: set[str] = set()
        self._progress: dict[str, Any] = {}
        self._due = 0.0
        self._news: asyncio.Future[None] | None = None
        self._ended: set[str] = set()

    async def run(self, calls: Sequence[ToolPart]) -> AsyncGenerator[Sequence[e.Event], None]:
        """The events of the calls, a batch for all that happened at once."""
        running = {asyncio.create_task(self._call(call)) for call in calls}
        try:
            while running:
                await self._wait(running)
                done = {task for task in running if task.done()}
                running -= done
                ended = [event for task in done for event in task.result()]
                if batch := [*self._preliminary(), *ended]:
                    yield batch
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _wait(self, running: set[asyncio.Task[list[e.Event]]]) -> None:
        """Wait for a call's end, or for progress, which gathers until it is time to tell it."""
        loop = asyncio.get_running_loop()
        left = max(0.0, self._due - loop.time()) if self._progress else None
        self._news = loop.create_future()
        news = () if self._progress else (self._news,)
        await asyncio.wait({*running, *news}, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _preliminary(self) -> list[e.Event]:
        now = asyncio.get_running_loop().time()
        if not self._progress or now < self._due:
            return []
        said, self._progress = self._progress, {}
        self._shown.update(said)
        self._due = now + pause_after(len(msgspec.json.encode(said)))
        return [e.ToolOutputAvailable(key, value, preliminary=True) for key, value in said.items()]

    def _note(self, call: ToolPart, value: Any) -> None:
        if call.tool_call_id not in self._ended:
            self._progress[call.tool_call_id] = value
            if self._news is not None and not self._news.done():
                self._news.set_result(None)

    async def _call(self, call: ToolPart) -> list[e.Event]:
        key = call.tool_call_id
        said = self._words.get(key) or word.given(call)
        grant = self._task.grants.get(key) if self._task is not None else None
        if said is not None and not said.approved and not await self._goes_on(said, grant):
            return [word.denied(call, said)]
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
                call.name, call.input, context=context, on_progress=lambda value: self._note(call, value)
            )
        finally:
            self._ended.add(key)
            self._progress.pop(key, None)
        return self._events(call, outcome)

    async def _goes_on(self, said: Word, grant: Grant | None) -> bool:
        """Whether a call that somebody did not want had begun already, so that it has to hear of it."""
        if grant is None:
            return await self._toolbox.has_begun(said.id)
        if grant.state is None and grant.call_id is not None:
            await self._toolbox.decline(grant.call_id, said.said)
        return grant.state is not None

    def _events(self, call: ToolPart, outcome: Outcome) -> list[e.Event]:
        """What came of a call, as events; of one that waits for an answer, the request for it."""
        key = call.tool_call_id
        waiting = outcome.waiting
        if outcome.status != "pending" or waiting is None:
            return [event_of(key, outcome)]
        if outcome.approval_id is None and self._task is not None:
            self._task.waiting[key] = waiting
        question = waiting.items[0].question if waiting.items else None
        id = outcome.approval_id or new_id("apr")
        shown = key in self._shown or call.state != "input-available"
        return word.request(id, key, question=question, shown=shown)


def pause_after(size: int) -> float:
    """Seconds until the next telling, after one of so many bytes."""
    return min(max(PAUSE, size / PACE), LONGEST_PAUSE)


def event_of(tool_call_id: str, outcome: Outcome) -> e.Event:
    """What came of a call, as an event."""
    if outcome.error is None:
        return e.ToolOutputAvailable(tool_call_id, outcome.result)
    return e.ToolOutputError(tool_call_id, told(outcome.error))


def told(error: CallFailure) -> str:
    """A failure in words for the model: what is wrong, where, and what would be right."""
    if not error.problems and error.input_schema is None:
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return msgspec.json.encode(error.to_json()).decode()
