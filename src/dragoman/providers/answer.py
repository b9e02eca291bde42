"""An answer on its way in: bytes from the response, batches of events out of the decoder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from dragoman.errors import ProviderError
from dragoman.events import Event
from dragoman.http.transport import Response
from dragoman.providers.keyring import Held
from dragoman.providers.language import Decoder
from dragoman.providers.retry import READABLE, clean, read_page

LARGEST = 256 * 1024 * 1024  # bytes of one answer
PATIENCE = 0.25  # seconds that the end of the body may come behind the end of the answer


class Answer:
    """One answer, from its first event to its last. `begin` it, then ask for the `next` until None."""

    def __init__(
        self, response: Response, decoder: Decoder, *, held: Held, limit: int, lines: bool = False
    ) -> None:
        self._response = response
        self._decoder = decoder
        self._held = held
        self._limit = limit
        self._lines = lines  # a stream of JSON lines begins as a document does
        self._size = 0
        self._document: list[bytes] | None = None  # the answer, when it is JSON and no stream
        self._first: Sequence[Event] = ()
        self._failure: ProviderError | None = None
        self._over = False

    @property
    def key(self) -> str:
        """The name of the key that was used."""
        return self._held.key.name

    async def begin(self) -> None:
        """Read until the first event. ProviderError when nothing came, or the server is too busy."""
        try:
            while not (self._first or self._over):
                self._first = await self._next()
        except ProviderError as error:
            if self._size == 0 or (error.transient and error.category in ("overloaded", "rate_limit")):
                self._response.abort()
                raise
            self._failure = error
        except BaseException:
            self._response.abort()
            raise
        if self._failure is None:
            self._held.worked()

    async def next(self) -> Sequence[Event] | None:
        """The next batch; None at the end. Raises what broke the answer off, after what came before it."""
        batch, self._first = self._first, ()
        while not (batch or self._over or self._failure):
            batch = await self._next()
        if batch:
            return batch
        if self._failure is not None:
            self._held.failed(self._failure)
            raise self._failure
        await drain(self._response)
        return None

    def close(self) -> None:
        """Be done: the socket is closed at once, unless the answer is over."""
        self._response.abort()
        self._held.release()

    async def _next(self) -> Sequence[Event]:
        """What one read brings; a failure behind it is noted."""
        raw = await self._response.more()
        if not raw:
            return self._end()
        if not self._size:
            self._look(raw)
        self._size += len(raw)
        if self._size > self._limit:
            raise ProviderError(f"the answer is longer than {self._limit} bytes", category="api_error")
        if self._document is not None:
            self._document.append(raw)
            return ()
        batch = self._decoder.feed(raw)
        self._failure = self._decoder.failure
        self._over = self._decoder.done
        return batch

    def _end(self) -> Sequence[Event]:
        self._over = True
        if self._document is not None:
            return self._decoder.whole(b"".join(self._document))
        try:
            return self._decoder.close()
        except ProviderError as error:
            self._failure = error  # also when the body is empty: the server has answered, if with nothing
            return ()

    def _look(self, raw: bytes) -> None:
        """Tell a stream from a document and a web page by how it begins; content types often lie."""
        refuse_page(raw, self._response)
        if raw.lstrip()[:1] in (b"{", b"[") and not self._lines:
            self._document = []


def refuse_page(raw: bytes, response: Response) -> None:
    """ProviderError when the first bytes of a body are those of a web page, or compressed."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ProviderError(
            f"the server answered in the coding {clean(coding)!r}, for which nobody asked",
            category="api_error",
            hint="whatever compresses answers between the provider and the hub must not",
        )
    start = raw.lstrip()[:1]
    page = response.headers.get("content-type", "").startswith("text/html")
    if start == b"<" or (page and start not in (b"{", b"[")):
        raise ProviderError(
            f"the server answered with a web page, not with a model's answer: {title(raw)}",
            category="api_error",
            hint="base_url must be that of the API; it often ends in /v1",
        )


async def drain(response: Response) -> None:
    """Wait a little for the end of the body, so that the connection can serve again."""
    if response.complete:
        return
    with suppress(TimeoutError, ProviderError):
        async with asyncio.timeout(PATIENCE):
            while await response.more():
                pass


def title(page: bytes) -> str:
    """What a page calls itself, in quotes."""
    return repr(clean(read_page(page[:READABLE].decode(errors="replace"))))
