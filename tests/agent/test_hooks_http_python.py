"""HTTP hooks made in Python from a URL alone."""

from __future__ import annotations

import json
import time

import pytest

from dragoman import Agent, Hooks, ScriptedModel, http_hook, in_turn, operation, verify_webhook
from dragoman.errors import ConfigError
from tests.providers.servers import Peer, Received, serving

SECRET = "whsec_" + "c2VjcmV0IG9mIHRoZSBodWI="  # base64 of some words
NO = b'{"decision": "block", "reason": "not today"}'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@operation(namespace="mail")
def send(to: str) -> str:
    "Send a letter."
    return f"sent to {to}"


class Keeping:
    """A server that answers whatever comes over a connection, until its client closes that."""

    def __init__(self) -> None:
        self.got: list[Received] = []

    async def __call__(self, peer: Peer) -> None:
        while True:
            self.got.append(await peer.request())
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(NO), NO))


@pytest.mark.parametrize("alone", [True, False])
async def test_an_address_is_asked_and_its_connections_close_with_the_agent(alone: bool) -> None:
    server = Keeping()
    async with serving(server) as place:
        hook = http_hook(f"{place.url}/hook", secret=SECRET, timeout=60)
        hooks = Hooks().on("pre_tool_use", hook if alone else in_turn(hook))
        model = ScriptedModel([("mail_send", {"to": "bob"}), "I may not."] * 2)
        agent = Agent(model, operations=[send], hooks=hooks)
        for rounds in (1, 2):  # closed, it opens again
            async with agent:
                result = await agent.spawn("Write to Bob.").result
            assert result.text == "I may not."
            await place.wait_closed(rounds)
            assert (len(server.got), place.connections) == (rounds, rounds)
    got = server.got[0]
    headers = {name.lower(): value for name, value in got.headers}
    verify_webhook(headers, got.body, secret=SECRET, now=time.time())
    assert json.loads(got.body)["input"] == {"to": "bob"}
    assert "not today" in str(model.requests[1].messages[-1])


async def test_a_hook_is_named_by_its_host_in_what_is_noted() -> None:
    hook = http_hook("https://hooks.example.org/dragoman?key=secret")
    [named] = Hooks().on("run_end", hook)
    assert (named.name, repr(hook)) == ("hooks.example.org", "HttpHook('hooks.example.org')")


@pytest.mark.parametrize(("url", "secret"), [("hooks.example.org", None), ("https://a.example", "")])
def test_what_cannot_be_asked_or_signed_is_refused_at_once(url: str, secret: str | None) -> None:
    with pytest.raises(ConfigError):
        http_hook(url, secret=secret)
