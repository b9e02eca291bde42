"""The response parser gives the same however its bytes are split."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.errors import WireError
from dragoman.http import response_parser
from dragoman.http.response_parser import HEAD_LIMIT, MAX_TAKE, ResponseParser

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nX-Two: a\r\nx-two: b\r\nX-Empty:\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;note=x\r\nhello\r\n7\r\n, world\r\n0\r\nx-trailer: t\r\n\r\n"
)
LENGTH = b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nwait"
OPEN = b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nuntil the end"
INTERIM = b"HTTP/1.1 100 Continue\r\nx-no: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + LENGTH
BARE = b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n"

CASES = {
    "chunked": (
        CHUNKED,
        (200, {"x-two": "a, b", "x-empty": "", "transfer-encoding": "chunked"}, b"hello, world", True),
    ),
    "of a known length": (LENGTH, (429, {"content-length": "4"}, b"wait", True)),
    "that ends with the connection": (OPEN, (200, {"server": "old"}, b"until the end", False)),
    "after interim ones": (INTERIM, (429, {"content-length": "4"}, b"wait", True)),
    "without a body": (BARE, (204, {"x": "y"}, b"", True)),
}


def parse(*pieces: bytes) -> tuple[int, dict[str, str], bytes, bool]:
    """Status, headers, body, and whether the connection can go on."""
    incoming = ResponseParser()
    body = b""
    for piece in pieces:
        incoming.feed(piece)
        body += incoming.take_body()
    incoming.connection_closed(cleanly=True)
    assert incoming.complete
    assert not incoming.extra_data
    return incoming.status, incoming.headers, body, incoming.keep_alive


@pytest.mark.parametrize("case", CASES)
def test_a_response_is_the_same_however_it_is_cut(case: str) -> None:
    raw, expected = CASES[case]
    assert parse(raw) == expected
    assert parse(*(raw[at : at + 1] for at in range(len(raw)))) == expected
    for at in range(len(raw)):
        assert parse(raw[:at], raw[at:]) == expected


@pytest.mark.parametrize("case", [case for case in CASES if case != "that ends with the connection"])
def test_a_response_cut_short_anywhere_is_an_error(case: str) -> None:
    raw, _ = CASES[case]
    for at in range(len(raw)):
        incoming = ResponseParser()
        incoming.feed(raw[:at])
        with pytest.raises(WireError, match="closed the connection"):
            incoming.connection_closed(cleanly=True)


def test_an_open_ended_body_is_an_error_only_when_the_connection_broke() -> None:
    incoming = ResponseParser()
    incoming.feed(OPEN)
    with pytest.raises(WireError, match="in the middle of its response"):
        incoming.connection_closed(cleanly=False)
    incoming.connection_closed(cleanly=True)
    assert (incoming.complete, incoming.keep_alive) == (True, False)


@pytest.mark.parametrize("framing", [b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b""])
def test_an_answer_to_head_ends_with_its_head(framing: bytes) -> None:
    incoming = ResponseParser(no_body=True)
    incoming.feed(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n")
    assert (incoming.status, incoming.complete, incoming.extra_data) == (200, True, False)


@pytest.mark.parametrize("more", [b"x", b"HTTP/1.1 200 OK\r\n", LENGTH])
def test_bytes_after_the_end_are_noticed(more: bytes) -> None:
    together, apart = ResponseParser(), ResponseParser()
    together.feed(LENGTH + more)
    apart.feed(LENGTH)
    apart.feed(more)
    for incoming in (together, apart):
        assert (incoming.take_body(), incoming.complete, incoming.extra_data) == (b"wait", True, True)


def test_a_read_of_many_pieces_calls_no_function_for_each() -> None:
    """A model's stream has a piece for each token."""
    incoming = ResponseParser()
    incoming.feed(CHUNKED.partition(b"5;")[0])
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        """Note a call of the parser's; the garbage collector may call others at any time."""
        if event == "call" and frame.f_code.co_filename == response_parser.__file__:
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        incoming.feed(b"5\r\nhello\r\n" * 100)
    finally:
        sys.setprofile(None)
    assert calls == ["feed", "_count_body"]
    assert (incoming.buffered, incoming.take_body()) == (500, b"hello" * 100)


@pytest.mark.parametrize("ending", ["connection: close", "connection: Close, x"])
def test_a_connection_that_the_server_will_close_cannot_go_on(ending: str) -> None:
    *_, persistent = parse(f"HTTP/1.1 200 OK\r\n{ending}\r\ncontent-length: 1\r\n\r\nx".encode())
    assert not persistent


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"<html>hello</html>",
    b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\n\r\n",
    b"HTTP/1.1 000 None\r\n\r\n",
]


@pytest.mark.parametrize("raw", GARBAGE)
def test_garbage_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        ResponseParser().feed(raw)


ENDLESS = {
    "one header": (b"HTTP/1.1 200 OK\r\nx: ", b"a" * 1000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 100),
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
    "a chunk's extension": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", b"a" * 1000),
    "a trailer": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: ", b"a" * 1000),
}


def feed_all(incoming: ResponseParser, pieces: list[bytes]) -> None:
    for piece in pieces:
        incoming.feed(piece)


@pytest.mark.parametrize("case", ENDLESS)
def test_a_server_cannot_make_us_keep_endless_headers(case: str) -> None:
    start, more = ENDLESS[case]
    incoming = ResponseParser()
    incoming.feed(start)
    with pytest.raises(WireError, match=f"more than {HEAD_LIMIT} bytes"):
        feed_all(incoming, [more] * (2 * HEAD_LIMIT // len(more)))


def test_a_large_head_in_one_read_is_refused_and_a_large_body_is_not() -> None:
    head = b"HTTP/1.1 200 OK\r\nx: %b\r\ncontent-length: 1\r\n\r\n"
    with pytest.raises(WireError, match="headers"):
        ResponseParser().feed(head % (b"a" * HEAD_LIMIT) + b"b")
    incoming = ResponseParser()
    incoming.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n" + b"b" * 300_000)
    assert (incoming.complete, incoming.buffered) == (True, 300_000)


@given(st.lists(st.binary(max_size=40) | st.sampled_from([CHUNKED, LENGTH, INTERIM, OPEN]), max_size=6))
@example([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"\0"])
def test_whatever_comes_it_is_a_response_or_a_wire_error(pieces: list[bytes]) -> None:
    incoming = ResponseParser()
    try:
        feed_all(incoming, pieces)
        incoming.connection_closed(cleanly=True)
    except WireError:
        return
    assert incoming.complete
    assert incoming.status >= 200


@given(st.integers(0, len(CHUNKED) - 1), st.integers(0, 255), st.integers(0, len(CHUNKED)))
def test_a_damaged_response_never_breaks_the_reader(at: int, byte: int, cut: int) -> None:
    raw = CHUNKED[:at] + bytes([byte]) + CHUNKED[at + 1 :]
    incoming = ResponseParser()
    try:
        feed_all(incoming, [raw[:cut], raw[cut:]])
        incoming.connection_closed(cleanly=True)
    except WireError:
        return
    assert incoming.complete


@given(st.lists(st.binary(min_size=1, max_size=3 * MAX_TAKE), max_size=5), st.integers(0, 3))
@example([b"x" * MAX_TAKE, b"y", b"z" * (2 * MAX_TAKE + 1)], 2)
def test_a_long_body_is_handed_out_in_parts(pieces: list[bytes], taken_between: int) -> None:
    incoming = ResponseParser()
    incoming.feed(b"HTTP/1.1 200 OK\r\n\r\n")
    parts: list[bytes] = []
    for piece in pieces:
        incoming.feed(piece)
        parts += [incoming.take_body() for _ in range(taken_between)]
    while incoming.buffered:
        parts.append(incoming.take_body())
    assert b"".join(parts) == b"".join(pieces)
    assert all(type(part) is bytes and len(part) <= MAX_TAKE for part in parts)
