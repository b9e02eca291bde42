"""Corking: what a response writes in one go leaves in one go, its head with its body."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class CorkedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, whose writes are joined: each is a system call, and those are dear."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """See asyncio.Protocol."""
        super().connection_made(cast(asyncio.Transport, Cork(transport, asyncio.get_running_loop())))


class Cork:
    """A transport that writes at the end of the loop's round all that was written to it in between."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        """See asyncio.Transport."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def close(self) -> None:
        """See asyncio.Transport: what is held leaves first."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
