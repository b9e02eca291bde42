"""No body of a request holds the event loop: each endpoint refuses it, or reads it beside the loop."""

# ruff: noqa: UP031
from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import parse_config
from dragoman.errors import BadRequest, TooLarge
from dragoman.json_limits import JsonShape, check_shape
from dragoman.server.app import Hub
from tests.effort import rows
from tests.loop_lag import MOST, TRIES, best_lag
from tests.serving import write_script

from .asgi_client import AsgiClient

OPERATIONS = '''
from pydantic import BaseModel
from dragoman import operation

class Row(BaseModel):
    a: int

class Table(BaseModel):
    rows: list[Row]

@operation("test")
def add(numbers: list[int]) -> int:
    """Add."""
    return sum(numbers)

@operation("test")
def store(table: Table) -> int:
    """Store."""
    return len(table.rows)
'''
SAID = '{"role":"user","content":"a"}'
PART = '{"type":"text","text":"x"}'
CHAT = '{"id":"%s","messages":[{"id":"m","role":"user","parts":%s}]%s}'
OPENAI = '{"model":"sim/x","messages":%s%s}'
ANTHROPIC = '{"model":"sim/x","max_tokens":5,"messages":%s%s}'
MCP = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_call","arguments":%s}}'


def many(item: str, count: int) -> str:
    """A JSON list."""
    return f"[{','.join([item] * count)}]"


def fields(item: str, count: int) -> str:
    """A JSON object; `%d` in the item is replaced by a number."""
    return "{" + ",".join(item % n for n in range(count)) + "}"


DEEP = "[" * 5_000 + "]" * 5_000
# Each body twice: as in the attack, and with as many values as just pass the first check.
BODIES: dict[str, tuple[str, int, Any]] = {
    "chat: messages": ("/api/chat", 200_000, lambda n: '{"id":"a","messages":%s}' % many(SAID, n)),
    "chat: parts": ("/api/chat", 100_000, lambda n: CHAT % ("b", many(PART, n), "")),
    "chat: one data part": (
        "/api/chat",
        100_000,
        lambda n: CHAT % ("c", '[{"type":"data-x","data":%s}]' % many('{"a":1}', n), ""),
    ),
    "chat: tools": (
        "/api/chat",
        150_000,
        lambda n: CHAT % ("d", many(PART, 1), ',"tools":' + fields('"t%d":{}', n)),
    ),
    "openai: messages": ("/v1/chat/completions", 200_000, lambda n: OPENAI % (many(SAID, n), "")),
    "openai: parts": (
        "/v1/chat/completions",
        200_000,
        lambda n: OPENAI % ('[{"role":"user","content":%s}]' % many(PART, n), ""),
    ),
    "openai: tools": (
        "/v1/chat/completions",
        200_000,
        lambda n: (
            OPENAI % (many(SAID, 1), ',"tools":' + many('{"type":"function","function":{"name":"t"}}', n))
        ),
    ),
    "openai: fields": (
        "/v1/chat/completions",
        200_000,
        lambda n: OPENAI % (many(SAID, 1), "," + fields('"k%d":1', n)[1:-1]),
    ),
    "anthropic: messages": ("/v1/messages", 200_000, lambda n: ANTHROPIC % (many(SAID, n), "")),
    "anthropic: tools": (
        "/v1/messages",
        200_000,
        lambda n: ANTHROPIC % (many(SAID, 1), ',"tools":' + many('{"name":"t","input_schema":{}}', n)),
    ),
    "anthropic: count": ("/v1/messages/count_tokens", 200_000, lambda n: ANTHROPIC % (many(SAID, n), "")),
    "embeddings": ("/v1/embeddings", 600_000, lambda n: '{"model":"sim/x","input":%s}' % many("1", n)),
    "operation: unknown arguments": (
        "/api/operations/time.now/call",
        150_000,
        lambda n: fields('"k%d":1', n),
    ),
    "operation: near names": (
        "/api/operations/math.calculate/call",
        100_000,
        lambda n: fields('"expressio%d":1', n),
    ),
    "operation: wrong items": (
        "/api/operations/test.add/call",
        300_000,
        lambda n: '{"numbers":%s}' % many('"x"', n),
    ),
    "operation: wrong rows": (
        "/api/operations/test.store/call",
        100_000,
        lambda n: '{"table":{"rows":%s}}' % many('{"a":"x"}', n),
    ),
    "operation: calls": (
        "/api/operations/hub.call/call",
        100_000,
        lambda n: '{"calls":%s}' % many('{"tool":"time.now"}', n),
    ),
    "operation: arguments of a call": (
        "/api/operations/hub.call/call",
        100_000,
        lambda n: '{"calls":[{"tool":"time.now","input":%s}]}' % fields('"k%d":1', n),
    ),
    "mcp: arguments": ("/mcp", 150_000, lambda n: MCP % fields('"k%d":1', n)),
    "mcp: batch": ("/mcp", 50_000, lambda n: many('{"jsonrpc":"2.0","id":1,"method":"ping"}', n)),
    "mcp: calls": ("/mcp", 100_000, lambda n: MCP % ('{"calls":%s}' % many("1", n))),
}
CHECKED_FIRST = rows(list(BODIES), quick=3)
# Bodies that just pass the limits on messages, parts, tools and values, at each endpoint that takes a
# history: they are read, translated and answered. Only the provider of the script can be reached.
TURN = '{"role":"user","content":"a"},{"role":"assistant","content":"b"}'
CALL = (
    '{"role":"assistant","tool_calls":[{"id":"c%d","type":"function","function":{"name":"t","arguments":""}}]},'
    '{"role":"tool","tool_call_id":"c%d","content":"r"}'
)
TOOL = '{"type":"function","function":{"name":"t.%d","parameters":{"type":"object","properties":{}}}}'
UI_MESSAGE = '{"id":"m%d","role":"user","parts":[{"type":"text","text":"x"}]}'
AG_UI_MESSAGE = '{"id":"m%d","role":"user","content":"x"}'
AG_UI = '{"threadId":"%s","runId":"r","messages":%s}'
A2A = '{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":%s}}'


def numbered(item: str, count: int) -> str:
    """A JSON list; each `%d` in the item is replaced by its number."""
    return f"[{','.join(item.replace('%d', str(n)) for n in range(count))}]"


def to(family: str, template: str) -> str:
    """A template whose model is of a provider of this family."""
    return template.replace("sim/x", f"{family}/x")


RESPONSES = '{"model":"sim/x"%s,"input":%s}'
NEAR_LIMITS: dict[str, tuple[str, Callable[[], str]]] = {
    "openai to anthropic": (
        "/v1/chat/completions",
        lambda: to("anthropic", OPENAI) % (many(TURN, 5_000), ""),
    ),
    "openai to ollama": ("/v1/chat/completions", lambda: to("ollama", OPENAI) % (many(TURN, 5_000), "")),
    "openai: short body": (
        "/v1/chat/completions",
        lambda: to("anthropic", OPENAI) % (many(TURN, 1_000), ""),
    ),
    "openai: calls": (
        "/v1/chat/completions",
        lambda: to("anthropic", OPENAI) % (numbered(CALL, 3_200), ""),
    ),
    "openai: parts": (
        "/v1/chat/completions",
        lambda: to("anthropic", OPENAI) % ('[{"role":"user","content":%s}]' % many(PART, 10_000), ""),
    ),
    "openai: renamed tools": (
        "/v1/chat/completions",
        lambda: to("anthropic", OPENAI) % (many(TURN, 1_000), ',"tools":' + numbered(TOOL, 2_000)),
    ),
    "anthropic to openai": ("/v1/messages", lambda: to("openai", ANTHROPIC) % (many(TURN, 5_000), "")),
    "anthropic: count": ("/v1/messages/count_tokens", lambda: ANTHROPIC % (many(TURN, 5_000), "")),
    "responses to anthropic": ("/v1/responses", lambda: to("anthropic", RESPONSES) % ("", many(TURN, 5_000))),
    "responses to openai": ("/v1/responses", lambda: to("openai", RESPONSES) % ("", many(TURN, 5_000))),
    "responses in the background": (
        "/v1/responses",
        lambda: RESPONSES % (',"background":true', many(TURN, 5_000)),
    ),
    "responses: compaction": ("/v1/responses/compact", lambda: RESPONSES % ("", many(TURN, 5_000))),
    "responses on a socket": (
        "ws:/v1/responses",
        lambda: to("anthropic", RESPONSES) % (',"type":"response.create"', many(TURN, 5_000)),
    ),
    "responses on a socket: a long text": (
        "ws:/v1/responses",
        lambda: RESPONSES % (',"type":"response.create"', '"%s"' % ('\\n\\"' * 900_000)),
    ),
    "responses on a socket: too many values": (
        "ws:/v1/responses",
        lambda: RESPONSES % (',"type":"response.create"', many(TURN, 100_000)),
    ),
    "chat": ("/api/chat", lambda: '{"id":"n","messages":%s}' % numbered(UI_MESSAGE, 10_000)),
    "chat: parts": ("/api/chat", lambda: CHAT % ("o", many(PART, 1_000), "")),
    "chat on a socket: values": (
        "ws:/api/sessions/o/socket",
        lambda: '{"type":"prompt","message":{"parts":[{"type":"data-x","data":%s}]}}' % many("1", 99_000),
    ),
    "chat on a socket: too many values": (
        "ws:/api/sessions/o/socket",
        lambda: '{"type":"prompt","message":{"parts":[{"type":"data-x","data":%s}]}}' % many("1", 1_900_000),
    ),
    "ag-ui": ("/agui/default", lambda: AG_UI % ("p", numbered(AG_UI_MESSAGE, 10_000))),
    "ag-ui: parts": (
        "/agui/default",
        lambda: AG_UI % ("q", '[{"id":"m","role":"user","content":%s}]' % many(PART, 1_000)),
    ),
    "a2a": (
        "/a2a/default",
        lambda: A2A % ('{"messageId":"m","role":"ROLE_USER","parts":%s}' % many('{"text":"x"}', 1_000)),
    ),
}
# Texts of megabytes: as many escapes as fit, a half of an emoji after each 1,000 characters, other scripts.
TEXTS: dict[str, Callable[[int], str]] = {
    "escapes": lambda size: '\\n\\"' * (size // 4),
    "lone surrogates": lambda size: ("x" * 994 + "\\ud83d") * (size // 1000),
    "other scripts": lambda size: "\u4e2d" * (size // 3),
}
LARGE_BODIES: dict[str, tuple[str, int, str]] = {
    "openai": ("/v1/chat/completions", 8_000_000, OPENAI % ('[{"role":"user","content":"%s"}]', "")),
    "openai, many": (
        "/v1/chat/completions",
        2_700,
        OPENAI % (many('{"role":"user","content":"%s"}', 3_000), ""),
    ),
    "openai, relayed": (
        "/v1/chat/completions",
        8_000_000,
        '{"model":"openai/x","messages":[{"role":"user","content":"%s"}]}',
    ),
    "openai to anthropic": (
        "/v1/chat/completions",
        8_000_000,
        '{"model":"anthropic/x","messages":[{"role":"user","content":"%s"}]}',
    ),
    "anthropic to ollama": (
        "/v1/messages",
        8_000_000,
        '{"model":"ollama/x","max_tokens":5,"messages":[{"role":"user","content":"%s"}]}',
    ),
    "anthropic: count": (
        "/v1/messages/count_tokens",
        8_000_000,
        ANTHROPIC % ('[{"role":"user","content":"%s"}]', ""),
    ),
    "a name": ("/v1/chat/completions", 8_000_000, '{"model":"%s"}'),
    "chat": ("/api/chat", 3_900_000, CHAT % ("t", '[{"type":"text","text":"%s"}]', "")),
    "chat: data": ("/api/chat", 3_900_000, CHAT % ("u", '[{"type":"data-x","data":{"a":"%s"}}]', "")),
    "operation": ("/api/operations/time.now/call", 3_900_000, '{"zone":"%s"}'),
    "mcp": ("/mcp", 3_900_000, MCP % '{"calls":[{"tool":"time.now","input":{"zone":"%s"}}]}'),
}
DEEP_BODIES = {
    "/api/chat": CHAT % ("e", '[{"type":"data-x","data":%s}]' % DEEP, ""),
    "/v1/chat/completions": OPENAI % (many(SAID, 1), f',"x":{DEEP}'),
    "/v1/messages": ANTHROPIC % (many(SAID, 1), f',"x":{DEEP}'),
    "/v1/messages/count_tokens": ANTHROPIC % (many(SAID, 1), f',"x":{DEEP}'),
    "/v1/embeddings": '{"model":"sim/x","input":%s}' % DEEP,
    "/api/operations/time.now/call": '{"a":%s}' % DEEP,
    "/api/operations/hub.call/call": DEEP,
    "/api/sessions": '{"title":%s}' % DEEP,
    "/api/approvals/apr_1": '{"approved":%s}' % DEEP,
    "/api/mcp/servers": '{"name":%s}' % DEEP,
    "/mcp": MCP % ('{"a":%s}' % DEEP),
}


@asynccontextmanager
async def hub_client(folder: Path) -> AsyncIterator[AsgiClient]:
    script = write_script(folder, [{"text": "ok"}], play="turns")
    (folder / "operations.py").write_text(OPERATIONS)
    config = parse_config(
        {
            "providers": {
                "sim": {"type": "scripted", "script": str(script)},
                **{
                    name: {"type": name, "base_url": "http://127.0.0.1:9", "retries": 0}
                    for name in ("openai", "anthropic", "ollama")
                },
            },
            "model": "sim/x",
            "operations": [str(folder / "operations.py")],
        }
    )
    async with Hub.open(config, folder / "hub", require_keys=False) as hub:
        client = AsgiClient(hub.app)
        await client.post("/v1/messages", (ANTHROPIC % (many(SAID, 1), "")).encode())
        await client.post("/mcp", b'{"jsonrpc":"2.0","id":1,"method":"ping"}')  # loads the SDK
        yield client


async def measure(client: AsgiClient, method: str, path: str, body: bytes) -> tuple[int, bytes, float]:
    """The response, and how long the loop was held in the best of some tries."""
    status, answer = await client.request(method, path, body)
    lag = client.lag
    for _ in range(TRIES - 1):
        if lag > MOST:
            await client.request(method, path, body)
            lag = min(lag, client.lag)
    return status, answer, lag


async def test_no_body_of_many_values_holds_the_event_loop(tmp_path: Path) -> None:
    lags: dict[str, float] = {}
    async with hub_client(tmp_path) as client:
        for name, (path, most, build) in BODIES.items():
            # The first check is the same at all: in `make test` a third of the bodies meets it.
            for count in (most // 12, most) if name in CHECKED_FIRST else (most // 12,):
                body = build(count).encode()
                status, answer, lag = await measure(client, "POST", path, body)
                lags[f"{name} x {count}"] = lag
                assert status < 500, (name, count, answer[:300])
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


async def test_no_body_that_just_passes_the_limits_holds_the_event_loop(tmp_path: Path) -> None:
    lags: dict[str, float] = {}
    async with hub_client(tmp_path) as client:
        for name, (path, build) in NEAR_LIMITS.items():
            body = build().encode()
            if path.startswith("ws:"):
                is_refused = "too many" in name
                frame, lags[name] = await best_lag(partial(client.ask_socket, path[3:], body.decode()))
                assert ("more than 100000 JSON values" in frame) is is_refused, (name, frame[:300])
                continue
            status, answer, lags[name] = await measure(client, "POST", path, body)
            assert status in (200, 424, 502), (name, status, answer[:300])  # the latter: not connected
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


async def test_no_text_of_megabytes_holds_the_event_loop(tmp_path: Path) -> None:
    lags: dict[str, float] = {}
    async with hub_client(tmp_path) as client:
        for name, (path, size, template) in LARGE_BODIES.items():
            for kind, make in TEXTS.items():
                if kind != "escapes" and name not in ("openai to anthropic", "chat"):
                    continue  # the same code
                body = template.replace("%s", make(size)).encode()
                status, answer, lags[f"{name}: {kind}"] = await measure(client, "POST", path, body)
                assert status < 500 or status == 502, (name, status, answer[:300])
        for session in ("t", "u"):
            status, answer, lags[f"messages of {session}"] = await measure(
                client, "GET", f"/api/sessions/{session}/messages", b""
            )
            assert (status, len(answer) > 3_000_000) == (200, True)
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


async def test_a_body_that_is_nested_too_deeply_is_a_400_at_every_endpoint(tmp_path: Path) -> None:
    async with hub_client(tmp_path) as client:
        for path, body in DEEP_BODIES.items():
            for raw in (body.encode(), body.replace("]", "").encode(), body.encode() + b" " * 300_000):
                status, answer = await client.post(path, raw)
                limited = len(raw) > 60_000 and status == 413  # small endpoints
                assert status == 400 or limited, (path, status, answer[:300])


async def test_a_compressed_body_is_a_400_that_says_so_at_every_endpoint(tmp_path: Path) -> None:
    async with hub_client(tmp_path) as client:
        for path in DEEP_BODIES:
            headers = {"content-encoding": "gzip"}
            status, answer = await client.request("POST", path, gzip.compress(b"{}"), headers=headers)
            assert (status, b"gzip" in answer) == (400, True), (path, status, answer[:300])


async def test_a_long_history_with_much_in_it_is_not_decoded(tmp_path: Path) -> None:
    rows = many('{"a":1}', 20_000)
    old = '{"id":"o","role":"assistant","parts":[{"type":"data-x","data":%s}]}' % rows
    new = '{"id":"n","role":"user","parts":[{"type":"text","text":"hi"}]}'
    async with hub_client(tmp_path) as client:
        body = '{"id":"h","messages":[%s]}' % ",".join([old] * 10 + [new])
        status, answer = await client.post("/api/chat", body.encode())
        assert (status, b'"type":"finish"' in answer) == (200, True)
        found = await client.post("/api/chat", (CHAT % ("i", many(PART, 1_001), "")).encode())
        assert found[0] == 400
        assert b"messages[0].parts has 1001 items; 1000 are allowed" in found[1]


# ---- the count itself -------------------------------------------------------------------------------------


def feed_all(shape: JsonShape, text: bytes, size: int) -> None:
    for start in range(0, len(text), size):
        shape.feed(text[start : start + size])


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2, {"b": "c"}], "d": []},
        ['",[{', '\\",[{', "\\", "\\\\", '\\\\"', "a\\", ["\\\\\\"], '"'],
        {"\\": "[[[[", '"': {"{": "}"}},
        "[[[[",
        [[[[]]], [[]]],
        [],
        1,
    ],
)
def test_values_and_depth_are_counted_outside_strings_however_the_text_is_cut(value: Any) -> None:
    text = json.dumps(value).encode()

    def measure(item: Any) -> tuple[int, int]:
        if not isinstance(item, dict | list):
            return 0, 0
        inner = [measure(each) for each in (item.values() if isinstance(item, dict) else item)]
        own = 1 + max(0, len(item) - 1) + (len(item) if isinstance(item, dict) else 0)
        return own + sum(each[0] for each in inner), 1 + max((each[1] for each in inner), default=0)

    values, depth = measure(value)
    for size in (1, 2, 3, 5, len(text)):
        shape = JsonShape(max_values=values + 1, max_depth=depth)
        feed_all(shape, text, size)
        assert (shape.values, shape.depth) == (values + 1, 0)
        if depth:
            for limits, error in (({"max_values": values}, TooLarge), ({"max_depth": depth - 1}, BadRequest)):
                with pytest.raises(error):
                    feed_all(JsonShape(**limits), text, size)


def test_a_small_body_is_counted_only_when_it_may_be_deep() -> None:
    check_shape(b'{"a":[1,2,3]}' * 10)
    with pytest.raises(BadRequest, match="nested deeper than 200 levels"):
        check_shape(b"[" * 201)
    with pytest.raises(TooLarge, match=r"more than 100000 JSON values and names"):
        check_shape(b"[" + b"1," * 100_001)
