"""Relaying to a server: retries, key pools, redaction of keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from dragoman.errors import ProviderError
from dragoman.http.transport import Timeouts, Transport
from dragoman.providers.anthropic import AnthropicProvider
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.key_pool import Cooldown, KeyPool, ProviderKey
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.relayed_response import RelayedResponse
from dragoman.providers.remote import RemoteProvider, redact_details
from dragoman.providers.retry import RetryPolicy

from .servers import LIMIT, Peer, Received, ok, serving

FAST = RetryPolicy(retries=2, base=0.0)
ONCE = RetryPolicy(retries=0)
GOOD = ok(b'{"ok":true}')


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    transport = Transport(timeouts=Timeouts(connect=LIMIT, first_byte=LIMIT, idle=LIMIT))
    yield transport
    await transport.close()


def ring(names: str) -> KeyPool:
    return KeyPool([ProviderKey(name, f"sk-secret-{name}") for name in names], cooldown=Cooldown())


def refusal(status: int, reply: object, *headers: str) -> bytes:
    body = reply if isinstance(reply, bytes) else msgspec.json.encode({"error": reply})
    return ok(body, *headers).replace(b"200 OK", b"%d No" % status, 1)


class Asked:
    """A provider before a server that gives these answers, one a request, and what came of a relay."""

    def __init__(self, *answers: bytes) -> None:
        self.received: list[Received] = []
        self.written = 0
        self.heard: list[bytes] = []
        self.failures: list[tuple[str, str]] = []
        self.retried: list[str] = []
        self._answers = list(answers)
        self.listen: Callable[[RelayedResponse], Awaitable[None]] = self._listen

    async def script(self, peer: Peer) -> None:
        while True:
            self.received.append(await peer.request())
            await peer.send(self._answers.pop(0))

    @property
    def keys(self) -> list[str]:
        return [received["authorization"].removeprefix("Bearer sk-secret-") for received in self.received]

    async def relay(
        self, transport: Transport, *, keys: str = "a", policy: RetryPolicy = ONCE, of: Any = OpenAIProvider
    ) -> RemoteProvider:
        async with serving(self.script) as server:
            place = UpstreamServer(
                base_url=f"{server.url}/v1", headers={"X-Auth-Token": "tok-secret", "X-Title": "us"}
            )
            provider: RemoteProvider = of.for_server(
                "up", place, transport=transport, keys=ring(keys), policy=policy
            )
            provider.on_failure = lambda name, category: self.failures.append((name, category))
            provider.on_retry = self.retried.append
            await provider.relay(
                f"{server.url}/v1/x",
                self._write,
                headers={"x-beta": "1"},
                handle=self.listen,
                is_amended=True,
            )
        assert provider.keys.busy == 0
        return provider

    async def fail(self, transport: Transport, **options: Any) -> ProviderError:
        with pytest.raises(ProviderError) as failed:
            await self.relay(transport, **options)
        return failed.value

    def _write(self) -> bytes:
        self.written += 1
        return b'{"number":%d}' % self.written

    async def _listen(self, relay: RelayedResponse) -> None:
        self.heard.append(await relay.read())
        relay.mark_succeeded()
        await relay.drain()
        relay.close()


async def test_a_body_goes_out_with_a_key_and_the_answer_is_heard(transport: Transport) -> None:
    requests = Asked(GOOD)
    await requests.relay(transport)
    assert requests.heard == [b'{"ok":true}']
    [received] = requests.received
    assert (received.line, received.body) == ("POST /v1/x HTTP/1.1", b'{"number":1}')
    reply = {
        name: received[name]
        for name in ("authorization", "x-auth-token", "x-title", "x-beta", "content-type")
    }
    assert reply == {
        "authorization": "Bearer sk-secret-a",
        "x-auth-token": "tok-secret",
        "x-title": "us",
        "x-beta": "1",
        "content-type": "application/json",
    }


@pytest.mark.parametrize("status", [401, 403, 429, 503, 529])
async def test_what_another_key_may_mend_is_tried_with_another_at_once(
    transport: Transport, status: int
) -> None:
    requests = Asked(refusal(status, {"message": "no"}), refusal(status, {"message": "no"}), GOOD)
    provider = await requests.relay(transport, keys="abc", policy=FAST)
    assert (requests.keys, requests.retried) == (["a", "b", "c"], ["up", "up"])
    assert provider.keys.cooling_down == (2 if status in (401, 403) else 0)


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_what_no_other_key_would_mend_is_not(transport: Transport, status: int) -> None:
    requests = Asked(refusal(status, {"message": "no"}))
    error = await requests.fail(transport, keys="abc")
    assert (requests.keys, error.upstream_status) == (["a"], status)


async def test_retries_are_all_further_requests_whichever_key_they_use(transport: Transport) -> None:
    requests = Asked(*[refusal(429, {"message": "slow down"})] * 3)
    error = await requests.fail(transport, keys="ab", policy=FAST)
    assert error.category == "rate_limit"
    assert requests.keys == ["a", "b", "a"]
    assert requests.retried == ["up", "up"]
    assert requests.failures == [("up", "rate_limit")] * 3


async def test_a_bad_key_is_not_tried_again_and_not_waited_for(transport: Transport) -> None:
    requests = Asked(refusal(401, {"message": "no"}), refusal(401, {"message": "no"}))
    error = await requests.fail(transport, keys="ab", policy=FAST)
    assert (error.category, requests.keys, requests.retried) == ("auth", ["a", "b"], ["up"])


async def test_a_transient_failure_is_tried_again_with_a_body_of_its_own(transport: Transport) -> None:
    requests = Asked(refusal(500, {"message": "no"}), refusal(502, b"<html><title>Bad gateway</title>"), GOOD)
    await requests.relay(transport, policy=FAST)
    assert [received.body for received in requests.received] == [
        b'{"number":1}',
        b'{"number":2}',
        b'{"number":3}',
    ]
    assert (requests.retried, requests.heard) == (["up", "up"], [b'{"ok":true}'])


async def test_what_a_listener_raises_is_tried_again_while_it_may_help(transport: Transport) -> None:
    requests = Asked(GOOD, GOOD, GOOD)
    numbers = iter(range(9))

    async def listen(relay: RelayedResponse) -> None:
        await relay.read()
        if next(numbers) < 2:
            raise ProviderError("busy", category="overloaded", transient=True)
        relay.close()

    requests.listen = listen
    await requests.relay(transport, policy=FAST)
    assert len(requests.received) == 3


async def test_a_listener_that_is_cancelled_gives_socket_and_key_back() -> None:
    transport = Transport()
    heard = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        await peer.gone()

    async def listen(relay: RelayedResponse) -> None:
        await relay.receive()
        heard.set()
        await relay.receive()

    async with serving(script) as server:
        place = UpstreamServer(base_url=server.url)
        provider = OpenAIProvider.for_server("up", place, transport=transport, keys=ring("a"))
        task = asyncio.ensure_future(
            provider.relay(f"{server.url}/x", lambda: b"{}", headers={}, handle=listen)
        )
        await heard.wait()
        assert provider.keys.busy == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert provider.keys.busy == 0
        await server.wait_closed(1)
    await transport.close()


# ---- stream_options --------------------------------------------------------------------------------------

UNKNOWN = refusal(400, {"message": "Unrecognized request argument supplied: stream_options"})


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_does_not_know_stream_options_is_asked_again_without(
    transport: Transport, status: int
) -> None:
    requests = Asked(UNKNOWN.replace(b"400", b"%d" % status, 1), GOOD)
    provider = await requests.relay(transport)
    assert isinstance(provider, OpenAIProvider)
    assert (requests.written, requests.keys, provider.adapter.quirks.include_usage) == (2, ["a", "a"], False)
    assert (requests.failures, requests.retried) == ([], [])  # it was no failure of the server's


async def test_a_rejection_that_comes_again_is_raised_after_one_retry(transport: Transport) -> None:
    requests = Asked(UNKNOWN, UNKNOWN)
    error = await requests.fail(transport)
    assert (error.upstream_status, requests.written) == (400, 2)


async def test_others_have_nothing_to_mend(transport: Transport) -> None:
    requests = Asked(UNKNOWN)
    assert (await requests.fail(transport, of=AnthropicProvider)).upstream_status == 400


# ---- secrets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["sk-secret-a", "tok-secret", "Bearer sk-secret-b", "x sk-secret-a y tok-secret"]
)
@pytest.mark.parametrize("status", [400, 401, 500])
async def test_a_key_that_the_server_says_back_is_masked(
    transport: Transport, text: str, status: int
) -> None:
    details = {"message": f"wrong: {text}", "param": text, "deep": [{"x": [text]}]}
    requests = Asked(*[refusal(status, details)] * 2)
    error = await requests.fail(transport, keys="ab")
    shown = f"{error!r} {error} {error.message} {error.hint} {error.details} {error.__cause__!r}"
    assert "secret" not in shown
    assert "***" in error.message


async def test_what_a_listener_receives_is_masked_as_well(transport: Transport) -> None:
    requests = Asked(GOOD)

    async def listen(_: RelayedResponse) -> None:
        error = ProviderError(
            "key sk-secret-a", category="auth", upstream_status=401, retry_after=7.0, hint="x"
        )
        error.details = {"message": "sk-secret-a", "code": 7}
        raise error

    requests.listen = listen
    error = await requests.fail(transport)
    assert (error.message, error.details) == ("key ***", {"message": "***", "code": 7})
    assert (error.category, error.upstream_status, error.retry_after, error.hint) == ("auth", 401, 7.0, "x")


@pytest.mark.parametrize(
    ("details", "masked"),
    [
        (None, None),
        ({}, {}),
        ({"a": "key-1", "b": 2, "c": None}, {"a": "***", "b": 2, "c": None}),
        ({"a": {"b": ["x key-1 y", {"c": "key-1"}]}}, {"a": {"b": ["x *** y", {"c": "***"}]}}),
        ({"a": {"key-1": "unknown field"}}, {"a": {"***": "unknown field"}}),
    ],
)
def test_details_keep_their_shape(
    details: Mapping[str, Any] | None, masked: Mapping[str, Any] | None
) -> None:
    secrets: Sequence[str] = ["key-1"]
    assert redact_details(details, secrets) == masked


async def test_a_provider_shows_no_secret(transport: Transport) -> None:
    server = UpstreamServer(
        base_url="https://user:pw-secret@host.example/v1?key=q-secret", headers={"x-api-key": "h-secret"}
    )
    provider = OpenAIProvider.for_server("up", server, transport=transport, keys=ring("ab"))
    assert "secret" not in f"{provider!r} {provider.server!r} {provider.keys!r}"
    assert f"{provider!r}" == "OpenAIProvider('up', UpstreamServer('https://host.example/v1'))"
