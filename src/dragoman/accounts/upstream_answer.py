"""One provider's answer to a model call: what is known of it, and how it is read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, Self, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman import events as e
from dragoman.accounts.price import provider_cost
from dragoman.accounts.request_size import CHARACTERS_PER_TOKEN
from dragoman.errors import ProviderError
from dragoman.model_request import ModelRequest
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider
from dragoman.tracing.interface import ModelSpan

Batch: TypeAlias = Sequence[e.Event]
T = TypeVar("T")
NO_USAGE = e.Usage()


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

    def add_cut(self, error: ProviderError) -> None:
        """Record that an answer had begun, if the error is of a document that was cut off."""
        if error.cut_length is not None:
            self.started, self.text_length = True, error.cut_length


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
    """An answer read as events: the batches of `Provider.stream`, and what they say of the answer."""

    __slots__ = ("batches", "first", "progress", "records_content", "span")

    def __init__(
        self,
        batches: AsyncGenerator[Batch, None],
        span: ModelSpan,
        *,
        model: str,
        progress: AnswerProgress | None = None,
    ) -> None:
        self.span = span
        self.progress = progress or AnswerProgress(model=model)
        self.batches = batches
        self.first: Batch | None = None
        self.records_content = span.records_content

    @classmethod
    def of_provider(
        cls,
        provider: Provider,
        request: ModelRequest,
        *,
        span: ModelSpan,
        model: str,
        on_delta: e.DeltaHandler | None,
    ) -> Self:
        """Return a provider's answer, whose deltas of text go to `on_delta` while `receive` waits."""
        if on_delta is None or span.records_content or not isinstance(provider, RemoteProvider):
            return cls(provider.stream(request), span, model=model)
        progress = AnswerProgress(model=model)
        batches = provider.stream(request, on_delta=CountedDeltas(on_delta, progress).take)
        return cls(batches, span, model=model, progress=progress)

    async def receive(self) -> Batch | None:
        """See `UpstreamAnswer.receive`."""
        batch, self.first = self.first, None
        if batch is None:
            batch = await anext(self.batches, None)
            if batch is None:
                return None
        progress = self.progress
        if self.records_content:
            self.span.add(batch)
        for event in batch:
            kind = type(event)
            if kind is e.TextDelta or kind is e.ReasoningDelta:
                progress.text_length += len(event.delta)  # type: ignore[union-attr]  # `kind` is its exact type
            elif kind is e.ToolInputDelta:
                progress.text_length += len(event.input_text_delta)  # type: ignore[union-attr]  # as above
            elif isinstance(event, e.FinishStep):
                self.note_finish(event)
        return batch

    async def start(self) -> Self:
        """See `UpstreamAnswer.start`: fetch the first batch."""
        try:
            self.first = await anext(self.batches, None)
        except ProviderError as error:
            self.progress.add_cut(error)
            raise
        if self.first is not None:
            self.progress.started = True
            self.span.first_byte()
        return self

    async def close(self, *, abandoned: bool) -> None:
        """See `UpstreamAnswer.close`: the provider closes its socket when its generator is closed."""
        await self.batches.aclose()

    def note_finish(self, event: e.FinishStep) -> None:
        """Record what the last event says of the answer."""
        progress = self.progress
        progress.finish = event
        progress.usage, progress.finish_reason = event.usage, event.finish_reason
        progress.model, progress.key = event.model or progress.model, event.key
        progress.cost = provider_cost(event)


class CountedDeltas:
    """A handler that adds the text that `on_delta` takes to `progress.text_length`.

    As a closure it would take three times the memory.
    """

    __slots__ = ("_on_delta", "_progress")

    def __init__(self, on_delta: e.DeltaHandler, progress: AnswerProgress) -> None:
        self._on_delta = on_delta
        self._progress = progress

    def take(self, batch: Batch) -> bool:
        """Pass a batch on; return whether it was taken."""
        is_taken = self._on_delta(batch)
        if is_taken:
            delta = batch[0].delta  # type: ignore[union-attr]  # one of `TEXT_DELTAS`
            self._progress.text_length += len(delta)
        return is_taken


def settled_usage(
    progress: AnswerProgress, *, is_finished: bool, was_read: bool, prompt: Callable[[], int]
) -> e.Usage:
    """Return what the provider reported, or a marked estimate; nothing when none has begun to answer.

    `was_read`: an answer that did not begin has a prompt that the provider has read, and `prompt` counts it.
    """
    usage = None if progress.usage == NO_USAGE else progress.usage
    if usage is not None and (usage.output_tokens or is_finished or progress.finish_reason is not None):
        return usage
    if usage is None and not (progress.started or was_read):
        return NO_USAGE
    usage = usage or NO_USAGE
    input_tokens = max(prompt(), usage.cached) if usage.input_tokens is None else usage.input_tokens
    output = -(-progress.text_length // CHARACTERS_PER_TOKEN)
    total = input_tokens + output
    return replace(usage, input_tokens=input_tokens, output_tokens=output, total_tokens=total, estimated=True)
