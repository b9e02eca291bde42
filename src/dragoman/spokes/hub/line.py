"""A line: one connection of a spoke, seen from the hub: its frames, its heartbeat, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dragoman.errors import DragomanError
from dragoman.spokes.hub.settings import SpokeSettings
from dragoman.spokes.hub.subcalls import Subcalls
from dragoman.spokes.outbox import Joiner, Outbox, Sizes
from dragoman.spokes.protocol import (
    BAD_FRAME,
    SILENT,
    Bye,
    Frame,
    FromSpoke,
    Part,
    Ping,
    Pong,
    encode,
    from_spoke,
)

CLOSE_SECONDS = 1.0


class Gone(Exception):
    """The other side closed the connection, or it broke."""


class Socket(Protocol):
    """A WebSocket; receive() and send() raise Gone when it is no more."""

    async def receive(self) -> str: ...

    async def send(self, text: str) -> None: ...

    async def close(self, code: int, reason: str) -> None: ...


class End:
    """Why a connection is closed: the close code, and what is said last."""

    __slots__ = ("bye", "code")

    def __init__(self, code: int, bye: Bye) -> None:
        self.code = code
        self.bye = bye


Hear = Callable[[FromSpoke], Awaitable[None]]


class Line:
    """One connection."""

    def __init__(self, socket: Socket, settings: SpokeSettings, *, message: int) -> None:
        """`message`: how many bytes the spoke takes as one message."""
        sizes = Sizes(frame=settings.frame, message=message)
        self.outbox = Outbox(socket.send, sizes=sizes, room=settings.room)
        self.subcalls = Subcalls(self.outbox, limit=settings.subcalls)
        self.gone = asyncio.Event()
        self._socket = socket
        self._settings = settings
        self._joiner = Joiner(settings.message)
        self._ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._heard = asyncio.get_running_loop().time()

    def end(self, code: int, bye: Bye) -> None:
        """Close it; run() comes to its end. The first word counts."""
        if not self._ended.done():
            self._ended.set_result(End(code, bye))

    async def run(self, hear: Hear) -> None:
        """Carry frames both ways until one of the sides has enough; `hear` gets the spoke's."""
        tasks = [asyncio.create_task(each) for each in (self._read(hear), self._write(), self._beat())]
        ends: list[asyncio.Future[Any]] = [*tasks, self._ended]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.outbox.close()
            self.subcalls.end()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._say_bye()
            self.gone.set()
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _read(self, hear: Hear) -> None:
        try:
            while True:
                await self._take(from_spoke(await self._socket.receive()), hear)
        except Gone:
            return
        except DragomanError as error:
            self.end(BAD_FRAME, Bye(code=error.code, message=error.message, again=False))

    async def _take(self, frame: FromSpoke, hear: Hear) -> None:
        if isinstance(frame, Part):
            whole = self._joiner.add(frame)
            if whole is None:
                return
            frame = from_spoke(whole)
        if isinstance(frame, Ping):
            self.outbox.post(Pong(n=frame.n), key="pong")
        elif isinstance(frame, Pong):
            self._heard = asyncio.get_running_loop().time()
        else:
            await hear(frame)

    async def _write(self) -> None:
        try:
            await self.outbox.run()
        except Gone:
            return

    async def _beat(self) -> None:
        """Ask whether it is there; give it up when it has not answered for too long."""
        loop, number = asyncio.get_running_loop(), 0
        while self._heard + self._settings.timeout > loop.time():
            number += 1
            self.outbox.post(Ping(n=number), key="ping")
            await asyncio.sleep(self._settings.heartbeat)
        said = f"no answer to a ping for {self._settings.timeout:g} seconds"
        self.end(SILENT, Bye(code="silent", message=said))

    async def _say_bye(self) -> None:
        if not self._ended.done():
            self._ended.cancel()
            return
        end = self._ended.result()
        await say_last(self._socket, end.bye, code=end.code, reason=end.bye.message)


async def say_last(socket: Socket, frame: Frame, *, code: int, reason: str) -> None:
    """Send a last frame and close; not for longer than a moment."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await socket.send(encode(frame).decode())
            await socket.close(code, reason.encode()[:120].decode(errors="ignore"))
    except (Gone, TimeoutError):
        return
