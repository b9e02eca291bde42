"""One connection of a runner at the hub: its frames both ways, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from dragoman.errors import FrameTooLong, WireError
from dragoman.http.asgi_websocket import Socket, SocketClosed
from dragoman.offload import offload
from dragoman.runners.hub.session import RunnerSession
from dragoman.runners.hub.settings import RunnerLimits
from dragoman.spokes.hub.bad_frames import BadFrameLog, FramePacer
from dragoman.spokes.hub.connection import CLOSE_SECONDS
from dragoman.spokes.protocol import BAD_FRAME
from dragoman.wire.runner.frames import (
    FrameFromRunner,
    FrameRefused,
    FrameToRunner,
    RunnerBye,
    RunnerHello,
    RunnerJoin,
    RunnerLeave,
    RunnerPing,
    RunnerPong,
    RunnerRefused,
    decode_from_runner,
    encode_runner_frame,
)

log = logging.getLogger(__name__)
TOO_SLOW = 1008
REPEATED = ("late", "repeated", "no_turn")
"""Errors that do not count as bad frames: a runner may repeat frames, such as after a crash of the hub."""

OnControl = Callable[[RunnerJoin | RunnerLeave], Awaitable[None]]


class RunnerSocket:
    """One connection of a runner. `sessions` are those that it serves, by the ids that the runner uses."""

    def __init__(self, socket: Socket, settings: RunnerLimits, *, key_id: str | None, owner: str) -> None:
        self.socket = socket
        self.key_id = key_id
        self.owner = owner
        self.sessions: dict[str, RunnerSession] = {}
        self.closed = asyncio.Event()
        self._settings = settings
        self._outbox: deque[str] = deque()
        self._outbox_size = 0
        self._has_frames = asyncio.Event()
        self._bad_frames = BadFrameLog(settings.bad_frames, sender="a runner")
        self._pacer = FramePacer(settings.rate)
        self._end: asyncio.Future[tuple[int, RunnerBye]] = asyncio.get_running_loop().create_future()

    def send(self, frame: FrameToRunner) -> None:
        """Queue a frame; a runner that does not read is disconnected."""
        text = encode_runner_frame(frame)
        self._outbox.append(text)
        self._outbox_size += len(text)
        self._has_frames.set()
        if self._outbox_size > self._settings.outbox:
            self.close(TOO_SLOW, RunnerBye(code="slow", message="it does not read what the hub sends"))

    def close(self, code: int, bye: RunnerBye) -> None:
        """Close the connection: `run` returns. If it is called again, the first reason stands."""
        if not self._end.done():
            self._end.set_result((code, bye))

    async def run(self, on_control: OnControl) -> None:
        """Carry frames both ways until one side closes."""
        tasks = [asyncio.create_task(self._read(on_control)), asyncio.create_task(self._write())]
        ends: list[asyncio.Future[Any]] = [*tasks, self._end]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for session in self.sessions.values():
                session.detach(self)
            await self._send_bye()
            self.closed.set()
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _read(self, on_control: OnControl) -> None:
        try:
            while True:
                await self._handle_next(on_control)
        except SocketClosed:
            return
        except WireError as error:
            self.close(BAD_FRAME, RunnerBye(code=error.code, message=error.message))

    async def _handle_next(self, on_control: OnControl) -> None:
        """Handle the next frame. Raises WireError after too many bad frames, and SocketClosed."""
        try:
            text = await self._receive()
            await self._pacer.wait()
            decode = partial(decode_from_runner, text, limit=self._settings.frame)
            frame = await offload(len(text), decode)
            await self._handle(frame, on_control, size=len(text))
        except FrameRefused as error:
            if error.code in ("bad_frame", FrameTooLong.code):
                self._count_missing(error.session_id)
            self.send(error.to_frame())
            if error.code not in REPEATED:
                self._bad_frames.add(error)

    async def _receive(self) -> str:
        try:
            return await self.socket.receive()
        except WireError:
            raise FrameRefused("the runner protocol is JSON in text messages, not in binary ones") from None

    async def _handle(self, frame: FrameFromRunner, on_control: OnControl, *, size: int) -> None:
        match frame:
            case RunnerPing(n=n):
                self.send(RunnerPong(n=n))
            case RunnerJoin() | RunnerLeave():
                await on_control(frame)
            case RunnerHello():
                raise FrameRefused("a hello is the first frame of a connection; send `join`")
            case _:
                if frame.session_id is None:
                    return
                session = self.sessions.get(frame.session_id)
                if session is None or session.link is not self:
                    message = f"this connection does not serve the session {frame.session_id!r}"
                    raise FrameRefused(message, code="not_found", session_id=frame.session_id)
                await session.receive(frame, size=size)

    def _count_missing(self, name: str | None) -> None:
        """Let the next frame of a session skip a number, so that an unreadable frame fails alone.

        A frame without the name of a session of this connection may belong to any of them.
        """
        named = self.sessions.get(name or "")
        for session in self.sessions.values() if named is None else (named,):
            session.missing += 1

    async def _write(self) -> None:
        try:
            while True:
                while self._outbox:
                    text = self._outbox.popleft()
                    self._outbox_size -= len(text)
                    await self.socket.send(text)
                self._has_frames.clear()
                await self._has_frames.wait()
        except SocketClosed:
            return

    async def _send_bye(self) -> None:
        if not self._end.done():
            self._end.cancel()
            return
        code, bye = self._end.result()
        await send_last(self.socket, bye, code=code, reason=bye.message)


async def send_last(socket: Socket, frame: RunnerBye | RunnerRefused, *, code: int, reason: str) -> None:
    """Send a last frame and close, within a second."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await socket.send(encode_runner_frame(frame))
            await socket.close(code, reason.encode()[:120].decode(errors="ignore"))
    except (SocketClosed, TimeoutError):
        return
