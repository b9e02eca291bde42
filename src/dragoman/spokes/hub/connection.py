"""One connection of a spoke at the hub: its frames, its heartbeat, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from dragoman.errors import DragomanError, FrameTooLong, WireError
from dragoman.http.asgi_websocket import Socket, SocketClosed
from dragoman.offload import offload
from dragoman.spokes.hub.bad_frames import (
    BadFrameLog,
    FramePacer,
    SubcallError,
    both_ends,
    replacement,
)
from dragoman.spokes.hub.settings import SpokeSettings
from dragoman.spokes.hub.subcalls import Subcalls
from dragoman.spokes.protocol import (
    BAD_FRAME,
    HEARTBEAT_TIMEOUT,
    NORMAL_CLOSURE,
    ByeFrame,
    FrameFromSpoke,
    PartFrame,
    PingFrame,
    PongFrame,
    ProgressFrame,
    PublishFrame,
    RegisterFrame,
    SpokeFrame,
    UnregisterFrame,
    decode_from_spoke,
    encode_frame,
)
from dragoman.spokes.send_queue import FrameSizes, Outbox, PartJoiner

CLOSE_SECONDS = 1.0
UNREQUESTED = (ProgressFrame, PublishFrame, PingFrame, PongFrame, RegisterFrame, UnregisterFrame)


class CloseReason:
    """The close code of a connection, and its last frame."""

    __slots__ = ("bye", "code")

    def __init__(self, code: int, bye: ByeFrame) -> None:
        self.code = code
        self.bye = bye


OnFrame = Callable[[FrameFromSpoke], Awaitable[None]]


class SpokeConnection:
    """One connection of a spoke."""

    def __init__(self, socket: Socket, settings: SpokeSettings, *, message_limit: int) -> None:
        """`message_limit` is the size in bytes of the longest message that the spoke accepts."""
        sizes = FrameSizes(frame=settings.frame, message=message_limit)
        self.outbox = Outbox(socket.send, sizes=sizes, limit=settings.outbox_limit)
        self.subcalls = Subcalls(self.outbox, limit=settings.subcalls)
        self.closed = asyncio.Event()
        self.socket = socket
        self._settings = settings
        self.is_final = False
        """Whether the connection was closed for good: the spoke will not come back."""
        self._joiner = PartJoiner(settings.message)
        self._bad_frames = BadFrameLog(settings.bad_frames)
        self._pacer = FramePacer(settings.frame_rate)
        self._close_reason: asyncio.Future[CloseReason] = asyncio.get_running_loop().create_future()
        self._last_pong = asyncio.get_running_loop().time()

    def close(self, code: int, bye: ByeFrame) -> None:
        """Close the connection: `run` returns. If it is called again, the first reason stands."""
        if not self._close_reason.done():
            self.is_final = not bye.again
            self._close_reason.set_result(CloseReason(code, bye))

    async def run(self, on_frame: OnFrame) -> None:
        """Carry frames both ways until one side closes; `on_frame` gets the spoke's."""
        tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (self._read(on_frame), self._write(), self._heartbeat())
        ]
        ends: list[asyncio.Future[Any]] = [*tasks, self._close_reason]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.outbox.close()
            self.subcalls.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._send_bye()
            self.closed.set()
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _read(self, on_frame: OnFrame) -> None:
        try:
            while True:
                await self._handle_next(on_frame)
        except SocketClosed as closed:
            self.is_final = closed.code == NORMAL_CLOSURE
        except DragomanError as error:
            self.close(BAD_FRAME, ByeFrame(code=error.code, message=error.message, again=False))

    async def _handle_next(self, on_frame: OnFrame) -> None:
        """Handle the next frame. Raises WireError after too many bad frames, and SocketClosed."""
        text = ""
        try:
            text = await self.socket.receive()
            if len(text) > self._settings.message:
                raise FrameTooLong(
                    f"a message has {len(text)} characters, and the hub takes {self._settings.message}"
                )
            frame = await offload(len(text), partial(decode_from_spoke, text))
            if isinstance(frame, PartFrame):
                whole = self._joiner.add(frame)
                if whole is None:
                    return
                text = whole
                frame = await offload(len(text), partial(decode_from_spoke, text))
            await self._handle_frame(frame, on_frame)
        except WireError as error:
            if isinstance(error, FrameTooLong):
                text = self._joiner.start if len(text) <= self._settings.message else both_ends(text)
            await self._handle_bad_frame(text, error, on_frame=on_frame)

    async def _handle_bad_frame(self, text: str, error: WireError, *, on_frame: OnFrame) -> None:
        self._bad_frames.add(error)
        await self._pacer.wait()
        substitute = await offload(len(text), partial(replacement, text, error))
        if isinstance(substitute, SubcallError):
            await self.outbox.send(substitute)
        elif substitute is not None:
            await on_frame(substitute)

    async def _handle_frame(self, frame: FrameFromSpoke, on_frame: OnFrame) -> None:
        if isinstance(frame, UNREQUESTED):
            await self._pacer.wait()
        if isinstance(frame, PingFrame):
            self.outbox.send_urgent(PongFrame(n=frame.n), key="pong")
        elif isinstance(frame, PongFrame):
            self._last_pong = asyncio.get_running_loop().time()
        else:
            await on_frame(frame)

    async def _write(self) -> None:
        try:
            await self.outbox.run()
        except SocketClosed:
            return

    async def _heartbeat(self) -> None:
        """Ping the spoke; close the connection when it does not answer in time."""
        loop, number = asyncio.get_running_loop(), 0
        while self._last_pong + self._settings.timeout > loop.time():
            number += 1
            self.outbox.send_urgent(PingFrame(n=number), key="ping")
            await asyncio.sleep(self._settings.heartbeat)
        message = f"no answer to a ping for {self._settings.timeout:g} seconds"
        self.close(HEARTBEAT_TIMEOUT, ByeFrame(code="silent", message=message))

    async def _send_bye(self) -> None:
        if not self._close_reason.done():
            self._close_reason.cancel()
            return
        end = self._close_reason.result()
        await send_and_close(self.socket, end.bye, code=end.code, reason=end.bye.message)


async def send_and_close(socket: Socket, frame: SpokeFrame, *, code: int, reason: str) -> None:
    """Send a last frame and close, within a second."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await socket.send(encode_frame(frame).decode())
            await socket.close(code, reason.encode()[:120].decode(errors="ignore"))
    except (SocketClosed, TimeoutError):
        return
