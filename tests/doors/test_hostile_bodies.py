"""Each place in a valid request of each door, with each value that does not belong there."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.effort import rounds
from tests.odd_values import ODD_VALUES
from tests.serving import Served, serving

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "description": "d", "strict": True}
ITEMS: list[Any] = [
    {"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
    {"role": "user", "content": "hi"},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "s"}],
        "encrypted_content": "e",
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "f",
        "arguments": "{}",
        "namespace": "n",
    },
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "o"}]},
    {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "i"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "o"},
    {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "dragoman",
        "name": "t",
        "arguments": "{}",
        "output": "o",
        "error": {"content": [{"text": "e"}]},
        "approval_request_id": "a",
    },
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "dragoman-compaction-all:s"},
    {"type": "local_shell_call", "call_id": "c3", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "local_shell_call_output", "call_id": "c3", "output": "o"},
    {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "namespace", "name": "n", "tools": [TOOL]}],
    },
    {
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "output_text", "text": "t", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "r"},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "b"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
            {"type": "input_file", "file_data": "data:text/plain;base64,AAAA", "filename": "f"},
        ],
    },
]
RESPONSE: dict[str, Any] = {
    "model": "sim/any",
    "input": ITEMS,
    "instructions": "i",
    "stream": False,
    "store": True,
    "background": False,
    "previous_response_id": None,
    "conversation": None,
    "include": ["reasoning.encrypted_content"],
    "truncation": "auto",
    "context_management": [{"type": "compaction", "compact_threshold": 10**6}],
    "tools": [
        TOOL,
        {"type": "custom", "name": "g", "format": {"type": "grammar", "definition": "x"}},
        {"type": "mcp", "server_label": "dragoman"},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {
        "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}},
        "verbosity": "low",
    },
    "reasoning": {"effort": "low", "summary": "auto"},
    "metadata": {"a": "b"},
    "max_output_tokens": 5,
    "temperature": 1,
    "prompt_cache_key": "k",
}
AGENT_RESPONSE: dict[str, Any] = {
    "model": "agent/default",
    "input": [ITEMS[1], ITEMS[-1]],
    "tools": [TOOL],
    "stream": False,
    "store": True,
    "context_management": [{"type": "compaction", "compact_threshold": 10**6}],
}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
AG_UI: dict[str, Any] = {
    "threadId": "t",
    "runId": "r",
    "messages": [
        {"id": "m0", "role": "system", "content": "s"},
        {
            "id": "m1",
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "binary", "mimeType": "image/png", "data": "AAAA", "url": "data:,", "filename": "f"},
                {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}},
            ],
        },
        {"id": "m2", "role": "assistant", "content": "b", "toolCalls": [CALL]},
        {"id": "m3", "role": "tool", "toolCallId": "c1", "content": "o", "error": "e"},
    ],
    "tools": [{"name": "paint", "description": "d", "parameters": {"type": "object"}}],
    "context": [{"description": "d", "value": "v"}],
    "state": {"a": 1},
    "forwardedProps": {"dragoman": {"trigger": "submit-message"}},
}
A2A_MESSAGE: dict[str, Any] = {
    "messageId": "m",
    "role": "ROLE_USER",
    "parts": [
        {"text": "a", "metadata": {"a": 1}},
        {"raw": "AAAA", "mediaType": "image/png", "filename": "f"},
        {"url": "https://example.test/a.png", "mediaType": "image/png"},
        {"data": {"approved": True, "approvalId": "x"}},
    ],
    "metadata": {"a": 1},
    "extensions": ["e"],
    "referenceTaskIds": ["t"],
}
A2A_SEND: dict[str, Any] = {
    "message": A2A_MESSAGE,
    "configuration": {"acceptedOutputModes": ["text/plain"], "historyLength": 2, "returnImmediately": False},
    "metadata": {"a": 1},
}
PUSH = {
    "taskId": "t",
    "id": "p",
    "url": "https://example.test/",
    "token": "t",
    "authentication": {"scheme": "Bearer", "credentials": "c"},
}


def rpc(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


DOORS: dict[str, tuple[str, Any]] = {
    "responses": ("/v1/responses", RESPONSE),
    "responses of an agent": ("/v1/responses", AGENT_RESPONSE),
    "compact": ("/v1/responses/compact", {"model": "sim/any", "input": ITEMS[:5], "instructions": "i"}),
    "input tokens": ("/v1/responses/input_tokens", {"model": "sim/any", "input": ITEMS, "tools": [TOOL]}),
    "conversation": ("/v1/conversations", {"items": ITEMS[:3], "metadata": {"a": "b"}}),
    "AG-UI": ("/agui/default", AG_UI),
    "A2A send": ("/a2a/default", rpc("SendMessage", A2A_SEND)),
    "A2A get": ("/a2a/default", rpc("GetTask", {"id": "t", "historyLength": 1})),
    "A2A list": (
        "/a2a/default",
        rpc(
            "ListTasks",
            {
                "contextId": "c",
                "status": "TASK_STATE_WORKING",
                "pageSize": 2,
                "pageToken": "x",
                "historyLength": 1,
                "includeArtifacts": True,
                "statusTimestampAfter": "2026-01-01T00:00:00Z",
            },
        ),
    ),
    "A2A cancel": ("/a2a/default", rpc("CancelTask", {"id": "t", "metadata": {}})),
    "A2A subscribe": ("/a2a/default", rpc("SubscribeToTask", {"id": "t"})),
    "A2A push": ("/a2a/default", rpc("CreateTaskPushNotificationConfig", PUSH)),
    "A2A REST": ("/a2a/default/message:send", A2A_SEND),
    "import": (
        "/api/sessions/import",
        {
            "title": "t",
            "labels": ["a"],
            "maxSteps": 2,
            "messages": [
                {"id": "m", "role": "user", "parts": [{"type": "text", "text": "a"}], "metadata": {}}
            ],
        },
    ),
    "import of ChatGPT": (
        "/api/sessions/import",
        {
            "title": "t",
            "current_node": "a",
            "mapping": {
                "a": {
                    "parent": "b",
                    "message": {"id": "m", "author": {"role": "user"}, "content": {"parts": ["a"]}},
                }
            },
        },
    ),
    "import of OpenCode": (
        "/api/sessions/import",
        {
            "info": {"title": "t"},
            "messages": [
                {
                    "info": {"id": "m", "role": "assistant"},
                    "parts": [
                        {"type": "text", "text": "a"},
                        {
                            "type": "tool",
                            "tool": "t",
                            "callID": "c",
                            "state": {"status": "completed", "input": {}, "output": "o", "error": "e"},
                        },
                    ],
                }
            ],
        },
    ),
}


def variants(value: Any) -> Iterator[Any]:
    """The value with each odd value in each place, and without each field."""
    yield from ODD_VALUES
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {key: each for key, each in value.items() if key != name}
            yield from ({**value, name: each} for each in variants(inner))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from ([*value[:at], each, *value[at + 1 :]] for each in variants(inner))


def thinned(values: Iterator[Any], *, quick: int, thorough: int = 1) -> Sequence[Any]:
    """Every so many-th of the values."""
    return list(values)[:: rounds(quick=quick, thorough=thorough)]


async def post(hub: Served, path: str, body: Any) -> tuple[int, str]:
    headers = {"content-type": "application/json", "a2a-version": "1.0"}
    async with hub.http.stream("POST", path, content=json.dumps(body), headers=headers) as response:
        await response.aread()
        return response.status_code, response.text[:300]


RUNNER_FRAMES: list[dict[str, Any]] = [
    {"type": "message.create", "model": "m"},
    {"type": "message.part.text-delta", "delta": "a", "partId": "p"},
    {"type": "message.part.tool-update", "callId": "c", "toolName": "t", "status": "pending", "args": {}},
    {
        "type": "message.part.tool-update",
        "callId": "c",
        "toolName": "t",
        "status": "running",
        "args": {},
        "result": 1,
    },
    {
        "type": "message.part.tool-update",
        "callId": "c",
        "toolName": "t",
        "status": "completed",
        "result": {"a": 1},
    },
    {"type": "message.part.tool-update", "callId": "d", "toolName": "t", "status": "error", "error": "e"},
    {"type": "agentStatus", "status": "thinking", "detail": "d"},
    {"type": "question", "questionId": "q", "text": "t", "options": ["a"], "approval": True},
    {"type": "data-x", "data": {"a": 1}, "id": "i", "transient": True},
    {"type": "git-state", "data": {"a": 1}},
    {"type": "ping", "n": 1},
    {"type": "join", "sessions": ["s"]},
    {"type": "leave", "sessions": ["other"]},
    {
        "type": "message.finalize",
        "reason": "end_turn",
        "finalText": "a",
        "usage": {"inputTokens": 1},
        "cost": 0.1,
        "model": "m",
        "error": "e",
    },
]
HELLO = {"type": "hello", "protocol": 1, "sessions": ["s"], "turns": ["x"], "token": "t"}
MESSAGE = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "a"}], "metadata": {"a": 1}}
SOCKET_FRAMES: list[dict[str, Any]] = [
    {"type": "ping", "requestId": "r"},
    {"type": "abort", "requestId": "r"},
    {"type": "answer", "approvalId": "a", "approved": True, "reason": "r", "answer": "a", "requestId": "r"},
    {"type": "prompt", "message": MESSAGE, "whenBusy": "queue", "requestId": "r"},
    {
        "type": "prompt",
        "text": "a",
        "id": "i",
        "model": "sim/any",
        "agent": "default",
        "whenBusy": "refuse",
        "channelType": "c",
        "channelId": "i",
        "requestId": "r",
    },
]
RESPONSE_FRAMES = [
    {**AGENT_RESPONSE, "type": "response.create", "stream_id": "a", "model": "sim/any", "generate": True},
    {"type": "response.steer", "stream_id": "a", "input": "x"},
]


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of internal errors, which is dropped then."""
    found = [
        f"{record.getMessage()} {record.exc_info}"
        for record in caplog.records
        if record.exc_info or record.levelno >= logging.ERROR
    ]
    caplog.clear()
    return found


async def test_no_value_in_no_place_is_an_internal_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[dict[str, Any]] = [{"text": "Fine."}]
    found: list[str] = []
    async with serving(tmp_path, steps, play="turns") as hub:
        for path, body in DOORS.values():
            status, text = await post(hub, path, body)
            assert status < 500, text
            for number, variant in enumerate(thinned(variants(body), quick=71)):
                if isinstance(variant, dict) and variant.get("threadId") == "t":
                    variant["threadId"] = f"t{number}"
                status, text = await post(hub, path, variant)
                logged = failures(caplog)
                if status >= 500 or logged or "internal error" in text:
                    found.append(f"{path} {json.dumps(variant)[:2_000]} -> {status} {text} {logged}")
    assert found == []


class Connection:
    """A WebSocket that is opened again when the hub has closed it."""

    def __init__(self, hub: Served, path: str, *first: Any) -> None:
        self._url = f"{hub.url.replace('http', 'ws', 1)}{path}"
        self._first = first
        self._socket: ClientConnection | None = None
        self._drain: asyncio.Task[None] | None = None

    async def send(self, frame: Any) -> None:
        """Send a frame; what the hub answers is not looked at."""
        text = json.dumps(frame)
        try:
            if self._socket is None:
                self._socket = await connect(self._url, ping_interval=None)
                self._drain = asyncio.create_task(self._read(self._socket))
                for each in self._first:
                    await self._socket.send(json.dumps(each))
            await self._socket.send(text)
        except ConnectionClosed:
            await self.close()

    async def close(self) -> None:
        """Close the connection, once the hub has read all that was sent."""
        if self._socket is not None and self._drain is not None:
            await self._socket.close()
            await self._drain
        self._socket = None

    @staticmethod
    async def _read(socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            async for _ in socket:
                pass


async def test_no_frame_of_a_websocket_is_an_internal_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[dict[str, Any]] = [{"text": "Fine."}]
    found: list[str] = []
    async with serving(tmp_path, steps, play="turns") as hub:
        for body in ({"id": "s", "runner": True}, {"id": "plain"}):
            await hub.http.post("/api/sessions", json=body)
        plain = Connection(hub, "/api/sessions/plain/socket")
        responses = Connection(hub, "/v1/responses")
        sockets = [(plain, frame) for frame in SOCKET_FRAMES]
        sockets += [(responses, frame) for frame in RESPONSE_FRAMES]
        for connection, frame in sockets:
            for variant in thinned(variants(frame), quick=47):
                await connection.send(variant)
        await plain.close()
        await responses.close()
        for variant in thinned(variants(HELLO), quick=47):
            opening = Connection(hub, "/api/runners")
            await opening.send(variant)
            await opening.close()
        found += failures(caplog)
        await send_turns(hub)
        found += failures(caplog)
    assert found == []


async def send_turns(hub: Served) -> None:
    """Have runners answer prompts, with one frame of each turn wrong."""
    cases = [
        (at, variant)
        for at, frame in enumerate(RUNNER_FRAMES)
        for variant in thinned(variants({"sessionId": "s", "turnId": "?", **frame}), quick=193, thorough=11)
    ]
    for start in range(0, len(cases), 45):  # a connection may send a hundred wrong frames
        async with connect(f"{hub.url.replace('http', 'ws', 1)}/api/runners", ping_interval=None) as socket:
            await socket.send(json.dumps({"type": "hello", "protocol": 1, "sessions": ["s"]}))
            for at, variant in cases[start : start + 45]:
                chat = asyncio.create_task(hub.chat("go", session="s", id=f"u{start}-{at}-{id(variant)}"))
                frame = json.loads(await socket.recv())
                while frame["type"] != "prompt":
                    frame = json.loads(await socket.recv())
                turn = {"sessionId": "s", "turnId": frame["turnId"]}
                frames = [{**turn, **each} for each in RUNNER_FRAMES[:at]]
                if isinstance(variant, dict) and variant.get("turnId") == "?":
                    variant["turnId"] = frame["turnId"]
                for each in (*frames, variant, {**turn, "type": "message.finalize", "reason": "end_turn"}):
                    await socket.send(json.dumps(each))
                await chat
