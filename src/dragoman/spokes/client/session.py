"""A session: one connection of a spoke to its hub, seen from the spoke."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from dragoman.errors import CallError, CallUncertain, Unavailable, WireError
from dragoman.operations.context import Report
from dragoman.spokes.client.jobs import Jobs
from dragoman.spokes.hub.ticket import error_of
from dragoman.spokes.outbox import Joiner, Outbox, Sizes
from dragoman.spokes.protocol import (
    LEAVING,
    Abort,
    Aborted,
    Answer,
    Bye,
    Call,
    Error,
    Frame,
    FromHub,
    Part,
    Ping,
    Pong,
    Progress,
    Registered,
    Result,
    Subcall,
    Welcome,
    from_hub,
)

log = logging.getLogger(__name__)

ROOM = 4_000_000
MESSAGE = 32_000_000
CLOSE_SECONDS = 2.0


class Asked(NamedTuple):
    """A call that the hub makes for us; None comes of it when the connection is lost."""

    came: asyncio.Future[Answer | None]
    report: Report


class Session:
    """One connection, from its welcome on."""

    def __init__(self, socket: ClientConnection, welcome: Welcome, *, jobs: Jobs) -> None:
        self.welcome = welcome
        self.bye: Bye | None = None
        self._socket = socket
        self._jobs = jobs
        sizes = Sizes(frame=welcome.frame, message=welcome.message)
        self._outbox = Outbox(self._send, sizes=sizes, room=ROOM)
        self._joiner = Joiner(MESSAGE)
        self._changes: asyncio.Queue[Frame] = asyncio.Queue()
        self._asked: dict[str, Asked] = {}
        self._numbers = count(1)
        self._gone = False
        self._heard = asyncio.get_running_loop().time()
        self._note: Callable[[Registered], None] = lambda _: None

    async def run(self, note: Callable[[Registered], None]) -> None:
        """Serve, until the connection ends one way or the other.

        `note` hears what the hub says of operations; what it raises is raised here.
        """
        self._note = note
        parts = (self._read(), self._change(), self._outbox.run(), self._beat())
        tasks = [asyncio.create_task(each) for each in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._jobs.disconnect()
            self._outbox.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._lose()
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, ConnectionClosed):
                raise error

    async def leave(self, seconds: float) -> None:
        """Take nothing more, end what there is within so many seconds, and close."""
        self._outbox.post(Bye())
        await self._jobs.drain(seconds)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._outbox.idle.wait()
                await self._socket.close(LEAVING)
        except TimeoutError:
            log.info("the hub did not take the last answers")

    def tell(self, change: Frame) -> None:
        """Tell the hub of operations that come or go."""
        self._changes.put_nowait(change)

    async def ask(self, operation: str, input: Any, *, parent: str, report: Report) -> Any:
        """The result of an operation of the hub, called below a call of the hub's that runs here."""
        if self._gone:
            raise Unavailable(f"{operation} was not called: the hub cannot be reached now")
        id = f"s{next(self._numbers)}"
        asked = self._asked[id] = Asked(asyncio.get_running_loop().create_future(), report)
        try:
            await self._outbox.put(
                Subcall(id=id, parent=parent, operation=operation, input=input), key=f"subcall {id}"
            )
            await asyncio.wait([asked.came])
        except asyncio.CancelledError:
            if not self._outbox.withdraw(f"subcall {id}"):
                self._outbox.post(Abort(id=id))
            raise
        finally:
            del self._asked[id]
        return result_of(operation, asked.came.result())

    async def _send(self, text: str) -> None:
        await self._socket.send(text)

    async def _change(self) -> None:
        await self._jobs.connect(self._outbox, self.welcome.waiting)
        while True:
            await self._outbox.put(await self._changes.get())

    async def _read(self) -> None:
        try:
            async for text in self._socket:
                self._heard = asyncio.get_running_loop().time()
                frame: FromHub | None = from_hub(text)
                if isinstance(frame, Part):
                    whole = self._joiner.add(frame)
                    frame = None if whole is None else from_hub(whole)
                if frame is not None:
                    self._hear(frame)
        except WireError as error:
            log.warning("the hub said what cannot be understood: %s", error.message)

    def _hear(self, frame: FromHub) -> None:
        match frame:
            case Call():
                self._jobs.begin(frame)
            case Abort(id=id):
                self._jobs.abort(id)
            case Result(id=id) | Error(id=id) | Aborted(id=id):
                if id in self._asked and not self._asked[id].came.done():
                    self._asked[id].came.set_result(frame)
            case Progress(id=id, value=value):
                if id in self._asked:
                    self._asked[id].report(value)
            case _:
                self._arrange(frame)

    def _arrange(self, frame: FromHub) -> None:
        match frame:
            case Ping(n=n):
                self._outbox.post(Pong(n=n), key="pong")
            case Pong(n=n):
                self._jobs.arrived(n)
            case Registered():
                self._note(frame)
            case Bye():
                self.bye = frame
            case _:
                raise WireError(f"a hub does not say {frame.__struct_config__.tag!r} here")

    async def _beat(self) -> None:
        """Ask whether the hub is there. In the order of the answers, so that its pong confirms those."""
        loop = asyncio.get_running_loop()
        while self._heard + self.welcome.timeout > loop.time():
            await self._outbox.put(Ping(n=self._jobs.given), key="ping")
            await asyncio.sleep(self.welcome.heartbeat)
        log.warning("the hub was not heard of for %g seconds", self.welcome.timeout)

    def _lose(self) -> None:
        self._gone = True
        for asked in self._asked.values():
            if not asked.came.done():
                asked.came.set_result(None)


def result_of(operation: str, came: Answer | None) -> Any:
    """The result in an answer, or the error that it stands for."""
    match came:
        case Result(result=result):
            return result
        case Error(error=failure):
            raise error_of(failure)
        case Aborted():
            raise CallError(f"the hub stopped {operation}")
        case None:
            raise CallUncertain(
                f"the hub went away while it ran {operation}; it is not known whether it took effect"
            )
