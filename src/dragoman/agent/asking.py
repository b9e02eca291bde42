"""Asking: a provider's answer to a step's request, asked for again where that may help and is wanted."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import TypeAlias

import msgspec

from dragoman import events as e
from dragoman.agent.toolbox import Toolbox
from dragoman.agent.turn import Asking, Batch, Turn
from dragoman.errors import ProviderError
from dragoman.fold import Fold
from dragoman.messages import ToolPart
from dragoman.operations.arguments.repair import repair
from dragoman.providers.retry import RetryPolicy
from dragoman.request import Tool

Answer: TypeAlias = AsyncGenerator[Batch, None]
log = logging.getLogger(__name__)


async def ask(asking: Asking, turn: Turn) -> Answer:
    """The batches of the answer. It is asked for again only as long as nothing of it was passed on."""
    answer, first, said = await begin(asking, turn)
    async with aclosing(answer):
        for batch in (said, first):
            if batch:
                yield batch
        async for batch in answer:
            yield batch


async def begin(asking: Asking, turn: Turn) -> tuple[Answer, Batch | None, Batch]:
    """An answer that has begun, its first batch, and what is to be told before it."""
    number = 0
    said: Batch = ()
    while True:
        answer = turn.tracing.stream(asking.request, asking.provider)
        try:
            return answer, await anext(answer, None), said
        except ProviderError as error:
            failed = error
        if failed.category == "context_limit" and not said:
            asking, said = await shorter(asking, turn, error=failed)
            continue
        await pause(number, failed, policy=turn.retry)
        number += 1


async def shorter(asking: Asking, turn: Turn, *, error: ProviderError) -> tuple[Asking, Batch]:
    """What is asked instead of what was too long, and what it leaves out. Raises the error if nothing can."""
    if turn.window is None:
        raise error
    request, said = await turn.window.refit(asking.request, turn.context, provider=asking.provider)
    if not said:
        raise error
    return Asking(asking.provider, request), said


async def pause(number: int, error: ProviderError, *, policy: RetryPolicy) -> None:
    """Wait before it is asked again; raises the error when it is not to be."""
    wait = policy.delay(number, error, random=random.random)
    if wait is None:
        raise error
    log.info("the model is asked again in %.1f s: %s", wait, error.message)
    await asyncio.sleep(wait)


# ---- A provider's events as they enter a run: ids unique, arguments mended, unknown tools refused.

REPAIRED = "the arguments were broken JSON; read as what was meant"
_ToolEvent = e.ToolInputStart | e.ToolInputDelta | e.ToolInputAvailable | e.ToolInputError


class Admission:
    """Lets the events of one step in. `taken` are the ids of the calls that there are already.

    `shown` are the tools that may be called, where these are not all, `own` one that the loop
    sees to. `notes` say what was mended.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        *,
        taken: Iterable[str],
        shown: Sequence[Tool] | None = None,
        own: str | None = None,
    ) -> None:
        self.notes: dict[str, str] = {}
        self._toolbox = toolbox
        self._own = own
        self._seen = set(taken)
        self._shown = None if shown is None else {tool.name for tool in shown}
        self._renamed: dict[str, str] = {}

    def admit(self, batch: Sequence[e.Event]) -> Sequence[e.Event]:
        """The events as they enter the run; the end of the step is held back."""
        if len(batch) == 1 and isinstance(batch[0], (e.TextDelta, e.ReasoningDelta)):
            return batch
        admitted: list[e.Event] = []
        for event in batch:
            match event:
                case e.FinishStep():
                    pass
                case e.ToolInputStart() | e.ToolInputDelta() | e.ToolInputAvailable() | e.ToolInputError():
                    admitted.append(self._tool_event(event))
                case e.ToolOutputAvailable() | e.ToolOutputError():
                    key = event.tool_call_id
                    admitted.append(msgspec.structs.replace(event, tool_call_id=self._renamed.get(key, key)))
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
        self.notes[event.tool_call_id] = REPAIRED
        key, metadata = event.tool_call_id, event.provider_metadata
        return e.ToolInputAvailable(key, event.tool_name, found, provider_metadata=metadata)

    def _known(self, event: e.ToolInputAvailable) -> e.Event:
        called = event.tool_name
        if called == self._own:
            return event
        hidden = self._shown is not None and called not in self._shown
        if self._toolbox.kind(called) != "unknown" and not hidden:
            return event
        shown = self._toolbox.names() if self._shown is None else sorted(self._shown)
        tools = f"the tools are {', '.join(shown)}." if shown else "there are no tools."
        text = f"there is no tool {called!r}; {tools} {self._toolbox.hint}".rstrip()
        return e.ToolInputError(event.tool_call_id, called, event.input, text)


def calls_of(fold: Fold) -> list[ToolPart]:
    """All calls of a message."""
    return [part for part in fold.message().parts if isinstance(part, ToolPart)]


def _fresh(key: str, seen: set[str]) -> str:
    number = 2
    while f"{key}-{number}" in seen:
        number += 1
    return f"{key}-{number}"
