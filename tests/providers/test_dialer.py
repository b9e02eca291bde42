"""Connecting: address families, TLS, proxies, on uvloop and asyncio."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import ProviderError
from dragoman.http.dialer import race_connect
from dragoman.http.transport import Timeouts, Transport, proxies_from

from .servers import (
    CHUNKED,
    LIMIT,
    Peer,
    Received,
    Script,
    answering,
    chunk,
    holding,
    ok,
    refusing_port,
    serving,
)
from .test_connection import LARGE, deaf_port

LOOPS = {"uvloop": True, "asyncio": False}


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": LOOPS[request.param]}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost and upstream.test, and its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    names = "subjectAltName=DNS:localhost,DNS:upstream.test"
    command = f"""openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2
        -subj /CN=dragoman -addext {names} -keyout {path} -out -""".split()
    made = subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + made.stdout)
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
async def transport(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Transport]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    transport = Transport()
    yield transport
    await transport.close()


def through(proxy: str, **environ: str) -> Transport:
    return Transport(proxies=proxies_from({"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, **environ}))


async def fetch(transport: Transport, url: str) -> bytes:
    response = await transport.send("POST", url, headers={}, body=b"{}")
    return await response.read(LARGE)


async def test_tls_with_a_certificate_that_the_system_trusts(
    transport: Transport, tls: ssl.SSLContext
) -> None:
    body = bytes(range(256)) * 40_000
    streamed = CHUNKED + chunk(b"a") + chunk(b"b") + b"0\r\n\r\n"
    async with serving(answering(ok(body), streamed), tls=tls) as server:
        assert await fetch(transport, f"https://localhost:{server.port}/") == body
        assert await fetch(transport, f"https://localhost:{server.port}/") == b"ab"
        assert server.connections == 1


async def test_an_open_ended_body_over_tls(transport: Transport, tls: ssl.SSLContext) -> None:
    async with serving(answering(b"HTTP/1.0 200 OK\r\n\r\nto the end"), tls=tls) as server:
        assert await fetch(transport, f"https://localhost:{server.port}/") == b"to the end"


async def test_leaving_a_response_over_tls_closes_its_socket_at_once(
    transport: Transport, tls: ssl.SSLContext
) -> None:
    async with serving(holding(CHUNKED + chunk(b"x")), tls=tls) as server:
        response = await transport.send("GET", f"https://localhost:{server.port}/", headers={})
        response.abort()
        await server.wait_closed(1)


async def test_a_certificate_that_nobody_trusts_is_refused_for_good(tls: ssl.SSLContext) -> None:
    transport = Transport()
    async with serving(answering(), tls=tls) as server:
        with pytest.raises(ProviderError, match=r"certificate is not trusted \(self-signed") as caught:
            await fetch(transport, f"https://localhost:{server.port}/")
        assert (caught.value.category, caught.value.transient) == ("network", False)


async def test_a_certificate_for_another_name_is_refused(transport: Transport, tls: ssl.SSLContext) -> None:
    async with serving(answering(), tls=tls) as server:
        with pytest.raises(ProviderError, match="certificate is not trusted"):
            await fetch(transport, f"https://127.0.0.1:{server.port}/")


async def test_a_server_without_tls_is_a_network_error(transport: Transport) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 400 What\r\ncontent-length: 0\r\n\r\n")
        await peer.gone()

    async with serving(script) as server:
        with pytest.raises(ProviderError, match=r"cannot connect to localhost:.*TLS failed") as caught:
            await fetch(transport, f"https://localhost:{server.port}/")
        assert (caught.value.category, caught.value.transient) == ("network", True)


async def test_a_name_that_does_not_exist_is_a_network_error(transport: Transport) -> None:
    with pytest.raises(ProviderError, match=r"cannot connect to nowhere\.invalid: ") as caught:
        await fetch(transport, "http://nowhere.invalid/")
    assert (caught.value.category, caught.value.transient) == ("network", True)


def tunnel_to(port: int, seen: list[Received]) -> Script:
    """A proxy that connects everybody to one port."""

    async def pour(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    async def script(peer: Peer) -> None:
        seen.append(await peer.head())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await peer.send(b"HTTP/1.0 200 Connection established\r\n\r\n")
            await asyncio.gather(pour(peer.reader, writer), pour(reader, peer.writer))
        finally:
            writer.close()

    return script


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_tls_servers_are_reached_through_the_proxys_tunnel(
    transport: Transport, tls: ssl.SSLContext, scheme: str
) -> None:
    seen: list[Received] = []
    body = b"x" * 1_000_000
    outer = tls if scheme == "https" else None
    async with (
        serving(answering(ok(body), ok(b"second")), tls=tls) as server,
        serving(tunnel_to(server.port, seen), tls=outer) as proxy,
    ):
        transport = through(f"{scheme}://me:pass@localhost:{proxy.port}")
        assert await fetch(transport, "https://upstream.test/v1") == body
        assert await fetch(transport, "https://upstream.test/v1") == b"second"
        await transport.close()
    place = "upstream.test:443"
    credentials = ("proxy-authorization", "Basic bWU6cGFzcw==")
    assert seen == [Received(f"CONNECT {place} HTTP/1.1", [("host", place), credentials])]


async def test_plain_servers_are_asked_for_by_whole_url_at_the_proxy() -> None:
    seen: list[Received] = []

    async def script(peer: Peer) -> None:
        while True:
            seen.append(await peer.request())
            await peer.send(ok(b"x"))

    async with serving(script) as proxy:
        transport = through(f"http://me:pass@localhost:{proxy.port}", NO_PROXY="inner.test")
        for _ in range(2):
            assert await fetch(transport, "http://upstream.test:8080/v1?a=b") == b"x"
        with pytest.raises(ProviderError, match=r"cannot connect to inner\.test: "):
            await fetch(transport, "http://inner.test/")
        await transport.close()
    assert proxy.connections == 1
    assert [received.line for received in seen] == ["POST http://upstream.test:8080/v1?a=b HTTP/1.1"] * 2
    assert seen[0]["host"] == "upstream.test:8080"
    assert seen[0]["proxy-authorization"] == "Basic bWU6cGFzcw=="


@pytest.mark.parametrize(
    ("answer", "transient"),
    [
        (b"HTTP/1.1 407 Who\r\ncontent-length: 0\r\n\r\n", False),
        (b"HTTP/1.1 502 Bad\r\ncontent-length: 3\r\n\r\nbad", True),
        (b"HTTP/1.1 200 OK\r\n\r\n\x15\x03\x01injected", True),
        (b"", True),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_an_error(answer: bytes, transient: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(answer)

    async with serving(script) as proxy:
        transport = through(f"http://me:pass@localhost:{proxy.port}")
        with pytest.raises(ProviderError) as caught:
            await fetch(transport, "https://upstream.test/")
        assert (caught.value.category, caught.value.transient) == ("network", transient)
        assert "upstream.test" in caught.value.message
        assert "pass" not in caught.value.message


async def test_a_tunnel_that_never_opens_falls_under_the_connect_deadline() -> None:
    async with serving(holding(b"")) as proxy:
        transport = through(f"http://localhost:{proxy.port}")
        for seconds in (0.1, 1, 10):  # until the proxy is reached in that time, also by a busy machine
            timeouts = Timeouts(connect=seconds)
            with pytest.raises(ProviderError, match=r"connecting to upstream\.test timed out"):
                await transport.send("GET", "https://upstream.test/", headers={}, timeouts=timeouts)
            if proxy.connections:
                break
        assert proxy.connections
        await proxy.wait_closed(proxy.connections)


def place(port: int) -> tuple[Any, ...]:
    return (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))


async def test_an_address_that_hangs_or_refuses_does_not_keep_us_from_the_next() -> None:
    async with serving(holding(b"")) as server, asyncio.timeout(LIMIT):
        with refusing_port() as closed:
            with deaf_port() as deaf:
                (await race_connect([place(closed), place(deaf), place(server.port)])).close()
            with pytest.raises(ConnectionRefusedError):
                await race_connect([place(closed), place(closed)])


async def test_sockets_send_small_packets_at_once() -> None:
    async with serving(holding(b"")) as server:
        opened = await race_connect([place(server.port)])
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        opened.close()
