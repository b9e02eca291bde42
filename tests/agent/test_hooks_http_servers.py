"""HTTP hooks: the documented receiver, rotated secrets, and servers that misbehave."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.hooks.http import http_hook
from dragoman.errors import Unauthorized
from dragoman.http.transport import Transport
from dragoman.http.webhook import Webhook, signature_headers, signing_keys, verify_webhook
from dragoman.operations.call_hooks import CallEnd
from tests.providers.servers import Peer, serving
from tests.providers.test_dialer import certificate, tls

from .test_docs import blocks
from .test_hooks_http import SECRET, Answering, asking, call

__all__ = ["certificate", "tls"]
OTHER = "whsec_" + base64.b64encode(b"another secret of 32 bytes, this").decode()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_a_signature_is_that_of_the_specification() -> None:
    """The vector of the specification's libraries, for the secret that they show."""
    headers = signature_headers(
        signing_keys("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        b'{"test": 2432232314}',
        id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        now=1614265330,
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_while_secrets_change_each_of_them_signs() -> None:
    server = Answering(b'{"decision": "continue"}')
    async with asking(server, secret=f"{OTHER} {SECRET}") as hooks:
        assert (await hooks.calls.before(call())).block is None
    [got] = server.got
    headers = {name.lower(): value for name, value in got.headers}
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (SECRET, OTHER, f"{OTHER} {SECRET}"):
        verify_webhook(headers, got.body, secret=secret, now=time.time())
    with pytest.raises(Unauthorized):
        verify_webhook(headers, got.body, secret="whsec_AAAA", now=time.time())
    plain = base64.b64decode(SECRET.removeprefix("whsec_"))
    signed = b".".join((headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), got.body))
    assert headers["webhook-signature"].endswith(
        base64.b64encode(hmac.new(plain, signed, hashlib.sha256).digest()).decode()
    )


async def test_the_receiver_of_the_page_decides_and_lets_nobody_else_in() -> None:
    page: dict[str, Any] = {}
    exec(compile(blocks("hooks")[1], "hooks.md", "exec"), page)
    transport = httpx.ASGITransport(app=page["receiver"])
    async with httpx.AsyncClient(transport=transport, base_url="http://receiver") as client:

        async def ask(body: bytes, *, secret: str = page["SECRET"], ago: float = 0) -> httpx.Response:
            headers = signature_headers(signing_keys(secret), body, id="msg_1", now=time.time() - ago)
            return await client.post("/dragoman", content=body, headers=headers)

        good = b'{"event": "pre_tool_use", "input": {"to": "bob@example.org"}}'
        bad = good.replace(b".org", b".com")
        assert (await ask(good)).json() == {"decision": "continue"}
        assert (await ask(bad)).json()["decision"] == "block"
        assert (await ask(good, secret=OTHER)).status_code == 401
        assert (await ask(good, ago=400)).status_code == 401
        assert (await client.post("/dragoman", content=good)).status_code == 401


async def reset(peer: Peer) -> None:
    await peer.request()
    await peer.send(HEAD + b'content-length: 500\r\n\r\n{"decision": "continue"')
    peer.writer.transport.abort()


async def endless(peer: Peer) -> None:
    await peer.request()
    await peer.send(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    for _ in range(100):
        await peer.send(b"1000\r\n" + b" " * 4096 + b"\r\n")


async def dripping(peer: Peer) -> None:
    await peer.request()
    await peer.send(HEAD + b'content-length: 500\r\n\r\n{"decision":')
    await peer.gone()


async def garbage(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"\x00\x01 no HTTP at all\r\n\r\n")


async def inward(peer: Peer) -> None:
    await peer.request()
    await peer.send(
        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/secret\r\ncontent-length: 0\r\n\r\n"
    )


@pytest.mark.promise("hooks-fail-closed")
@pytest.mark.parametrize("server", [reset, endless, dripping, garbage, inward])
async def test_a_server_that_misbehaves_stops_the_call_and_is_noted_after_it(
    server: Callable[[Peer], Awaitable[None]],
) -> None:
    async with asking(server, timeout=0.5) as hooks:
        hook_decision = await hooks.calls.before(call())
        passed = await hooks.calls.after(call(), CallEnd(status="done", result=1))
    assert hook_decision.block is not None
    assert hook_decision.block.startswith("hook far failed")
    assert passed is not None
    assert (passed.result, len(passed.notes)) == (1, 1)


async def plain(peer: Peer) -> None:
    await peer.reader.read(1)
    await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.promise("hooks-fail-closed")
@pytest.mark.parametrize("trusted", [False, None])
async def test_a_place_without_tls_or_with_an_untrusted_certificate_stops_the_call(
    tls: ssl.SSLContext, trusted: bool | None
) -> None:
    transport = Transport()
    async with serving(plain, tls=None if trusted is None else tls) as place:
        address = place.url.replace("http:", "https:")
        hooks = Hooks().on("pre_tool_use", http_hook(Webhook(address, transport)), timeout=60.0)
        hook_decision = await hooks.calls.before(call())
    await transport.close()
    assert hook_decision.block == "hook http_hook failed: it raised an exception"
