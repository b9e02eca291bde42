"""Frames of an MCP server that cannot be used end the call that they answer, and nothing else."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.mcp.client.server_log import ErrorHistory, RecentLines
from dragoman.mcp.server_spec import ServerSpec
from tests.mcp.client.conftest import Hub, hub

SERVER = Path(__file__).with_name("line_server.py")
LineSpec = Callable[..., ServerSpec]


def nested(levels: int, core: str = "{}") -> str:
    return '{"a":' * levels + core + "}" * levels


@pytest.fixture
def lines(tmp_path: Path) -> LineSpec:
    """The spec of a server that writes what it is told to, with these tools besides."""

    def make(*tools: str, **details: Any) -> ServerSpec:
        (tmp_path / "tools.json").write_text(
            ",".join(tools) or '{"name": "more", "inputSchema": {"type": "object"}}'
        )
        command = (sys.executable, "-S", "-E", str(SERVER), str(tmp_path / "tools.json"))
        return ServerSpec(name="lines", command=command, **details)

    return make


@pytest.fixture
async def opened(lines: LineSpec) -> AsyncIterator[Hub]:
    async with hub(lines(timeout=120)) as here:
        await here.servers.wait_until_started()
        yield here


def result(body: str) -> str:
    return f'{{"jsonrpc": "2.0", "id": $ID, "result": {body}}}'


def error(body: str) -> str:
    return f'{{"jsonrpc": "2.0", "id": $ID, "error": {body}}}'


TOO_DEEP = "nested more than 128 deep"
NOT_JSON = "not valid JSON"
NOT_RPC = "not valid JSON-RPC"
ANSWERS = {  # what is written as the answer, and what the call's error says
    "deep content": (
        result(f'{{"content": [{{"type": "text", "text": "x", "a": {nested(300)}}}]}}'),
        TOO_DEEP,
    ),
    "deep structure": (result(f'{{"content": [], "structuredContent": {nested(200)}}}'), TOO_DEEP),
    "very deep structure": (result(f'{{"content": [], "structuredContent": {nested(50_000)}}}'), TOO_DEEP),
    "deep list": (
        result(f'{{"content": [], "structuredContent": {{"a": {"[" * 400 + "]" * 400}}}}}'),
        TOO_DEEP,
    ),
    "deep error": (error(f'{{"code": 1, "message": "no", "data": {nested(300)}}}'), TOO_DEEP),
    "deep and cut": (result(nested(300))[:-3], NOT_JSON),
    "null": (result("null"), NOT_RPC),
    "a list": (result("[1]"), NOT_RPC),
    "error as text": (error('"no"'), NOT_RPC),
    "error without a code": (error('{"message": "no"}'), NOT_RPC),
    "neither": ('{"jsonrpc": "2.0", "id": $ID}', NOT_RPC),
    "without jsonrpc": ('{"id": $ID, "result": {"content": []}}', NOT_RPC),
    "cut": (result('{"content": [')[:-1], NOT_JSON),
    "input of another type": (
        result('{"resultType": "input_required", "inputRequests": 7}'),
        "does not follow MCP",
    ),
    "content is an object": (result('{"content": {"a": 1}}'), "does not follow MCP"),
}


async def test_an_answer_that_cannot_be_used_is_the_error_of_its_call_alone(opened: Hub) -> None:
    for name, (answer, words) in ANSWERS.items():
        beside = asyncio.create_task(opened.call("lines.echo", {"n": 1}))
        outcome = await opened.call("lines.write", {"lines": [answer], "answer": False})
        assert outcome.error is not None, name
        assert (outcome.error.code, words in outcome.error.message) == ("call_failed", True), name
        assert (await beside).ok, name
        assert (await opened.call("lines.echo")).ok, name
    assert opened.servers.status("lines").attempts == 1


async def test_half_an_emoji_in_a_line_becomes_a_replacement_character(opened: Hub) -> None:
    for sent, expected in {r"cut \ud83d": "cut \ufffd", r"\ud83d\ude00": "\U0001f600"}.items():
        line = result(f'{{"content": [{{"type": "text", "text": "{sent}"}}]}}')
        outcome = await opened.call("lines.write", {"lines": [line], "answer": False})
        assert (outcome.ok, outcome.result) == (True, expected)
    assert opened.servers.status("lines").attempts == 1


def progress(body: str) -> str:
    return f'{{"jsonrpc": "2.0", "method": "notifications/progress", "params": {body}}}'


STRAY = [
    *("7", '"x"', "null", "[]", "{}", "\x00", "[1, {}]"),
    '{"jsonrpc": "2.0", "id": 99999, "result": {"content": []}}',
    '{"jsonrpc": "2.0", "id": null, "result": {"content": []}}',
    '{"jsonrpc": "2.0", "id": {"a": 1}, "result": {"content": []}}',
    '{"jsonrpc": "2.0", "id": true, "error": {"code": 1, "message": "no"}}',
    '{"jsonrpc": "2.0", "id": 99999, "error": {"code": 1, "message": "no"}}',
    progress('{"progressToken": $TOKEN, "progress": "x"}'),
    progress('{"progressToken": [1], "progress": 1}'),
    progress(f'{{"progressToken": $TOKEN, "progress": 1, "a": {nested(300)}}}'),
    progress("7"),
    '{"jsonrpc": "2.0", "method": "notifications/progress"}',
    '{"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": [1]}',
    '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {"a": 1}}}',
    '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "shout"}}',
    '{"jsonrpc": "2.0", "method": "notifications/unknown"}',
    '{"jsonrpc": "2.0", "id": "p", "method": "ping"}',
    '{"jsonrpc": "2.0", "id": "p", "method": "ping"}',
    '{"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage"}',
    f'{{"jsonrpc": "2.0", "id": "r", "method": "elicitation/create", "params": {nested(300)}}}',
    f'{{"jsonrpc": "2.0", "id": "s", "method": "unknown/request", "params": {nested(3_000)}}}',
]


async def test_frames_that_answer_no_call_are_passed_over(opened: Hub) -> None:
    for stray in STRAY:
        outcome = await opened.call("lines.write", {"lines": [stray]})
        assert outcome.result == "written" or "asked for" in outcome.error.message, stray  # type: ignore[union-attr]
    assert (await opened.call("lines.write", {"lines": STRAY[:-3]})).result == "written"
    assert opened.servers.status("lines").attempts == 1


def tool(name: str, schema: str, key: str = "inputSchema") -> str:
    plain = "" if key == "inputSchema" else '"inputSchema": {"type": "object"}, '
    return f'{{"name": "{name}", {plain}"{key}": {schema}}}'


def properties(body: str) -> str:
    return f'{{"type": "object", "properties": {body}}}'


UNUSABLE = {
    **{f"deep{levels}": properties(nested(levels)) for levels in (70, 150, 300, 900, 1_100, 50_000)},
    "properties": properties("[1]"),
    "no_properties": properties("null"),
    "property": properties('{"a": 7}'),
    "mirrored": properties('{"a": {"type": "string", "x-mcp-header": "A"}, "b": 7}'),
    "required": '{"type": "object", "required": 7}',
    "required_number": '{"type": "object", "required": [7]}',
    "dialect": '{"type": "object", "$schema": 7}',
    "pattern": properties('{"a": {"pattern": "("}}'),
    "enum": properties('{"a": {"enum": 5}}'),
    "missing": properties('{"a": {"$ref": "#/$defs/no"}}'),
    "elsewhere": properties('{"a": {"$ref": "file:///etc/passwd"}}'),
    "all_of": '{"type": "object", "allOf": {}}',
    "number": "7",
    "nothing": "null",
}


async def test_a_schema_that_cannot_be_used_leaves_out_its_tool_and_no_other(lines: LineSpec) -> None:
    deep_elsewhere = [
        tool(f"in_{key}", nested(300), key) for key in ("outputSchema", "annotations", "_meta", "x")
    ]
    unusable = [tool(name, schema) for name, schema in UNUSABLE.items()]
    async with hub(lines(*unusable, *deep_elsewhere, tool("good", properties("{}")))) as here:
        (status,) = await here.servers.wait_until_started()
        assert (status.state, status.error) == ("ready", None)
        assert here.ids() == ["lines.echo", "lines.good", "lines.look", "lines.write"]
        assert len(status.problems) == len(unusable) + len(deep_elsewhere)
        for name in UNUSABLE:
            assert any(f"tool {name!r} is left out: " in problem for problem in status.problems), name
        assert (await here.call("lines.good")).ok


async def test_why_a_server_failed_is_shown_while_it_starts_again_and_after(open_hub: Any, raw: Any) -> None:
    async with open_hub(raw("raw", "dies", connect_timeout=120)) as here:
        (failed,) = await here.servers.wait_until_started()
        assert "no configuration" in failed.error
        again = here.servers.reconnect("raw")
        assert (again.state, again.error, again.last_error) == ("starting", None, failed.error)
        assert "no configuration" in (await here.call("raw.echo")).error.hint


async def test_why_a_connection_was_lost_stays_when_the_server_is_back(
    open_hub: Any, raw: Any, until: Any
) -> None:
    async with open_hub(raw()) as here:
        await here.servers.wait_until_started()
        assert not (await here.call("raw.crash")).ok
        await until(lambda: here.servers.status("raw").attempts == 2)
        status = (await here.servers.wait_until_started())[0]
        assert (status.state, status.error, status.first_error) == ("ready", None, None)
        assert "exit code 3" in status.last_error
        assert status.last_error_at is not None


def test_the_errors_of_a_server_are_its_first_and_its_last_one() -> None:
    history = ErrorHistory(RecentLines(iter([1.0, 2.0, 3.0, 4.0]).__next__))
    history.add("no secret")
    assert (history.first, history.last) == (None, "no secret")
    history.add("timeout")
    assert (history.first, history.last, history.last_at) == ("no secret", "timeout", 2.0)
    history.mark_ready()
    history.add("exit code 3")
    assert json.dumps([history.first, history.last]) == '[null, "exit code 3"]'
