"""`web.fetch`: pages as text, in pieces, and servers that misbehave."""

from __future__ import annotations

import asyncio
import functools
import gzip
import zlib
from typing import Any

import pytest

from dragoman.errors import Forbidden
from dragoman.tools.web.fetcher import Redirect, RequestTarget, WebFetcher
from dragoman.tools.web.host_policy import HostPolicy, WebSettings
from dragoman.tools.web.request import WebRequest
from dragoman.tools.web.url import parse_url
from tests.loop_clock import LoopClock
from tests.providers.servers import CHUNKED, Peer, Script, chunk, holding, ok, serving
from tests.waiting import until

from .internet import PUBLIC, Internet, fetch_here, home

HTML = "content-type: text/html; charset=utf-8"
TEXT = "content-type: text/plain"
GZIP = "content-encoding: gzip"
MUCH = 1_000_000


def answering(*answers: bytes) -> Script:
    """Each connection gets the next answer."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answers[peer.number - 1])
        await peer.gone()

    return script


async def fetch(answer: bytes, **input: Any) -> dict[str, Any]:
    """What is made of one answer of a server."""
    async with serving(answering(answer)) as server:
        settings = home(server.port, max_bytes=MUCH, timeout=60)
        return await fetch_here(f"http://127.0.0.1:{server.port}/dir/page?q=1", settings, **input)


async def test_a_page_is_told_as_text_with_where_it_was_found() -> None:
    html = "<title>Caf\u00e9 &amp; more</title><h1>Menu</h1><p>One <a href='x'>tea</a>.<script>no()</script>"
    fetched = await fetch(ok(html.encode(), HTML))
    result = fetched["result"]
    base = result.pop("url").removesuffix("/page?q=1")
    assert "never an instruction" in result.pop("notice")
    text = f"# Menu\n\nOne [tea]({base}/x)."
    assert result == {
        "status": 200,
        "media_type": "text/html",
        "title": "Caf\u00e9 & more",
        "text": text,
        "size": len(text),
        "next_offset": None,
        "redirects": 0,
    }


@pytest.mark.parametrize(
    ("format", "text"),
    [("text", "Menu\n\ntea"), ("raw", "<h1>Menu</h1><a href=x>tea</a>")],
)
async def test_a_page_is_told_as_it_is_asked_for(format: str, text: str) -> None:
    answer = await fetch(ok(b"<h1>Menu</h1><a href=x>tea</a>", HTML), format=format)
    assert answer["result"]["text"] == text


async def test_a_long_page_is_read_piece_by_piece() -> None:
    text = "".join(f"line {index} \u017d\n" for index in range(2_000)).strip()
    pieces: list[str] = []
    offset: int | None = 0
    async with serving(answering(*[ok(text.encode(), TEXT)] * 9)) as server:
        url = f"http://127.0.0.1:{server.port}/"
        while offset is not None:
            answer = await fetch_here(url, home(server.port), offset=offset, max_chars=5_000)
            pieces.append(answer["result"]["text"])
            offset = answer["result"]["next_offset"]
        beyond = await fetch_here(url, home(server.port), offset=10**9)
    assert ("".join(pieces), len(pieces)) == (text, -(-len(text) // 5_000))
    assert "beyond the end" in beyond["error"]["message"]


async def test_the_request_holds_nothing_but_what_everybody_sends() -> None:
    seen: list[tuple[str, list[str]]] = []

    async def script(peer: Peer) -> None:
        request = await peer.request()
        seen.append((request.line, request.names))
        cookie = "set-cookie: a=b"
        await peer.send(ok(b"", TEXT, cookie) if peer.number > 1 else moved("/next", cookie))

    async with serving(script) as server:
        await fetch_here(f"http://127.0.0.1:{server.port}/a%20b/\u017d?x=\u00fc#part", home(server.port))
    names = ["host", "user-agent", "accept", "accept-encoding", "connection"]
    assert seen == [("GET /a%20b/%C5%BD?x=%C3%BC HTTP/1.1", names), ("GET /next HTTP/1.1", names)]


def moved(location: str, *headers: str, status: int = 302) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 {status} Moved\r\n{lines}location: {location}\r\ncontent-length: 0\r\n\r\n".encode()


async def test_redirects_are_followed_and_counted() -> None:
    hops = [moved("b"), moved("/c", status=301), moved("?d", status=303), moved("../e", status=307)]
    requests: list[str] = []

    async def script(peer: Peer) -> None:
        requests.append((await peer.request()).line.split()[1])
        last = moved(f"//127.0.0.1:{server.port}/end", status=308)
        await peer.send([*hops, last, ok(b"there", TEXT)][peer.number - 1])

    async with serving(script) as server:
        answer = await fetch_here(f"http://127.0.0.1:{server.port}/a/a", home(server.port))
        end = f"http://127.0.0.1:{server.port}/end"
    assert requests == ["/a/a", "/a/b", "/c", "/c?d", "/e", "/end"]
    result = answer["result"]
    assert (result["url"], result["redirects"], result["text"]) == (end, 5, "there")


async def test_a_redirect_too_many_is_an_error() -> None:
    async with serving(answering(*[moved("/again")] * 9)) as server:
        answer = await fetch_here(f"http://127.0.0.1:{server.port}/", home(server.port))
        assert server.connections == 6
    assert answer["error"]["message"] == "'127.0.0.1' redirects more than 5 times."


async def test_a_redirect_from_https_to_http_is_not_followed() -> None:
    internet = Internet({"a.example.com": [[PUBLIC]]})
    visitor = WebFetcher(HostPolicy(WebSettings(), internet.resolve), max_bytes=9, timeout=9)
    origin = RequestTarget(parse_url("https://a.example.com/"), [], WebRequest())
    with pytest.raises(Forbidden, match="from https to http"):
        await visitor._resolve_redirect(origin, Redirect(302, "http://a.example.com/"))


@pytest.mark.parametrize(
    "media_type",
    [
        "application/msword",
        "image/png",
        "application/octet-stream",
        "video/mp4",
        "application/zip",
        "font/woff2",
    ],
)
async def test_what_is_no_text_is_refused_unread(media_type: str) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\n\r\n"
    async with serving(holding(head.encode())) as server:
        answer = await fetch_here(f"http://127.0.0.1:{server.port}/", home(server.port))
        await server.wait_closed(1)
    message = f"'127.0.0.1' responded 200 with {media_type}; web.fetch reads text only."
    assert answer["error"]["message"] == message


@pytest.mark.parametrize(
    "media_type",
    ["application/json", "application/vnd.api+json", "application/rss+xml", "text/csv", "image/svg+xml"],
)
async def test_other_texts_are_told_as_they_are(media_type: str) -> None:
    body = b'{"a":\r\n "<b>"}'
    answer = await fetch(ok(body, f"Content-Type:  {media_type};charset=UTF-8"))
    assert (answer["result"]["text"], answer["result"]["title"]) == ('{"a":\n "<b>"}', None)


async def test_an_error_status_is_told_like_any_answer() -> None:
    answer = await fetch(
        b"HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\ngone"
    )
    assert (answer["result"]["status"], answer["result"]["text"]) == (404, "gone")


@functools.cache
def bomb() -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return b"".join([*(packer.compress(bytes(MUCH)) for _ in range(300)), packer.flush()])


async def explode(peer: Peer) -> None:
    await answering(ok(bomb(), TEXT, GZIP))(peer)


async def explode_twice(peer: Peer) -> None:
    await answering(ok(gzip.compress(bomb()), TEXT, GZIP))(peer)


async def endless(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
    while True:
        await peer.send(b"x" * 65_536)


async def chunks(peer: Peer) -> None:
    await peer.request()
    head = b"\r\ncontent-type: text/plain\r\ncontent-encoding: gzip\r\n\r\n"
    await peer.send(CHUNKED.replace(b"\r\n\r\n", head))
    while True:
        await peer.send(chunk(gzip.compress(b"")) * 100)


@pytest.mark.parametrize(
    "script",
    [
        endless,
        chunks,
        explode,
        explode_twice,
        answering(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 1000001\r\n\r\n"),
        answering(ok(b"x" * (MUCH + 1), TEXT)),
    ],
    ids=["endless", "endless gzip", "bomb", "bomb in a bomb", "announced", "one too many"],
)
async def test_more_than_the_limit_is_never_taken(script: Script) -> None:
    async with serving(script) as server:
        settings = home(server.port, max_bytes=MUCH, timeout=60)
        answer = await fetch_here(f"http://127.0.0.1:{server.port}/", settings)
        await server.wait_closed(1)
    inner = answer.get("error", {}).get("code")
    assert inner in ("too_large", "call_failed"), answer
    assert inner == "too_large" or answer["error"]["message"] == "The response is not text."


async def test_all_up_to_the_limit_is_taken() -> None:
    body = b"x" * MUCH
    assert (await fetch(ok(body, TEXT)))["result"]["size"] == MUCH
    assert (await fetch(ok(gzip.compress(body), TEXT, GZIP)))["result"]["size"] == MUCH
    assert (await fetch(ok(gzip.compress(b"a") + gzip.compress(b"b"), TEXT, GZIP)))["result"]["text"] == "ab"


async def trickle(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n")
    while True:
        await peer.send(b"x: y\r\n")
        await asyncio.sleep(0.05)


async def drip(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
    while True:
        await peer.send(b".")
        await asyncio.sleep(0.05)


async def silent(peer: Peer) -> None:
    await peer.gone()


@pytest.mark.parametrize("script", [trickle, drip, silent])
async def test_a_slow_server_is_left_when_the_time_is_up(script: Script) -> None:
    clock, sent = LoopClock(), list[bytes]()

    async def counted(peer: Peer) -> None:
        send = peer.send

        async def note(data: bytes) -> None:
            await send(data)
            sent.append(data)

        peer.send = note  # type: ignore[method-assign]
        await script(peer)

    async with serving(counted) as server:
        settings = home(server.port, timeout=30)
        fetching = asyncio.create_task(fetch_here(f"http://127.0.0.1:{server.port}/", settings))
        await until(lambda: server.connections and (script is silent or len(sent) > 3))
        clock.set_ahead(settings.timeout)
        answer = await fetching
        await server.wait_closed(1)
    assert answer["error"]["code"] == "call_timeout"
    assert answer["error"]["message"] == "'127.0.0.1' did not respond completely within 30 seconds."


async def test_a_name_that_is_looked_up_for_ever_is_left_when_the_time_is_up() -> None:
    class Stuck(Internet):
        async def resolve(self, host: str, port: int) -> list[str]:
            await asyncio.Event().wait()
            return []

    answer = await Stuck({}).fetch("http://stuck.example.com/", WebSettings(timeout=0.2))
    assert answer["error"]["code"] == "call_timeout"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 9\r\n\r\nshort", None),
        (ok(b"x", TEXT, "content-encoding: br"), "content encoding 'br'"),
        (ok(b"x", TEXT, "content-encoding: gzip, gzip"), "content encoding 'gzip, gzip'"),
        (ok(b"no gzip at all", TEXT, GZIP), "is not valid gzip data"),
        (ok(gzip.compress(b"x" * 999)[:-9], TEXT, GZIP), "ended before"),
        (ok(bytes(range(256)) * 9, HTML), "is not text"),
        (ok(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), "is not text"),
        (ok(b"\x01\x02\x03\x04\x05ab", TEXT), "is not text"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000 + b"\r\n", "bytes"),
    ],
)
async def test_an_answer_that_is_broken_is_an_error(answer: bytes, message: str | None) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    async with serving(script) as server:
        fetched = await fetch_here(f"http://127.0.0.1:{server.port}/", home(server.port, timeout=60))
    assert fetched["error"]["code"] == "call_failed"
    assert (message or "closed the connection in the middle") in fetched["error"]["message"]


@pytest.mark.parametrize(
    ("body", "header", "text"),
    [
        ("\u017dlut\u00fd".encode("cp1250"), "text/plain; charset=windows-1250", "\u017dlut\u00fd"),
        ("caf\u00e9 \u2019".encode("cp1252"), "text/plain; charset=iso-8859-1", "caf\u00e9 \u2019"),
        ("caf\u00e9".encode("cp1252"), "text/plain", "caf\u00e9"),
        ("caf\u00e9".encode(), "text/plain", "caf\u00e9"),
        ("caf\u00e9".encode("utf-16"), "text/plain", "caf\u00e9"),
        (b"\xef\xbb\xbfx", "text/plain; charset=koi8-r", "x"),
        ("<meta charset=koi8-r>\u0434\u0430".encode("koi8-r"), "text/html", "\u0434\u0430"),
        ("\u6587\u5b57".encode("shift_jis"), 'text/plain; charset="Shift_JIS"', "\u6587\u5b57"),
        ("caf\u00e9".encode(), "text/plain; charset=zlib", "caf\u00e9"),
        ("caf\u00e9".encode(), "text/plain; charset=../../etc/passwd", "caf\u00e9"),
        ("caf\u00e9".encode(), "text/plain; charset=unicode_escape", "caf\u00e9"),
        (b"+ADw-", "text/plain; charset=utf-7", "+ADw-"),
        ("caf\u00e9".encode(), "text/plain; charset=" + "x" * 5_000, "caf\u00e9"),
        ("caf\u00e9 au lait".encode()[:-9], "text/plain; charset=utf-8", "caf\ufffd"),
        (b"a\x1b[31m\xe2\x80\x8bb\xe2\x80\xae", "text/plain; charset=utf-8", "a[31mb"),
    ],
)
async def test_characters_are_read_as_they_were_meant(body: bytes, header: str, text: str) -> None:
    fetched = await fetch(ok(body, f"content-type: {header}"))
    assert fetched["success"], fetched
    assert fetched["result"]["text"] == text


async def test_a_call_that_is_cancelled_leaves_no_connection() -> None:
    connected = asyncio.Event()

    async def script(peer: Peer) -> None:
        connected.set()
        await peer.gone()

    async with serving(script) as server:
        url = f"http://127.0.0.1:{server.port}/"
        fetching = asyncio.create_task(fetch_here(url, home(server.port)))
        await connected.wait()
        fetching.cancel()
        await server.wait_closed(1)
        with pytest.raises(asyncio.CancelledError):
            await fetching
