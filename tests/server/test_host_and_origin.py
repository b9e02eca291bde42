"""`Host` and `Origin`: one strict parser, for every door of the hub."""

from __future__ import annotations

import asyncio
from ipaddress import IPv6Address
from pathlib import Path

import httpx2
import pytest

from dragoman.errors import DragomanError
from dragoman.http.host_origin import Authority, Origin, parse_authority, parse_origin
from dragoman.http.origin_policy import OriginPolicy
from tests.serving import serving

VALID_HOSTS = {
    "localhost": Authority("localhost"),
    "LocalHost:8000": Authority("localhost", 8000),
    "127.0.0.1:1": Authority("127.0.0.1", 1),
    "[::1]": Authority("::1"),
    "[0:0:0:0:0:0:0:1]:65535": Authority("::1", 65535),
    "[::ffff:127.0.0.1]:80": Authority(str(IPv6Address("::ffff:127.0.0.1")), 80),
    "hub.example": Authority("hub.example"),
    "my_hub-1.example:8000": Authority("my_hub-1.example", 8000),
}
INVALID_HOSTS = [
    "",
    " localhost",
    "localhost ",
    "localhost\t",
    "local\thost",
    "localhost\n",
    "user@localhost",
    "evil.example@localhost",
    "localhost@evil.example",
    "user:pw@127.0.0.1:8000",
    "localhost.",
    "127.0.0.1.",
    ".localhost",
    "local..host",
    "localhost:",
    "localhost:0",
    "localhost:65536",
    "localhost:99999999",
    "localhost:-1",
    "localhost:+80",
    "localhost:8 0",
    "localhost:8000:8000",
    "localhost:\u0661",
    "[::1%25lo]",
    "[::1%lo]",
    "[::1",
    "::1",
    "[127.0.0.1]",
    "[::1]x",
    "[]",
    "local%68ost",
    "127.0.0.1%00.evil.example",
    "localhost/",
    "localhost#evil.example",
    "localhost?x",
    "localhost\\evil.example",
    "http://localhost",
    "localhost, evil.example",
    "localhost,localhost",
    "loc\u0430lhost",
    "\uff4cocalhost",
    "localhost\u3002",
    "-localhost",
    "localhost-",
    "*",
    "a" * 254,
]
NOT_LOOPBACK = ["127.1", "2130706433", "0x7f.0.0.1", "0177.0.0.1", "127.0.0.1.evil.example", "localhost.evil"]


@pytest.mark.parametrize(("text", "expected"), VALID_HOSTS.items())
def test_a_valid_host_has_one_reading(text: str, expected: Authority) -> None:
    assert parse_authority(text) == expected
    host = f"[{expected.host}]" if ":" in expected.host else expected.host
    assert parse_authority(f"{host}:{expected.port}" if expected.port else host) == expected


@pytest.mark.parametrize("text", INVALID_HOSTS)
def test_an_invalid_host_is_nobody_s_name(text: str) -> None:
    assert parse_authority(text) is None
    for policy in (OriginPolicy(), OriginPolicy(hosts=["localhost", "evil.example", text])):
        with pytest.raises(DragomanError):
            policy.check({"host": text}, local_address="127.0.0.1")
        assert not policy.allows(f"http://{text}")
    if text:
        with pytest.raises(DragomanError):
            OriginPolicy().check({"host": text}, local_address="10.0.0.1")


@pytest.mark.parametrize("text", NOT_LOOPBACK)
def test_a_spelling_that_only_resolves_to_loopback_is_not_loopback(text: str) -> None:
    with pytest.raises(DragomanError):
        OriginPolicy().check({"host": text}, local_address="127.0.0.1")
    assert not OriginPolicy().allows(f"http://{text}")


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "",
        "localhost",
        "//localhost",
        "http:/localhost",
        "http://",
        "http://localhost/",
        "http://localhost/path",
        "http://localhost http://localhost",
        "http://localhost, http://evil.example",
        "http:// localhost",
        "http\t://localhost",
        "://localhost",
        "1http://localhost",
        "http:\\\\localhost",
    ],
)
def test_an_invalid_origin_is_refused(text: str) -> None:
    assert parse_origin(text) is None
    policy = OriginPolicy(hosts=["localhost"], origins=["http://localhost", "null", ""])
    assert not policy.allows(text)


def test_an_origin_is_compared_with_the_port_of_its_scheme() -> None:
    assert parse_origin("HTTPS://App.Example") == Origin("https", "app.example", 443)
    policy = OriginPolicy(origins=["https://app.example/", "http://dev.example:3000"])
    for origin, allowed in {
        "https://app.example": True,
        "https://app.example:443": True,
        "https://APP.example": True,
        "http://app.example": False,
        "https://app.example:444": False,
        "http://dev.example:3000": True,
        "http://dev.example": False,
        "https://app.example.evil": False,
        "http://localhost:5173": True,
    }.items():
        assert (origin, policy.allows(origin)) == (origin, allowed)
    assert OriginPolicy(origins=["*"]).allows("null")


HEADS = [
    (["host: evil.example"], 421),
    (["host: localhost", "host: evil.example"], 421),
    (["host: user@localhost"], 421),
    (["host: localhost."], 421),
    (["host: localhost", "origin: http://evil.example"], 403),
    (["host: localhost", "origin: null"], 403),
    (["host: localhost"], 200),
]


@pytest.mark.parametrize("path", ["/api/operations", "/api/spoke"])
async def test_each_endpoint_of_a_hub_without_keys_checks_host_and_origin(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as hub:
        for lines, status in HEADS:
            found = await raw_status(hub.url, path, lines, upgrade=path == "/api/spoke")
            expected = 101 if (path, status) == ("/api/spoke", 200) else status
            # A server may refuse a second Host header by itself.
            assert found == expected or (len(lines) == 2 and "evil" in lines[1] and found == 400), lines


async def raw_status(url: str, path: str, lines: list[str], *, upgrade: bool) -> int:
    """The status of a request with these header lines."""
    target = httpx2.URL(url)
    reader, writer = await asyncio.open_connection(target.host, target.port)
    extra = ["connection: close"]
    if upgrade:
        key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
        extra = ["connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13", key]
    writer.write("\r\n".join([f"GET {path} HTTP/1.1", *lines, *extra, "", ""]).encode())
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_a_spoke_with_a_key_may_come_through_a_proxy_and_a_page_may_not(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        lines = ["host: hub.example"]
        assert await raw_status(hub.url, "/api/spoke", lines, upgrade=True) == 101
        lines.append("origin: http://hub.example")
        assert await raw_status(hub.url, "/api/spoke", lines, upgrade=True) in (403, 421)
