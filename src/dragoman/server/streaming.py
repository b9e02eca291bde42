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
from dragoman.wire.encoder import KEEP_ALIVE, StreamEncoder
from dragoman.wire.hub_encoder import HubStreamEncoder
from dragoman.wire.ui.encoder import UIStreamEncoder


def response_dialect(exchange: Exchange) -> StreamEncoder:
    """The dialect asked for, the AI SDK's unless another is."""
    return requested_dialect(exchange, default="ui") or UIStreamEncoder()


def requested_dialect(exchange: Exchange, *, default: str | None = None) -> StreamEncoder | None:
    """The dialect asked for: `?dialect=ui|hub`, `Accept: text/event-stream; dialect=hub`, `?sdk=6|7`.

    None when the client asks for none of the hub's own.
    """
    query = exchange.query
    name = query.get("dialect") or _dialect_in_accept(exchange.headers.get("accept", "")) or default
    if name is None:
        return None
    if name == "hub":
        return HubStreamEncoder()
    if name != "ui":
        raise BadRequest(f"there is no dialect {name!r}; there are 'ui' and 'hub'", field="dialect")
    if query.get("sdk", "6") not in ("6", "7"):
        raise BadRequest(f"sdk must be 6 or 7, not {query['sdk']!r}", field="sdk")
    return UIStreamEncoder(sdk=7 if query.get("sdk") == "7" else 6)


def _dialect_in_accept(accept: str) -> str | None:
    if "dialect" not in accept:
        return None
    for media in accept.split(","):
        kind, *fields = (piece.strip() for piece in media.split(";"))
        said = dict(field.replace(" ", "").split("=", 1) for field in fields if "=" in field)
        if kind == "text/event-stream" and "dialect" in said:
            return said["dialect"].strip('"')
    return None


async def stream_run(
    exchange: Exchange,
    follower: Follower,
    *,
    dialect: StreamEncoder,
    keep_alive: float,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send what the follower is told until the run ends or the client goes."""
    pulse = FollowerKeepAlive(follower, keep_alive)
    watch = asyncio.ensure_future(_leave_on_disconnect(exchange, follower))
    try:
        with follower:
            await exchange.start_response(200, {**dialect.headers, **(headers or {})})
            await _send_batches(exchange, follower, dialect=dialect, pulse=pulse)
    finally:
        pulse.cancel()
        watch.cancel()


async def _send_batches(
    exchange: Exchange, follower: Follower, *, dialect: StreamEncoder, pulse: FollowerKeepAlive
) -> None:
    send = exchange.send
    more = True
    while more and (batch := await follower.next()) is not None:
        frames = dialect.encode(batch) if batch else KEEP_ALIVE if pulse.due else b""
        more = not follower.has_finished
        if frames or not more:
            pulse.sent()
            last = b"" if more else dialect.end()
            await send({"type": "http.response.body", "body": frames + last, "more_body": more})
    if more and not follower.is_detached:
        await send({"type": "http.response.body", "body": dialect.end(), "more_body": False})


async def _leave_on_disconnect(exchange: Exchange, follower: Follower) -> None:
    """uvicorn's send() is silent after the client has gone; receive() says so."""
    while (await exchange.receive())["type"] != "http.disconnect":
        pass
    follower.detach()


class FollowerKeepAlive:
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

WATCH_DELAY = 0.02  # seconds at the beginning: what is over by then costs no task that watches


class DisconnectWatch:
    """`async with Presence(exchange) as presence`: inside, the client's going cancels what is awaited.

    The server is silent about it when something is sent, so the request's own channel is watched. Set
    `response_complete` before the last of an answer is sent: the channel ends then too. `disconnected` says
    that the client has left; the block ends without an error in that case.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.response_complete = False
        self.disconnected = False
        self._exchange = exchange
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> DisconnectWatch:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(WATCH_DELAY, self._start)
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
        if not self.disconnected or task is None:
            return False
        return task.uncancel() <= 0 and isinstance(error, asyncio.CancelledError)

    def _start(self) -> None:
        self._watch = asyncio.ensure_future(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        receive = self._exchange.receive
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self.response_complete and self._task is not None:
            self.disconnected = True
            self._task.cancel()


# ---- The heart of a stream: a comment when nothing was said for a while, so that nobody takes it for dead.


class KeepAlive:
    """`with Heart(exchange, period) as heart`; `period` is in seconds. `reset` whenever something is sent.

    One timer a stream, armed again only when it fires.
    """

    def __init__(self, exchange: Exchange, interval: float) -> None:
        self._exchange = exchange
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._last_output = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def __enter__(self) -> KeepAlive:
        self._timer = self._loop.call_later(self._interval, self._fire)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def reset(self) -> None:
        """Something is being sent."""
        self._last_output = self._loop.time()

    def _fire(self) -> None:
        quiet = self._loop.time() - self._last_output
        if quiet >= self._interval:
            quiet = 0.0
            self.reset()
            if self._sending is None or self._sending.done():
                self._sending = asyncio.ensure_future(self._send())
        self._timer = self._loop.call_later(self._interval - quiet, self._fire)

    async def _send(self) -> None:
        await self._exchange.send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})


# ---- Pending: the requests under way at a door, for which a hub that is stopped has some seconds left.


class InFlightRequests:
    """Knows of the requests that are being answered, and ends them when it is told to."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._aborted: set[asyncio.Task[Any]] = set()

    @contextmanager
    def track(self) -> Iterator[None]:
        """This task answers a request while the block runs. Unavailable when there is no time left for it."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._aborted or task.uncancel() > 0:
                raise
            raise Unavailable("the hub is being stopped", hint="ask again later") from None
        finally:
            self._tasks.discard(task)
            self._aborted.discard(task)

    async def drain(self, seconds: float) -> None:
        """Give what is under way so many seconds; what is left then is aborted."""
        if not self._tasks:
            return
        _, left = await asyncio.wait(self._tasks, timeout=seconds)
        for task in left & self._tasks:
            self._aborted.add(task)
            task.cancel()
