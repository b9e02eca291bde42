"""Voices: an answer on its way to a gateway client, relayed as bytes or spelled from events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec

from dragoman import events as e
from dragoman.accounts.price import told_cost
from dragoman.agent import closing
from dragoman.errors import DragomanError, ProviderError
from dragoman.events import Usage
from dragoman.fold import Fold
from dragoman.providers.relay import Relay
from dragoman.server.gateway.dialects import Reply, Tongue
from dragoman.wire.dialect import KEEP_ALIVE, Dialect
from dragoman.wire.tap import Tap

BUSY = ("overloaded", "rate_limit")
DOCUMENT = (b"{", b"[")
STREAM = (b"data:", b"event:", b":", b"id:", b"retry:")
DRAIN = 0.06  # seconds that a finished answer's usage may still take after its client has gone


class Account(msgspec.Struct):
    """What is known of an answer so far. `said` counts characters, `key` names the provider's key, `cost` is
    what the provider itself says of that.
    """

    usage: Usage | None = None
    model: str | None = None
    finish_reason: str | None = None
    said: int = 0
    key: str | None = None
    begun: bool = False
    cost: float | None = None


class Voice(Protocol):
    """One answer. `begin` it, then take its `document`, or its pieces until None; `leave` or `close` it."""

    @property
    def account(self) -> Account:
        """What is known of it so far."""

    @property
    def document(self) -> bytes | None:
        """The whole answer, for a client that wanted no stream."""

    async def begin(self) -> None:
        """Wait until there is something to pass on. ProviderError before that."""

    async def next(self) -> bytes | None:
        """What comes next of a stream; None when it is complete. ProviderError when it broke off."""

    def end(self) -> bytes:
        """What closes a complete stream."""

    async def leave(self) -> None:
        """The client has gone: learn what can be learnt at once, and be done."""

    async def close(self) -> None:
        """Be done."""


class Relayed:
    """An answer in the client's own language: its bytes pass, a tap reads along.

    `begin` is called with each attempt's relay, inside the provider's retries, so that an error that stands
    at the beginning of a stream is treated like one in the status.
    """

    def __init__(self, tongue: Tongue, *, stream: bool, tap: Callable[[], Tap]) -> None:
        self._tongue = tongue
        self._stream = stream
        self._make_tap = tap
        self._tap = tap()
        self._relay: Relay | None = None
        self._first = b""
        self._document: bytes | None = None
        self._account = Account()
        self._failure: ProviderError | None = None
        self.odd: bytes | None = None
        """All of the answer, when it is a document and a stream was asked for, or the other way round."""

    @property
    def account(self) -> Account:
        """See `Voice`."""
        if self._stream:
            tap, account = self._tap, self._account
            account.usage, account.model, account.said = tap.usage, tap.model, tap.said
            account.finish_reason = tap.finish_reason
        return self._account

    @property
    def document(self) -> bytes | None:
        """See `Voice`."""
        return self._document

    async def begin(self) -> None:
        """See `Voice`: what `listen` found wrong with an answer that had begun."""
        if self._failure is not None:
            raise self._failure

    async def listen(self, relay: Relay) -> None:
        """Read until there is something to pass on; raise what another attempt may mend."""
        self._relay = relay
        if self._stream:  # anew: what is hidden depends on what this attempt has asked for
            self._tap = self._make_tap()
        self._account.key = relay.key
        try:
            await (self._listen(relay) if self._stream else self._read(relay))
            relay.worked()
        except ProviderError as error:
            relay.failed(error)
            if not relay.heard or (error.transient and error.category in BUSY):
                raise
            self._failure = error
            relay.close()

    async def _listen(self, relay: Relay) -> None:
        tap = self._tap
        while not self._first:
            fresh = not relay.heard
            raw = await relay.more()
            if fresh and raw.lstrip().startswith(DOCUMENT):
                self.odd = raw + await relay.read()
                relay.close()
                return
            said = tap.feed(raw) if raw else tap.close()
            self._first = b"" if said == KEEP_ALIVE else said
            if tap.failure is not None and not self._first:
                raise tap.failure
            if not raw:
                break
        self._account.begun = True

    async def _read(self, relay: Relay) -> None:
        self._document = await relay.read()
        if self._document.startswith(STREAM) and self._tongue.door != "embeddings":
            self.odd = self._document
            relay.close()
            return
        whole = self._tongue.read_whole(self._document)
        self._account.begun = True
        self._account.usage, self._account.model = whole.usage, whole.model
        self._account.finish_reason = whole.finish_reason

    async def next(self) -> bytes | None:
        """See `Voice`."""
        said, self._first = self._first, b""
        if said:
            return said
        tap, relay = self._tap, self._relay
        while relay is not None and not tap.done:
            if tap.failure is not None:
                relay.failed(tap.failure)
                raise tap.failure
            raw = await relay.more()
            said = tap.feed(raw) if raw else tap.close()
            if said:
                return said
        return None

    def end(self) -> bytes:
        """See `Voice`: the server's own end has passed."""
        return b""

    async def leave(self) -> None:
        """See `Voice`. Usage that is about to come is waited for, if not for long."""
        tap = self._tap
        if self._stream and self._relay is not None and tap.finishing and tap.usage is None:
            tap.feed(await self._relay.rest(DRAIN))
        await self._stop()

    async def close(self) -> None:
        """See `Voice`."""
        if self._relay is not None and (self._tap.done or self._document is not None):
            await self._relay.drain()
        await self._stop()

    async def _stop(self) -> None:
        if self._relay is not None:
            self._relay.close()


class Spoken:
    """An answer out of events: from a provider of another family, or for a client of another dialect."""

    def __init__(
        self, batches: AsyncGenerator[Sequence[e.Event], None], model: str, *, reply: Reply | None
    ) -> None:
        self._batches = batches
        self.reply = reply
        self._first: Sequence[e.Event] | None = None
        self._account = Account(model=model)
        self.events: list[e.Event] = []

    @property
    def account(self) -> Account:
        """See `Voice`."""
        return self._account

    @property
    def document(self) -> bytes | None:
        """See `Voice`: whoever wants one makes it of `events`."""
        return None

    async def begin(self) -> None:
        """See `Voice`. Without a reply to spell all events are collected."""
        if self.reply is not None:
            self._first = await anext(self._batches, None)
            return
        async with aclosing(self._batches) as batches:
            async for batch in batches:
                self._note(batch)
                self.events += batch

    async def next(self) -> bytes | None:
        """See `Voice`."""
        batch, self._first = self._first, None
        if batch is None:
            batch = await anext(self._batches, None)
        if batch is None or self.reply is None:
            return None
        self._note(batch)
        return self.reply.encode(batch)

    def end(self) -> bytes:
        """See `Voice`."""
        return b"" if self.reply is None else self.reply.end()

    async def leave(self) -> None:
        """See `Voice`."""
        await self._batches.aclose()

    async def close(self) -> None:
        """See `Voice`."""
        await self._batches.aclose()

    def _note(self, batch: Sequence[e.Event]) -> None:
        account = self._account
        account.begun = True
        for event in batch:
            if isinstance(event, e.TextDelta | e.ReasoningDelta):
                account.said += len(event.delta)
            elif isinstance(event, e.ToolInputDelta):
                account.said += len(event.input_text_delta)
            elif isinstance(event, e.FinishStep):
                account.usage, account.finish_reason = event.usage, event.finish_reason
                account.model, account.key = event.model or account.model, event.key
                account.cost = told_cost(event)


# ---- A model's answer in one of the hub's own dialects: framed as a run of one step.


class Framed:
    """A `Reply` that spells a provider's events for a client of the hub or of the AI SDK."""

    def __init__(self, dialect: Dialect, *, message_id: str) -> None:
        self.headers: Mapping[str, str] = dialect.headers
        self._dialect = dialect
        self._id = message_id
        self._fold = Fold()
        self._begun = False

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """See `Reply`."""
        told = [*self._opening(), *batch]
        if isinstance(batch[-1], e.FinishStep):
            told.append(e.Finish(batch[-1].finish_reason, usage=batch[-1].usage, steps=1))
        self._fold.add(told)
        return self._dialect.encode(told)

    def fail(self, error: DragomanError) -> bytes:
        """See `Reply`: open blocks are closed first."""
        opening = self._opening()
        if opening:
            self._fold.add(opening)
        ending = closing.fail(
            self._fold, text=error.message, code=error.code, transient=error.transient, metadata=None
        )
        return self._dialect.encode([*opening, *ending]) + self._dialect.end()

    def end(self) -> bytes:
        """See `Reply`."""
        return self._dialect.end()

    def _opening(self) -> list[e.Event]:
        if self._begun:
            return []
        self._begun = True
        return [e.Start(self._id), e.StartStep()]
