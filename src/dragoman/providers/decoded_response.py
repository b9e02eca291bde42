"""A streamed answer, decoded: bytes from the HTTP response in, batches of events out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from dragoman.errors import ProviderError
from dragoman.event_splitting import MAX_EVENTS, split_events
from dragoman.events import TEXT_DELTAS, DeltaHandler, Event, FinishStep
from dragoman.http.transport import Response
from dragoman.large_json import SMALL
from dragoman.offload import offload
from dragoman.providers.adapter import AnswerLimits
from dragoman.providers.key_pool import NO_KEY, KeyLease
from dragoman.providers.retry import MAX_TEXT_BODY, page_text
from dragoman.redaction import safe_line
from dragoman.wire.answer_decoder import AnswerDecoder
from dragoman.wire.json_codec import BYTE_ORDER_MARK, is_part_of_mark, text_start
from dragoman.wire.token_estimate import cut_answer_length

PIECE = 65_536  # characters of deltas in one batch of a large answer
SLICE = 65_536  # bytes of a stored stream that are decoded at once
DRAIN_SECONDS = 0.25  # wait for the end of the body after the last event, so that the connection is reusable


async def read_answer(
    open_answer: Callable[[], Awaitable[DecodedResponse]],
    *,
    redact: Callable[[ProviderError], ProviderError],
    on_delta: DeltaHandler | None = None,
) -> AsyncGenerator[Sequence[Event], None]:
    """Yield the batches of the answer that `open_answer` starts; close it at the end. Raises ProviderError.

    This is the only generator between the socket and the reader of the answer: each read of the socket
    resumes it once. While the reader waits for a batch, a batch that is one delta of text is passed to
    `on_delta` directly from the read of the socket; if that returns False, it is yielded.
    """
    answer: DecodedResponse | None = None
    try:
        answer = await open_answer()
        del open_answer  # it has the request, and the answer may take long
        answer.pass_deltas(on_delta)
        receive = answer.receive
        batch = answer.first_batch
        while True:
            if len(batch) > MAX_EVENTS:
                batch = answer.first_piece(batch)
            if batch:
                yield batch
            for piece in answer.pieces:  # once: an iterator, or nothing
                await asyncio.sleep(0)
                yield piece
            if answer.ended:
                break
            raw = await receive()
            batch = answer.feed(raw) if answer.size <= SMALL else await answer.feed_large(raw)
        await answer.finish()
    except ProviderError as error:
        raise redact(error) from None
    finally:
        if answer is not None:
            answer.close()


class DecodedRead(NamedTuple):
    """The events of the first `size` bytes that the reader has not received yet, or the error in them."""

    size: int
    batch: Sequence[Event] = ()
    error: Exception | None = None


class DecodedResponse:
    """One answer. Call `start`, `feed` with the results of `receive` until it has `ended`, then `finish`.

    `size` counts bytes. `first_batch` has the events of the reads in `start`. After a batch of a document or
    of a large frame, the rest of it is in `pieces`. Always `close` it.
    """

    def __init__(
        self,
        response: Response,
        decoder: AnswerDecoder[Any],
        *,
        lease: KeyLease,
        limits: AnswerLimits,
        json_lines: bool = False,
    ) -> None:
        self.first_batch: Sequence[Event] = ()
        self.pieces: Iterable[Sequence[Event]] = ()
        self.ended = False  # no more to read: it is complete, or has failed
        self._response = response
        self._decoder = decoder
        self._lease = lease
        self._limits = limits
        self._smallest_limit = min(limits.document, limits.stream)
        self._is_blank = True  # only white space so far, which some servers send before a document
        self._start = b""  # the received part of a byte order mark
        self._json_lines = json_lines  # a stream of JSON lines starts like a JSON document
        self.size = 0
        self._document: list[bytes] | None = None  # the body so far, if it is one JSON document
        self._failure: ProviderError | None = None
        self._on_delta: DeltaHandler | None = None
        self._decoded: DecodedRead | None = None  # the beginning of the next bytes for `feed`

    @property
    def receive(self) -> Callable[[], Awaitable[bytes]]:
        """See `Response.receive`."""
        return self._response.receive

    async def start(self) -> None:
        """Read until the first event. Raises ProviderError if there is no body or the server is too busy."""
        try:
            while not (self.first_batch or self.ended):
                raw = await self._response.receive()
                self.first_batch = self.feed(raw) if self.size <= SMALL else await self.feed_large(raw)
            if self._document is not None:
                await self._decode_document(self._document)
        except ProviderError as error:
            if self.size == 0 or (error.transient and error.category in ("overloaded", "rate_limit")):
                self._response.abort()
                raise
            if self._document is not None and not self.ended:
                error.cut_length = cut_answer_length(b"".join(self._document))
            self._failure, self.ended = error, True
        except BaseException:
            self._response.abort()
            raise
        if self._failure is None:
            self._lease.mark_succeeded()

    async def finish(self) -> None:
        """Raise the answer's failure, if any; else wait briefly for the end of the body."""
        if self._failure is not None:
            self._lease.mark_failed(self._failure)
            raise self._failure
        await drain_body(self._response)

    def close(self) -> None:
        """Close the socket, unless the answer is complete, and release the key."""
        self._on_delta = None
        self._response.abort()
        self._lease.release()

    def pass_deltas(self, on_delta: DeltaHandler | None) -> None:
        """Decode each read when it arrives, and pass batches that are one delta of text to `on_delta`."""
        if on_delta is not None:
            self._on_delta = on_delta
            self._response.on_read(self._take_read)

    def _take_read(self, raw: bytes) -> bool:
        """Decode a read for which `receive` waits; return whether nothing is left for the reader to do."""
        if self._on_delta is None or (self.size > SMALL and self._decoder.pending_size > SMALL):
            return False
        try:
            batch = self.feed(raw)
            if not (batch or self.ended):
                return True
            if len(batch) == 1 and type(batch[0]) in TEXT_DELTAS and not self.ended and self._on_delta(batch):
                return True
        except Exception as error:  # noqa: BLE001 # the reader raises it
            self._decoded = DecodedRead(len(raw), error=error)
        else:
            self._decoded = DecodedRead(len(raw), batch)
        return False

    def _feed_rest(self, raw: bytes, decoded: DecodedRead) -> Sequence[Event]:
        """Return the events of a read whose beginning `_take_read` has decoded; more bytes followed."""
        self._decoded = None
        if decoded.error is not None:
            raise decoded.error
        rest = raw[decoded.size :]
        if self.ended or not rest:
            return decoded.batch
        try:
            return [*decoded.batch, *self.feed(rest)]
        except ProviderError as error:  # events before a failure are returned first
            self._failure, self.ended = error, True
            return decoded.batch

    def feed(self, raw: bytes) -> Sequence[Event]:
        """Return the events of one read; a failure after them is raised by `finish`."""
        if self._decoded is not None:
            return self._feed_rest(raw, self._decoded)
        if not raw:
            return self._end()
        self.size += len(raw)
        if self._is_blank:
            raw = self._detect_format(raw)
        if self.size > self._smallest_limit:
            self._limits.check_size(self.size, is_document=self._document is not None)
        if self._document is not None:
            self._document.append(raw)
            return ()
        decoder = self._decoder
        batch = decoder.feed(raw)
        self._failure = decoder.failure
        if decoder.done:
            self.ended = True
            return self._with_key_name(batch)
        self.ended = self._failure is not None
        return batch

    async def feed_large(self, raw: bytes) -> Sequence[Event]:
        """Like `feed`, but in a thread if it may decode a large frame, or a call with large arguments."""
        size = self._decoder.pending_size
        batch = await offload(size, lambda: self.feed(raw))
        return batch if size <= SMALL else self.first_piece(batch)

    def _end(self) -> Sequence[Event]:
        self.ended = True
        if self._document is not None:
            return ()
        try:
            events = self._decoder.close()
        except ProviderError as error:
            self._failure = error  # also for an empty body: the server has responded
            return ()
        self._failure = self._decoder.failure
        return self._with_key_name(events)

    async def _decode_document(self, document: Sequence[bytes]) -> None:
        """Decode an answer that is one JSON document; a large one in a thread, into many batches."""
        decoder = self._decoder
        events = await offload(self.size, lambda: decoder.decode_document(b"".join(document)))
        self._failure = decoder.failure
        self.first_batch = self.first_piece(self._with_key_name(events))

    def first_piece(self, batch: Sequence[Event]) -> Sequence[Event]:
        """Return the first piece of a large batch; the others are in `pieces`."""
        pieces = split_events(batch, PIECE)
        first, self.pieces = next(pieces, ()), pieces
        return first

    def _with_key_name(self, batch: Sequence[Event]) -> Sequence[Event]:
        """Add the name of the key to the finish event at the end of the last batch."""
        key = self._lease.key.name
        if key == NO_KEY.name or not batch or not isinstance(finish := batch[-1], FinishStep):
            return batch
        return [*batch[:-1], replace(finish, key=key)]

    def _detect_format(self, raw: bytes) -> bytes:
        """Detect a document or a web page by the first bytes of the body: content types are unreliable.

        Returns the bytes to decode; an incomplete byte order mark waits for the next read.
        """
        raw, self._start = self._start + raw, b""
        if is_part_of_mark(raw):
            self._start = raw
            return b""
        if text := text_start(raw):
            reject_web_page(text, self._response)
            self._is_blank = False
        if text.startswith((b"{", b"[")) and not self._json_lines:
            self._document = []
        return raw


async def decode_stored(
    decoder: AnswerDecoder[Any], raw: bytes, *, redact: Callable[[ProviderError], ProviderError]
) -> AsyncGenerator[Sequence[Event], None]:
    """Yield the batches of a complete answer, a document or a stream. Raises ProviderError."""
    raw = raw.removeprefix(BYTE_ORDER_MARK)
    is_document = raw.lstrip()[:1] in (b"{", b"[")
    slices = [raw] if is_document else [raw[start : start + SLICE] for start in range(0, len(raw), SLICE)]
    try:
        for piece in slices if is_document else [*slices, b""]:
            await asyncio.sleep(0)
            for batch in split_events(await _decode_slice(decoder, piece, is_document=is_document), PIECE):
                yield batch
                await asyncio.sleep(0)
        if decoder.failure is not None:
            raise decoder.failure
    except ProviderError as error:
        raise redact(error) from None


async def _decode_slice(decoder: AnswerDecoder[Any], raw: bytes, *, is_document: bool) -> Sequence[Event]:
    """Return the events of a document, or of a slice of a stream; an empty slice is the end of the stream.

    A large document, and a slice that may complete a large frame, are decoded in a thread.
    """
    if is_document:
        return await offload(len(raw), lambda: decoder.decode_document(raw))
    if raw:
        return await offload(decoder.pending_size, lambda: decoder.feed(raw))
    if decoder.failure is not None:
        return ()
    return await offload(decoder.pending_size, decoder.close)


def reject_web_page(text: bytes, response: Response) -> None:
    """Raise ProviderError if a body that begins with `text` (see `text_start`) is a web page."""
    start = text[:1]
    page = response.headers.get("content-type", "").startswith("text/html")
    if start == b"<" or (page and start not in (b"{", b"[")):
        raise ProviderError(
            f"the server answered with a web page, not with a model's answer: {page_title(text)}",
            category="api_error",
            hint="set base_url to the URL of the API; it often ends in /v1",
        )


async def drain_body(response: Response) -> None:
    """Wait briefly for the end of the body, so that the connection is reusable."""
    if response.complete:
        return
    with suppress(TimeoutError, ProviderError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.receive():
                pass


def page_title(page: bytes) -> str:
    """Return the title of a web page, in quotes."""
    return repr(safe_line(page_text(page[:MAX_TEXT_BODY].decode(errors="replace"))))
