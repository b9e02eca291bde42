"""Voices: an answer on its way to a gateway client, relayed as bytes or spelled from events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec

from dragoman import events as e
from dragoman.accounts.price import provider_cost
from dragoman.agent import outcome
from dragoman.errors import DragomanError, ProviderError
from dragoman.events import Usage
from dragoman.fold import Fold
from dragoman.providers.relayed_response import RelayedResponse
from dragoman.server.gateway.dialects import AnswerEncoder, ClientDialect
from dragoman.wire.encoder import KEEP_ALIVE, StreamEncoder
from dragoman.wire.tap import AnswerTap

BUSY_CATEGORIES = ("overloaded", "rate_limit")
DOCUMENT_STARTS = (b"{", b"[")
STREAM_STARTS = (b"data:", b"event:", b":", b"id:", b"retry:")
USAGE_WAIT = 0.06  # seconds that a finished answer's usage may still take after its client has gone


class AnswerProgress(msgspec.Struct):
    """What is known of an answer so far. `text_length` counts characters, `key` names the provider's key,
    `cost` is what the provider itself says of that.
    """

    usage: Usage | None = None
    model: str | None = None
    finish_reason: str | None = None
    text_length: int = 0
    key: str | None = None
    started: bool = False
    cost: float | None = None


class GatewayAnswer(Protocol):
    """One answer. `begin` it, then take its `document`, or its pieces until None; `leave` or `close` it."""

    @property
    def progress(self) -> AnswerProgress:
        """What is known of it so far."""

    @property
    def document(self) -> bytes | None:
        """The whole answer, for a client that wanted no stream."""

    async def start(self) -> None:
        """Wait until there is something to pass on. ProviderError before that."""

    async def next(self) -> bytes | None:
        """What comes next of a stream; None when it is complete. ProviderError when it broke off."""

    def closing_bytes(self) -> bytes:
        """What closes a complete stream."""

    async def client_gone(self) -> None:
        """The client has gone: learn what can be learnt at once, and be done."""

    async def close(self) -> None:
        """Be done."""


class RelayedAnswer:
    """An answer in the client's own language: its bytes pass, a tap reads along.

    `begin` is called with each attempt's relay, inside the provider's retries, so that an error that stands
    at the beginning of a stream is treated like one in the status.
    """

    def __init__(self, dialect: ClientDialect, *, stream: bool, make_tap: Callable[[], AnswerTap]) -> None:
        self._dialect = dialect
        self._stream = stream
        self._make_tap = make_tap
        self._tap = make_tap()
        self._response: RelayedResponse | None = None
        self._first_bytes = b""
        self._document: bytes | None = None
        self._progress = AnswerProgress()
        self._failure: ProviderError | None = None
        self.unexpected_format: bytes | None = None
        """All of the answer, when it is a document and a stream was asked for, or the other way round."""

    @property
    def progress(self) -> AnswerProgress:
        """See `GatewayAnswer`."""
        if self._stream:
            tap, account = self._tap, self._progress
            account.usage, account.model, account.text_length = tap.usage, tap.model, tap.text_length
            account.finish_reason = tap.finish_reason
        return self._progress

    @property
    def document(self) -> bytes | None:
        """See `GatewayAnswer`."""
        return self._document

    async def start(self) -> None:
        """See `GatewayAnswer`: what `handle` found wrong with an answer that had begun."""
        if self._failure is not None:
            raise self._failure

    async def handle(self, response: RelayedResponse) -> None:
        """Read until there is something to pass on; raise what another attempt may mend."""
        self._response = response
        if self._stream:  # anew: what is hidden depends on what this attempt has asked for
            self._tap = self._make_tap()
        self._progress.key = response.key
        try:
            await (self._read_stream(response) if self._stream else self._read_document(response))
            response.mark_succeeded()
        except ProviderError as error:
            response.mark_failed(error)
            if not response.started or (error.transient and error.category in BUSY_CATEGORIES):
                raise
            self._failure = error
            response.close()

    async def _read_stream(self, response: RelayedResponse) -> None:
        tap = self._tap
        while not self._first_bytes:
            fresh = not response.started
            raw = await response.receive()
            if fresh and raw.lstrip().startswith(DOCUMENT_STARTS):
                self.unexpected_format = raw + await response.read()
                response.close()
                return
            said = tap.feed(raw) if raw else tap.close()
            self._first_bytes = b"" if said == KEEP_ALIVE else said
            if tap.failure is not None and not self._first_bytes:
                raise tap.failure
            if not raw:
                break
        self._progress.started = True

    async def _read_document(self, response: RelayedResponse) -> None:
        self._document = await response.read()
        if self._document.startswith(STREAM_STARTS) and self._dialect.endpoint != "embeddings":
            self.unexpected_format = self._document
            response.close()
            return
        whole = self._dialect.parse_document(self._document)
        self._progress.started = True
        self._progress.usage, self._progress.model = whole.usage, whole.model
        self._progress.finish_reason = whole.finish_reason

    async def next(self) -> bytes | None:
        """See `GatewayAnswer`."""
        said, self._first_bytes = self._first_bytes, b""
        if said:
            return said
        tap, relay = self._tap, self._response
        while relay is not None and not tap.done:
            if tap.failure is not None:
                relay.mark_failed(tap.failure)
                raise tap.failure
            raw = await relay.receive()
            said = tap.feed(raw) if raw else tap.close()
            if said:
                return said
        return None

    def closing_bytes(self) -> bytes:
        """See `GatewayAnswer`: the server's own end has passed."""
        return b""

    async def client_gone(self) -> None:
        """See `GatewayAnswer`. Usage that is about to come is waited for, if not for long."""
        tap = self._tap
        if self._stream and self._response is not None and tap.generation_finished and tap.usage is None:
            tap.feed(await self._response.read_for(USAGE_WAIT))
        await self._stop()

    async def close(self) -> None:
        """See `GatewayAnswer`."""
        if self._response is not None and (self._tap.done or self._document is not None):
            await self._response.drain()
        await self._stop()

    async def _stop(self) -> None:
        if self._response is not None:
            self._response.close()


class TranslatedAnswer:
    """An answer out of events: from a provider of another family, or for a client of another dialect."""

    def __init__(
        self, batches: AsyncGenerator[Sequence[e.Event], None], model: str, *, encoder: AnswerEncoder | None
    ) -> None:
        self._batches = batches
        self.encoder = encoder
        self._first_batch: Sequence[e.Event] | None = None
        self._progress = AnswerProgress(model=model)
        self.events: list[e.Event] = []

    @property
    def progress(self) -> AnswerProgress:
        """See `GatewayAnswer`."""
        return self._progress

    @property
    def document(self) -> bytes | None:
        """See `GatewayAnswer`: whoever wants one makes it of `events`."""
        return None

    async def start(self) -> None:
        """See `GatewayAnswer`. Without a reply to spell all events are collected."""
        if self.encoder is not None:
            self._first_batch = await anext(self._batches, None)
            return
        async with aclosing(self._batches) as batches:
            async for batch in batches:
                self._count(batch)
                self.events += batch

    async def next(self) -> bytes | None:
        """See `GatewayAnswer`."""
        batch, self._first_batch = self._first_batch, None
        if batch is None:
            batch = await anext(self._batches, None)
        if batch is None or self.encoder is None:
            return None
        self._count(batch)
        return self.encoder.encode(batch)

    def closing_bytes(self) -> bytes:
        """See `GatewayAnswer`."""
        return b"" if self.encoder is None else self.encoder.end()

    async def client_gone(self) -> None:
        """See `GatewayAnswer`."""
        await self._batches.aclose()

    async def close(self) -> None:
        """See `GatewayAnswer`."""
        await self._batches.aclose()

    def _count(self, batch: Sequence[e.Event]) -> None:
        account = self._progress
        account.started = True
        for event in batch:
            if isinstance(event, e.TextDelta | e.ReasoningDelta):
                account.text_length += len(event.delta)
            elif isinstance(event, e.ToolInputDelta):
                account.text_length += len(event.input_text_delta)
            elif isinstance(event, e.FinishStep):
                account.usage, account.finish_reason = event.usage, event.finish_reason
                account.model, account.key = event.model or account.model, event.key
                account.cost = provider_cost(event)


# ---- A model's answer in one of the hub's own dialects: framed as a run of one step.


class HubAnswerEncoder:
    """A `AnswerEncoder` that spells a provider's events for a client of the hub or of the AI SDK."""

    def __init__(self, dialect: StreamEncoder, *, message_id: str) -> None:
        self.headers: Mapping[str, str] = dialect.headers
        self._dialect = dialect
        self._id = message_id
        self._fold = Fold()
        self._started = False

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """See `AnswerEncoder`."""
        told = [*self._opening_events(), *batch]
        if isinstance(batch[-1], e.FinishStep):
            told.append(e.Finish(batch[-1].finish_reason, usage=batch[-1].usage, steps=1))
        self._fold.add(told)
        return self._dialect.encode(told)

    def encode_error(self, error: DragomanError) -> bytes:
        """See `AnswerEncoder`: open blocks are closed first."""
        opening = self._opening_events()
        if opening:
            self._fold.add(opening)
        ending = outcome.failure_events(
            self._fold, text=error.message, code=error.code, transient=error.transient, metadata=None
        )
        return self._dialect.encode([*opening, *ending]) + self._dialect.end()

    def end(self) -> bytes:
        """See `AnswerEncoder`."""
        return self._dialect.end()

    def _opening_events(self) -> list[e.Event]:
        if self._started:
            return []
        self._started = True
        return [e.Start(self._id), e.StartStep()]
