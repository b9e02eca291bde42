"""The HTTP handler of `/api/events`: what happens in sessions, as server-sent events that can be resumed."""

from __future__ import annotations

import asyncio
from functools import partial
from weakref import WeakSet

from dragoman.errors import BadRequest
from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.http.sse_keepalive import KeepAlive
from dragoman.hub_events.event_filter import EventFilter
from dragoman.hub_events.event_log import EventFollower, EventLog
from dragoman.operations.authorization import visible_owner
from dragoman.server.event_json import encode_frame, encode_reset
from dragoman.server.sessions.grant_revocation import SharedAccess
from dragoman.server.sessions.session_lookup import find_session
from dragoman.store.hub_events import EventPosition
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.wire.encoder import KEEP_ALIVE

MAX_NAMES = 50
HEADERS = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}


class EventHandlers:
    """Handler of `/api/events`. A key sees the events of its owner's sessions; an admin those of all."""

    def __init__(self, event_log: EventLog, store: Store, *, access: SharedAccess, keep_alive: float) -> None:
        self._log = event_log
        self._store = store
        self._access = access
        self._keep_alive = keep_alive
        self._followers = WeakSet[EventFollower]()

    def close(self) -> None:
        """End all streams, because the hub stops."""
        for follower in list(self._followers):
            follower.close()

    async def follow(self, exchange: Exchange) -> None:
        """Stream events until the client disconnects, or its key ends."""
        query = exchange.query
        session = await self._find_session(exchange)
        wanted = await self._filter(exchange, session)
        text = exchange.headers.get("last-event-id") or query.get("after")
        after = None if text is None else EventPosition.parse(text)
        async with self._log.follow(wanted, caller=exchange.identity.owner, after=after) as follower:
            exchange.on_key_ended = lambda _: follower.close()
            self._followers.add(follower)
            shared = self._access.track_id("" if session is None else session.id, exchange)
            with shared, DisconnectWatch(exchange, at_once=True) as watch:
                await exchange.start_response(200, HEADERS)
                comment = partial(exchange.send_chunk, KEEP_ALIVE)
                await comment()  # tells the client that it follows from now on
                async with KeepAlive(comment, self._keep_alive) as timer:
                    await self._send_events(exchange, follower, timer=timer)
                watch.response_complete = True
                await exchange.send({"type": "http.response.body", "body": b""})

    async def _send_events(self, exchange: Exchange, follower: EventFollower, *, timer: KeepAlive) -> None:
        owner = exchange.identity.owner
        while (events := await follower.next()) is not None:
            frames = [encode_frame(event, owner=owner) for event in events]
            if follower.has_gap:
                follower.has_gap = False
                frames.insert(0, encode_reset())
            if frames:
                timer.last_output = asyncio.get_running_loop().time()
                await exchange.send_chunk(b"".join(frames))

    async def _find_session(self, exchange: Exchange) -> Session | None:
        """Return the session that the query names. Raises NotFound."""
        query = exchange.query
        if "session" not in query:
            return None
        return await find_session(
            self._store.sessions, query["session"], caller=exchange.identity, owner=query.get("owner")
        )

    async def _filter(self, exchange: Exchange, session: Session | None) -> EventFilter:
        """Return the filter of the query. Raises BadRequest."""
        names = tuple(name for name in exchange.query.get("name", "").split(",") if name)
        if len(names) > MAX_NAMES:
            raise BadRequest(f"name lists more than {MAX_NAMES} names", field="name")
        if session is not None:
            return EventFilter(session_id=session.id, names=names or None)
        return EventFilter(owner=visible_owner(exchange.identity), names=names or None)
