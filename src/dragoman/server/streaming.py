"""Following a run over HTTP: batches as frames, a comment when nothing is said, gone when the client goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

from dragoman.errors import BadRequest, Unavailable
from dragoman.runs.live import Follower
from dragoman.server.exchange import Exchange
from dragoman.wire.dialect import KEEP_ALIVE, Dialect
from dragoman.wire.hub import HubStream
from dragoman.wire.ui import UIStream


def dialect_for(exchange: Exchange) -> Dialect:
    """The dialect asked for, the AI SDK's unless another is."""
    return wanted_dialect(exchange, otherwise="ui") or UIStream()


def wanted_dialect(exchange: Exchange, *, otherwise: str | None = None) -> Dialect | None:
    """The dialect asked for: `?dialect=ui|hub`, `Accept: text/event-stream; dialect=hub`, `?sdk=6|7`.

    None when the client asks for none of the hub's own.
    """
    query = exchange.query
    name = query.get("dialect") or _accepted(exchange.headers.get("accept", "")) or otherwise
    if name is None:
        return None
    if name == "hub":
        return HubStream()
    if name != "ui":
        raise BadRequest(f"there is no dialect {name!r}; there are 'ui' and 'hub'", field="dialect")
    if query.get("sdk", "6") not in ("6", "7"):
        raise BadRequest(f"sdk must be 6 or 7, not {query['sdk']!r}", field="sdk")
    return UIStream(sdk=7 if query.get("sdk") == "7" else 6)


def _accepted(accept: str) -> str | None:
    if "dialect" not in accept:
        return None
    for media in accept.split(","):
        kind, *fields = (piece.strip() for piece in media.split(";"))
        said = dict(field.replace(" ", "").split("=", 1) for field in fields if "=" in field)
        if kind == "text/event-stream" and "dialect" in said:
            return said["dialect"].strip('"')
    return None


async def stream(
    exchange: Exchange,
    follower: Follower,
    *,
    dialect: Dialect,
    keep_alive: float,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send what the follower is told until the run ends or the client goes."""
    pulse = Pulse(follower, keep_alive)
    watch = asyncio.ensure_future(_watch(exchange, follower))
    try:
        with follower:
            await exchange.begin(200, {**dialect.headers, **(headers or {})})
            await _send(exchange, follower, dialect=dialect, pulse=pulse)
    finally:
        pulse.cancel()
        watch.cancel()


async def _send(exchange: Exchange, follower: Follower, *, dialect: Dialect, pulse: Pulse) -> None:
    send = exchange.send
    more = True
    while more and (batch := await follower.next()) is not None:
        frames = dialect.encode(batch) if batch else KEEP_ALIVE if pulse.due else b""
        more = not follower.ended
        if frames or not more:
            pulse.sent()
            last = b"" if more else dialect.end()
            await send({"type": "http.response.body", "body": frames + last, "more_body": more})
    if more and not follower.gone:
        await send({"type": "http.response.body", "body": dialect.end(), "more_body": False})


async def _watch(exchange: Exchange, follower: Follower) -> None:
    """uvicorn's send() is silent after the client has gone; receive() says so."""
    while (await exchange.receive())["type"] != "http.disconnect":
        pass
    follower.leave()


class Pulse:
    """Says when a keep-alive is due. One timer a stream, armed again only when it fires."""

    def __init__(self, follower: Follower, period: float) -> None:
        self._follower = follower
        self._period = period
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(period, self._fire)
        self.due = False

    def sent(self) -> None:
        """Something was sent just now."""
        self.due = False
        self._last = self._loop.time()

    def cancel(self) -> None:
        """No more."""
        self._timer.cancel()

    def _fire(self) -> None:
        quiet = self._loop.time() - self._last
        if quiet >= self._period:
            self.due = True
            self._follower.wake()
            quiet = 0.0
        self._timer = self._loop.call_later(self._period - quiet, self._fire)


# ---- Presence: the work of a request is cancelled at once when its client goes.

UNWATCHED = 0.02  # seconds at the beginning: what is over by then costs no task that watches


class Presence:
    """`async with Presence(exchange) as presence`: inside, the client's going cancels what is awaited.

    The server is silent about it when something is sent, so the request's own channel is watched. Set `over`
    before the last of an answer is sent: the channel ends then too. `gone` says that the client has left; the
    block ends without an error in that case.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.over = False
        self.gone = False
        self._exchange = exchange
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Presence:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(UNWATCHED, self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        watch, task = self._watch, self._task
        self._timer = self._watch = self._task = None  # no cycles: they would wait for the collector
        if watch is not None:
            watch.cancel()
        if not self.gone or task is None:
            return False
        return task.uncancel() <= 0 and isinstance(error, asyncio.CancelledError)

    def _begin(self) -> None:
        self._watch = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        receive = self._exchange.receive
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self.over and self._task is not None:
            self.gone = True
            self._task.cancel()


# ---- The heart of a stream: a comment when nothing was said for a while, so that nobody takes it for dead.


class Heart:
    """`with Heart(exchange, period) as heart`; `period` is in seconds. `beat` whenever something is sent.

    One timer a stream, armed again only when it fires.
    """

    def __init__(self, exchange: Exchange, period: float) -> None:
        self._exchange = exchange
        self._period = period
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def __enter__(self) -> Heart:
        self._timer = self._loop.call_later(self._period, self._fire)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def beat(self) -> None:
        """Something is being sent."""
        self._last = self._loop.time()

    def _fire(self) -> None:
        quiet = self._loop.time() - self._last
        if quiet >= self._period:
            quiet = 0.0
            self.beat()
            if self._sending is None or self._sending.done():
                self._sending = asyncio.ensure_future(self._send())
        self._timer = self._loop.call_later(self._period - quiet, self._fire)

    async def _send(self) -> None:
        await self._exchange.send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})


# ---- Pending: the requests under way at a door, for which a hub that is stopped has some seconds left.


class Pending:
    """Knows of the requests that are being answered, and ends them when it is told to."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """This task answers a request while the block runs. Unavailable when there is no time left for it."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel() > 0:
                raise
            raise Unavailable("the hub is being stopped", hint="ask again later") from None
        finally:
            self._tasks.discard(task)
            self._ended.discard(task)

    async def drain(self, seconds: float) -> None:
        """Give what is under way so many seconds; what is left then is aborted."""
        if not self._tasks:
            return
        _, left = await asyncio.wait(self._tasks, timeout=seconds)
        for task in left & self._tasks:
            self._ended.add(task)
            task.cancel()
