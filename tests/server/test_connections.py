"""The server before a key is known: request heads, deadlines and numbers of connections, over raw sockets."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from dragoman.http.asgi_exchange import Exchange
from dragoman.http.disconnect import DisconnectWatch
from dragoman.server.http.connection_limits import NEVER, BurstLog, ConnectionLimits, ConnectionTable
from dragoman.server.http.listener import build_server
from tests.waiting import LIMIT, until

GET = b"GET / HTTP/1.1\r\nhost: hub\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: hub\r\ncontent-length: %d\r\n\r\n"


class App:
    """An app that reads the body of a request and answers with its length; `gate` holds answers back."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.reads_body = True
        self.requests = 0
        self.disconnects = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        size, more = 0, self.reads_body
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        await self.gate.wait()
        body = str(size).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class WatchingApp(App):
    """An app that answers nobody, and counts the clients that disconnect meanwhile."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        if self.reads_body:  # then the server calls back, else a task has to watch
            await receive()
        with DisconnectWatch(Exchange(scope, receive, send), at_once=True) as watch:
            await self.gate.wait()
        self.disconnects += watch.disconnected


class Site:
    """A server of an app, and raw connections to it."""

    def __init__(self, app: App, port: int) -> None:
        self.app = app
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which this is sent, its beginning before the server can know of the connection."""
        client = socket.create_connection(("127.0.0.1", self.port))
        client.setblocking(False)
        begun = client.send(sent) if sent else 0
        reader, writer = await asyncio.open_connection(sock=client)
        self._writers.append(writer)
        writer.write(sent[begun:])
        return reader, writer

    async def ask(self, sent: bytes) -> bytes:
        """All that the server answers until it closes."""
        reader, _ = await self.connect(sent)
        return await until_closed(reader)

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server closes the connection, however it does."""
    parts = []
    async with asyncio.timeout(LIMIT):
        try:
            while part := await reader.read(65_536):
                parts.append(part)
        except ConnectionError:
            pass
    return b"".join(parts)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


@asynccontextmanager
async def site(**limits: Any) -> AsyncIterator[Site]:
    app: App = limits.pop("app", None) or App()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    server = build_server(app, ConnectionLimits(**{"idle_timeout": 0.2, **limits}))
    await server.startup(sockets=[listener])
    served = Site(app, listener.getsockname()[1])
    try:
        yield served
    finally:
        app.gate.set()
        await served.close()
        server.force_exit = True
        await server.shutdown(sockets=[listener])


LONG = b"x" * 70_000
HEADS: Sequence[tuple[str, bytes, int]] = [
    ("a long path", b"GET /" + LONG + b" HTTP/1.1\r\nhost: hub\r\n\r\n", 414),
    ("a long query", b"GET /?q=" + LONG + b" HTTP/1.1\r\nhost: hub\r\n\r\n", 414),
    ("a request line without an end", b"GET /" + LONG * 20, 414),
    ("a long value", b"GET / HTTP/1.1\r\nx: " + LONG + b"\r\n\r\n", 431),
    ("a long name", b"GET / HTTP/1.1\r\n" + LONG + b": x\r\n\r\n", 431),
    ("a value without an end", b"GET / HTTP/1.1\r\nx: " + LONG * 20, 431),
    ("many headers", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 300 + b"\r\n", 431),
    ("many long headers", b"GET / HTTP/1.1\r\n" + (b"x: " + b"y" * 5_000 + b"\r\n") * 20 + b"\r\n", 431),
    (
        "a long trailer",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx: " + LONG + b"\r\n\r\n",
        431,
    ),
    (
        "a chunk extension without an end",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;" + LONG * 20,
        431,
    ),
    ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ("no target", b"GET HTTP/1.1\r\n\r\n", 400),
    ("two lengths", b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx", 400),
    (
        "a length and chunks",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n",
        400,
    ),
    ("a target without a host", b"CONNECT :99999999 HTTP/1.1\r\n\r\n", 400),
]


@pytest.mark.parametrize(("sent", "expected"), [row[1:] for row in HEADS], ids=[row[0] for row in HEADS])
async def test_a_head_that_is_too_large_or_invalid_is_refused_with_its_status(
    sent: bytes, expected: int
) -> None:
    async with site() as at:
        answer = await at.ask(sent)
        assert status(answer) == expected, answer[:200]
        assert b"connection: close" in answer
        assert b'{"error":{"code":' in answer


async def test_a_head_is_measured_the_same_in_one_piece_and_byte_by_byte() -> None:
    async with site(head=200, headers=20) as at:
        for sent, expected in [(GET, 200), (b"GET / HTTP/1.1\r\nx: " + b"y" * 300 + b"\r\n\r\n", 431)]:
            reader, writer = await at.connect()
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at_byte in range(len(sent)):
                writer.write(sent[at_byte : at_byte + 1])
                await asyncio.sleep(0)
            assert status(await until_closed(reader)) == expected


async def test_a_header_of_100_mb_costs_little() -> None:
    async with site() as at:
        reader, writer = await at.connect(b"GET / HTTP/1.1\r\nx: ")
        answer = asyncio.ensure_future(until_closed(reader))
        used, piece, sent = time.process_time(), b"y" * 1_000_000, 0
        try:
            while sent < 100 and not answer.done():
                writer.write(piece)
                sent += 1
                await writer.drain()
        except ConnectionError:
            pass
        assert status(await answer) == 431
        assert sent < 20  # nobody reads the rest
        assert time.process_time() - used < 2


async def test_slow_heads_bodies_and_idle_connections_are_closed_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = {"head_timeout": 1.0, "body_timeout": 1.0, "idle_timeout": 1.0}  # a busy loop reads within these
    kinds = {
        "no byte": b"",
        "half a head": b"GET / HTTP/1.1\r\nx:",
        "empty lines": b"\r\n\r\n",
        "half a body": POST % 1_000_000 + b"x",
        "nothing more": GET,
        "half of a second head": GET + b"GET /",
        "an empty line after an answer": GET + b"\r\n",
    }
    with caplog.at_level(logging.WARNING):
        async with site(**limits) as at:
            opened = [await at.connect(sent) for sent in kinds.values() for _ in range(10)]
            answers = await asyncio.gather(*(until_closed(reader) for reader, _ in opened))
            found = {kind: {status(each) for each in answers[n * 10 :][:10]} for n, kind in enumerate(kinds)}
            assert found == {
                "no byte": {0},
                "half a head": {408},
                "empty lines": {0},
                "half a body": {408},
                "nothing more": {200},
                "half of a second head": {200},
                "an empty line after an answer": {200},
            }
            await until(lambda: at.app.disconnects == 10)  # the handlers of half bodies have ended
    lines = [record.message for record in caplog.records]
    assert len(lines) == len(set(lines)) == 2, lines


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nx: ", POST % 1_000_000, GET + b"GET / HTTP/1.1\r\nx: "])
async def test_a_byte_now_and_then_does_not_move_the_deadline(sent: bytes) -> None:
    async with site(head_timeout=0.2, body_timeout=0.2, idle_timeout=0.2, body_rate=1_000_000) as at:
        reader, writer = await at.connect(sent)

        async def drip() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        try:
            assert status(await until_closed(reader)) in (200, 408)
        finally:
            dripping.cancel()


async def test_a_body_that_the_app_does_not_read_yet_and_a_slow_answer_have_no_deadline() -> None:
    async with site(head_timeout=0.05, body_timeout=0.05, idle_timeout=0.05) as at:
        at.app.gate.clear()
        at.app.reads_body = False
        sent = (GET, POST % 1_000_000 + b"x" * 1_000_000)
        # They read from now on: a reset behind a response would take it from one that reads later.
        waiting = [asyncio.ensure_future(until_closed((await at.connect(each))[0])) for each in sent]
        probe, _ = await at.connect(b"GET /")
        assert status(await until_closed(probe)) == 408  # so the deadlines of the others have passed
        at.app.gate.set()
        assert [status(answer) for answer in await asyncio.gather(*waiting)] == [200, 200]


async def test_pipelined_requests_are_answered_in_order_up_to_a_number() -> None:
    async with site() as at:
        at.app.gate.clear()
        reader, _ = await at.connect(b"".join(POST % n + b"x" * n for n in range(1, 9)) + GET)
        at.app.gate.set()
        seen = b""
        while seen.count(b"HTTP/1.1 200") < 9:
            seen += await reader.read(65_536)
        assert [int(part.split(b"\r\n\r\n")[1]) for part in seen.split(b"HTTP/1.1 200 OK")[1:]] == [
            *range(1, 9),
            0,
        ]
        answer = await at.ask(GET * 14_000)
        assert 2 <= answer.count(b"HTTP/1.1 200") == at.app.requests - 9 <= 20
        assert answer.count(b"connection: close") == 1


@pytest.mark.parametrize("is_at_once", [True, False])
@pytest.mark.parametrize(
    ("rejected", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"GET / HTTP/1.1\r\nx: " + LONG + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: ", 408),
        (b"POST / HTTP/1.1\r\nhost: hub\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\nno\r\n", 400),
    ],
    ids=["garbage", "a long head", "a head without an end", "a broken body"],
)
@pytest.mark.parametrize("count", [1, 3])
async def test_complete_requests_are_answered_before_what_is_rejected_behind_them(
    count: int, rejected: bytes, expected: int, is_at_once: bool
) -> None:
    async with site(head_timeout=1.0) as at:  # a busy loop reads within it
        at.app.gate.clear()
        reader, writer = await at.connect(GET * count + (rejected if is_at_once else b""))
        await until(lambda: at.app.requests == 1)
        if not is_at_once:
            writer.write(rejected)
        assert status(await at.ask(b"GET / HTTP/1.1\r\nx: ")) == 408  # the deadline has passed there as well
        at.app.gate.set()
        answer = await until_closed(reader)
        statuses = [status(b"HTTP/1.1 " + part) for part in answer.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [200] * count + [expected]
        assert at.app.requests == count
        assert answer.count(b"connection: close") == 1


async def test_what_follows_the_last_request_of_a_connection_is_ignored() -> None:
    async with site() as at:
        answer = await at.ask(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + b"\x16\x03")
        assert (status(answer), answer.count(b"HTTP/1.1 "), at.app.requests) == (200, 1, 1)


async def test_a_client_that_leaves_with_a_rejected_request_behind_its_first_has_left() -> None:
    async with site(app=WatchingApp()) as at:
        at.app.gate.clear()
        _, writer = await at.connect(GET + b"\x16\x03\x01")
        await until(lambda: at.app.requests == 1)
        writer.transport.abort()
        await until(lambda: at.app.disconnects == 1)


@pytest.mark.parametrize("reads_body", [True, False])
async def test_a_client_that_leaves_with_requests_waiting_behind_its_first_has_left(
    reads_body: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(app=WatchingApp()) as at:
        at.app.gate.clear()
        at.app.reads_body = reads_body
        _, writer = await at.connect(GET)
        await until(lambda: at.app.requests == 1)
        writer.write(GET * 2)
        _, probe = await at.connect(GET)  # by then the server has read the others
        await until(lambda: at.app.requests == 2)
        writer.transport.abort()
        await until(lambda: at.app.disconnects == 1)
        probe.transport.abort()
        await until(lambda: at.app.disconnects == 2)
        assert at.app.requests == 2
    assert "Exception" not in caplog.text


async def test_a_full_server_closes_the_connection_that_waits_longest_and_serves_the_new_one() -> None:
    async with site(connections=8) as at:
        slow = [await at.connect(b"GET / HTTP/1.1\r\nx: ") for _ in range(8)]
        assert status(await at.ask(GET + GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))) == 200
        assert await until_closed(slow[0][0]) == b""


async def test_a_server_full_of_requests_refuses_with_503_and_says_when_to_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site(connections=4) as at:
        at.app.gate.clear()
        busy = [await at.connect(GET) for _ in range(4)]
        await until(lambda: at.app.requests == 4)
        refused = [await at.ask(b"") for _ in range(20)]
        assert {status(each) for each in refused} == {503}
        assert all(b"retry-after: 1" in each for each in refused)
        at.app.gate.set()
        for reader, _ in busy:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        answer = await at.ask(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert status(answer) == 200
    assert len([record for record in caplog.records if "4 connections are open" in record.message]) == 1


# ---- the table of connections, without a server -----------------------------------------------------------


class Guest:
    """A connection of a client at an address."""

    def __init__(self, address: str, since: float | None = None) -> None:
        self.address = address
        self.deadline = NEVER
        self.waiting_since = since
        self.evicted = False

    def expire(self, now: float) -> None:
        self.deadline = NEVER

    def evict(self) -> None:
        self.evicted = True


@pytest.mark.parametrize(
    ("addresses", "admitted"),
    [
        (["192.0.2.1"] * 5, 3),
        (["192.0.2.1", "::ffff:192.0.2.1"] * 2, 3),
        ([f"192.0.2.{n}" for n in range(5)], 5),
        ([f"2001:db8::{n}" for n in range(5)], 3),  # one network of a host
        ([f"2001:db8:0:{n}::1" for n in range(5)], 5),
        (["127.0.0.1"] * 5, 5),
        (["::1"] * 5, 5),
        (["10.1.2.3"] * 5, 5),
        ([""] * 5, 5),  # a Unix socket
    ],
)
async def test_connections_are_counted_by_address_where_it_is_one_client(
    addresses: list[str], admitted: int
) -> None:
    shared = ("127.0.0.0/8", "::1", "10.0.0.0/8")
    table = ConnectionTable(ConnectionLimits(per_address=3, shared_addresses=shared))
    guests = [Guest(address) for address in addresses]
    refusals = [table.add(guest) for guest in guests]
    assert refusals.count(None) == admitted
    for guest in guests:
        table.remove(guest)
        table.remove(guest)
    assert (len(table), table.refused) == (0, 0)
    assert [table.add(Guest(address)) for address in addresses].count(None) == admitted


async def test_an_address_makes_room_by_its_own_waiting_connections_only() -> None:
    table = ConnectionTable(ConnectionLimits(per_address=2))
    other, first, second = Guest("192.0.2.9", since=0.0), Guest("192.0.2.1", 1.0), Guest("192.0.2.1", 2.0)
    third = Guest("192.0.2.1")
    assert [table.add(each) for each in (other, second, first, third)] == [None] * 4
    assert [each.evicted for each in (other, first, second, third)] == [False, True, False, False]
    second.waiting_since = None  # it has a request now
    assert "http.per_address" in (table.add(Guest("192.0.2.1")) or "")


def test_a_burst_is_two_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    burst = BurstLog(lambda: now[0])
    for _ in range(300):
        burst.add("why", "192.0.2.1")
    burst.flush()
    now[0] = 61.0
    burst.flush()
    burst.flush()
    assert [record.message for record in caplog.records] == [
        "refused a connection from 192.0.2.1: why",
        "refused 299 more connections within 61 s: why",
    ]
