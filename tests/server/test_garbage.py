"""Requests to every operation of the API reference, with values that fit, nearly fit or do not."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.databases import database_url
from tests.effort import rounds
from tests.odd_values import ODD_VALUES
from tests.server.openapi import DOCUMENT, JSON, resolve
from tests.serving import Served, serving

pytestmark = pytest.mark.anyio

REQUESTS = rounds(quick=1, thorough=60)  # to each operation
SEED = 20261126
MAX_READ = 20_000  # bytes of an answer, of which some never end
METHODS = ("get", "post", "put", "patch", "delete")
ENDLESS = ("text/event-stream", "application/x-ndjson")
PLAY: list[dict[str, Any]] = [
    {"tools": [{"name": "hub_call", "input": {"calls": [{"tool": "time.now"}]}}]},
    {"text": "Done."},
]

FITTING = ("s", "hello", "time.now", "m", "default", "user", "auto", "text", "a b", "2026-11-26T00:00:00Z")
RAW = (
    b"",
    b"null",
    b"NaN",
    b"[1e999]",
    b'{"a":1,"a":2}',
    b"\xef\xbb\xbf{}",
    b'"\\ud800"',
    b"\xff\xfe",
    b"[" * 2_000,
)
PATH_VALUES = (
    "s",
    "nobody",
    "time.now",
    "default",
    "1",
    "-1",
    "..%2f..",
    "%00",
    "a" * 300,
    "%F0%9F%98%80",
    "%ff",
)


class Garbage:
    """Makes requests of the shapes in the reference, some of them wrong: the same ones for the same seed."""

    def __init__(self, seed: int, *, ids: Sequence[str]) -> None:
        self._random = random.Random(seed)
        self._path_values = (*PATH_VALUES, *ids, *ids, *ids)
        self._share = 0.0

    def next_request(self) -> None:
        """Choose which share of the values of the next request does not fit."""
        self._share = self._random.choice((0.0, 0.03, 0.03, 0.15))

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Return a value that fits a schema, except where it does not."""
        while isinstance(schema, Mapping) and "$ref" in schema:
            schema = resolve(schema["$ref"])
        if depth > 6 or not isinstance(schema, Mapping) or self._random.random() < self._share:
            return self._random.choice(ODD_VALUES)
        if choices := schema.get("oneOf") or schema.get("anyOf"):
            return self.value(self._random.choice(choices), depth + 1)
        if "allOf" in schema:
            members = [self.value(each, depth + 1) for each in schema["allOf"]]
            return {name: value for each in members if isinstance(each, dict) for name, value in each.items()}
        if "const" in schema or "enum" in schema:
            return self._random.choice([schema["const"]] if "const" in schema else schema["enum"])
        return self._typed_value(schema, depth)

    def _typed_value(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else None)
        kind = self._random.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return [
                self.value(schema.get("items", {}), depth + 1)
                for _ in range(self._random.choice((0, 1, 1, 3)))
            ]
        simple = {
            "string": FITTING,
            "integer": (0, 1, 5, 100, -1, 10**6),
            "number": (0, 0.5, 1, -1, 1e9),
            "boolean": (True, False),
            "null": (None,),
        }
        return self._random.choice(simple.get(str(kind), ODD_VALUES))

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        fields = {
            name: self.value(each, depth + 1)
            for name, each in schema.get("properties", {}).items()
            if self._random.random() < (0.92 if name in required else 0.4)
        }
        if self._random.random() < self._share:
            fields[self._random.choice(("x", "id", ""))] = self._random.choice(ODD_VALUES)
        return fields

    def path(self, template: str) -> str:
        """Return a path with something in the place of each parameter."""
        return re.sub(r"{[^}]+}", lambda _: self._random.choice(self._path_values), template)

    def query(self, parameters: list[Mapping[str, Any]]) -> str:
        """Return a query string with some of the parameters."""
        pairs = []
        for each in parameters:
            parameter = resolve(each["$ref"]) if "$ref" in each else each
            if parameter["in"] == "query" and self._random.random() < 0.5:
                value = self.value(parameter.get("schema", {}))
                text = value if isinstance(value, str) else json.dumps(value)
                pairs.append(f"{parameter['name']}={quote(text, errors='replace')}")
        return "&".join(pairs)

    def body(self, schema: Any) -> bytes:
        """Return a body: JSON of the shape, a part of it, or other bytes."""
        chance = self._random.random()
        if chance < self._share:
            return self._random.choice(RAW)
        whole = json.dumps(self.value(schema)).encode()
        return whole[:-1] if chance < 2 * self._share else whole


EARLIER_FAULTS = [
    ("/api/triggers", {"team": "s", "name": "t", "learn": "reflection", "config": 2**64}),
    ("/api/triggers", {"team": "s", "name": "t", "type": "schedule", "task": "t", "config": None}),
    ("/api/mcp/servers", {"name": "m", "url": "http://127.0.0.1:1", "cwd": 10**400}),
    ("/api/mcp/servers", {"name": "m", "url": "http://127.0.0.1:1", "timeout": 10**400}),
]


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Served]:
    """A hub with a session, an answer and a team."""
    (tmp_path / "teams" / "s").mkdir(parents=True)
    (tmp_path / "teams" / "s" / "team.yaml").write_text("description: A team.\n")
    config: dict[str, Any] = {"teams": str(tmp_path / "teams")}
    if (url := database_url(tmp_path / "hub")) is not None:
        config["database"] = url  # `/api/system/tables` reads what the configuration names
    async with serving(tmp_path, PLAY, play="turns", **config) as hub:
        await hub.chat()
        yield hub


async def test_whatever_values_a_request_has_its_answer_is_one_that_the_reference_describes(
    hub: Served, caplog: pytest.LogCaptureFixture
) -> None:
    [_, message] = await hub.messages()
    garbage = Garbage(SEED, ids=["s", "s", message["id"], *[run.id for run in await hub.runs()]])
    operations = [
        (method, path, item[method], [*item.get("parameters", ()), *item[method].get("parameters", ())])
        for path, item in DOCUMENT["paths"].items()
        for method in METHODS
        if method in item
    ]
    assert len(operations) > 150
    faults = []
    for method, path, operation, parameters in operations * REQUESTS:
        garbage.next_request()
        where, query = garbage.path(path), garbage.query(parameters)
        body = None
        if "requestBody" in operation:
            content = operation["requestBody"].get("content", {})
            body = garbage.body(content.get(JSON, {}).get("schema", {}))
        caplog.clear()
        status, answer = await exchange(hub, method.upper(), f"{where}?{query}", body)
        errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
        is_described = str(status) in operation["responses"] or status == 308  # another spelling of a path
        if not is_described or status == 500 or b'"internal"' in answer or errors:
            faults.append(
                (status, method, where, query, body, answer[:300], [record.exc_text for record in errors])
            )
    assert not faults, "\n\n".join(map(str, faults))


async def test_a_value_of_a_kind_that_nobody_expects_is_a_bad_request(hub: Served) -> None:
    for path, body in EARLIER_FAULTS:
        status, answer = await exchange(hub, "POST", path, json.dumps(body).encode())
        assert status == 400, (path, body, answer)


async def exchange(hub: Served, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
    """Return the status of an answer, and its beginning; nothing of a stream that is only followed."""
    headers = {} if body is None else {"content-type": JSON}
    answer = b""
    async with hub.http.stream(method, target, content=body, headers=headers) as response:
        is_followed = method == "GET" and response.headers.get("content-type", "").startswith(ENDLESS)
        if is_followed:
            return response.status_code, answer
        async for piece in response.aiter_bytes():
            answer += piece
            if len(answer) > MAX_READ:
                break
    return response.status_code, answer
