"""HTTP hooks: the signed request, valid answers, and what an invalid answer does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.agent.hooks.events import Block, PostToolUse, PreModel, PreToolUse, RunEnd, UserPromptSubmit
from dragoman.agent.hooks.hooks import Hooks
from dragoman.agent.hooks.http import event_body, http_hook
from dragoman.errors import ConfigError, Unauthorized
from dragoman.events import Usage
from dragoman.http.transport import Transport
from dragoman.http.webhook import Webhook, verify_webhook
from dragoman.messages import FilePart, Message, TextPart
from dragoman.model_request import ModelRequest, Tool
from dragoman.operations.call_hooks import CallEnd, HookedCall
from tests.loop_clock import LoopClock
from tests.ports import free_port
from tests.providers.servers import LIMIT, Peer, Received, serving

SECRET = "whsec_" + "c2VjcmV0IG9mIHRoZSBodWI="  # base64 of some words


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def call(**changes: Any) -> HookedCall:
    defaults = {"operation": "mail.send", "input": {"to": "bob"}, "effect": "once", "owner": "ann"}
    return HookedCall(**{**defaults, "session_id": "ses_1", "tool_call_id": "tc_1", **changes})


class Answering:
    """A server that answers each request in the same way, and keeps what it got."""

    def __init__(self, body: bytes, status: str = "200 OK") -> None:
        self.body = body
        self.status = status
        self.got: list[Received] = []

    async def __call__(self, peer: Peer) -> None:
        self.got.append(await peer.request())
        head = f"HTTP/1.1 {self.status}\r\ncontent-length: {len(self.body)}\r\nconnection: close\r\n\r\n"
        await peer.send(head.encode() + self.body)


@asynccontextmanager
async def asking(server: Any, *, secret: str | None = SECRET, **details: Any) -> AsyncIterator[Hooks]:
    """Hooks that ask this server about everything."""
    transport = Transport()
    async with serving(server) as place:
        hook = http_hook(Webhook(f"{place.url}/hook?key=1", transport, secret=secret, limit=10_000))
        hooks = Hooks()
        for event in ("pre_tool_use", "post_tool_use", "user_prompt_submit", "pre_model", "run_end"):
            hooks.on(event, hook, **{"timeout": LIMIT, "name": "far", **details})
        try:
            yield hooks
        finally:
            await transport.close()


async def test_an_event_is_sent_as_signed_json() -> None:
    server = Answering(b'{"decision": "continue"}')
    async with asking(server) as hooks:
        hook_decision = await hooks.calls.before(call())
    assert (hook_decision.block, hook_decision.input) == (None, None)
    [got] = server.got
    assert got.line == "POST /hook?key=1 HTTP/1.1"
    assert json.loads(got.body) == {
        "event": "pre_tool_use", "tool": "mail_send", "operation": "mail.send", "input": {"to": "bob"},
        "effect": "once", "owner": "ann", "sessionId": "ses_1", "toolCallId": "tc_1",
    }  # fmt: skip
    headers = {name.lower(): value for name, value in got.headers}
    verify_webhook(headers, got.body, secret=SECRET, now=time.time())
    for changes, body in (
        ({"webhook-signature": "v1,AAAA"}, got.body),
        ({"webhook-timestamp": str(int(headers["webhook-timestamp"]) - 10)}, got.body),
        ({"webhook-id": "msg_other"}, got.body),
        ({"webhook-signature": ""}, got.body),
        ({"webhook-timestamp": "١٢٣"}, got.body),
        ({"webhook-timestamp": "9" * 5000}, got.body),
        ({}, got.body + b" "),
    ):
        with pytest.raises(Unauthorized):
            verify_webhook({**headers, **changes}, body, secret=SECRET, now=time.time())
    with pytest.raises(Unauthorized):
        verify_webhook(headers, got.body, secret=SECRET, now=time.time() + 301)
    with pytest.raises(Unauthorized):
        verify_webhook(headers, got.body, secret="another", now=time.time())


async def test_without_a_secret_nothing_is_signed() -> None:
    server = Answering(b'{"decision": "continue"}')
    async with asking(server, secret=None) as hooks:
        await hooks.calls.before(call())
    assert "webhook-signature" not in server.got[0].names


async def test_an_answer_can_block_ask_and_change() -> None:
    async with asking(Answering(b'{"decision": "block", "reason": "no"}')) as hooks:
        assert (await hooks.calls.before(call())).block == "no"
        assert await hooks.loop.user_prompt_submit(UserPromptSubmit(text="hi")) == Block("no")
    async with asking(Answering(b'{"decision": "ask"}')) as hooks:
        assert (await hooks.calls.before(call())).ask == "a hook requires approval"
    async with asking(
        Answering(b'{"decision": "modify", "input": {"to": "eve"}, "metadata": {"n": 1}}')
    ) as hooks:
        hook_decision = await hooks.calls.before(call())
        assert hook_decision.input == {"to": "eve"}
        assert hook_decision.notes == (
            'hook far: the input was changed, to {"to":"eve"}',
            'hook far notes {"n":1}',
        )
    async with asking(Answering(b'{"decision": "modify", "output": null}')) as hooks:
        revision = await hooks.calls.after(call(), CallEnd(status="done", result=[1]))
        assert revision is not None
        assert (revision.result, revision.failure) == (None, None)
    async with asking(Answering(b"", "204 No Content")) as hooks:
        assert (await hooks.calls.before(call())).block is None


async def test_a_models_request_can_be_changed_from_afar() -> None:
    request = ModelRequest(
        model="m", messages=[Message("u", "user", (TextPart("hi"),))], tools=[Tool("t", "", {})]
    )
    change = {"instructions": "Be kind.", "options": {"temperature": 0}}
    server = Answering(json.dumps({"decision": "modify", "request": change}).encode())
    async with asking(server) as hooks:
        event = await hooks.loop.pre_model(PreModel(request=request, step=1))
    assert isinstance(event, PreModel)
    assert (event.request.instructions, event.request.options) == ("Be kind.", {"temperature": 0})
    assert event.request.messages == request.messages
    body = json.loads(server.got[0].body)
    assert body["request"]["messages"] == [
        {"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
    ]
    assert (body["event"], body["step"], body["request"]["tools"]) == ("pre_model", 1, ["t"])
    async with asking(Answering(b'{"decision": "modify", "request": {"model": "dear"}}')) as hooks:
        assert isinstance(await hooks.loop.pre_model(PreModel(request=request)), Block)


BAD = [
    (b"", "200 OK"), (b"null", "200 OK"), (b"true", "200 OK"), (b'{"decision": "allow"}', "200 OK"),
    (b'{"reason": "x"}', "200 OK"), (b'{"decision": "continue"', "200 OK"), (b"\xff\xfe", "200 OK"),
    (b'{"decision": "modify", "input": "x"}', "200 OK"), (b'{"decision": "modify", "input": null}', "200 OK"),
    (b'{"decision": "modify", "output": 1}', "200 OK"), (b'{"decision": "continue"}', "500 Oh no"),
    (b'{"decision": "continue"}', "302 Found"), (b'{"decision": "continue"}', "401 Unauthorized"),
    (b'{"decision": "continue", "reason": "' + b"x" * 10_000 + b'"}', "200 OK"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status"), BAD)
async def test_an_answer_that_is_none_stops_the_call(body: bytes, status: str) -> None:
    async with asking(Answering(body, status)) as hooks:
        hook_decision = await hooks.calls.before(call())
    assert hook_decision.block is not None
    assert hook_decision.block.startswith("hook far failed")


async def test_a_server_that_does_not_answer_stops_the_call_and_its_socket_is_closed() -> None:
    gone: asyncio.Queue[bool] = asyncio.Queue()
    clock = LoopClock()

    async def silent(peer: Peer) -> None:
        await peer.request()
        clock.set_ahead(30)
        await peer.gone()
        gone.put_nowait(True)

    async with asking(silent, timeout=30) as hooks:
        hook_decision = await hooks.calls.before(call())
        passed = await hooks.calls.after(call(), CallEnd(status="done", result=1))
        assert passed is not None
        for _ in range(2):
            assert await gone.get()
    assert hook_decision.block == "hook far failed: it took more than 30 seconds"
    assert (passed.result, passed.notes) == (1, ("hook far failed: it took more than 30 seconds",))


async def test_a_server_that_is_not_there_stops_the_call() -> None:
    transport = Transport()
    hooks = Hooks().on("pre_tool_use", http_hook(Webhook(f"http://127.0.0.1:{free_port()}", transport)))
    assert (await hooks.calls.before(call())).block == "hook http_hook failed: it raised an exception"
    await transport.close()


@pytest.mark.parametrize("url", ["ftp://x/y", "x", "https://user:word@x.org/y", "https://x.org/a b"])
async def test_an_address_that_cannot_be_asked_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="not valid") as caught:
        Webhook(url, Transport())
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!!", f"{SECRET} another"])
async def test_a_secret_that_cannot_sign_is_refused(secret: str) -> None:
    with pytest.raises(ConfigError, match="secret of an HTTP hook"):
        Webhook("https://x.org/", Transport(), secret=secret)


def test_each_event_has_its_json() -> None:
    message = Message("u", "user", (TextPart("hi"), FilePart("image/png", "https://x.org/a.png")))
    assert event_body(UserPromptSubmit(text="hi", message=message))["message"]["parts"] == message.parts
    usage = Usage(input_tokens=3, output_tokens=4)
    body = event_body(RunEnd(reason="stop", steps=2, usage=usage, cost=0.5, run_id="run_1"))
    assert (body["event"], body["runId"], body["usage"], body["cost"]) == ("run_end", "run_1", usage, 0.5)
    after = event_body(PostToolUse(tool="a_b", operation="a.b", input={}, status="failed", error="no"))
    assert (after["status"], after["error"], "output" in after) == ("failed", "no", False)
    assert "keyId" not in event_body(PreToolUse(tool="a_b", operation="a.b", input={}))
