"""The server's protocol of WebSockets: uvicorn's, with limits, and little memory for each that is open.

What uvicorn keeps of the handshake and of the HTTP connection is dropped once the application has accepted,
and its queues are replaced: those of asyncio take a kilobyte each while they are empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import copy
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Close, Frame

from dragoman.server.http.connection_limits import NEVER, ConnectionTable

OPTIONS_BY_PATH: Mapping[bytes, Mapping[str, Any]] = {
    b"/v1/responses": {"ws_per_message_deflate": True},  # it costs each one memory
    b"/api/spoke": {"ws_ping_interval": None},  # its protocol has its own heartbeat
}
"""By path: what differs from the server's settings."""
INVALID_DATA = 1007  # a close code of RFC 6455
FIRST_MESSAGE = 2_000_000  # bytes of the first message of a WebSocket
LINGER_SECONDS = 1.0  # for a client to read why it is disconnected


class UpgradedConnection:
    """A connection that has become a WebSocket, as the table of connections sees it."""

    __slots__ = ("_table", "_transport", "address", "deadline", "waiting_since")

    def __init__(self, table: ConnectionTable, *, address: str, transport: asyncio.Transport) -> None:
        self.address = address
        self.deadline = NEVER
        self.waiting_since: float | None = None
        self._table = table
        self._transport = transport

    def expire(self, now: float) -> None:
        """See `Connection`: it has no deadline."""

    def evict(self) -> None:
        """See `Connection`: only those without a request are evicted."""
        self._transport.abort()

    def leave_table(self) -> None:
        """Remove this connection, which is closed, from the table."""
        self._table.remove(self)


class MessageQueue:
    """Messages for one reader: what uvicorn uses of `asyncio.Queue`."""

    __slots__ = ("_messages", "_waiter")

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._waiter: asyncio.Future[None] | None = None

    def put_nowait(self, message: Any) -> None:
        """Add a message."""
        self._messages.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        """Return the next message."""
        while not self._messages:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._messages.pop(0)

    def empty(self) -> bool:
        """Return whether no message waits."""
        return not self._messages


class WritableFlag:
    """Whether the transport can take more data: what uvicorn uses of `asyncio.Event`."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None

    def set(self) -> None:
        """Let senders continue."""
        event, self._event = self._event, None
        if event is not None:
            event.set()

    def clear(self) -> None:
        """Let senders wait."""
        self._event = self._event or asyncio.Event()

    def is_set(self) -> bool:
        """Return whether senders may continue."""
        return self._event is None

    async def wait(self) -> None:
        """Wait until it is set."""
        while self._event is not None:
            await self._event.wait()


class LimitedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which stays in the table of connections until it closes.

    Its first message, which may come before a key is known, is limited to FIRST_MESSAGE bytes.
    """

    def __init__(self, *, connection: UpgradedConnection, path: bytes, **options: Any) -> None:
        if path in OPTIONS_BY_PATH:
            options["config"] = config = copy(options["config"])
            vars(config).update(OPTIONS_BY_PATH[path])
        super().__init__(**options)
        self.queue = cast("asyncio.Queue[Any]", MessageQueue())
        self.writable = cast(asyncio.Event, WritableFlag())
        self._connection = connection
        self._pongs = b""
        self.conn.max_message_size = min(FIRST_MESSAGE, self.config.ws_max_size)

    async def send(self, message: Any) -> None:
        """See uvicorn."""
        is_accept = message["type"] == "websocket.accept"
        await super().send(message)
        if is_accept and self.handshake_complete:
            self.request.headers.clear()  # the parser keeps the request
            del self.request, self.response

    def handle_ping(self) -> None:
        """See uvicorn. A client that does not read gets pongs for its latest pings only (RFC 6455, 5.5.3)."""
        pongs = b"".join(self.conn.data_to_send())
        if cast(WritableFlag, self.writable).is_set():
            self.transport.write(pongs)
        elif pongs:  # with all pings that came together
            self._pongs = pongs

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        super().resume_writing()
        pongs, self._pongs = self._pongs, b""
        if pongs and not self.transport.is_closing():
            self.transport.write(pongs)

    def handle_cont(self, event: Frame) -> None:
        """See uvicorn. Fragments are joined as they come: each may be a single byte, or none."""
        frames = cast("list[Any]", self.frames)
        if event.data:
            frames[0] = frames[0] if isinstance(frames[0], bytearray) else bytearray(frames[0])
            frames[0] += event.data
        if event.fin:
            frames[0] = bytes(frames[0])
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """See uvicorn, which logs a traceback for text that is not UTF-8."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                text = self.frames[0].decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(INVALID_DATA)
                self.handle_parser_exception()
                return
            self.frames = []
            self.queue.put_nowait({"type": "websocket.receive", "text": text})
            if not self.read_paused:
                self.read_paused = True
                self.transport.pause_reading()
        else:
            super().send_receive_event_to_app()
        self.conn.max_message_size = self.config.ws_max_size

    def data_received(self, data: bytes) -> None:
        """See uvicorn. What a client still sends after an invalid message is discarded."""
        if self.conn.parser_exc is None and not self.disconnected:
            super().data_received(data)

    def handle_parser_exception(self) -> None:
        """See uvicorn, which closes the connection at once.

        While the client still sends, that resets it, and the client may never read the close code. Nor is
        only the hub's side closed: clients (websockets 17) that still send take that for a lost connection.
        """
        closing = cast(Close, self.conn.close_sent)
        self.stop_keepalive()
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": closing.code, "reason": closing.reason}
        )
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = self.disconnected = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        if self.close_timer is not None:  # the application has closed it before
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def keepalive_timeout(self) -> None:
        """See uvicorn. While the application does not read, the pong may be among the data not yet read."""
        if self.read_paused:
            self.stop_keepalive()
            self.schedule_ping()
        else:
            super().keepalive_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        super().connection_lost(exc)
        self._connection.leave_table()
