"""An answer on its way in: bytes from the response, batches of events out of the decoder."""

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

MAX_ANSWER_BYTES = 256 * 1024 * 1024  # bytes of one answer
DRAIN_SECONDS = 0.25  # seconds that the end of the body may come behind the end of the answer


class DecodedResponse:
    """One answer, from its first event to its last. `start` it, then ask for the `next_batch` until None."""

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
        self._json_lines = json_lines  # a stream of JSON lines begins as a document does
        self._size = 0
        self._document: list[bytes] | None = None  # the answer, when it is JSON and no stream
        self._first_batch: Sequence[Event] = ()
        self._failure: ProviderError | None = None
        self._complete = False

    @property
    def key(self) -> str:
        """The name of the key that was used."""
        return self._lease.key.name

    async def start(self) -> None:
        """Read until the first event. ProviderError when nothing came, or the server is too busy."""
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
        """The next batch; None at the end. Raises what broke the answer off, after what came before it."""
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
        """Be done: the socket is closed at once, unless the answer is over."""
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
            self._failure = error  # also when the body is empty: the server has answered, if with nothing
            return ()

    def _detect_format(self, raw: bytes) -> None:
        """Tell a stream from a document and a web page by how it begins; content types often lie."""
        reject_web_page(raw, self._response)
        if raw.lstrip()[:1] in (b"{", b"[") and not self._json_lines:
            self._document = []


def reject_web_page(raw: bytes, response: Response) -> None:
    """ProviderError when the first bytes of a body are those of a web page, or compressed."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ProviderError(
            f"the server answered in the coding {safe_line(coding)!r}, for which nobody asked",
            category="api_error",
            hint="whatever compresses answers between the provider and the hub must not",
        )
    start = raw.lstrip()[:1]
    page = response.headers.get("content-type", "").startswith("text/html")
    if start == b"<" or (page and start not in (b"{", b"[")):
        raise ProviderError(
            f"the server answered with a web page, not with a model's answer: {page_title(raw)}",
            category="api_error",
            hint="base_url must be that of the API; it often ends in /v1",
        )


async def drain_body(response: Response) -> None:
    """Wait a little for the end of the body, so that the connection can serve again."""
    if response.complete:
        return
    with suppress(TimeoutError, ProviderError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.receive():
                pass


def page_title(page: bytes) -> str:
    """What a page calls itself, in quotes."""
    return repr(safe_line(page_text(page[:MAX_TEXT_BODY].decode(errors="replace"))))
