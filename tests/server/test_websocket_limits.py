"""Sizes of WebSocket messages: the first one is small, since no key may be known yet, later ones are not."""

from __future__ import annotations

import asyncio
import socket

import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from dragoman.server.http import listener as listening
from dragoman.server.http.connection_limits import ConnectionLimits
from dragoman.server.http.websocket_protocol import FIRST_MESSAGE

LATER_MESSAGE = 2 * FIRST_MESSAGE
PING = 0x89
UPGRADE = (
    b"GET PATH HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AQIDBAUGBwgJCgsMDQ4PEA==\r\n\r\n"
)


async def count_characters(_: Scope, receive: Receive, send: Send) -> None:
    """Answer each message with its length."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": str(len(message["text"]))})


@pytest.mark.parametrize(("path", "is_closed"), [("/api/runners", True), ("/api/spoke", False)])
async def test_a_client_that_answers_no_ping_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, path: str, is_closed: bool
) -> None:
    monkeypatch.setattr(listening, "PING_INTERVAL", 0.02)
    monkeypatch.setattr(listening, "PING_TIMEOUT", 0.02)
    listener = listening.bind_listener("127.0.0.1", 0)
    server = listening.build_server(count_characters, ConnectionLimits())
    await server.startup(sockets=[listener])
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(UPGRADE.replace(b"PATH", path.encode()))
            await reader.readuntil(b"\r\n\r\n")
            if is_closed:
                assert (await reader.read())[0] == PING, "and then the end of the connection"
            else:
                writer.write(bytes([0x81, 0x80 | 2, 0, 0, 0, 0]) + b"hi")
                assert await reader.readexactly(3) == bytes([0x81, 1]) + b"2"
            writer.close()
    finally:
        server.force_exit = True
        await server.shutdown(sockets=[listener])


@pytest.mark.parametrize(
    ("sizes", "answers"),
    [
        ([10, FIRST_MESSAGE + 1, LATER_MESSAGE], 3),
        ([FIRST_MESSAGE], 1),
        ([FIRST_MESSAGE + 1], 0),
        ([10, LATER_MESSAGE + 1], 1),
    ],
)
async def test_the_first_message_is_limited_more_than_later_ones(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], answers: int
) -> None:
    monkeypatch.setattr(listening, "WEBSOCKET_MESSAGE", LATER_MESSAGE)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = listening.build_server(count_characters, ConnectionLimits())
    await server.startup(sockets=[listener])
    try:
        async with (
            asyncio.timeout(60),
            connect(f"ws://127.0.0.1:{listener.getsockname()[1]}", proxy=None, compression=None) as client,
        ):
            lengths, code = [], 0
            try:
                for size in sizes:
                    await client.send("x" * size)
                    lengths.append(int(await client.recv()))
            except ConnectionClosed as closed:
                code = closed.rcvd.code if closed.rcvd else 1006
            assert (lengths, code) == (sizes[:answers], 0 if answers == len(sizes) else 1009)
    finally:
        server.force_exit = True
        await server.shutdown(sockets=[listener])


@pytest.mark.parametrize(("path", "compresses"), [("/v1/responses", True), ("/api/spoke", False)])
async def test_only_the_socket_of_model_requests_compresses(path: str, compresses: bool) -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = listening.build_server(count_characters, ConnectionLimits())
    await server.startup(sockets=[listener])
    try:
        async with (
            asyncio.timeout(60),
            connect(f"ws://127.0.0.1:{listener.getsockname()[1]}{path}", proxy=None) as client,
        ):
            await client.send("x" * 10_000)
            assert await client.recv() == "10000"
            assert client.response is not None
            assert ("sec-websocket-extensions" in client.response.headers) is compresses
    finally:
        server.force_exit = True
        await server.shutdown(sockets=[listener])
