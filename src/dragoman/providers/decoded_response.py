"""A streamed answer, decoded: bytes from the HTTP response in, batches of events out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from dragoman.errors import ProviderError
from dragoman.events import Event, FinishStep
from dragoman.http.transport import Response
from dragoman.providers.adapter import AnswerDecoder
from dragoman.providers.key_pool import NO_KEY, KeyLease
from dragoman.providers.retry import MAX_TEXT_BODY, page_text
from dragoman.redaction import safe_line
from dragoman.wire.json_codec import BYTE_ORDER_MARK

MAX_ANSWER_BYTES = 256 * 1024 * 1024
DRAIN_SECONDS = 0.25  # wait for the end of the body after the last event, so that the connection is reusable


async def read_answer(
    open_answer: Callable[[], Awaitable[DecodedResponse]], *, redact: Callable[[ProviderError], ProviderError]
) -> AsyncGenerator[Sequence[Event], None]:
    """Yield the batches of an answer that is started by `open_answer`; close it in any case.

    Between the socket and whoever reads the answer this generator is the only one: each read of the socket
    resumes it once.
    """
    answer: DecodedResponse | None = None
    try:
        answer = await open_answer()
        receive = answer.receive
        batch: Sequence[Event] | None = answer.first_batch
        while batch is not None:
            if batch:
                yield batch
            batch = None if answer.ended else answer.feed(await receive())
        await answer.finish()
    except ProviderError as error:
        raise redact(error) from None
    finally:
        if answer is not None:
            answer.close()


class DecodedResponse:
    """One answer. Call `start`, then `feed` what `receive` returns until it has `ended`, then `finish`.

    `first_batch` are the events of the reads in `start`. Always `close` it.
    """

    def __init__(
        self,
        response: Response,
        decoder: AnswerDecoder,
        *,
        lease: KeyLease,
        limit: int,
        json_lines: bool = False,
    ) -> None:
        self.first_batch: Sequence[Event] = ()
        self.ended = False  # no more to read: it is complete, or has failed
        self._response = response
        self._decoder = decoder
        self._lease = lease
        self._limit = limit
        self._json_lines = json_lines  # a stream of JSON lines starts like a JSON document
        self._size = 0
        self._document: list[bytes] | None = None  # the body so far, if it is one JSON document
        self._failure: ProviderError | None = None

    @property
    def receive(self) -> Callable[[], Awaitable[bytes]]:
        """See `Response.receive`."""
        return self._response.receive

    async def start(self) -> None:
        """Read until the first event. Raises ProviderError if there is no body or the server is too busy."""
        try:
            while not (self.first_batch or self.ended):
                self.first_batch = self.feed(await self._response.receive())
        except ProviderError as error:
            if self._size == 0 or (error.transient and error.category in ("overloaded", "rate_limit")):
                self._response.abort()
                raise
            self._failure, self.ended = error, True
        except BaseException:
            self._response.abort()
            raise
        if self._failure is None:
            self._lease.mark_succeeded()

    async def finish(self) -> None:
        """Raise the failure of an answer that has ended so; else wait briefly for the end of the body."""
        if self._failure is not None:
            self._lease.mark_failed(self._failure)
            raise self._failure
        await drain_body(self._response)

    def close(self) -> None:
        """Close the socket, unless the answer is complete, and release the key."""
        self._response.abort()
        self._lease.release()

    def feed(self, raw: bytes) -> Sequence[Event]:
        """Return the events of one read; a failure after them is kept for `finish`."""
        if not raw:
            return self._end()
        if not self._size:
            self._detect_format(raw)
        self._size += len(raw)
        if self._size > self._limit:
            raise ProviderError(f"the answer is longer than {self._limit} bytes", category="api_error")
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

    def _end(self) -> Sequence[Event]:
        self.ended = True
        if self._document is not None:
            return self._with_key_name(self._decoder.decode_document(b"".join(self._document)))
        try:
            return self._with_key_name(self._decoder.close())
        except ProviderError as error:
            self._failure = error  # also for an empty body: the server did answer
            return ()

    def _with_key_name(self, batch: Sequence[Event]) -> Sequence[Event]:
        """Add the name of the key to the finish event at the end of the last batch."""
        key = self._lease.key.name
        if key == NO_KEY.name or not batch or not isinstance(finish := batch[-1], FinishStep):
            return batch
        return [*batch[:-1], replace(finish, key=key)]

    def _detect_format(self, raw: bytes) -> None:
        """Tell a stream from a document or a web page by its first bytes: content types are unreliable."""
        reject_web_page(raw, self._response)
        if raw.removeprefix(BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"[") and not self._json_lines:
            self._document = []


def reject_web_page(raw: bytes, response: Response) -> None:
    """Raise ProviderError if a body is a web page."""
    start = raw.lstrip()[:1]
    page = response.headers.get("content-type", "").startswith("text/html")
    if start == b"<" or (page and start not in (b"{", b"[")):
        raise ProviderError(
            f"the server answered with a web page, not with a model's answer: {page_title(raw)}",
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
