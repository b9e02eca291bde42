"""HTTP requests and responses over real sockets, on uvloop and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ProviderError
from dragoman.http.transport import HostPool, Response, Timeouts, Transport
from dragoman.http.url_and_proxy import parse_url

from .servers import (
    CHUNKED,
    LIMIT,
    Peer,
    Received,
    Server,
    answering,
    chunk,
    holding,
    ok,
    refusing_port,
    serving,
)

SECRET = "sk-topsecret-0123456789"
LOOPS = {"uvloop": True, "asyncio": False}


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": LOOPS[request.param]}


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport(timeouts=Timeouts(connect=LIMIT, first_byte=LIMIT, idle=LIMIT))
    yield transport
    await transport.close()


async def get(transport: Transport, server: Server, method: str = "GET", **options: Any) -> Response:
    return await transport.send(method, f"{server.url}/v1", headers={"x-key": SECRET}, **options)


async def fetch(transport: Transport, server: Server) -> bytes:
    return await (await get(transport, server)).read(1 << 30)


async def test_a_request_arrives_as_it_was_meant(transport: Transport) -> None:
    seen: list[Received] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.send(ok(b"{}", "X-A: 1", "x-a: 2"))

    async with serving(script) as server:
        url = f"{server.url}/v1/chat?mode=fast&name=ä"
        headers = {"Authorization": "Bearer x", "Host": "evil", "Content-Length": "1", "TE": "trailers"}
        response = await transport.send("POST", url, headers=headers, body=b'{"a":1}')
        assert (response.status, dict(response.headers)) == (200, {"x-a": "1, 2", "content-length": "2"})
        assert await response.read(2) == b"{}"
        assert seen == [
            Received(
                "POST /v1/chat?mode=fast&name=%C3%A4 HTTP/1.1",
                [
                    ("host", f"127.0.0.1:{server.port}"),
                    ("accept-encoding", "identity"),
                    ("Authorization", "Bearer x"),
                    ("content-length", "7"),
                ],
                b'{"a":1}',
            )
        ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("x", "a\r\nevil: 1"), ("x", "a\nb"), ("x", "a\0"), ("x\r\ny", "z"), ("x ", "y"), ("", "y"), ("x", "→")],
)
async def test_a_header_that_would_smuggle_is_refused(transport: Transport, name: str, value: str) -> None:
    async with serving(answering()) as server:
        with pytest.raises(ProviderError, match="characters that HTTP does not allow") as caught:
            await transport.send("POST", server.url, headers={name: value + SECRET})
        assert (caught.value.category, caught.value.transient) == ("bad_request", False)
        assert SECRET not in str(caught.value)
        with pytest.raises(ProviderError):
            await transport.send("GET / HTTP/1.1\r\nx", server.url, headers={})
        assert server.connections == 0


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (ok(b"hello"), b"hello"),
        (CHUNKED + chunk(b"hel") + chunk(b"lo") + b"0\r\n\r\n", b"hello"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 307 Go\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 None\r\n\r\n", b""),
        (b"HTTP/1.1 304 Same\r\ncontent-length: 9\r\n\r\n", b""),
    ],
)
async def test_every_kind_of_body_is_read_one_byte_at_a_time(
    transport: Transport, raw: bytes, body: bytes
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for at in range(len(raw)):
            await peer.send(raw[at : at + 1])
            await asyncio.sleep(0)

    async with serving(script) as server:
        assert await fetch(transport, server) == body


@pytest.mark.parametrize("raw", [ok(b"hello"), CHUNKED + chunk(b"hello") + b"0\r\n\r\n"])
async def test_a_response_cut_short_at_any_byte_is_an_error(transport: Transport, raw: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(raw[: peer.number - 1])

    async with serving(script) as server:
        for _ in range(len(raw)):
            with pytest.raises(ProviderError, match=r"^127\.0\.0\.1:\d+ closed the connection") as caught:
                await fetch(transport, server)
            assert (caught.value.category, caught.value.transient) == ("network", True)


async def test_garbage_is_a_network_error(transport: Transport) -> None:
    async with serving(answering(b"220 mail.example ESMTP\r\n")) as server:
        with pytest.raises(ProviderError, match="something that is not HTTP") as caught:
            await get(transport, server)
        assert (caught.value.category, caught.value.transient) == ("network", True)


@given(st.lists(st.binary(max_size=20) | st.sampled_from([CHUNKED, ok(b"hello"), chunk(b"x")]), max_size=5))
def test_whatever_a_server_sends_is_a_response_or_a_provider_error(pieces: list[bytes]) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for piece in pieces:
            await peer.send(piece)
            await asyncio.sleep(0)

    async def ask() -> None:
        transport = Transport(timeouts=Timeouts(connect=LIMIT, first_byte=LIMIT, idle=LIMIT))
        async with serving(script) as server:
            with suppress(ProviderError):
                await fetch(transport, server)
            await transport.close()

    asyncio.run(ask())


async def test_everything_that_arrived_comes_as_one_piece(transport: Transport) -> None:
    ready = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"one ") + chunk(b"two ") + chunk(b"three"))
        await ready.wait()
        await peer.send(chunk(b"four") + b"0\r\n\r\n")

    async with serving(script) as server, aclosing((await get(transport, server)).iter_raw()) as reads:
        assert await anext(reads) == b"one two three"
        ready.set()
        assert [data async for data in reads] == [b"four"]


async def test_a_body_over_the_limit_is_refused_and_its_socket_closed(transport: Transport) -> None:
    async with serving(holding(CHUNKED + chunk(b"x" * 11))) as server:
        response = await get(transport, server)
        with pytest.raises(ProviderError, match="longer than 10 bytes"):
            await response.read(10)
        await server.wait_closed(1)


async def test_a_connection_is_used_again(transport: Transport) -> None:
    async with serving(answering(*[ok(b"x")] * 5)) as server:
        assert [await fetch(transport, server) for _ in range(5)] == [b"x"] * 5
        assert server.connections == 1


async def test_requests_at_the_same_time_have_connections_of_their_own(transport: Transport) -> None:
    meet = asyncio.Barrier(3)

    async def script(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
            await meet.wait()
            await peer.send(ok(b"%d" % peer.number))

    async with serving(script) as server:
        for _ in range(2):
            answers = await asyncio.gather(*(fetch(transport, server) for _ in range(3)))
            assert sorted(answers) == [b"1", b"2", b"3"]
        assert server.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        ok(b"x", "connection: close"),
        b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
        ok(b"x") + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged",
        ok(b"x") + b"junk",
    ],
)
async def test_a_connection_in_doubt_is_not_used_again(transport: Transport, answer: bytes) -> None:
    async with serving(answering(answer, answer)) as server:
        assert [await fetch(transport, server) for _ in range(3)] == [b"x"] * 3
        assert server.connections == 3


async def test_bytes_that_nobody_asked_for_close_a_resting_connection(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(ok(b"x"))
        await asyncio.sleep(0)
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
        await peer.gone()

    async with serving(script) as server:
        assert await fetch(transport, server) == b"x"
        await server.wait_closed(1)
        assert await fetch(transport, server) == b"x"
        assert server.connections == 2


async def test_a_request_on_a_stale_connection_is_sent_again_once(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number != 3:
            await peer.send(ok(b"%d" % peer.number))
            await peer.head()  # and closes without a word

    async with serving(script) as server:
        assert await fetch(transport, server) == b"1"
        assert await fetch(transport, server) == b"2"
        with pytest.raises(ProviderError, match="before it responded"):
            await fetch(transport, server)
        assert server.connections == 3


async def test_a_request_that_was_answered_in_part_is_not_sent_again(transport: Transport) -> None:
    async with serving(answering(ok(b"x"), b"HTTP")) as server:
        assert await fetch(transport, server) == b"x"
        with pytest.raises(ProviderError, match="before it responded"):
            await fetch(transport, server)
        assert server.connections == 1


async def test_head_has_no_body_and_keeps_the_connection(transport: Transport) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n"
    async with serving(answering(answer, ok(b"x"))) as server:
        response = await get(transport, server, "HEAD")
        assert (response.headers["content-length"], await response.read(0)) == ("1", b"")
        assert await fetch(transport, server) == b"x"
        assert server.connections == 1


async def test_cancelling_before_the_answer_closes_the_socket_at_once(transport: Transport) -> None:
    requested = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        requested.set()
        await peer.gone()

    async with serving(script) as server:
        task = asyncio.create_task(get(transport, server))
        await requested.wait()
        task.cancel()
        await server.wait_closed(1)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_cancelling_while_reading_closes_the_socket_at_once(transport: Transport) -> None:
    first = asyncio.Event()

    async def read(response: Response) -> None:
        async for _ in response.iter_raw():
            first.set()

    async with serving(holding(CHUNKED + chunk(b"x"))) as server:
        task = asyncio.create_task(read(await get(transport, server)))
        await first.wait()
        task.cancel()
        await server.wait_closed(1)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_leaving_an_unfinished_response_closes_the_socket_at_once(transport: Transport) -> None:
    async with serving(holding(CHUNKED + chunk(b"x"))) as server:
        (await get(transport, server)).abort()
        await server.wait_closed(1)
        await (await get(transport, server)).close()
        await server.wait_closed(2)
        async with await get(transport, server) as response:
            assert await anext(response.iter_raw()) == b"x"
        await server.wait_closed(3)
        with pytest.raises(ProviderError, match="read or closed"):
            await response.read(10)


async def test_leaving_a_finished_response_keeps_its_connection(transport: Transport) -> None:
    async with serving(answering(*[ok(b"x")] * 3)) as server:
        (await get(transport, server)).abort()
        await (await get(transport, server)).close()
        assert await fetch(transport, server) == b"x"
        assert server.connections == 1


async def test_a_request_waits_for_a_free_place() -> None:
    transport = Transport(max_connections_per_host=1)
    async with serving(answering(*[ok(b"x")] * 3)) as server:
        first = await get(transport, server)
        second = asyncio.create_task(fetch(transport, server))
        with pytest.raises(ProviderError, match=r"all 1 connections to .* stayed busy") as caught:
            await get(transport, server, timeouts=Timeouts(connect=0.05))
        assert (caught.value.category, caught.value.transient) == ("timeout", True)
        assert not second.done()
        assert await first.read(1) == b"x"
        assert await second == b"x"
        assert server.connections == 1
        await transport.close()


async def test_a_place_passes_on_when_the_request_that_has_just_got_it_is_cancelled() -> None:
    pool = HostPool(parse_url("http://localhost/")[0], None, slots=1, on_idle=lambda: None)
    pool.active = 1
    first, second = asyncio.create_task(pool.wait_for_slot()), asyncio.create_task(pool.wait_for_slot())
    await asyncio.sleep(0)
    pool.free_slot()
    first.cancel()
    await second
    assert first.cancelled()
    pool.free_slot()
    assert pool.active == 0


async def test_a_cancelled_or_failed_request_gives_its_place_back() -> None:
    transport = Transport(max_connections_per_host=1)
    requested = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        requested.set()
        if peer.number == 1:
            await peer.gone()
        if peer.number > 2:
            await peer.send(ok(b"x"))

    async with serving(script) as server:
        first = asyncio.create_task(fetch(transport, server))
        await requested.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(ProviderError):
            await fetch(transport, server)
        assert await fetch(transport, server) == b"x"
        await transport.close()


async def test_closing_the_transport_closes_every_socket(transport: Transport) -> None:
    async with serving(holding(CHUNKED + chunk(b"x"))) as server:
        waiting = await get(transport, server)
        reading = asyncio.create_task(waiting.read(10))
        await get(transport, server)
        await transport.close()
        with pytest.raises(ProviderError) as caught:
            await reading
        assert caught.value.category == "cancelled"
        await server.wait_closed(2)


async def test_nothing_shows_what_was_sent(transport: Transport) -> None:
    async with serving(holding(CHUNKED + chunk(b"x"))) as server:
        body = SECRET.encode()
        response = await transport.send("POST", f"{server.url}/{SECRET}", headers={"k": SECRET}, body=body)
        shown = [repr(response), *map(repr, vars(response).values()), repr(transport)]
        reading = asyncio.create_task(response.read(10))
        await asyncio.sleep(0)
        await transport.close()
        with pytest.raises(ProviderError) as caught:
            await reading
        assert SECRET not in "".join([*shown, repr(caught.value), str(caught.value)])


async def test_a_refused_connection_names_the_server(transport: Transport) -> None:
    with (
        refusing_port() as port,
        pytest.raises(ProviderError, match=rf"cannot connect to 127\.0\.0\.1:{port}: ") as caught,
    ):
        async with asyncio.timeout(LIMIT):
            await get(transport, Server(port))
    assert (caught.value.category, caught.value.transient) == ("network", True)
