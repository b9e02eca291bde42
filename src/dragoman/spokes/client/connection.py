"""One connection of a spoke to its hub."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from websockets.asyncio.client import ClientConnection

from dragoman.errors import CallError, CallUncertain, TooLarge, Unavailable, WireError
from dragoman.http.reconnecting_websocket import run_until_one_ends
from dragoman.offload import offload
from dragoman.operations.context import ProgressCallback
from dragoman.spokes.client.jobs import JobRunner
from dragoman.spokes.protocol import (
    NORMAL_CLOSURE,
    AbortedFrame,
    AbortFrame,
    ByeFrame,
    CallFrame,
    ErrorFrame,
    FrameFromHub,
    PartFrame,
    PingFrame,
    PongFrame,
    ProgressFrame,
    RegisteredFrame,
    ReplyFrame,
    ResultFrame,
    SpokeFrame,
    SubcallFrame,
    WelcomeFrame,
    decode_from_hub,
    error_from_failure,
)
from dragoman.spokes.send_queue import FrameSizes, Outbox, PartJoiner

log = logging.getLogger(__name__)

OUTBOX_LIMIT = 4_000_000  # characters that wait to be sent
MESSAGE_LIMIT = 32_000_000  # bytes of a message
CLOSE_SECONDS = 2.0  # that closing waits for the last frames to be sent


class PendingSubcall(NamedTuple):
    """A call that the hub runs for the spoke; its reply is None when the connection is lost."""

    reply: asyncio.Future[ReplyFrame | None]
    report: ProgressCallback


class HubConnection:
    """One connection after its handshake."""

    def __init__(self, socket: ClientConnection, welcome: WelcomeFrame, *, job_runner: JobRunner) -> None:
        self.welcome = welcome
        self.bye: ByeFrame | None = None
        self._socket = socket
        self._job_runner = job_runner
        sizes = FrameSizes(frame=welcome.frame, message=welcome.message)
        self._outbox = Outbox(self._send, sizes=sizes, limit=OUTBOX_LIMIT)
        self._joiner = PartJoiner(MESSAGE_LIMIT)
        self._changes: asyncio.Queue[SpokeFrame] = asyncio.Queue()
        self._subcalls: dict[str, PendingSubcall] = {}
        self._numbers = count(1)
        self._closed = False
        self._last_frame_at = asyncio.get_running_loop().time()
        self._on_registered: Callable[[RegisteredFrame], None] = lambda _: None

    async def run(self, on_registered: Callable[[RegisteredFrame], None]) -> None:
        """Serve calls until the connection ends, for whatever reason.

        `on_registered` is called with the hub's replies to registrations; its exceptions are raised here.
        """
        self._on_registered = on_registered
        parts = (self._read(), self._send_changes(), self._outbox.run(), self._heartbeat())
        try:
            await run_until_one_ends(*parts, on_end=self._stop_sending)
        finally:
            self._fail_subcalls()

    def _stop_sending(self) -> None:
        self._job_runner.disconnect()
        self._outbox.close()

    async def drain(self, seconds: float) -> None:
        """Accept no more calls, wait up to `seconds` for the running ones, and close."""
        self._outbox.send_urgent(ByeFrame())
        await self._job_runner.drain(seconds)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._outbox.idle.wait()
                await self._socket.close(NORMAL_CLOSURE)
        except TimeoutError:
            log.info("the last replies could not be sent to the hub in time")

    def send_change(self, change: SpokeFrame) -> None:
        """Send the hub a registration or its removal, after those that wait."""
        self._changes.put_nowait(change)

    async def call_hub(self, operation: str, input: Any, *, parent: str, report: ProgressCallback) -> Any:
        """Call an operation of the hub and return its result. `parent` is the id of the call that does so.

        Raises the hub's error, CallUncertain when the connection is lost, Unavailable without a connection.
        """
        if self._closed:
            raise Unavailable(f"{operation} was not called: the hub cannot be reached now")
        id = f"s{next(self._numbers)}"
        subcall = self._subcalls[id] = PendingSubcall(asyncio.get_running_loop().create_future(), report)
        try:
            await self._outbox.send(
                SubcallFrame(id=id, parent=parent, operation=operation, input=input), key=f"subcall {id}"
            )
            await asyncio.wait([subcall.reply])
        except asyncio.CancelledError:
            if not self._outbox.withdraw(f"subcall {id}"):
                self._outbox.send_urgent(AbortFrame(id=id))
            raise
        finally:
            del self._subcalls[id]
        return reply_result(operation, subcall.reply.result())

    async def _send(self, text: str) -> None:
        await self._socket.send(text)

    async def _send_changes(self) -> None:
        await self._job_runner.connect(
            self._outbox, self.welcome.waiting, hub_publishes=self.welcome.publishes
        )
        while True:
            change = await self._changes.get()
            try:
                await self._outbox.send(change)
            except TooLarge as error:  # the connection and its other operations go on
                log.error("operations cannot be registered: %s", error.message)

    async def _read(self) -> None:
        try:
            async for text in self._socket:
                self._last_frame_at = asyncio.get_running_loop().time()
                frame: FrameFromHub | None = await offload(len(text), partial(decode_from_hub, text))
                if isinstance(frame, PartFrame):
                    frame = await self._join(frame)
                if frame is not None:
                    self._handle_call_frame(frame)
        except WireError as error:
            log.warning("the hub sent an invalid frame: %s", error.message)

    async def _join(self, part: PartFrame) -> FrameFromHub | None:
        """Return the message that this part completes, or None."""
        whole = self._joiner.add(part)
        return None if whole is None else await offload(len(whole), partial(decode_from_hub, whole))

    def _handle_call_frame(self, frame: FrameFromHub) -> None:
        match frame:
            case CallFrame():
                self._job_runner.start(frame)
            case AbortFrame(id=id):
                self._job_runner.abort(id)
            case ResultFrame(id=id) | ErrorFrame(id=id) | AbortedFrame(id=id):
                if id in self._subcalls and not self._subcalls[id].reply.done():
                    self._subcalls[id].reply.set_result(frame)
            case ProgressFrame(id=id, value=value):
                if id in self._subcalls:
                    self._subcalls[id].report(value)
            case _:
                self._handle_control_frame(frame)

    def _handle_control_frame(self, frame: FrameFromHub) -> None:
        match frame:
            case PingFrame(n=n):
                self._outbox.send_urgent(PongFrame(n=n), key="pong")
            case PongFrame(n=n):
                self._job_runner.confirm(n)
            case RegisteredFrame():
                self._on_registered(frame)
            case ByeFrame():
                self.bye = frame
            case _:
                raise WireError(f"a hub does not send {frame.__struct_config__.tag!r} here")

    async def _heartbeat(self) -> None:
        """Ping the hub in order with the replies, so that a pong confirms those before its ping."""
        loop = asyncio.get_running_loop()
        while self._last_frame_at + self.welcome.timeout > loop.time():
            # A ping that replaces a waiting one would confirm replies that are sent after it.
            if not self._outbox.is_waiting("ping"):
                await self._outbox.send(PingFrame(n=self._job_runner.sent_count), key="ping")
            await asyncio.sleep(self.welcome.heartbeat)
        log.warning("the hub has not answered for %g seconds", self.welcome.timeout)

    def _fail_subcalls(self) -> None:
        self._closed = True
        for subcall in self._subcalls.values():
            if not subcall.reply.done():
                subcall.reply.set_result(None)


def reply_result(operation: str, reply: ReplyFrame | None) -> Any:
    """Return the result of a reply, or raise its error; CallUncertain for None."""
    match reply:
        case ResultFrame(result=result):
            return result
        case ErrorFrame(error=failure):
            raise error_from_failure(failure)
        case AbortedFrame():
            raise CallError(f"the hub stopped {operation}")
        case None:
            raise CallUncertain(
                f"the hub went away while it ran {operation}; it is not known whether it took effect"
            )
