"""A relayed answer: its bytes as they come, for a client that speaks the server's language."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dragoman.errors import ProviderError
from dragoman.http.transport import Response
from dragoman.providers.decoded_response import drain_body, reject_web_page
from dragoman.providers.key_pool import KeyLease


class RelayedResponse:
    """One answer. Read it with `receive` or `read`, and `close` it in any case."""

    def __init__(self, response: Response, *, lease: KeyLease, limit: int) -> None:
        self._response = response
        self._lease = lease
        self._limit = limit
        self._size = 0

    @property
    def key(self) -> str:
        """The name of the key that was used."""
        return self._lease.key.name

    @property
    def started(self) -> bool:
        """Whether anything of the body has come."""
        return self._size > 0

    @property
    def headers(self) -> Mapping[str, str]:
        """The response's headers, names in lower case."""
        return self._response.headers

    async def receive(self) -> bytes:
        """All that has come since the last await; nothing at the end. ProviderError for a web page."""
        raw = await self._response.receive()
        if raw and not self._size:
            reject_web_page(raw, self._response)
        self._size += len(raw)
        if self._size > self._limit:
            raise ProviderError(f"the answer is longer than {self._limit} bytes", category="api_error")
        return raw

    async def read(self) -> bytes:
        """The whole body."""
        pieces = []
        while raw := await self.receive():
            pieces.append(raw)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_for(self, seconds: float) -> bytes:
        """What still comes within so many seconds; whatever goes wrong is the end of it."""
        pieces = []
        try:
            async with asyncio.timeout(seconds):
                while raw := await self._response.receive():
                    pieces.append(raw)
        except (TimeoutError, ProviderError):
            pass
        return b"".join(pieces)

    async def drain(self) -> None:
        """Wait a little for the end of the body, so that the connection can serve again."""
        await drain_body(self._response)

    def mark_succeeded(self) -> None:
        """The answer has begun, and is no error: what went wrong with the key before is forgotten."""
        self._lease.mark_succeeded()

    def mark_failed(self, error: ProviderError) -> None:
        """The answer broke off, or is none."""
        self._lease.mark_failed(error)

    def close(self) -> None:
        """Be done: the socket is closed at once, unless the answer is over."""
        self._response.abort()
        self._lease.release()
