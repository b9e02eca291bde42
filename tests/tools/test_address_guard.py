"""`web.fetch` reaches public addresses only, whatever URL, DNS or redirect it gets."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import BadRequest, ConfigError
from dragoman.tools.builtin import builtin_operations
from dragoman.tools.web.host_policy import WebSettings
from dragoman.tools.web.ip_ranges import special_purpose
from dragoman.tools.web.url import parse_url
from tests.effort import rows
from tests.providers.servers import Peer, Script, ok, serving

from .bypasses import ANSWERS, BYPASSES
from .internet import PUBLIC, Internet, fetch_here, fetch_with, home

TEXT = "content-type: text/plain"


def test_the_list_of_bypasses_is_long() -> None:
    assert len(BYPASSES) >= 300


@pytest.mark.promise("fetch-guard")
@pytest.mark.parametrize("url", BYPASSES, ids=ascii)
async def test_a_bypass_is_refused_before_any_connection(url: str) -> None:
    internet = Internet({name: [answer] for name, answer in ANSWERS.items()})
    answer = await internet.fetch(url)
    assert internet.reached == []
    assert not answer["success"]
    unreadable = {"empty.example.com", "garbage.example.com", "short.example.com"}
    is_unreadable = any(name in url for name in unreadable)
    codes = {"call_failed"} if is_unreadable else {"bad_request", "invalid_input", "forbidden"}
    assert answer["error"]["code"] in codes, answer


@pytest.mark.promise("fetch-guard")
@pytest.mark.parametrize("url", rows(BYPASSES, quick=6), ids=ascii)
async def test_a_redirect_to_a_bypass_is_refused_before_it_is_followed(url: str) -> None:
    location = url.encode("utf-8", errors="surrogatepass").split(b"\n")[0].split(b"\r")[0].replace(b"\0", b"")

    async def redirect(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: " + location + b"\r\n\r\n")

    async with serving(redirect) as server:
        names = {name: [answer] for name, answer in ANSWERS.items()} | {"start.example.com": [[PUBLIC]]}
        internet = Internet(names, server.port)
        answer = await internet.fetch("http://start.example.com/")
    assert not answer["success"] or location.strip() in (b"", b"/", b".")
    assert all(reached == [PUBLIC] for reached in internet.reached)


OPEN = [
    "93.184.216.34",
    "1.1.1.1",
    "8.8.8.8",
    "172.15.255.255",
    "172.32.0.0",
    "100.63.255.255",
    "100.128.0.0",
]
OPEN += ["192.167.255.255", "198.17.255.255", "198.20.0.0", "223.255.255.255", "11.0.0.0", "9.255.255.255"]
OPEN += ["2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "2003::1", "2400:cb00::1"]


@pytest.mark.parametrize("address", OPEN)
async def test_a_public_address_is_asked(address: str) -> None:
    async with serving(page(b"hello", "content-type: text/plain")) as server:
        internet = Internet({"public.example.com": [[address]]}, server.port)
        assert (await internet.fetch("http://public.example.com/"))["result"]["text"] == "hello"
        assert internet.reached == [[address]]


@given(st.ip_addresses())
def test_what_python_calls_private_is_never_public(address: IPv4Address | IPv6Address) -> None:
    assert address.is_global or special_purpose(address) is not None


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_in_disguise_is_never_asked(address: IPv4Address) -> None:
    number = int(address)
    disguises = [0xFFFF << 32 | number, 0xFFFF << 48 | number, number, 0x64_FF9B << 96 | number]
    disguises += [0x64_FF9B_0001 << 80 | number, 0x2002 << 112 | number << 80, 0x2001 << 112 | number]
    disguises += [0x2606_2800 << 96 | 0x5EFE << 32 | number]
    assert [each for each in disguises if special_purpose(IPv6Address(each)) is None] == []


@given(st.text(min_size=1, max_size=30))
def test_a_host_that_is_read_is_read_as_it_is_spelled(host: str) -> None:
    try:
        url = parse_url(f"http://{host}/")
    except BadRequest:
        return
    assert url.host.isascii()
    assert parse_url(str(url)) == url
    assert url.address is None or ip_address(url.host) == url.address


def page(body: bytes, *headers: str) -> Script:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(ok(body, *headers))

    return script


async def test_a_name_that_changes_its_answer_is_asked_once_and_pinned() -> None:
    """DNS rebinding: checked and connected to is the same address, of the one answer there was."""
    async with serving(page(b"public", TEXT)) as server:
        internet = Internet({"rebind.example.com": [[PUBLIC], ["127.0.0.1"]]}, server.port)
        answer = await internet.fetch("http://rebind.example.com/")
        assert answer["result"]["text"] == "public"
        assert internet.lookups == ["rebind.example.com"]
        assert internet.reached == [[PUBLIC]]
        assert (await internet.fetch("http://rebind.example.com/"))["error"]["code"] == "forbidden"
        assert server.connections == 1


@pytest.mark.promise("fetch-rebinding")
async def test_a_rebound_name_never_gets_to_the_private_server() -> None:
    """The same over real sockets: 127.0.0.1 may be asked, 127.0.0.2 stands for what is private."""
    hidden: list[str] = []

    async def guarded(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hidden.append("connected")
        writer.close()

    async with serving(page(b"allowed", TEXT)) as server:
        private = await asyncio.start_server(guarded, "127.0.0.2", server.port)
        async with private:
            internet = Internet({"rebind.example.com": [["127.0.0.1"], ["127.0.0.2"]]})
            made = builtin_operations(web=home(server.port), resolve=internet.resolve)
            fetched = [await fetch_with(made, f"http://rebind.example.com:{server.port}/") for _ in range(3)]
        assert [each["success"] for each in fetched] == [True, False, False]
        assert (hidden, server.connections, len(internet.lookups)) == ([], 1, 3)


async def test_a_redirect_to_the_same_name_is_looked_up_and_checked_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 302 Found\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n")

    async with serving(script) as server:
        internet = Internet({"rebind.example.com": [[PUBLIC], ["169.254.169.254"]]}, server.port)
        answer = await internet.fetch("http://rebind.example.com/")
    assert "redirects to a URL that is not allowed" in answer["error"]["message"]
    assert internet.reached == [[PUBLIC]]


async def test_an_answer_tells_nothing_of_private_addresses() -> None:
    internet = Internet({"wiki.example.com": [["10.20.30.40"]]})
    assert "10.20.30.40" not in str(await internet.fetch("http://wiki.example.com/"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for one name, and its key, in one file."""
    both = tmp_path_factory.mktemp("tls") / "both.pem"
    command = f"""openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2
        -subj /CN=dragoman -addext subjectAltName=DNS:named.example.com -keyout {both} -out -""".split()
    made = subprocess.run(command, check=True, capture_output=True)
    both.write_bytes(both.read_bytes() + made.stdout)
    return both


async def test_host_and_certificate_stay_those_of_the_name(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    outcomes: list[str] = []
    tls.sni_callback = lambda _socket, name, _context: outcomes.append(name)

    async def script(peer: Peer) -> None:
        outcomes.append((await peer.request())["host"])
        await peer.send(ok(b"safe", TEXT))

    async with serving(script, tls=tls) as server:
        names = {"named.example.com": [[PUBLIC]], "other.example.com": [[PUBLIC]]}
        internet = Internet(names, server.port)
        assert (await internet.fetch("https://named.example.com/"))["result"]["text"] == "safe"
        assert outcomes == ["named.example.com", "named.example.com"]
        refused = await internet.fetch("https://other.example.com/")
    assert "certificate is not trusted" in refused["error"]["message"]


async def test_a_proxy_of_the_environment_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving(page(b"straight", TEXT)) as server:
        answer = await fetch_here(f"http://127.0.0.1:{server.port}/", home(server.port))
    assert answer["result"]["text"] == "straight"


@pytest.mark.parametrize(
    ("settings", "url", "is_asked"),
    [
        (WebSettings(allow_hosts=("*.example.com",)), "http://a.example.com/", True),
        (WebSettings(allow_hosts=("*.Example.com",)), "http://A.b.EXAMPLE.com/", True),
        (WebSettings(allow_hosts=("*.example.com",)), "http://example.com/", False),
        (WebSettings(allow_hosts=("example.com",)), "http://a.example.com/", False),
        (WebSettings(allow_hosts=("example.com",)), "http://badexample.com/", False),
        (WebSettings(allow_hosts=("*",), deny_hosts=("a.example.com",)), "http://a.example.com/", False),
        (WebSettings(deny_hosts=("*.example.com",)), "http://a.example.com/", False),
        (WebSettings(deny_hosts=("*.example.com",)), "http://example.com/", True),
        (WebSettings(deny_hosts=("93.184.216.34",)), "http://93.184.216.34/", False),
        (WebSettings(allow_hosts=("*",)), "http://wiki.internal/", False),
        (WebSettings(allow_hosts=("*", "wiki.internal")), "http://wiki.internal/", True),
        (WebSettings(ports=(8080,)), "http://example.com:8080/", True),
        (WebSettings(ports=(8080,)), "http://example.com/", False),
        (WebSettings(allow_networks=("10.1.0.0/16",)), "http://10.1.2.3/", True),
        (WebSettings(allow_networks=("10.1.0.0/16",)), "http://10.2.2.3/", False),
        (WebSettings(allow_networks=("10.1.0.0/16",)), "http://[::ffff:10.1.2.3]/", False),
        (WebSettings(allow_networks=("fd00::/8",)), "http://[fd00::1]/", True),
        (WebSettings(), "http://b\u00fccher.example.com/", True),
    ],
)
async def test_settings_widen_and_narrow_what_is_asked(
    settings: WebSettings, url: str, is_asked: bool
) -> None:
    hosts = ["a.example.com", "a.b.example.com", "example.com", "badexample.com", "wiki.internal"]
    async with serving(page(b"yes", TEXT)) as server:
        names = {name: [[PUBLIC]] for name in [*hosts, "xn--bcher-kva.example.com"]}
        internet = Internet(names, server.port)
        answer = await internet.fetch(url, settings)
    assert answer["success"] is is_asked, answer
    assert len(internet.reached) == is_asked


@pytest.mark.parametrize("settings", [WebSettings(allow_networks=("10.0.0.1/8",)), WebSettings(ports=())])
def test_settings_that_cannot_be_meant_are_refused(settings: WebSettings) -> None:
    with pytest.raises(ConfigError):
        builtin_operations(web=settings)
