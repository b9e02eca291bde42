"""Deadlines and back-pressure on real sockets, on uvloop and asyncio."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import pytest

from dragoman.errors import ProviderError
from dragoman.http.connection import HIGH_WATER, WRITE_SIZE, HttpRequest
from dragoman.http.dialer import Dialer
from dragoman.http.response_parser import MAX_TAKE
from dragoman.http.transport import Timeouts, Transport
from dragoman.http.url_and_proxy import Address

from .servers import CHUNKED, LIMIT, Peer, Server, answering, chunk, holding, ok, serving

LOOPS = {"uvloop": True, "asyncio": False}
READ = 256 * 1024  # the most that a loop reads at once
LARGE = 48 * 1024 * 1024
SHORT = 0.1
STALL = 0.3  # a drain that takes longer is blocked
PATIENCE = (1, 4, 16)  # times as long: a busy machine may stand still for the first of them


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": LOOPS[request.param]}


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport(timeouts=Timeouts(connect=LIMIT, first_byte=LIMIT, idle=LIMIT))
    yield transport
    await transport.close()


async def fetch(transport: Transport, url: str, timeouts: Timeouts) -> bytes:
    response = await transport.send("POST", url, headers={}, body=b"{}", timeouts=timeouts)
    return await response.read(LARGE)


async def fails(transport: Transport, server: Server, timeouts: Timeouts) -> str:
    """The message of the timeout; the socket must be closed by then."""
    with pytest.raises(ProviderError) as caught:
        await fetch(transport, server.url, timeouts)
    assert (caught.value.category, caught.value.transient) == ("timeout", True)
    await server.wait_closed(1)
    return caught.value.message.removeprefix(f"127.0.0.1:{server.port} ")


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port that lets nobody connect and refuses nobody: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        callers = [socket.socket() for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            with suppress(BlockingIOError):
                caller.connect(("127.0.0.1", port))
        yield port
        for caller in callers:
            caller.close()


async def test_connecting_has_a_deadline(transport: Transport) -> None:
    with deaf_port() as port, pytest.raises(ProviderError, match=r"connecting to .* timed out") as caught:
        await fetch(transport, f"http://127.0.0.1:{port}", Timeouts(connect=SHORT))
    assert (caught.value.category, caught.value.transient) == ("timeout", True)


async def test_cancelling_ends_an_attempt_to_connect(transport: Transport) -> None:
    with deaf_port() as port:
        task = asyncio.create_task(fetch(transport, f"http://127.0.0.1:{port}", Timeouts()))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), SHORT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_the_first_byte_has_a_deadline(transport: Transport, start: bytes) -> None:
    async with serving(holding(start)) as server:
        assert (
            await fails(transport, server, Timeouts(first_byte=SHORT)) == "did not start to respond in time"
        )


async def test_silence_within_a_body_has_a_deadline(transport: Transport) -> None:
    async with serving(holding(CHUNKED + chunk(b"x"))) as server:
        expected = "stopped sending in the middle of its response"
        assert await fails(transport, server, Timeouts(idle=SHORT)) == expected


async def drip(peer: Peer, count: int) -> None:
    await peer.request()
    await peer.send(CHUNKED)
    for _ in range(count):
        await asyncio.sleep(SHORT / 5)  # the server's pace, not a wait
        await peer.send(chunk(b"x"))
    await peer.send(b"0\r\n\r\n")


async def test_the_whole_has_a_deadline_however_lively_the_body(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(ok(b"x"))
        await drip(peer, 10_000)

    async with serving(script) as server:
        await fetch(transport, server.url, Timeouts())  # connecting is not what takes too long
        expected = "did not finish its response within the request's total timeout"
        assert await fails(transport, server, Timeouts(idle=LIMIT, total=3 * SHORT)) == expected


async def test_a_slow_body_that_keeps_coming_is_not_idle(transport: Transport) -> None:
    bodies: list[bytes] = []
    count = 0

    async with serving(lambda peer: drip(peer, count)) as server:
        for times in PATIENCE:
            count = 30 * times  # which takes longer than the silence that is allowed
            with suppress(ProviderError):
                bodies.append(await fetch(transport, server.url, Timeouts(idle=5 * SHORT * times)))
                break
    assert bodies == [b"x" * count]


async def test_a_deadline_of_one_request_does_not_end_the_next_one(transport: Transport) -> None:
    bodies: list[bytes] = []
    count = 0

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(ok(b"x"))
        await drip(peer, count)

    async with serving(script) as server:
        for times in PATIENCE:
            count, seconds = 40 * times, 5 * SHORT * times
            short = Timeouts(first_byte=seconds, idle=seconds, total=seconds)
            with suppress(ProviderError):
                bodies.append(await fetch(transport, server.url, short))
                break
        assert bodies == [b"x"]
        connections = server.connections
        assert await fetch(transport, server.url, Timeouts()) == b"x" * count
        assert server.connections == connections


async def test_a_connection_that_rests_too_long_is_closed() -> None:
    async with serving(holding(ok(b"x"))) as server:
        connection = await Dialer().dial(Address("http", "127.0.0.1", server.port))
        incoming = await connection.send(HttpRequest(b"GET / HTTP/1.1\r\n\r\n", b"", Timeouts()))
        assert await connection.receive(incoming) == b"x"
        assert connection.reusable
        connection.keep_idle(SHORT)
        await server.wait_closed(1)


async def test_no_deadlines_at_all(transport: Transport) -> None:
    async with serving(answering(ok(b"x"), ok(b"y"))) as server:
        for body in (b"x", b"y"):
            assert await fetch(transport, server.url, Timeouts(None, None, None, None)) == body


async def test_a_reader_that_is_slow_slows_the_server_and_not_memory(transport: Transport) -> None:
    stall = STALL
    stalled = asyncio.Event()
    found: list[list[int]] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % LARGE)
        for _ in range(LARGE // WRITE_SIZE):
            peer.writer.write(b"x" * WRITE_SIZE)
            draining = asyncio.ensure_future(peer.writer.drain())
            await asyncio.wait([draining], timeout=stall)
            if not draining.done():
                stalled.set()
            await draining

    async with serving(script) as server:
        for times in PATIENCE:
            stall = STALL * times
            stalled.clear()
            timeouts = Timeouts(idle=stall / 3)  # the reader's own silence must not count
            with suppress(ProviderError):
                response = await transport.send("GET", server.url, headers={}, timeouts=timeouts)
                await stalled.wait()
                async with aclosing(response.iter_raw()) as reads:
                    found.append([len(data) async for data in reads])
                break
    [sizes] = found
    assert max(sizes) <= MAX_TAKE
    assert sum(sizes) == LARGE


async def test_others_are_served_between_the_parts_of_a_body_that_has_arrived(transport: Transport) -> None:
    body = b"x" * (8 * MAX_TAKE)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serving(answering(ok(body))) as server:
        response = await transport.send("GET", server.url, headers={})
        async with asyncio.TaskGroup() as group:
            task = group.create_task(others())
            seen: list[int] = []
            async with aclosing(response.iter_raw()) as reads:
                received = b""
                async for data in reads:
                    received += data
                    seen.append(turns)
            task.cancel()
    assert received == body
    assert len(seen) >= 8
    assert len(set(seen)) >= len(seen) // 2  # the last part of a read follows at once


async def test_a_response_that_was_held_back_leaves_its_connection_as_it_was(transport: Transport) -> None:
    body = b"x" * (4 * HIGH_WATER)
    async with serving(answering(ok(body), ok(b"y"))) as server:
        response = await transport.send("GET", server.url, headers={})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.wait_closed(1), SHORT)  # the server writes all it can
        assert await response.read(len(body)) == body
        assert await fetch(transport, server.url, Timeouts()) == b"y"
        assert server.connections == 1


async def test_a_large_request_is_sent_as_the_server_takes_it(transport: Transport) -> None:
    requested, go = asyncio.Event(), asyncio.Event()
    body = bytes(range(256)) * (LARGE // 256)

    async def script(peer: Peer) -> None:
        received = await peer.head()
        requested.set()
        await go.wait()
        data = await peer.reader.readexactly(int(received["content-length"]))
        await peer.send(ok(b"same" if data == body else b"other"))

    async with serving(script) as server:
        task = asyncio.create_task(transport.send("POST", server.url, headers={}, body=body))
        await requested.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), STALL)
        (connection,) = transport._connections
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() <= 2 * WRITE_SIZE
        go.set()
        assert await (await task).read(10) == b"same"


async def test_an_answer_before_the_request_is_all_sent_is_taken(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await peer.gone()

    async with serving(script) as server:
        response = await transport.send("POST", server.url, headers={}, body=b"x" * LARGE)
        assert (response.status, await response.read(2)) == (413, b"no")
        await server.wait_closed(1)


async def test_cancelling_a_large_request_closes_the_socket_at_once(transport: Transport) -> None:
    requested = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.head()
        requested.set()
        await peer.gone()

    async with serving(script) as server:
        task = asyncio.create_task(transport.send("POST", server.url, headers={}, body=b"x" * LARGE))
        await requested.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.wait_closed(1)
