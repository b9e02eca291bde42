"""Answers on their way to a gateway client: relayed as bytes, or translated from events.

A `ModelCall` reads both. A client that speaks its provider's own protocol gets the provider's bytes as they
are, while a tap reads usage and errors from them. Any other client gets the provider's events, encoded in its
dialect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from dragoman import events as e
from dragoman.accounts.upstream_answer import AnswerProgress, EventAnswer
from dragoman.agent import run_end
from dragoman.errors import DragomanError, ProviderError
from dragoman.fold import Fold
from dragoman.large_json import SMALL, measure
from dragoman.offload import offload
from dragoman.providers.adapter import AnswerLimits, Family
from dragoman.providers.relayed_response import RelayedResponse
from dragoman.server.gateway.dialects import AnswerEncoder
from dragoman.server.streaming import encode_batch
from dragoman.tracing.interface import ModelSpan
from dragoman.wire.encoder import KEEP_ALIVE, StreamEncoder
from dragoman.wire.json_codec import BYTE_ORDER_MARK, is_part_of_mark, text_start
from dragoman.wire.tap import AnswerSummary, AnswerTap
from dragoman.wire.unsupported_content import UNCERTAIN_EVENTS, omitted_content

BUSY_CATEGORIES = ("overloaded", "rate_limit")
DOCUMENT_STARTS = (b"{", b"[")
STREAM_STARTS = (b"data:", b"event:", b":", b"id:", b"retry:")
EVENT_SIZE = 20  # encoding an event takes as long as encoding this many characters
USAGE_WAIT = 0.06  # seconds that a finished answer's usage may still take after its client has gone

Send = Callable[[Callable[[RelayedResponse], Awaitable[None]]], Awaitable[None]]


class TranslatedAnswer:
    """An answer made of events, for a client of another family or of one of the hub's own dialects.

    Without an `encoder` the client gets a document: `start` then collects all `events`. `start` first awaits
    `check`, which raises BadRequest for a request that the provider does not support.
    """

    def __init__(
        self,
        answer: EventAnswer,
        *,
        check: Callable[[], Awaitable[None]] | None = None,
        encoder: AnswerEncoder | None,
        family: Family,
        limits: AnswerLimits,
    ) -> None:
        self.encoder = encoder
        self.events: list[e.Event] = []
        self._answer = answer
        self._check = check
        self._limits = limits
        self._family = family
        self._omitted: list[str] = []

    @property
    def size(self) -> int:
        """About how many bytes the collected events take; exact only up to `SMALL`."""
        size = self.progress.text_length + EVENT_SIZE * len(self.events)
        for event in self.events if size <= SMALL else ():
            if isinstance(event, e.File):
                size += len(event.url)
            elif isinstance(event, e.ToolInputAvailable):
                size += measure(event.input)
        return size

    @property
    def span(self) -> ModelSpan:
        """See `UpstreamAnswer.span`."""
        return self._answer.span

    @property
    def progress(self) -> AnswerProgress:
        """See `UpstreamAnswer.progress`."""
        return self._answer.progress

    async def start(self) -> Self:
        """See `UpstreamAnswer.start`."""
        if self._check is not None:
            await self._check()
        await self._answer.start()
        if self.encoder is None:
            while (batch := await self._answer.receive()) is not None:
                self.events += batch
                self._limits.check_size(self.progress.text_length, is_document=True)
        return self

    async def receive(self) -> bytes | None:
        """See `UpstreamAnswer.receive`; nothing for a document."""
        if self.encoder is None:
            return None
        batch = await self._answer.receive()
        if batch is None:
            return None
        for event in batch:
            if type(event) in UNCERTAIN_EVENTS:
                self._omitted += omitted_content([event], self._family)
        return await encode_batch(self.encoder, batch)

    @property
    def omitted(self) -> list[str]:
        """The names of the events that the client's protocol cannot carry."""
        if isinstance(self.encoder, HubAnswerEncoder):
            return []
        has_text = self.progress.text_length > 0
        names = [*self._omitted, *omitted_content(self.events, self._family)]
        return [name for name in dict.fromkeys(names) if not (has_text and name == e.SourceUrl.type)]

    async def close(self, *, abandoned: bool) -> None:
        """See `UpstreamAnswer.close`."""
        await self._answer.close(abandoned=abandoned)


class RelayedAnswer:
    """An answer in the client's own protocol: its bytes are passed on while a tap reads them.

    `send` sends the request, and calls back with the response of each attempt, inside the provider's retries:
    an error that stands at the beginning of a stream is treated like one in the status. `translate` makes the
    answer to read on from when the server sends a document where a stream was wanted, or the other way round;
    it is None for answers that are never streams.
    """

    def __init__(
        self,
        send: Send,
        *,
        span: ModelSpan,
        stream: bool,
        make_tap: Callable[[], AnswerTap],
        parse_document: Callable[[bytes], AnswerSummary],
        translate: Callable[[bytes], TranslatedAnswer] | None,
    ) -> None:
        self.span = span
        self.document: bytes | None = None
        """The whole answer, for a client that wanted no stream."""
        self._send = send
        self._stream = stream
        self._make_tap = make_tap
        self._parse_document = parse_document
        self._translate = translate
        self._tap: AnswerTap | None = None  # made for each attempt; a document has none
        self._response: RelayedResponse | None = None
        self._first_bytes = b""
        self._progress = AnswerProgress()
        self._failure: ProviderError | None = None
        self._unexpected_format: bytes | None = None

    @property
    def progress(self) -> AnswerProgress:
        """See `UpstreamAnswer.progress`."""
        tap, progress = self._tap, self._progress
        if tap is not None:
            progress.usage, progress.text_length = tap.usage, tap.text_length
            progress.model, progress.finish_reason = tap.model, tap.finish_reason
        return progress

    async def start(self) -> RelayedAnswer | TranslatedAnswer:
        """See `UpstreamAnswer.start`."""
        await self._send(self._handle)
        if self._failure is not None:
            raise self._failure
        self.span.first_byte()
        if self._unexpected_format is not None and self._translate is not None:
            converted = self._translate(self._unexpected_format)
            try:
                return await converted.start()
            except ProviderError:
                self._progress = converted.progress  # the tokens that were used are paid for
                raise
        return self

    async def receive(self) -> bytes | None:
        """See `UpstreamAnswer.receive`; nothing for a document."""
        first, self._first_bytes = self._first_bytes, b""
        if first:
            return first
        tap, response = self._tap, self._response
        while response is not None and tap is not None and not tap.done:
            if tap.failure is not None:
                response.mark_failed(tap.failure)
                raise tap.failure
            raw = await response.receive()
            if relayed := await self._relay(tap, raw):
                return relayed
        return None

    async def close(self, *, abandoned: bool) -> None:
        """See `UpstreamAnswer.close`. Usage that follows the last token is waited for briefly."""
        response, tap = self._response, self._tap
        if response is None:
            return
        try:
            if abandoned:
                if tap is not None and tap.generation_finished and tap.usage is None:
                    tap.feed(await response.read_for(USAGE_WAIT))
            elif not response.complete and (self.document is not None if tap is None else tap.done):
                await response.drain()
        finally:  # the request may be cancelled meanwhile
            response.close()

    async def _handle(self, response: RelayedResponse) -> None:
        """Read until there is something to pass on; raise an error that another attempt may avoid."""
        self._response = response
        self._progress.key = response.key
        try:
            if self._stream:  # a new tap: whether usage is hidden depends on what this attempt requested
                self._tap = self._make_tap()
                await self._read_stream(response, self._tap)
            else:
                await self._read_document(response)
            response.mark_succeeded()
        except ProviderError as error:
            response.mark_failed(error)
            if not response.started or (error.transient and error.category in BUSY_CATEGORIES):
                raise
            self._failure = error
            self._progress.add_cut(error)
            response.close()

    async def _read_stream(self, response: RelayedResponse, tap: AnswerTap) -> None:
        is_blank = True  # some servers send white space until they have the document
        start = b""  # a part of a byte order mark
        while not self._first_bytes:
            received = await response.receive()
            raw, start = start + received, b""
            if is_blank and received and is_part_of_mark(raw):
                start = raw
                continue
            text = text_start(raw) if is_blank else b""
            is_blank = is_blank and not text
            if text.startswith(DOCUMENT_STARTS):
                self._tap = None
                self._unexpected_format = await response.read(raw)
                response.close()
                return
            relayed = await self._relay(tap, raw)
            self._first_bytes = b"" if relayed == KEEP_ALIVE else relayed
            if tap.failure is not None and not self._first_bytes:
                raise tap.failure
            if not raw:
                break
        self._progress.started = True

    @staticmethod
    async def _relay(tap: AnswerTap, raw: bytes) -> bytes:
        """Return the part of a read that is passed on. A large frame is checked in a thread."""
        if tap.pending_size > SMALL:
            return await offload(tap.pending_size, lambda: tap.feed(raw) if raw else tap.close())
        return tap.feed(raw) if raw else tap.close()

    async def _read_whole_stream(self, response: RelayedResponse, start: bytes) -> bytes:
        """Return a stream that came in place of a document, up to its end.

        The connection does not matter after that: some servers leave it open, others close it abruptly.
        """
        tap, pieces, raw = self._make_tap(), [start], start
        try:
            while raw:
                await self._relay(tap, raw)
                if tap.done or tap.failure is not None:
                    break
                raw = await response.receive()
                pieces.append(raw)
        except ProviderError as error:
            error.cut_length = tap.text_length
            raise
        return b"".join(pieces)

    async def _read_document(self, response: RelayedResponse) -> None:
        can_translate = self._translate is not None
        document = await response.read(stop_at=STREAM_STARTS if can_translate else ())
        document = document.removeprefix(BYTE_ORDER_MARK)
        if can_translate and document.lstrip().startswith(STREAM_STARTS):
            self._unexpected_format = await self._read_whole_stream(response, document)
            response.close()
            return
        summary = await offload(len(document), partial(self._parse_document, document))
        self.document = summary.repaired or document
        self._progress.started = True
        self._progress.usage = summary.usage
        self._progress.model, self._progress.finish_reason = summary.model, summary.finish_reason
        if summary.usage is None and self._translate is not None:
            with suppress(ProviderError):  # read once more as events, to estimate how long it is
                events = await self._translate(document).start()
                self._progress.text_length = events.progress.text_length


class HubAnswerEncoder:
    """An `AnswerEncoder` for a client of the hub or of the AI SDK: frames the answer as a run of one step."""

    def __init__(self, dialect: StreamEncoder, *, message_id: str) -> None:
        self.headers: Mapping[str, str] = dialect.headers
        self._dialect = dialect
        self._id = message_id
        self._fold = Fold()
        self._started = False

    def encode(self, batch: Sequence[e.Event]) -> bytes:
        """See `AnswerEncoder`."""
        framed = [*self._opening_events(), *batch]
        if isinstance(batch[-1], e.FinishStep):
            framed.append(e.Finish(batch[-1].finish_reason, usage=batch[-1].usage, steps=1))
        self._fold.add(framed)
        return self._dialect.encode(framed)

    def encode_error(self, error: DragomanError) -> bytes:
        """See `AnswerEncoder`: open blocks are closed first."""
        opening = self._opening_events()
        if opening:
            self._fold.add(opening)
        ending = run_end.failure_events(
            self._fold, text=error.message_and_hint, code=error.code, transient=error.transient, metadata=None
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
