"""Streaming of a run over HTTP: its batches in the dialect that the client requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Protocol

from dragoman.errors import BadRequest, KeyEnded
from dragoman.events import TEXT_DELTAS, ErrorEvent, Event
from dragoman.http.asgi_exchange import ClientDisconnected, Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.http.sse_keepalive import KeepAlive
from dragoman.large_json import SMALL
from dragoman.offload import offload
from dragoman.runs.live_tail import Batch, Follower
from dragoman.server.http.query_parameters import parse_limit
from dragoman.server.http.response_cycle import ResponseCycle, cycle_of
from dragoman.wire.encoder import KEEP_ALIVE, StreamEncoder
from dragoman.wire.hub_encoder import HubStreamEncoder
from dragoman.wire.responses.encoder import ResponsesStreamEncoder
from dragoman.wire.ui.encoder import UIStreamEncoder

MAX_INTERVAL = 1000  # ms
MAX_DIRECT = 65_536  # characters of a delta that is written where it comes from
PIECE = 1_000_000  # bytes that are handed to the connection at once
LAST_FRAMES_WAIT = 1.0  # seconds for the last frames of a run whose key has ended

log = logging.getLogger(__name__)


class BatchEncoder(Protocol):
    """Encodes an answer as a stream, batch by batch."""

    def encode(self, batch: Sequence[Event]) -> bytes:
        """Return the frames of a batch."""
        ...

    def end(self) -> bytes:
        """Return the last frames."""
        ...


def response_dialect(exchange: Exchange) -> StreamEncoder:
    """Return the requested dialect, by default the AI SDK's."""
    return requested_dialect(exchange, default="ui") or UIStreamEncoder()


def requested_dialect(exchange: Exchange, *, default: str | None = None) -> StreamEncoder | None:
    """Return the dialect of `?dialect=ui|hub`, `Accept: text/event-stream; dialect=hub` and `?sdk=6|7`.

    None when the client names none of the hub's own. Raises BadRequest for an unknown one.
    """
    query, accept = exchange.query, exchange.headers.get("accept", "")
    name = query.get("dialect") or (_dialect_in_accept(accept) if "dialect" in accept else None) or default
    if name is None:
        return None
    if name == "hub":
        return HubStreamEncoder()
    if name != "ui":
        raise BadRequest(f"{name!r} is not a dialect; use 'ui' or 'hub'", field="dialect")
    if query.get("sdk", "6") not in ("6", "7"):
        raise BadRequest(f"sdk must be 6 or 7, not {query['sdk']!r}", field="sdk")
    return UIStreamEncoder(sdk=7 if query.get("sdk") == "7" else 6)


def _dialect_in_accept(accept: str) -> str | None:
    for media in accept.split(","):
        kind, *fields = (part.strip() for part in media.split(";"))
        parameters = dict(field.replace(" ", "").split("=", 1) for field in fields if "=" in field)
        if kind == "text/event-stream" and "dialect" in parameters:
            return parameters["dialect"].strip('"')
    return None


def requested_interval(exchange: Exchange) -> float:
    """Return the seconds of `?interval`, which is in milliseconds; 0 without it. Raises BadRequest."""
    interval = exchange.query.get("interval")
    return parse_limit(interval, maximum=MAX_INTERVAL, field="interval") / 1000 if interval else 0.0


async def stream_run(
    exchange: Exchange,
    follower: Follower,
    *,
    dialect: StreamEncoder,
    keep_alive: float,
    headers: Mapping[str, str] | None = None,
    closing: Callable[[], Awaitable[bytes]] | None = None,
) -> None:
    """Send the follower's batches until the run ends, the client disconnects, or its key ends.

    A run ends with its own key, so the stream first waits a moment for the last frames of the run. The stream
    of a run that continues, because it has another key, ends with an error frame. `closing` returns what a
    stream that was not cut off ends with.
    """
    stops = StreamStops(follower)
    exchange.on_key_ended = stops.end_soon
    # No delay: a run that ends meanwhile must know that this client did not see its end.
    with DisconnectWatch(exchange, at_once=True) as watch, follower:
        if not exchange.response_started:
            await exchange.start_response(200, {**dialect.headers, **(headers or {})})
        del headers
        comment = partial(exchange.send_chunk, KEEP_ALIVE)
        async with KeepAlive(comment, keep_alive) as timer:
            last = await _send_to_reader(exchange, stops, dialect=dialect, timer=timer)
        watch.response_complete = True
        if (error := stops.key_ended) is not None and follower.is_detached:
            last = dialect.encode([ErrorEvent(error.message, error.code)]) + last
        elif closing is not None:
            last += await closing()
        await send_end(exchange, last)


class StreamStops:
    """What stops the stream of a follower before its run has ended, in the task that creates it."""

    __slots__ = ("_task", "follower", "is_stalled", "key_ended")

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.key_ended: KeyEnded | None = None
        self.is_stalled = False
        self._task = asyncio.current_task()

    def end_soon(self, error: KeyEnded) -> None:
        """Detach the follower in a moment: the key of its client has ended."""
        self.key_ended = self.key_ended or error
        asyncio.get_running_loop().call_later(LAST_FRAMES_WAIT, self.follower.detach)

    def disconnect(self) -> None:
        """Cancel the task: the follower is disconnected."""
        if self._task is not None and not self.is_stalled:
            self.is_stalled = True
            self._task.cancel()

    def uncancel(self) -> bool:
        """Return whether the task was cancelled by `disconnect`, and by nothing else."""
        return self._task is not None and self.is_stalled and self._task.uncancel() == 0


async def _send_to_reader(
    exchange: Exchange, stops: StreamStops, *, dialect: StreamEncoder, timer: KeepAlive
) -> bytes:
    """Do what `_send_batches` does. Raises ClientDisconnected when the follower is disconnected before."""
    follower = stops.follower
    if follower.is_disconnected:
        raise ClientDisconnected
    follower.on_disconnect = stops.disconnect
    try:
        return await _send_batches(exchange, follower, dialect=dialect, timer=timer)
    except asyncio.CancelledError:
        if not stops.uncancel():
            raise
        log.info("%s: the client read nothing for too long, or its run continues elsewhere", exchange.path)
        raise ClientDisconnected from None
    finally:
        follower.on_disconnect = None


async def _send_batches(
    exchange: Exchange, follower: Follower, *, dialect: StreamEncoder, timer: KeepAlive
) -> bytes:
    """Send all batches but the frames of the last one. Return those, with what closes the stream."""
    send = exchange.send
    may_be_large = isinstance(dialect, ResponsesStreamEncoder)
    cycle = cycle_of(send)
    if cycle is not None and not (may_be_large or follower.interval):
        follower.on_batch = DeltaWriter(cycle, dialect, timer=timer).write
    try:
        while (batch := await follower.next()) is not None:
            frames = await encode_batch(dialect, batch) if may_be_large else dialect.encode(batch)
            if follower.has_finished:
                return frames + await encode_batch(dialect, None)
            if len(frames) > PIECE:
                await send_large(exchange, frames, timer=timer)
            elif frames:
                timer.note_output()
                await send({"type": "http.response.body", "body": frames, "more_body": True})
        return await encode_batch(dialect, None)
    finally:
        follower.on_batch = None  # otherwise a reference cycle waits for the garbage collector


class DeltaWriter:
    """Writes deltas for the run, which calls it directly, without waking the stream's task.

    Most chunks of an answer come alone.
    """

    __slots__ = ("_cycle", "_dialect", "_timer")

    def __init__(self, cycle: ResponseCycle, dialect: StreamEncoder, *, timer: KeepAlive) -> None:
        self._cycle = cycle
        self._dialect = dialect
        self._timer = timer

    def write(self, batch: Batch) -> bool:
        """Write the frames of a short delta unless something has to be waited for; return whether it did."""
        event = batch[0]
        if not isinstance(event, TEXT_DELTAS) or len(batch) > 1 or len(event.delta) > MAX_DIRECT:
            return False
        if not self._cycle.is_writable:
            return False
        try:
            frames = self._dialect.encode(batch)
        except Exception:  # noqa: BLE001 # the stream's task encodes it again and fails, not the run
            return False
        if frames:
            self._timer.note_output()
            self._cycle.write_chunk(frames)
        return True


async def encode_batch(encoder: BatchEncoder, batch: Sequence[Event] | None) -> bytes:
    """Return the frames of a batch, or of the end; large ones are encoded in a thread."""
    size = encoder.size_of(batch) if isinstance(encoder, ResponsesStreamEncoder) else 0
    if size <= SMALL:
        return encoder.end() if batch is None else encoder.encode(batch)
    encoding = asyncio.ensure_future(
        offload(size, encoder.end if batch is None else partial(encoder.encode, batch))
    )
    try:
        return await asyncio.shield(encoding)
    except asyncio.CancelledError:  # nobody else uses the encoder meanwhile
        await asyncio.wait([encoding])
        raise


async def send_large(exchange: Exchange, frames: bytes, *, timer: KeepAlive | None = None) -> None:
    """Send a part of a streamed body, in pieces where it is large; more follows.

    A slow reader may take longer for a piece than the interval of `timer`, whose comments wait until the end.
    """
    if len(frames) <= PIECE:
        await exchange.send_chunk(frames)
        return
    async with nullcontext() if timer is None else timer.paused():
        for start in range(0, len(frames), PIECE):
            await exchange.send_chunk(frames[start : start + PIECE])
            await asyncio.sleep(0)


async def send_end(exchange: Exchange, frames: bytes) -> None:
    """Send the end of a streamed body, in pieces where it is large."""
    if len(frames) > PIECE:
        await send_large(exchange, frames)
        frames = b""
    await exchange.send({"type": "http.response.body", "body": frames, "more_body": False})
