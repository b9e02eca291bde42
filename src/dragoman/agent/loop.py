"""The loop: ask the model, run its calls, repeat; yields batches of events. Source: seed 000, "AgentLoop".

Whoever drives it folds each batch into `turn.fold` before asking for the next one: the loop reads there
what was said so far. It knows neither HTTP nor SQL.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.agent import closing
from dragoman.agent.agent import Agent
from dragoman.agent.callings import Callings
from dragoman.agent.toolbox import Toolbox
from dragoman.errors import ProviderError
from dragoman.fold import Fold
from dragoman.messages import Message, StepStartPart, ToolPart
from dragoman.operations.context import Context
from dragoman.operations.repair import repair
from dragoman.providers.provider import Provider
from dragoman.providers.tracing import OFF, Tracing
from dragoman.request import ModelRequest

Batch = Sequence[e.Event]
REPAIRED = "the arguments were broken JSON; read as what was meant"
log = logging.getLogger(__name__)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """All that one run needs. `history` is what was said before `fold`, which may hold a message already.

    `given` are events that come first: outputs and answers that the front end sent for a continued message.
    """

    agent: Agent
    provider: Provider
    model: str
    history: Sequence[Message]
    fold: Fold
    toolbox: Toolbox
    context: Context
    given: Batch = ()
    tracing: Tracing = OFF
    clock: Callable[[], float] = time.monotonic


class Loop:
    """One turn under way."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.usage: e.Usage | None = None
        self.steps = sum(isinstance(entry.part(), StepStartPart) for entry in turn.fold.entries)
        self._answer = e.FinishStep()
        self._renamed: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._seen: set[str] = set()
        self._began = turn.clock()
        self._before = _usage(turn.fold.metadata)

    async def run(self) -> AsyncGenerator[Batch, None]:
        """The events of the turn, `start` to `finish`. Cancelled, it ends where it stands; see `closing`."""
        turn = self.turn
        yield [e.Start(turn.fold.id, {"model": turn.agent.model, "agent": turn.agent.name}), *turn.given]
        try:
            async for batch in self._resumed():
                yield batch
            while (reason := self._over()) is None:
                request, began = self._begin()
                yield [e.StartStep()]
                async for batch in self._ask(request):
                    yield batch
                async for batch in self._work(began):
                    yield batch
        except ProviderError as error:
            yield self._failed(error)
            return
        said = _NOTICES.get(reason) if closing.ends_on_calls(turn.fold) else None
        if said:
            yield closing.notice(said.format(steps=self.steps))
        yield [self._finish(reason)]

    def metadata(self, reason: e.FinishReason) -> dict[str, Any]:
        """What the message remembers of how it was made."""
        known = {
            "finishReason": reason,
            "usage": self._total(),
            "provider": self._answer.provider,
            "servedModel": self._answer.model,
            "steps": self.steps,
            "duration": round(self.turn.clock() - self._began, 3),
        }
        return {word: value for word, value in known.items() if value is not None}

    def _total(self) -> Any:
        """The usage of the whole message: of this run, and of those that it goes on from."""
        if self._before is None or self.usage is None:
            return msgspec.to_builtins(self.usage or self._before)
        return msgspec.to_builtins(self._before + self.usage)

    def _over(self) -> e.FinishReason | None:
        """The reason to end here, or None when the model is to be asked (again)."""
        turn = self.turn
        if turn.given and not self._answer.finish_reason:
            return "tool-calls" if _waiting(turn.fold) else self._limit()
        reason = self._answer.finish_reason
        if reason is None:
            return self._limit()
        calls = turn.fold.calls()
        if not calls or reason in ("length", "content-filter"):
            return "stop" if reason == "tool-calls" else reason
        return "tool-calls" if _waiting(turn.fold) else self._limit()

    def _limit(self) -> e.FinishReason | None:
        return "max-steps" if self.steps >= self.turn.agent.max_steps else None

    def _begin(self) -> tuple[ModelRequest, float]:
        """The request of the next step, and when it begins."""
        self.steps += 1
        self._renamed = {}
        self._answer = e.FinishStep()
        self._seen = {part.tool_call_id for part in _calls(self.turn.fold)}
        return self._request(), self.turn.clock()

    async def _ask(self, request: ModelRequest) -> AsyncGenerator[Batch, None]:
        async with aclosing(self.turn.tracing.stream(request, self.turn.provider)) as answer:
            async for batch in answer:
                admitted = self._admit(batch)
                if admitted:
                    yield admitted

    async def _work(self, began: float) -> AsyncGenerator[Batch, None]:
        """What follows the model's answer: the calls that it asked for, and the end of the step."""
        if self._answer.finish_reason is None:
            raise ProviderError("the provider's answer ended without a finish reason", category="api_error")
        async for batch in self._run(self._runnable()):
            yield batch
        self.usage = (self.usage or e.Usage()) + self._answer.usage if self._answer.usage else self.usage
        yield [msgspec.structs.replace(self._answer, duration=self.turn.clock() - began)]

    def _request(self) -> ModelRequest:
        turn = self.turn
        said = turn.fold.message()
        return ModelRequest(
            model=turn.model,
            messages=(*turn.history, said) if said.parts else turn.history,
            instructions=turn.agent.instructions,
            tools=turn.toolbox.tools,
            options=turn.agent.options,
        )

    def _admit(self, batch: Batch) -> Batch:
        """The events as they enter the run: ids made unique, unknown tools refused, the end held back."""
        if len(batch) == 1 and isinstance(batch[0], e.TextDelta | e.ReasoningDelta):
            return batch
        admitted: list[e.Event] = []
        for event in batch:
            match event:
                case e.FinishStep():
                    self._answer = event
                case e.ToolInputStart() | e.ToolInputDelta() | e.ToolInputAvailable() | e.ToolInputError():
                    admitted.append(self._tool_event(event))
                case _:
                    admitted.append(event)
        return admitted

    def _tool_event(self, event: _ToolEvent) -> e.Event:
        key, seen = event.tool_call_id, self._seen
        if key in seen and key not in self._renamed:
            self._renamed[key] = _fresh(key, seen)
        seen.add(self._renamed.setdefault(key, key))
        if self._renamed[key] != key:
            event = msgspec.structs.replace(event, tool_call_id=self._renamed[key])
        if isinstance(event, e.ToolInputError):
            event = self._mended(event)
        if isinstance(event, e.ToolInputAvailable) and not event.provider_executed:
            return self._known(event)
        return event

    def _mended(self, event: e.ToolInputError) -> e.ToolInputError | e.ToolInputAvailable:
        """Broken JSON of a call's arguments read as what was meant, if that can be said for sure."""
        found = repair(event.input) if isinstance(event.input, str) and not event.provider_executed else None
        if found is None:
            return event
        self._notes[event.tool_call_id] = REPAIRED
        key, metadata = event.tool_call_id, event.provider_metadata
        return e.ToolInputAvailable(key, event.tool_name, found, provider_metadata=metadata)

    def _known(self, event: e.ToolInputAvailable) -> e.Event:
        if self.turn.toolbox.kind(event.tool_name) != "unknown":
            return event
        names = ", ".join(self.turn.toolbox.names())
        text = (
            f"there is no tool {event.tool_name!r}; the tools are {names}. Find operations with hub_search."
        )
        return e.ToolInputError(event.tool_call_id, event.tool_name, event.input, text)

    def _runnable(self) -> list[ToolPart]:
        calls = [call for call in self.turn.fold.calls() if call.state == "input-available"]
        return [c for c in calls if not c.provider_executed and self.turn.toolbox.kind(c.name) != "client"]

    async def _resumed(self) -> AsyncGenerator[Batch, None]:
        """The calls of a continued message that were approved meanwhile, run before the next step."""
        approved = [c for c in self.turn.fold.calls() if c.state == "approval-responded"]
        async for batch in self._run(approved):
            yield batch

    async def _run(self, calls: Sequence[ToolPart]) -> AsyncGenerator[Batch, None]:
        """The calls' outputs as they come. Closing the generator cancels what still runs."""
        reason = self._answer.finish_reason
        if calls and reason in ("length", "content-filter"):
            cut = f"not run: the model's answer was cut ({reason})"
            yield [e.ToolOutputError(call.tool_call_id, cut) for call in calls]
            return
        context = msgspec.structs.replace(self.turn.context, step=self.steps, told=True)
        callings = Callings(self.turn.toolbox, context, notes=self._notes)
        async with aclosing(callings.run(calls)) as outputs:
            async for batch in outputs:
                yield batch

    def _finish(self, reason: e.FinishReason) -> e.Finish:
        return e.Finish(reason, message_metadata=self.metadata(reason), usage=self.usage, steps=self.steps)

    def _failed(self, error: ProviderError) -> Batch:
        log.warning("the model's answer failed: %s", error.message)
        return closing.fail(
            self.turn.fold,
            text=error.message,
            code=error.code,
            transient=error.transient,
            metadata=self.metadata("error"),
        )


_ToolEvent = e.ToolInputStart | e.ToolInputDelta | e.ToolInputAvailable | e.ToolInputError
_NOTICES: dict[e.FinishReason, str] = {
    "max-steps": "Stopped after {steps} steps, the most that this agent may take in one answer.",
    "length": "Stopped: the model's answer was cut before its tool calls were complete.",
    "content-filter": "Stopped: the provider's content filter cut the answer.",
}


def _usage(metadata: Any) -> e.Usage | None:
    said = metadata.get("usage") if isinstance(metadata, dict) else None
    return msgspec.convert(said, e.Usage) if said else None


def _calls(fold: Fold) -> list[ToolPart]:
    return [part for part in fold.message().parts if isinstance(part, ToolPart)]


def _waiting(fold: Fold) -> bool:
    return any(call.state in ("input-available", "approval-requested") for call in fold.calls())


def _fresh(key: str, seen: set[str]) -> str:
    number = 2
    while f"{key}-{number}" in seen:
        number += 1
    return f"{key}-{number}"
