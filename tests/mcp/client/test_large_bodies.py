"""Large messages over Streamable HTTP hold no event loop, in either direction, and arrive whole."""

from __future__ import annotations

import asyncio
import re
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from mcp_types import methods

from dragoman.mcp.client.large_messages import MessageBodies, split_events
from dragoman.mcp.server_spec import ServerSpec
from tests.loop_lag import MOST, best_lag
from tests.providers.servers import accepting

SIZE = 4_000_000
PIECE = 200_000
KINDS: dict[str, Any] = {
    "plain": "word " * (SIZE // 5),
    "escapes": '\n"' * (SIZE // 4),
    "wide": "\u00e9\u20ac" * (SIZE // 5),
    "values": [{"id": number, "name": "x"} for number in range(30_000)],
}
MODES = {
    "JSON": b"%b",
    "events": b"event: message\ndata: %b\n\n",
    "lines": b": hello\r\n\r\nevent: message\r\nid: 1\r\ndata: %b\r\n\r\n",
}
RESULTS: dict[bytes, Any] = {
    b"server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
    b"tools/list": {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]},
}
CACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class LargeServer:
    """Answers calls with `result`, in `mode`; keeps the last request. It decodes nothing."""

    def __init__(self) -> None:
        self.result = b"{}"
        self.mode = "JSON"
        self.request = b""
        self.answers: dict[bytes, Any] = dict(RESULTS)

    def answer(self, method: bytes, body: bytes) -> Any:
        """Return the result of another method: one that is given, or what a function returns for a page."""
        found = self.answers.get(method, {})
        if not callable(found):
            return found
        return found(int(msgspec.json.decode(body)["params"].get("cursor", "0")))

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection."""
        try:
            while True:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(length[1]) if length else 0)
        id, method = re.search(rb'"id":(\d+)', body), re.search(rb'"method":"([^"]*)"', body)
        name = b"" if method is None else method[1]
        if name == b"tools/call":
            self.request = body
        other = msgspec.json.encode(self.answer(name, body) | CACHED)
        result = self.result if name == b"tools/call" else other
        mode = self.mode if name == b"tools/call" else "JSON"
        message = b'{"jsonrpc":"2.0","result":%b,"id":%b}' % (result, b"0" if id is None else id[1])
        if mode == "lines":  # the data of one event in many lines
            message = message.replace(b"},{", b"},\r\ndata: {")
        whole = MODES[mode] % message
        kind = b"application/json" if mode == "JSON" else b"text/event-stream"
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(whole))
        )
        for start in range(0, len(whole), PIECE):
            writer.write(whole[start : start + PIECE])
            await writer.drain()
            await asyncio.sleep(0)


@asynccontextmanager
async def large_server() -> AsyncIterator[tuple[LargeServer, ServerSpec]]:
    made = LargeServer()
    async with accepting(made.serve, limit=20_000_000) as port:
        yield made, ServerSpec(name="web", url=f"http://127.0.0.1:{port}/mcp", transport="http", timeout=120)


async def test_large_results_and_arguments_over_http_hold_no_event_loop(open_hub: Any) -> None:
    lags: dict[str, float] = {}
    async with large_server() as (server, spec), open_hub(spec) as hub:
        (ready,) = await hub.servers.wait_until_started()
        assert ready.state == "ready", ready.error
        for kind, value in KINDS.items():
            is_text = isinstance(value, str)
            content = [{"type": "text", "text": value}] if is_text else []
            fields = {"content": content} if is_text else {"content": [], "structuredContent": {"all": value}}
            server.result = msgspec.json.encode({**fields, **CACHED})
            for server.mode in MODES:
                outcome, lags[f"{kind}, {server.mode}"] = await best_lag(partial(hub.call, "web.go"))
                assert outcome.ok, outcome.error
                assert outcome.result == (value if is_text else {"all": value})
            server.result, server.mode = msgspec.json.encode({"content": [], **CACHED}), "JSON"
            sent = {"a": value[: len(value) // 3], "b": 1}  # a body has at most 100,000 values
            outcome, lags[f"{kind}, sent"] = await best_lag(partial(hub.call, "web.go", sent))
            assert outcome.ok, outcome.error
            assert msgspec.json.decode(server.request)["params"]["arguments"] == sent
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"%b","data":[1]}}', "x" * 10_000),
        (b'{"jsonrpc":"2.0","id":7,"result":["%b"]}', "its response is not valid JSON-RPC"),
        (b'{"jsonrpc":"2.0","id":7,"result":{"%b"', "its response is not valid JSON"),
        (b'[{"jsonrpc":"2.0","id":7,"result":{"a":"%b"}},{"jsonrpc":"2.0","id":8,"result":{}}]', "several"),
    ],
)
def test_a_large_message_that_is_no_result_is_a_short_error(raw: bytes, expected: str) -> None:
    short = MessageBodies().shorten(raw.replace(b"%b", b"x" * 300_000))
    assert len(short) < 11_000
    assert expected in msgspec.json.decode(short)["error"]["message"]


def test_a_reference_that_a_server_makes_up_is_a_result_like_any_other() -> None:
    bodies = MessageBodies()
    short = bodies.shorten(b'{"jsonrpc":"2.0","id":1,"result":{"a":"%b"}}' % (b"x" * 300_000))
    reference = msgspec.json.decode(short)["result"]
    made_up = dict.fromkeys(reference, "0" * 32)
    assert bodies.take(made_up) is made_up
    assert bodies.take(reference) == {"a": "x" * 300_000}
    assert bodies.take(reference) is reference


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_are_split_at_blank_lines_whatever_ends_their_lines(end: bytes) -> None:
    events = [b"data: a%b%b" % (end, end), b"data: b%bid: 1%b%b" % (end, end, end), b"data: c"]
    assert list(split_events(b"".join(events))) == events


async def test_the_sdk_gets_no_copy_of_what_a_large_list_or_result_has(
    open_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would copy it in the event loop, and the hub would free the copy there."""
    seen: list[int] = []
    validate = methods.validate_server_result

    def note(method: str, version: str, data: Any, **more: Any) -> None:
        seen.append(len(msgspec.json.encode(data)))
        validate(method, version, data, **more)

    monkeypatch.setattr(methods, "validate_server_result", note)
    entry = {"name": "n", "uri": "x:y", "description": "d" * 400}
    async with large_server() as (server, spec), open_hub(spec) as hub:
        server.answers[b"server/discover"] = RESULTS[b"server/discover"] | {
            "capabilities": {"tools": {}, "resources": {}}
        }
        server.answers[b"resources/list"] = {"resources": [entry] * 1_000}
        server.result = msgspec.json.encode({"structuredContent": {"all": [entry] * 1_000}, **CACHED})
        await hub.servers.wait_until_started()
        assert (await hub.call("web.resources.list")).result["resources"] == [entry] * 1_000
        assert (await hub.call("web.go")).result == {"all": [entry] * 1_000}
    assert len(seen) >= 4
    assert max(seen) < 1_000
