"""A transport for programs without a hub: opened by the first request, anew in each event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from dragoman.http.transport import Response, Timeouts, Transport, proxies_from


class LazyTransport:
    """A transport that is made when it is first needed, and anew in each event loop."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._transport: Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeouts: Timeouts | None = None,
    ) -> Response:
        """See `Transport.send`."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._loop is not loop:
            self._transport, self._loop = self._open(), loop
        return await self._transport.send(method, url, headers=headers, body=body, timeouts=timeouts)

    async def close(self) -> None:
        """Close what this event loop has opened."""
        transport, self._transport = self._transport, None
        if transport is not None and self._loop is asyncio.get_running_loop():
            await transport.close()

    def _open(self) -> Transport:
        return Transport(timeouts=self._timeouts, proxies=proxies_from(os.environ))
