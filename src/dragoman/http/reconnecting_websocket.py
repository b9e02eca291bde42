"""WebSocket clients that serve a hub until they are closed: the common part of spokes and runners.

A client has one connection, and opens another when it is lost. Subclasses define what it carries.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Self, TypeVar

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from dragoman.errors import (
    Conflict,
    DragomanError,
    Forbidden,
    NotFound,
    Unauthorized,
    Unavailable,
    WireError,
)
from dragoman.http.websocket_client import OPEN_SECONDS, backoff_delay, key_hint

T = TypeVar("T")
log = logging.getLogger(__name__)

ERRORS_BY_CODE: Mapping[str, type[DragomanError]] = {
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "not_found": NotFound,
    "conflict": Conflict,
    "replaced": Conflict,
    "unavailable": Unavailable,
}


class ReconnectingClient(ABC):
    """Serves a hub in `async with`, or by `run()` until `close()`.

    A subclass sets `_ready` once the hub has accepted its offer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._ready = asyncio.Event()
        self._closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start to serve; also again after `close`. Raises Conflict if it serves already."""
        if self._running is not None:
            if not self._running.done():
                raise Conflict(f"{self!r} serves already; create a second one to connect twice")
            self._ready, self._closing = asyncio.Event(), asyncio.Event()
        self._running = asyncio.create_task(self.run())
        try:
            await self.ready()
        except BaseException:
            self._running.cancel()
            await asyncio.wait([self._running])
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ready(self) -> None:
        """Wait until the hub has accepted the offer. Raises the errors of run()."""
        waiting = asyncio.create_task(self._ready.wait())
        running = [] if self._running is None else [self._running]
        await asyncio.wait([waiting, *running], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            for task in running:
                task.result()

    async def finished(self) -> None:
        """Wait until the `run` of an `async with` has ended. Raises its errors."""
        if self._running is not None:
            await asyncio.shield(self._running)

    async def close(self) -> None:
        """Accept nothing more, wait for what runs, and disconnect. Raises the errors of run()."""
        self._closing.set()
        if self._running is not None:
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.result()

    @abstractmethod
    async def run(self) -> None:
        """Serve until close(). Reconnects when the connection is lost or the hub restarts.

        Raises Unauthorized, Forbidden, Conflict, NotFound or WireError when a retry cannot help.
        """

    async def _reconnect_until_closed(self, serve_connection: Callable[[], Awaitable[None]]) -> None:
        """Open one connection after the other; `serve_connection` returns when one is lost."""
        failures = 0
        while not self._closing.is_set():
            try:
                await serve_connection()
                failures = 0
                if not self._closing.is_set():
                    log.warning("the connection to the hub at %s is lost; reconnecting", self.url)
            except Unavailable as error:
                failures += 1
                log.warning("%s; trying again", error.message)
            await self._wait_unless_closing(backoff_delay(failures))

    async def _serve_until_closed(
        self, serving: Coroutine[Any, Any, None], *, end: Callable[[], Awaitable[None]]
    ) -> None:
        """Serve until the connection ends; if this client is closed before that, call `end` first."""
        task = asyncio.create_task(serving)
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait([task, closing], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await end()
        finally:
            closing.cancel()
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _wait_unless_closing(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return


async def exchange_hello(socket: ClientConnection, hello: str, *, decode: Callable[[str | bytes], T]) -> T:
    """Send the first frame; return the hub's reply. Raises Unavailable, and the errors of `decode`."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            await socket.send(hello)
            return decode(await socket.recv())
    except (ConnectionClosed, TimeoutError):
        raise Unavailable("the hub closed the connection before its welcome") from None


async def run_until_one_ends(
    *parts: Coroutine[Any, Any, None], on_end: Callable[[], None] | None = None
) -> None:
    """Run the parts of a connection until one of them ends, and cancel the others.

    `on_end` is called before that. Raises the error of a part, unless it is that the connection is closed.
    """
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if on_end is not None:
            on_end()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ConnectionClosed):
            raise error


def error_from_code(code: str, message: str, *, scope: str, hint: str | None = None) -> DragomanError:
    """Return the error for a hub's refusal of a client with a key of this scope."""
    kind = ERRORS_BY_CODE.get(code, WireError)
    return kind(message, hint=key_hint(scope) if kind is Unauthorized else hint)
