"""A transport for the library: opened by the first request of each event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from dragoman.http.transport import Response, Timeouts, Transport, proxies_from


class LazyTransport:
    """A transport for any number of event loops, also in several threads at once.

    Each loop has its own connections, since only the loop that opened a socket can use it.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._transports: dict[asyncio.AbstractEventLoop, Transport] = {}

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
        transport = self._transports.get(loop)
        if transport is None:
            transport = self._transports[loop] = self._open()
        return await transport.send(method, url, headers=headers, body=body, timeouts=timeouts)

    async def close(self) -> None:
        """Close the connections of the running event loop; other loops keep theirs."""
        transport = self._transports.pop(asyncio.get_running_loop(), None)
        if transport is not None:
            await transport.close()

    def _open(self) -> Transport:
        for loop in [loop for loop in list(self._transports) if loop.is_closed()]:
            self._transports.pop(loop, None)  # its sockets were closed with it
        return Transport(timeouts=self._timeouts, proxies=proxies_from(os.environ))
