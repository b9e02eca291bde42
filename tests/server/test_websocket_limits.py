"""Sizes of WebSocket messages: the first one is small, since no key may be known yet, later ones are not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from dragoman.server.http import listener as listening
from dragoman.server.http.connection_limits import ConnectionLimits
from dragoman.server.http.websocket_protocol import FIRST_MESSAGE, LINGER_SECONDS
from tests.loop_clock import LoopClock
from tests.waiting import LIMIT, until

LATER_MESSAGE = 2 * FIRST_MESSAGE
PING = 0x89
FINAL = 0x80
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
        async with asyncio.timeout(LIMIT):
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
            asyncio.timeout(LIMIT),
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


@pytest.mark.parametrize("closes", [True, False])
async def test_a_client_that_sends_all_of_a_message_that_is_too_large_reads_why_it_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    clock = LoopClock()
    monkeypatch.setattr(listening, "WEBSOCKET_MESSAGE", LATER_MESSAGE)
    listener = listening.bind_listener("127.0.0.1", 0)
    server = listening.build_server(count_characters, ConnectionLimits())
    await server.startup(sockets=[listener])
    try:
        async with asyncio.timeout(LIMIT):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(UPGRADE.replace(b"PATH", b"/api/spoke"))
            await reader.readuntil(b"\r\n\r\n")
            served: Any = next(iter(server.server_state.connections))
            size = FIRST_MESSAGE + 1
            writer.write(bytes([0x81, 0x80 | 127]) + size.to_bytes(8) + bytes(4))
            await until(lambda: served.close_sent)
            for _ in range(20):
                writer.write(b"x" * (size // 20))
                await writer.drain()
            kind, length = await reader.readexactly(2)
            assert (kind, (await reader.readexactly(length))[:2]) == (0x88, (1009).to_bytes(2))
            assert len(server.server_state.connections) == 1
            if closes:
                writer.close()
            else:
                clock.set_ahead(LINGER_SECONDS)
            await until(lambda: not server.server_state.connections)
            writer.close()
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
            asyncio.timeout(LIMIT),
            connect(f"ws://127.0.0.1:{listener.getsockname()[1]}{path}", proxy=None) as client,
        ):
            await client.send("x" * 10_000)
            assert await client.recv() == "10000"
            assert client.response is not None
            assert ("sec-websocket-extensions" in client.response.headers) is compresses
    finally:
        server.force_exit = True
        await server.shutdown(sockets=[listener])


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Any]]:
    """A WebSocket without pings of the hub and with small buffers, and the server's protocol of it."""
    listener = listening.bind_listener("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    server = listening.build_server(count_characters, ConnectionLimits())
    await server.startup(sockets=[listener])
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.connect(listener.getsockname())
    reader, writer = await asyncio.open_connection(sock=client, limit=1_024)
    try:
        writer.write(UPGRADE.replace(b"PATH", b"/api/spoke"))
        await reader.readuntil(b"\r\n\r\n")
        [protocol] = server.server_state.connections
        yield reader, writer, protocol
    finally:
        writer.close()
        server.force_exit = True
        await server.shutdown(sockets=[listener])


def masked(opcode: int, data: bytes = b"") -> bytes:
    """A short frame of a client, masked with zeros."""
    return bytes([opcode, 0x80 | len(data), 0, 0, 0, 0]) + data


async def test_pings_of_a_client_that_does_not_read_take_a_bounded_memory_and_the_last_is_answered() -> None:
    async with opened() as (reader, writer, protocol):
        sent, largest = 0, 0
        while sent < 4_000_000:
            burst = b"".join(masked(FINAL | 9, f"{sent + n:0125}".encode()) for n in range(500))
            sent += len(burst)
            writer.write(burst)
            await writer.drain()
            largest = max(largest, protocol.transport.get_write_buffer_size())
        assert largest < 600_000
        last = masked(FINAL | 9, b"last")
        writer.write(last)
        writer.write(masked(FINAL | 1, b"text"))
        found = b""
        while bytes([FINAL | 10, 4]) + b"last" not in found or bytes([FINAL | 1, 1]) + b"4" not in found:
            found += await reader.read(65_536)


async def test_fragments_of_a_message_are_joined_as_they_come() -> None:
    async with opened() as (reader, writer, protocol):
        writer.write(masked(1, b"x"))
        for _ in range(20):
            writer.write(masked(0, b"y") * 500 + masked(0) * 500)
            await writer.drain()
        await until(lambda: protocol.frames and len(protocol.frames[0]) == 10_001)
        assert len(protocol.frames) == 1
        writer.write(masked(FINAL, b"z"))
        assert await reader.readexactly(7) == bytes([FINAL | 1, 5]) + b"10002"


@pytest.mark.parametrize("frames", [masked(FINAL | 1, b"\xff"), masked(1, b"\xe2\x82") + masked(FINAL, b"x")])
async def test_text_that_is_not_utf_8_closes_the_socket_and_logs_no_exception(
    frames: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as (reader, writer, _):
        writer.write(frames)
        assert await reader.read() == bytes([FINAL | 8, 2, *(1007).to_bytes(2, "big")])
    assert [record for record in caplog.records if record.exc_info] == []
