"""Hub clients without a hub: the handlers of `server.app.attached`, called in this process over ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

from starlette.types import ASGIApp, Message

from dragoman.cli.data_folder import create_data_folder, find_database, require_data_folder
from dragoman.cli.hub_client.client import HubClient, HubResponse
from dragoman.config import Config
from dragoman.errors import ProviderError
from dragoman.server.app.offline_api import attach_to_config, attach_to_data
from dragoman.store.store import DatabaseSettings


@asynccontextmanager
async def connect_to_data(data: Path, *, creates: bool = False) -> AsyncIterator[HubClient]:
    """Open a client of a data folder, as its operator. NotFound when it holds no hub's data.

    `creates`: the folder is made if it is not there.
    """
    folder = create_data_folder(data) if creates else require_data_folder(data)
    url = find_database()
    async with (
        attach_to_data(folder, DatabaseSettings(url)) as app,
        HubClient(AsgiTransport(app), all_owners=True) as client,
    ):
        yield client


@asynccontextmanager
async def connect_to_config(config: Config) -> AsyncIterator[HubClient]:
    """Open a client of the operations that a hub of this configuration would have."""
    async with attach_to_config(config) as app, HubClient(AsgiTransport(app)) as client:
        yield client


class AsgiTransport:
    """Requests to an ASGI app in this process. Each runs in its own task, which ends with its response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def send(
        self, method: str, path: str, *, content_type: str | None, body: bytes | memoryview
    ) -> HubResponse:
        """See `HubTransport.send`."""
        target, _, query = path.partition("?")
        headers = [(b"content-type", content_type.encode())] if content_type else []
        scope = {
            "type": "http",
            "method": method,
            "path": target,  # still quoted, as the hub's router matches it: an id may hold a slash
            "query_string": query.encode(),
            "headers": headers,
        }
        response = AsgiResponse()
        await response.start(self._app, scope, body=bytes(body))
        return response

    async def close(self) -> None:
        """See `HubTransport.close`; nothing is open between requests."""


class AsgiResponse:
    """The response of an ASGI app; the app waits until each chunk is read."""

    def __init__(self) -> None:
        self.status = 0
        self._started = asyncio.Event()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._request: list[Message] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp, scope: dict[str, Any], *, body: bytes) -> None:
        """Run the app until it has sent the response head."""
        self._request.append({"type": "http.request", "body": body})
        task = self._task = asyncio.create_task(self._run(app, scope))
        head = asyncio.create_task(self._started.wait())
        try:
            await asyncio.wait((task, head), return_when=asyncio.FIRST_COMPLETED)
        finally:
            head.cancel()
        if not self._started.is_set():
            await task  # it failed before its response: raise why
            raise ProviderError("the app sent no response", category="api_error")

    async def read(self, limit: int) -> bytes:
        """See `HubResponse.read`."""
        body = b"".join([chunk async for chunk in self.iter_raw()])
        if len(body) > limit:
            raise ProviderError(f"the response is longer than {limit} bytes", category="api_error")
        return body

    async def iter_raw(self) -> AsyncGenerator[bytes, None]:
        """See `HubResponse.iter_raw`."""
        try:
            while (chunk := await self._chunks.get()) is not None:
                yield chunk
            if self._task is not None:
                await self._task
        finally:
            await self._cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._cancel()

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            if self._started.is_set():
                await self._chunks.put(None)

    async def _receive(self) -> Message:
        if self._request:
            return self._request.pop()
        await asyncio.Event().wait()  # a client in this process never disconnects: it cancels the task
        raise AssertionError

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._started.set()
        elif chunk := message.get("body", b""):
            await self._chunks.put(chunk)

    async def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._chunks = asyncio.Queue()  # nobody reads any more: the app must not wait for room
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
