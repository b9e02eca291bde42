"""Lazy loading of the SDK-based connection module, in a thread."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from dragoman.mcp.sdk_import import import_sdk_module
from dragoman.mcp.server_spec import ServerSpec

if TYPE_CHECKING:
    from dragoman.mcp.client.connection import ConnectionOptions, McpConnection


class SdkLoader:
    """Opens connections. All servers share it, so that one thread loads the SDK for all."""

    def __init__(self) -> None:
        self._load_lock = asyncio.Lock()
        self._loaded = False

    async def load(self) -> None:
        async with self._load_lock:
            if not self._loaded:
                await asyncio.to_thread(import_sdk_module, "dragoman.mcp.client.connection")
                self._loaded = True

    def connect(
        self, spec: ServerSpec, options: ConnectionOptions
    ) -> AbstractAsyncContextManager[McpConnection]:
        # late: the SDK takes a second and a half to import
        from dragoman.mcp.client.connection import connect

        return connect(spec, options)
