"""Where a response ends for its client: by its length, by chunks, or by the end of the connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence

import pytest
from starlette.types import Receive, Scope, Send

from dragoman.http.asgi_exchange import WHOLE_RESPONSE
from dragoman.server.http.connection_limits import ConnectionLimits
from dragoman.server.http.listener import build_server

Headers = Sequence[tuple[bytes, bytes]]
LENGTH: Headers = [(b"content-length", b"4")]
CHUNKS = b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"


async def exchange(
    request: bytes,
    headers: Headers = (),
    *,
    status: int = 200,
    bodies: Sequence[bytes] = (b"ab", b"cd", b""),
    whole: Mapping[str, object] | None = None,
) -> tuple[bytes, bytes]:
    """Return the head, in lower case, and the rest of what a server sends until it closes the connection.

    `whole` is the response as one message.
    """

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if whole is not None:
            assert WHOLE_RESPONSE in scope["extensions"]
            await send({"type": WHOLE_RESPONSE, **whole})
            return
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for at, body in enumerate(bodies, start=1):
            await send({"type": "http.response.body", "body": body, "more_body": at < len(bodies)})

    listener = socket.create_server(("127.0.0.1", 0))
    server = build_server(app, ConnectionLimits(idle_timeout=0.05))
    await server.startup(sockets=[listener])
    try:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(request)
        answer = await reader.read()
        writer.close()
    finally:
        await server.shutdown(sockets=[listener])
    head, _, rest = answer.partition(b"\r\n\r\n")
    return head.lower(), rest


def request(method: str = "GET", version: str = "1.1", *headers: str) -> bytes:
    return "\r\n".join([f"{method} / HTTP/{version}", "host: hub", *headers, "", ""]).encode()


@pytest.mark.parametrize(
    ("sent", "headers", "body", "shown"),
    [
        (request(), LENGTH, b"abcd", {"content-length": "4", "connection": None, "transfer-encoding": None}),
        (request(), (), CHUNKS, {"transfer-encoding": "chunked", "connection": None}),
        (request("GET", "1.1", "connection: close"), (), CHUNKS, {"connection": "close"}),
        (request("GET", "1.0"), (), b"abcd", {"connection": "close", "transfer-encoding": None}),
        (request("GET", "1.0", "connection: keep-alive"), (), b"abcd", {"connection": "close"}),
        (request("GET", "1.0"), LENGTH, b"abcd", {"content-length": "4", "connection": "close"}),
        (request("HEAD"), LENGTH, b"", {"content-length": "4"}),
        (request("HEAD"), (), b"", {"transfer-encoding": None}),
        (request(), [(b"connection", b"Close")], CHUNKS, {"connection": "close"}),
    ],
)
async def test_a_client_is_told_where_a_response_ends(
    sent: bytes, headers: Headers, body: bytes, shown: dict[str, str | None]
) -> None:
    head, rest = await exchange(sent, headers)
    lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:]]
    assert rest == body
    for name, value in shown.items():
        assert [text for key, text in lines if key == name] == ([] if value is None else [value]), lines


@pytest.mark.parametrize(
    ("sent", "status", "body", "shown"),
    [
        (request(), 200, b"abcd", {"content-length": "4", "x-one": "ä", "connection": None}),
        (request("HEAD"), 200, b"", {"content-length": "4", "x-one": "ä"}),
        (request("GET", "1.0"), 200, b"abcd", {"content-length": "4", "connection": "close"}),
        (request("GET", "1.1", "connection: close"), 500, b"abcd", {"connection": "close"}),
        (request(), 204, b"", {"content-length": None, "transfer-encoding": None, "x-one": None}),
    ],
)
async def test_a_response_in_one_message_is_sent_as_in_two(
    sent: bytes, status: int, body: bytes, shown: dict[str, str | None]
) -> None:
    headers, whole = ({}, b"") if status == 204 else ({"x-one": "ä"}, b"abcd")
    head, rest = await exchange(sent, whole={"status": status, "headers": headers, "body": whole})
    lines = [line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:]]
    assert (head[:13], rest) == (b"http/1.%d %d " % (1, status), body)
    for name, value in shown.items():
        assert [text for key, text in lines if key == name] == ([] if value is None else [value]), lines


@pytest.mark.parametrize("bad", ["a\r\nset-cookie: x", "a\nb", "a\x00b", "a\x7fb"])
async def test_a_response_in_one_message_has_no_header_that_http_does_not_allow(bad: str) -> None:
    head, _ = await exchange(request(), whole={"status": 200, "headers": {"x-bad": bad}, "body": b""})
    assert head.startswith(b"http/1.1 500")
    assert b"x-bad" not in head


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_has_no_framing(status: int) -> None:
    head, rest = await exchange(request(), status=status, bodies=[b""])
    assert head.startswith(b"http/1.1 %d" % status)
    assert b"transfer-encoding" not in head
    assert rest == b""


@pytest.mark.parametrize("bad", [b"a\r\nset-cookie: x", b"a\nb", b"a\x00b", b"a\x7fb"])
@pytest.mark.parametrize("place", ["name", "value"])
async def test_a_header_that_would_end_early_is_an_error_and_not_sent(bad: bytes, place: str) -> None:
    header = (bad, b"v") if place == "name" else (b"n", bad)
    head, _ = await exchange(request(), [header])
    assert head.startswith(b"http/1.1 500")
    assert b"set-cookie" not in head


@pytest.mark.parametrize("bodies", [[b"abc"], [b"abcde"], [b"ab", b"cde", b""]])
async def test_a_body_that_is_not_of_its_length_ends_the_connection(bodies: Sequence[bytes]) -> None:
    _, rest = await exchange(request() * 2, LENGTH, bodies=bodies)
    assert len(rest) < 5
    assert b"http/1.1" not in rest.lower()


async def test_text_of_other_alphabets_in_a_header_keeps_its_bytes() -> None:
    head, _ = await exchange(request(), [(b"x-name", "größe\tß".encode("latin-1"))])
    assert "größe\tß".encode("latin-1") in head
