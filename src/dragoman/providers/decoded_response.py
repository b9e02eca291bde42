"""A streamed answer, decoded: bytes from the HTTP response in, batches of events out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from dragoman.errors import ProviderError
from dragoman.events import Event
from dragoman.http.transport import Response
from dragoman.providers.adapter import AnswerDecoder
from dragoman.providers.key_pool import KeyLease
from dragoman.providers.retry import MAX_TEXT_BODY, page_text, safe_line

MAX_ANSWER_BYTES = 256 * 1024 * 1024
DRAIN_SECONDS = 0.25  # wait for the end of the body after the last event, so that the connection is reusable


class DecodedResponse:
    """One answer. Call `start`, then `next_batch` until it returns None, then `close`."""

    def __init__(
        self,
        response: Response,
        decoder: AnswerDecoder,
        *,
        lease: KeyLease,
        limit: int,
        json_lines: bool = False,
    ) -> None:
        self._response = response
        self._decoder = decoder
        self._lease = lease
        self._limit = limit
        self._json_lines = json_lines  # a stream of JSON lines starts like a JSON document
        self._size = 0
        self._document: list[bytes] | None = None  # the body so far, if it is one JSON document
        self._first_batch: Sequence[Event] = ()
        self._failure: ProviderError | None = None
        self._complete = False

    @property
    def key(self) -> str:
        """The name of the key that was used."""
        return self._lease.key.name

    async def start(self) -> None:
        """Read until the first event. Raises ProviderError if there is no body or the server is too busy."""
        try:
            while not (self._first_batch or self._complete):
                self._first_batch = self._feed(await self._response.receive())
        except ProviderError as error:
            if self._size == 0 or (error.transient and error.category in ("overloaded", "rate_limit")):
                self._response.abort()
                raise
            self._failure = error
        except BaseException:
            self._response.abort()
            raise
        if self._failure is None:
            self._lease.mark_succeeded()

    async def next_batch(self) -> Sequence[Event] | None:
        """Return the next batch, None at the end. Raises a failure after the events that precede it."""
        batch, self._first_batch = self._first_batch, ()
        while not (batch or self._complete or self._failure):
            batch = self._feed(await self._response.receive())
        if batch:
            return batch
        if self._failure is not None:
            self._lease.mark_failed(self._failure)
            raise self._failure
        await drain_body(self._response)
        return None

    def close(self) -> None:
        """Close the socket, unless the answer is complete, and release the key."""
        self._response.abort()
        self._lease.release()

    def _feed(self, raw: bytes) -> Sequence[Event]:
        """Return the events of one read; a failure after them is kept for the next call."""
        if not raw:
            return self._finish()
        if not self._size:
            self._detect_format(raw)
        self._size += len(raw)
        if self._size > self._limit:
            raise ProviderError(f"the answer is longer than {self._limit} bytes", category="api_error")
        if self._document is not None:
            self._document.append(raw)
            return ()
        batch = self._decoder.feed(raw)
        self._failure = self._decoder.failure
        self._complete = self._decoder.done
        return batch

    def _finish(self) -> Sequence[Event]:
        self._complete = True
        if self._document is not None:
            return self._decoder.decode_document(b"".join(self._document))
        try:
            return self._decoder.close()
        except ProviderError as error:
            self._failure = error  # also for an empty body: the server did answer
            return ()

    def _detect_format(self, raw: bytes) -> None:
        """Tell a stream from a document or a web page by its first bytes: content types are unreliable."""
        reject_web_page(raw, self._response)
        if raw.lstrip()[:1] in (b"{", b"[") and not self._json_lines:
            self._document = []


def reject_web_page(raw: bytes, response: Response) -> None:
    """Raise ProviderError if a body is a web page or compressed."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ProviderError(
            f"the server answered in the coding {safe_line(coding)!r}, which was not requested",
            category="api_error",
            hint="turn off compression in the proxy between the provider and the hub",
        )
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
