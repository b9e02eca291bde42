"""The proxy configurations that we ship, run by the real nginx and Caddy: streams, WebSockets, bodies."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx2
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import connect

from dragoman.cli.doctor import running_hub
from tests.serving import Served, ask, frames_in, serving, text_of
from tests.waiting import LIMIT, until

DEPLOY = Path(__file__).parents[2] / "deploy"
CADDY = shutil.which("caddy") or "/usr/bin/caddy"
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
REST = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


def free_port() -> int:
    """A port at which nobody listens, and that the system gives to nobody until the proxy has it."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = lowest // 2 + secrets.randbelow(lowest // 2)
        with suppress(OSError), socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            return port


def write_certificate(folder: Path) -> ssl.SSLContext:
    """A certificate of 127.0.0.1, and a context that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    (folder / "hub.crt").write_bytes(certificate.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "hub.key").write_bytes(private)
    return ssl.create_default_context(cafile=folder / "hub.crt")


@contextmanager
def nginx(folder: Path, site: str) -> Iterator[None]:
    """The real nginx with this site."""
    (folder / "site.conf").write_text(site)
    (folder / "nginx.conf").write_text(REST.format(folder=folder))
    with running(NGINX, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log", home=folder):
        yield


@contextmanager
def caddy(folder: Path, site: str) -> Iterator[None]:
    """The real Caddy with this site, without its administration and redirects."""
    config = folder / "Caddyfile"
    config.write_text(f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{site}")
    with running(CADDY, "run", "--config", config, "--adapter", "caddyfile", home=folder):
        yield


@contextmanager
def running(*command: str | Path, home: Path) -> Iterator[None]:
    """A process that is stopped afterwards."""
    process = subprocess.Popen(
        [str(each) for each in command],
        env={**os.environ, "HOME": str(home), "XDG_DATA_HOME": str(home), "XDG_CONFIG_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(30)


def nginx_site(url: str, port: int, folder: Path) -> str:
    """The shipped file with the addresses and certificates of this test."""
    return replaced(
        "nginx.conf",
        {
            "server 127.0.0.1:8000;": f"server {url.removeprefix('http://')};",
            "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
            "/etc/ssl/hub.example.com": str(folder / "hub"),
        },
    )


def caddy_site(url: str, port: int, folder: Path) -> str:
    """The shipped file with the addresses and certificates of this test."""
    return replaced(
        "Caddyfile",
        {
            "hub.example.com {": f"https://127.0.0.1:{port} {{\n\ttls {folder}/hub.crt {folder}/hub.key",
            "127.0.0.1:8000": url.removeprefix("http://"),
        },
    )


PROXIES = {"nginx": (nginx, nginx_site), "caddy": (caddy, caddy_site)}


def replaced(name: str, texts: Mapping[str, str]) -> str:
    """A shipped file with these texts replaced; each of them is in it."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    for old, new in texts.items():
        assert old in text
        text = text.replace(old, new)
    return text


class Proxied:
    """A hub behind a proxy: its address and a client that trusts its certificate."""

    def __init__(self, served: Served, url: str, context: ssl.SSLContext, http: httpx2.AsyncClient) -> None:
        self.served = served
        self.url = url
        self.context = context
        self.http = http


@asynccontextmanager
async def proxied(folder: Path, program: str) -> AsyncIterator[Proxied]:
    context, port = write_certificate(folder), free_port()
    steps = [{"text": ["One ", "two ", "three."]}]
    async with serving(folder / "hub", steps, play="turns", keep_alive=0.2) as served:
        url = f"https://127.0.0.1:{port}"
        run, site_for = PROXIES[program]
        with run(folder, site_for(served.url, port, folder)):
            async with httpx2.AsyncClient(
                base_url=url, verify=context, timeout=LIMIT, trust_env=False
            ) as http:
                await until(lambda: answers(http))
                yield Proxied(served, url, context, http)


async def answers(http: httpx2.AsyncClient) -> bool:
    try:
        return (await http.get("/healthz")).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.promise("behind-nginx")
@pytest.mark.parametrize("program", PROXIES)
async def test_the_shipped_configuration_passes_events_one_by_one_sockets_and_large_bodies(
    program: str, tmp_path: Path
) -> None:
    async with proxied(tmp_path, program) as behind:
        http = behind.http
        created = await http.post("/api/sessions", json={"id": "s"})
        assert created.status_code == 201, created.text
        async with http.stream("GET", "/api/events") as stream:
            pieces = stream.aiter_text()
            comments = 0
            while comments < 3:  # keep-alive comments arrive on a quiet stream
                comments += (await anext(pieces)).count(": ")
            for number in range(5):  # each is published when the one before has arrived
                body = {"name": "step", "data": {"number": number}}
                assert (await http.post("/api/sessions/s/events", json=body)).status_code == 202
                text = ""
                while f'"number":{number}' not in text:
                    text += await anext(pieces)

        answer = await http.post("/api/chat", json=ask("hi", session="chat"))
        assert text_of(frames_in(answer.text)) == "One two three."

        socket_url = behind.url.replace("https", "wss") + "/api/sessions/s/socket"
        async with connect(socket_url, ssl=behind.context, proxy=None) as opened:
            first = msgspec.json.decode(await opened.recv())
            assert first["type"], first

        large = {"model": "sim/any", "messages": [{"role": "user", "content": "x" * 12_000_000}]}
        sent = await http.post("/v1/chat/completions", json=large)
        assert (sent.status_code, sent.json()["choices"][0]["message"]["content"]) == (200, "One two three.")

        for _ in range(40):
            assert (await http.get("/healthz")).status_code == 200
        assert connections_to(int(behind.served.url.rpartition(":")[2])) < 12


def connections_to(port: int) -> int:
    """Connections of this machine to a port, also those that are closed and waited for."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") for row in rows)


async def test_doctor_finds_a_proxy_that_buffers_and_one_that_drops_upgrades(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    async with serving(tmp_path / "hub", keep_alive=600) as served:
        bad = f"""server {{ listen 127.0.0.1:{port}; location / {{
            proxy_pass {served.url}; proxy_http_version 1.1; proxy_buffering on;
            gzip on; gzip_types text/event-stream; gzip_proxied any;
            proxy_ignore_headers X-Accel-Buffering; proxy_set_header Host $http_host; }} }}"""
        with nginx(tmp_path, bad):
            url = f"http://127.0.0.1:{port}"
            async with httpx2.AsyncClient(base_url=url, trust_env=False) as http:
                await until(lambda: answers(http))
            monkeypatch.setattr(running_hub, "STREAM_SECONDS", 1.0)
            found = {each.check: each async for each in running_hub.check_hub(url, None, ask=False)}
        monkeypatch.setattr(running_hub, "STREAM_SECONDS", LIMIT)
        direct = {each.check: each.state async for each in running_hub.check_hub(served.url, None, ask=False)}
    assert (direct["streaming"], direct["websockets"]) == ("ok", "ok")
    assert found["streaming"].state == "failed", found
    assert "buffers" in found["streaming"].message
    assert found["websockets"].state == "failed"
    assert "reverse-proxies" in str(found["websockets"].todo)
