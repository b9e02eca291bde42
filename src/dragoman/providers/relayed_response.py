"""A streamed answer, relayed: unchanged bytes for a client that uses the server's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dragoman.errors import ProviderError
from dragoman.http.transport import Response
from dragoman.providers.adapter import AnswerLimits
from dragoman.providers.decoded_response import drain_body, reject_web_page
from dragoman.providers.key_pool import KeyLease
from dragoman.wire.json_codec import BYTE_ORDER_MARK, text_start
from dragoman.wire.token_estimate import cut_answer_length

LONGEST_START = 8  # bytes that show whether a body is a document


class RelayedResponse:
    """One relayed answer. Read it with `receive` or `read`, and always `close` it."""

    def __init__(self, response: Response, *, lease: KeyLease, limits: AnswerLimits) -> None:
        self._response = response
        self._lease = lease
        self._limits = limits
        self._smallest_limit = min(limits.document, limits.stream)
        self._size = 0
        self._is_blank = True

    @property
    def key(self) -> str:
        """The name of the key that was used."""
        return self._lease.key.name

    @property
    def started(self) -> bool:
        """Whether any byte of the body has arrived."""
        return self._size > 0

    @property
    def headers(self) -> Mapping[str, str]:
        """The response's headers, names in lower case."""
        return self._response.headers

    @property
    def complete(self) -> bool:
        """Whether the whole body has arrived."""
        return self._response.complete

    async def receive(self) -> bytes:
        """Return the bytes received since the last call; b"" at the end.

        Raises ProviderError if the answer is cut short or too long, or if it is a web page.
        """
        raw = await self._response.receive()
        self._count(raw)
        return raw

    async def read(self, start: bytes = b"", *, stop_at: tuple[bytes, ...] = ()) -> bytes:
        """Return the whole body, which is a document. `start` is the part that was received before.

        If the body begins with one of `stop_at`, after white space, return only the part received so far.
        """
        pieces = [start] if start else []
        receive = self._response.receive
        first = b""  # the first bytes that are not white space
        try:
            while raw := await receive():
                pieces.append(raw)
                self._count(raw, is_document=True)
                if not stop_at or len(first) >= LONGEST_START:
                    continue
                first = (first + raw).removeprefix(BYTE_ORDER_MARK).lstrip()
                if first.startswith(stop_at):
                    break
        except ProviderError as error:
            if self._size:
                error.cut_length = cut_answer_length(b"".join(pieces))
            raise
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _count(self, raw: bytes, *, is_document: bool = False) -> None:
        """Count the bytes of a read. Raises ProviderError for a web page or an answer that is too long."""
        if self._is_blank and (text := text_start(raw)):
            self._is_blank = False
            reject_web_page(text, self._response)
        self._size += len(raw)
        if self._size > self._smallest_limit:
            self._limits.check_size(self._size, is_document=is_document)

    async def read_for(self, seconds: float) -> bytes:
        """Return the bytes that arrive within `seconds`; an error ends the read."""
        pieces = []
        try:
            async with asyncio.timeout(seconds):
                while raw := await self._response.receive():
                    pieces.append(raw)
        except (TimeoutError, ProviderError):
            pass
        return b"".join(pieces)

    async def drain(self) -> None:
        """Wait briefly for the end of the body, so that the connection is reusable."""
        await drain_body(self._response)

    def mark_succeeded(self) -> None:
        """Record that the answer is not an error; this resets the key's failures."""
        self._lease.mark_succeeded()

    def mark_failed(self, error: ProviderError) -> None:
        """Record that the answer is an error or incomplete."""
        self._lease.mark_failed(error)

    def close(self) -> None:
        """Close the socket, unless the answer is complete, and release the key."""
        self._response.abort()
        self._lease.release()
