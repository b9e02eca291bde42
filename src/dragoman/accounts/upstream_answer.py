"""One provider's answer to a model call: what is known of it, and how it is read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, Self, TypeAlias, TypeVar

import msgspec

from dragoman import events as e
from dragoman.accounts.price import provider_cost
from dragoman.tracing.interface import ModelSpan

Batch: TypeAlias = Sequence[e.Event]
T = TypeVar("T")


class AnswerProgress(msgspec.Struct):
    """What is known of an answer so far.

    `text_length` counts characters, `key` names the provider's key, `cost` is the cost in US dollars that the
    provider itself reports, `finish` the event that ended an answer read as events.
    """

    started: bool = False
    text_length: int = 0
    usage: e.Usage | None = None
    model: str | None = None
    finish_reason: str | None = None
    key: str | None = None
    cost: float | None = None
    finish: e.FinishStep | None = None


class UpstreamAnswer(Protocol[T]):
    """One provider's answer, as a model call reads it: batches of events, or bytes that are passed on."""

    @property
    def span(self) -> ModelSpan:
        """The span of the request to the provider."""

    @property
    def progress(self) -> AnswerProgress:
        """What is known of the answer so far."""

    async def start(self) -> UpstreamAnswer[T]:
        """Wait until there is something to read; return the answer to read on from.

        ProviderError or BadRequest: nothing was passed on, so another route may be tried.
        """

    async def receive(self) -> T | None:
        """Return the next item; None at the end. ProviderError when the answer failed."""

    async def close(self, *, abandoned: bool) -> None:
        """Close the upstream connection; an abandoned answer is not read to its end."""


class EventAnswer:
    """An answer read as batches of events from `Provider.stream`."""

    def __init__(self, batches: AsyncGenerator[Batch, None], span: ModelSpan, *, model: str) -> None:
        self.span = span
        self.progress = AnswerProgress(model=model)
        self._batches = batches
        self._first: Batch | None = None
        self._records_content = span.records_content

    async def start(self) -> Self:
        """See `UpstreamAnswer.start`: fetch the first batch."""
        self._first = await anext(self._batches, None)
        if self._first is not None:
            self.progress.started = True
            self.span.first_byte()
        return self

    async def receive(self) -> Batch | None:
        """See `UpstreamAnswer.receive`."""
        batch, self._first = self._first, None
        if batch is None:
            batch = await anext(self._batches, None)
            if batch is None:
                return None
        progress = self.progress
        if self._records_content:
            self.span.add(batch)
        for event in batch:
            kind = type(event)
            if kind is e.TextDelta or kind is e.ReasoningDelta:
                progress.text_length += len(event.delta)  # type: ignore[union-attr]  # told by its exact type
            elif kind is e.ToolInputDelta:
                progress.text_length += len(event.input_text_delta)  # type: ignore[union-attr]  # as above
            elif isinstance(event, e.FinishStep):
                self._note_finish(event)
        return batch

    async def close(self, *, abandoned: bool) -> None:
        """See `UpstreamAnswer.close`: the provider closes its socket when its generator is closed."""
        await self._batches.aclose()

    def _note_finish(self, event: e.FinishStep) -> None:
        progress = self.progress
        progress.finish = event
        progress.usage, progress.finish_reason = event.usage, event.finish_reason
        progress.model, progress.key = event.model or progress.model, event.key
        progress.cost = provider_cost(event)
