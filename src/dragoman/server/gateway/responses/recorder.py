"""Read a response as it goes out, to store it before its client hears that it is complete.

Translated and relayed answers pass here as the same bytes that the client gets, so both are stored alike.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec
from starlette.types import Message, Send

from dragoman.errors import FrameTooLong
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.offload import offload
from dragoman.wire.sse import MAX_FRAME_BYTES, NamedFrame, SSEParser

log = logging.getLogger(__name__)
LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")
_TYPE_SEARCHED = 300  # bytes of a frame without a name that may hold its type
OnResponse: TypeAlias = Callable[[bytes], Awaitable[None]]


class LastEvent(msgspec.Struct):
    """The last event of a stream, with the whole response."""

    response: msgspec.Raw


class ResponseRecorder:
    """An ASGI `send` that calls `on_response` with the whole response object, and then passes on its end."""

    def __init__(self, send: Send, on_response: OnResponse) -> None:
        self._send = send
        self._on_response = on_response
        self._parser: SSEParser | None = None
        self._document: list[bytes] | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start(message)
        elif self._parser is not None:
            await self._read(self._parser, message.get("body", b""))
        elif self._document is not None:
            self._document.append(message.get("body", b""))
            if not message.get("more_body"):
                await self._on_response(b"".join(self._document))
        await self._send(message)

    def _start(self, message: Mapping[str, Any]) -> None:
        headers = dict(message["headers"])
        if message["status"] != 200:
            return
        if headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._parser = SSEParser()
        else:
            self._document = []

    async def _read(self, parser: SSEParser, body: bytes) -> None:
        """Read a part of a stream. A response with a frame that is too long is sent on, but not recorded."""
        try:
            frames = await offload(parser.pending_size + len(body), partial(parser.feed, body))
        except FrameTooLong:
            log.warning("a response with an event of more than %d bytes is not recorded", MAX_FRAME_BYTES)
            self._parser = None
            return
        for frame in frames:
            if is_last(frame):
                await self._record_last(frame)

    async def _record_last(self, frame: bytes) -> None:
        try:
            response = await offload(len(frame), partial(read_response, frame))
        except DECODE_ERRORS:  # a server's own event of this name
            return
        await self._on_response(response)


def read_response(frame: bytes) -> bytes:
    """Return the response object in the last event. Invalid UTF-8, which some servers send, is replaced."""
    response = bytes(msgspec.json.decode(frame, type=LastEvent).response)
    return response.decode(errors="replace").encode()


def is_last(frame: bytes) -> bool:
    """Return whether a frame is the last event of a response."""
    if isinstance(frame, NamedFrame):
        return frame.event in LAST_EVENTS
    head = frame[:_TYPE_SEARCHED]
    return any(b'"%b"' % name.encode() in head for name in LAST_EVENTS)
