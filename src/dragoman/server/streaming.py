"""Following a run over HTTP: batches as frames, a comment when nothing is said, gone when the client goes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dragoman.errors import BadRequest
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
