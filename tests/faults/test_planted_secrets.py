"""Secrets of every kind, planted in one hub: no answer, log line, row, trace or command shows one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman.cli.logging_setup import JsonFormatter, TextFormatter
from dragoman.config import parse_config
from dragoman.server.app import Hub
from dragoman.store.accounts.keys import SCOPES
from dragoman.store.teams.vault import OPERATOR, VaultEntry
from dragoman.tracing.interface import TelemetrySettings
from dragoman.tracing.otlp_setup import open_spans
from tests.cli.program import run
from tests.faults.test_secrets import Vault, word
from tests.providers.servers import Peer, Server, serving
from tests.server.openapi import DOCUMENT
from tests.serving import ask, listening, write_script
from tests.teams.test_team_agents import write_team
from tests.waiting import LIMIT, until

VARIABLES = ("UP_KEY", "HOOK_SECRET", "WEBHOOK_SECRET", "PUSH_SECRET")
NAMES = ("MCP header", "MCP query", "vault", "push token", "push credentials")
STREAMS = ("text/event-stream", "application/x-ndjson")
KNOWN = {"sessions": "s", "servers": "far", "teams": "press", "agents": "default"}
CLIENT_LOGGERS = ("httpx2", "httpcore2")  # of this test's own client
A2A_VERSION = {"a2a-version": "1.0"}


class Repeater:
    """A server that fails, and repeats all that it received; `paths` are those that it was asked for."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    async def __call__(self, peer: Peer) -> None:
        while True:
            await self._answer(peer)

    async def _answer(self, peer: Peer) -> None:
        received = await peer.request()
        self.paths.add(received.line.split(" ")[1].partition("?")[0])
        text = "\n".join([received.line, *(f"{name}: {value}" for name, value in received.headers)])
        body = msgspec.json.encode({"error": {"message": text, "type": text}}) + text.encode()
        head = f"HTTP/1.1 500 no\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await peer.send(head.encode() + body)


class Plants(Vault):
    """The secrets of one hub, by what they are; those that it makes itself are added as it makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.environ = {name: word("qenv") for name in VARIABLES}
        self.texts = {name: word("qtext") for name in NAMES}
        self.made: list[str] = []
        self.redacted: set[str] = set()

    @property
    def all(self) -> list[str]:
        """See `Vault`."""
        return [self.master, *self.environ.values(), *self.texts.values(), *self.made]

    def config(self, folder: Path, server: Server) -> dict[str, Any]:
        """A configuration with all of them."""
        (folder / "master").write_text(self.master)
        call = {"name": "hub_call", "input": {"calls": [{"tool": "time.now"}, {"tool": "far.any"}]}}
        script = write_script(folder, [{"tools": [call]}, {"text": "ok"}], play="turns")
        texts = self.texts
        return {
            "providers": {
                "sim": {"type": "scripted", "script": str(script)},
                "up": {
                    "type": "openai",
                    "base_url": f"{server.url}/v1",
                    "api_key_env": "UP_KEY",
                    "retries": 0,
                },
            },
            "model": "sim/any",
            "master_key_file": str(folder / "master"),
            "teams": str(folder / "teams"),
            "mcp_servers": {
                "far": {
                    "url": f"{server.url}/mcp?key={texts['MCP query']}",
                    "headers": {"x-token": texts["MCP header"]},
                }
            },
            "hooks": [
                {"event": "pre_tool_use", "url": f"{server.url}/hook", "secret_env": "HOOK_SECRET"},
                {"event": "user_prompt_submit", "url": f"{server.url}/hook", "secret_env": "HOOK_SECRET"},
            ],
            "webhooks": {
                "secret_env": "WEBHOOK_SECRET",
                "url": f"{server.url}/done",
                "allow_networks": ["127.0.0.0/8"],
                "ports": [server.port],
            },
            "a2a": {
                "push_secret_env": "PUSH_SECRET",
                "push_networks": ["127.0.0.0/8"],
                "push_ports": [server.port],
            },
        }


@asynccontextmanager
async def planted_hub(
    plants: Plants, folder: Path, server: Server, tracing: Any
) -> AsyncIterator[tuple[Hub, httpx2.AsyncClient]]:
    """A hub with all of the secrets, and a client with an administrator's key."""
    write_team(folder / "teams", "press", '{"allowed_tools": ["web.*"]}')
    config = parse_config(plants.config(folder, server))
    plants.hear(config, repr(config))
    async with (
        Hub.open(
            config, folder / "hub", environ=plants.environ, secrets=plants.redacted, tracing=tracing
        ) as hub,
        listening(hub) as url,
    ):
        entry = VaultEntry(team="press", owner=OPERATOR, name="mailer", receivers=("web.*",))
        await hub.store.vault.put(entry, plants.texts["vault"])
        scopes = SCOPES
        _, key = await hub.store.keys.create("root", scopes=scopes)
        plants.made.append(key[10:])
        headers = {"authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient(base_url=url, timeout=LIMIT, trust_env=False, headers=headers) as http:
            yield hub, http


async def make_secrets(plants: Plants, http: httpx2.AsyncClient) -> None:
    """Let the hub make the secrets that it makes itself; each is shown once, to whoever asked for it."""
    token = (await http.post("/api/tokens", json={"owner": "user"})).json()["token"]
    link = (await http.post("/api/sessions/s/share", json={})).json()["path"].rpartition("/")[2]
    console = (await http.post("/api/console/links")).json()["url"].rpartition("/")[2].rpartition("=")[2]
    assert min(map(len, (token, link, console))) > 20
    plants.made += [token[-20:], link[-20:], console[-20:]]
    for secret, path in ((token, "/api/sessions"), (token[:-1], "/v1/models"), (token, "/api/config")):
        for headers in ({"authorization": f"Bearer {secret}"}, {"x-api-key": secret}):
            plants.hear_response(await http.get(path, headers=headers))
    plants.hear_response(await http.get(f"/share/{link[:-1]}"))
    plants.hear_response(await http.get(f"/api/sessions?key={token}"))


async def use_secrets(plants: Plants, http: httpx2.AsyncClient, server: Server) -> None:
    """Do everything that sends a secret to somebody who repeats it."""
    plants.hear_response(await http.post("/api/chat", json=ask("hello")))
    for model in ("up/m", "sim/any"):
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        for stream in (True, False):
            plants.hear_response(await http.post("/v1/chat/completions", json={**body, "stream": stream}))
    plants.hear_response(await http.post("/api/chat", json={**ask("go"), "id": "b", "model": "up/m"}))
    plants.hear_response(await http.post("/api/chat", json={**ask("go"), "id": "b", "background": True}))
    push = {
        "url": f"{server.url}/push",
        "token": plants.texts["push token"],
        "authentication": {"scheme": "Bearer", "credentials": plants.texts["push credentials"]},
    }
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    params = {"message": message, "configuration": {"taskPushNotificationConfig": push}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    plants.hear_response(await http.post("/a2a/default", json=request, headers=A2A_VERSION))
    for tool in ("far.anything", "web.fetch"):
        plants.hear_response(await http.post(f"/api/operations/{tool}/call", json={"url": server.url}))


async def read_everything(plants: Plants, hub: Hub, http: httpx2.AsyncClient) -> int:
    """Read all that the hub can be asked for, by the OpenAPI document; return how many answers it gave."""
    runs = (await http.get("/api/runs")).json()["runs"]
    calls = (await http.get("/api/calls?limit=50")).json()["calls"]
    ids = {**KNOWN, "runs": runs[0]["id"], "calls": calls[0]["id"] if calls else "x"}
    read = 0
    for path, verbs in DOCUMENT["paths"].items():
        found = verbs.get("get")
        if found is None or any(kind in str(found["responses"].get("200")) for kind in STREAMS):
            continue
        response = await http.get(filled(path, ids))
        plants.hear_response(response)
        read += response.status_code == 200
    for format in ("jsonl", "markdown", "html"):
        plants.hear_response(await http.get(f"/api/sessions/s/export?format={format}"))
    plants.hear(*map(repr, (hub, hub._services, hub._setup, hub.store.vault, hub.store.secrets)))
    return read


def filled(path: str, ids: Mapping[str, str]) -> str:
    """A path with the name of something that is there in place of each parameter, or of nothing."""
    steps = path.split("/")
    for at, step in enumerate(steps):
        if step.startswith("{"):
            steps[at] = ids.get(steps[at - 1], "x")
    return "/".join(steps)


@pytest.mark.sqlite_file
async def test_no_planted_secret_is_shown_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for logger in CLIENT_LOGGERS:
        caplog.set_level(logging.WARNING, logger)
    plants, exporter = Plants(), InMemorySpanExporter()
    tracing = open_spans(TelemetrySettings(content=True), SimpleSpanProcessor(exporter))
    repeater = Repeater()
    async with serving(repeater) as server, planted_hub(plants, tmp_path, server, tracing) as (hub, http):
        await use_secrets(plants, http, server)
        await until(lambda: repeater.paths >= {"/v1/chat/completions", "/mcp", "/hook", "/done", "/push"})
        await make_secrets(plants, http)
        await hub.meter.ledger.flush()
        assert await read_everything(plants, hub, http) > 30
        plants.hear_files(tmp_path / "hub")
    plants.hear_files(tmp_path / "hub")
    plants.hear(*(span.to_json() for span in exporter.get_finished_spans()))
    own = [record for record in caplog.records if record.name.startswith("dragoman")]
    for formatter in (TextFormatter(), JsonFormatter()):  # which redact nothing that they do not know
        plants.hear(*map(formatter.format, own))
    for formatter in (TextFormatter(plants.redacted), JsonFormatter(plants.redacted)):  # those of `serve`
        plants.hear(*map(formatter.format, caplog.records))
    assert "***" in "\n".join(plants.output)
    plants.search()


def test_no_command_shows_a_planted_secret(tmp_path: Path) -> None:
    plants = Plants()
    password = word("qdatabase")
    plants.made.append(password)
    write_team(tmp_path / "teams", "press", '{"allowed_tools": ["web.*"]}')
    good = plants.config(tmp_path, Server(port=9))
    path, data = tmp_path / "dragoman.yaml", tmp_path / "data"
    for command, address in (
        (("check",), "127.0.0.1:9/hub"),
        (("doctor", "--data", data), "127.0.0.1:9/hub?sslmode=odd"),
        (("serve", "--port", "0", "--data", data), "[::1/hub"),
        (("database", "status"), "127.0.0.1:port/hub"),
    ):
        config = {**good, "database": f"postgresql://hub:{password}@{address}"}
        path.write_bytes(msgspec.json.encode(config))
        reply = run(*command, "--config", path, env=plants.environ)
        assert "database" in reply.out + reply.err, command
        plants.hear(reply.out, reply.err)
    plants.search()
