"""No secret appears in any answer, log, trace or file, whatever fails."""

from __future__ import annotations

import asyncio
import logging
import secrets as dice
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import msgspec
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman.cli.logging_setup import JsonFormatter, TextFormatter
from dragoman.config import parse_config
from dragoman.errors import DragomanError
from dragoman.server.app import Hub
from dragoman.store import sqlite
from dragoman.store.encryption import MasterKey
from dragoman.store.store import Store
from dragoman.tracing.interface import TelemetrySettings
from dragoman.tracing.otlp_setup import open_spans
from tests.cli.program import environ, run
from tests.effort import rounds, rows
from tests.faults.gateway_faults import DOCUMENTS, EARLY, LATE, Fault, failed, play, speech_at, talk
from tests.faults.gateway_process import started
from tests.faults.gateway_upstream import MAIN, SPEECHES, WAYS, Speech, Way, ask, complete, data, rows_of
from tests.moved_database import replaced
from tests.providers.servers import Peer, Received, ok, serving
from tests.serving import listening
from tests.waiting import LIMIT

Echo: TypeAlias = Callable[[Speech, str], Sequence[bytes]]
PIECE = 9  # characters of a secret that are too many already
SHOWN = 10  # characters by which people tell keys of the hub apart
VARIABLE = "DRAGOMAN_TEST_KEY"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def word(name: str) -> str:
    """A secret that looks like nothing in particular."""
    return f"{name}.{dice.token_hex(16)}"


def may_hold_a_piece(whole: str, secret: str) -> bool:
    """Whether a text may have a piece of a secret: each piece has one of these shorter ones in it.

    To look for all pieces in megabytes takes longer than all else of these tests.
    """
    short = PIECE * 2 // 3
    starts = range(0, len(secret) - short + 1, PIECE - short + 1)
    return any(secret[at : at + short] in whole for at in starts)


class Vault:
    """All the secrets of one hub, and all that was said."""

    def __init__(self) -> None:
        self.env, self.file, self.table = word("qenv"), word("qfile"), word("qtable")
        self.header, self.query = word("qheader"), word("qquery")
        self.master = MasterKey.generate().to_text()
        self.hub: list[str] = []
        self.output: list[str] = []

    @property
    def all(self) -> list[str]:
        """What must not be shown."""
        hub = [key[SHOWN:] for key in self.hub]
        return [self.env, self.file, self.table, self.header, self.query, self.master, *hub]

    def hear(self, *replies: object) -> None:
        """Something was said."""
        self.output += map(str, replies)

    def hear_response(self, response: httpx2.Response) -> None:
        """An answer, with its headers."""
        self.hear(response.headers.raw, response.content)

    def hear_files(self, folder: Path) -> None:
        """All that lies in a folder."""
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):  # a hub that runs removes files
                if path.is_file():
                    self.hear(path.read_bytes())

    def search(self) -> None:
        """None of it, and no piece of it, is anywhere."""
        whole = "\n".join(self.output)
        for secret in self.all:
            if not may_hold_a_piece(whole, secret):
                continue
            for at in range(len(secret) - PIECE + 1):
                found = whole.find(secret[at : at + PIECE])
                assert found < 0, whole[max(0, found - 300) : found + 100]


def error(message: str, **more: Any) -> bytes:
    """An error body."""
    return msgspec.json.encode({"error": {"message": message, "type": "oops", **more}})


ECHOES: Mapping[str, Echo] = {
    "refuses": lambda _, secret: [failed(401, error(f"Incorrect key: {secret}", code=secret, param=secret))],
    "says what is wrong": lambda _, secret: [
        failed(400, error("bad", metadata={"raw": secret}, extra=[secret]))
    ],
    "is busy": lambda _, secret: [failed(429, error(secret))],
    "fails at length": lambda _, secret: [failed(500, error("y" * 480 + secret))],
    "fails at great length": lambda _, secret: [failed(500, error("y" * 1980 + secret))],
    "fails in plain words": lambda _, secret: [failed(500, secret.encode(), "text/plain")],
    "sends a page": lambda _, secret: [failed(502, f"<title>{secret}</title>".encode(), "text/html")],
    "sends a page as an answer": lambda _, secret: [ok(f"<html><title>{secret}</title>".encode())],
    "fails with 200": lambda _, secret: [ok(error(secret))],
    "is another kind of document": lambda _, secret: [ok(msgspec.json.encode({"you": secret}))],
    "sends garbage": lambda _, secret: [complete(f"data: {{{secret}\n\n".encode())],
    "sends garbage that is cut": lambda _, secret: [complete(f"data: {'z' * 62}{secret}\n\n".encode())],
    "sends a broken document": lambda _, secret: [ok(f'{{"a": {"z" * 60}{secret}'.encode())],
    "stops in garbage": lambda speech, secret: [complete(talk(speech) + f"data: {{{secret}\n\n".encode())],
    "stops with an error": lambda speech, secret: [
        complete(
            talk(speech) + data(error={"message": secret, "type": secret, "code": secret, "param": secret})
        )
    ],
    "stops with a named error": lambda speech, secret: [
        complete(talk(speech) + b"event: error\ndata: " + secret.encode() + b"\n\n")
    ],
    "stops with its own error": lambda speech, secret: [
        complete(talk(speech) + speech.error.replace(b"it burns", secret.encode()))
    ],
    "compresses": lambda _, secret: [ok(b"?", f"content-encoding: {secret}")],
    "speaks no HTTP": lambda _, secret: [secret.encode()],
    "puts it into its head": lambda _, secret: [ok(b"{}", f"x-you-said: {secret}", "retry-after: 1")],
}
MUTE: Mapping[str, Fault] = {
    **{name: fault for name, fault in EARLY.items() if name not in ECHOES},
    **{f"late {name}": fault for name, fault in LATE.items()},
    **{f"whole {name}": fault for name, fault in DOCUMENTS.items() if name not in ECHOES},
}


def opened_with(received: Received) -> str:
    """Whatever opened the door: the key, the header, the query, each on its own and all together."""
    query = received.line.split(" ")[1].partition("?key=")[2]
    key = received["authorization"].removeprefix("Bearer ") or received["x-api-key"]
    return " ".join(filter(None, [key, received["x-proxy-token"], query, received.line]))


async def script(peer: Peer) -> None:
    """Says the secrets back, in every way."""
    received = await peer.request()
    name = msgspec.json.decode(received.body)["model"]
    speech = speech_at(received.line)
    if name in MUTE:
        await play(peer, MUTE[name](speech))
    else:
        await play(peer, ECHOES[name](speech, opened_with(received)))


def config_of(vault: Vault, folder: Path, url: str) -> dict[str, Any]:
    """Three providers, whose keys lie in all the places where keys can lie."""
    (folder / "key").write_text(vault.file)
    (folder / "master").write_text(vault.master)
    quick = {"retries": 0, "first_byte_timeout": 0.25, "idle_timeout": 0.25}
    more = {**quick, "headers": {"x-proxy-token": vault.header}}
    return {
        "providers": {
            "openai": {
                "type": "openai",
                "base_url": f"{url}/v1?key={vault.query}",
                "keys": [
                    {"name": "a", "api_key_env": VARIABLE},
                    {"name": "b", "api_key_file": str(folder / "key")},
                ],
                **more,
            },
            "anthropic": {"type": "anthropic", "base_url": url, "api_key_secret": "table", **more},
            "ollama": {"type": "ollama", "base_url": url, "api_key_env": VARIABLE, **more},
        },
        "master_key_file": str(folder / "master"),
        "aliases": {"falling": ["openai/refuses", "anthropic/fails at length", "ollama/fails with 200"]},
    }


@asynccontextmanager
async def hub_with(vault: Vault, folder: Path, tracing: Any) -> AsyncIterator[tuple[Hub, httpx2.AsyncClient]]:
    """A hub with all these secrets."""
    async with serving(script) as upstream:
        config = parse_config(config_of(vault, folder, upstream.url))
        vault.hear(repr(config), config, *map(repr, config.providers.values()))
        async with await Store.open(folder / "hub", master_key=MasterKey.from_text(vault.master)) as store:
            await store.secrets.put("table", vault.table)
        secrets: set[str] = set()
        async with (
            Hub.open(
                config, folder / "hub", environ={VARIABLE: vault.env}, secrets=secrets, tracing=tracing
            ) as hub,
            listening(hub) as url,
            httpx2.AsyncClient(base_url=url, timeout=LIMIT, trust_env=False) as http,
        ):
            assert {vault.env, vault.file, vault.table, vault.header} <= secrets
            yield hub, http
            vault.hear(*objects(hub))


def objects(hub: Hub) -> Iterator[str]:
    """What the objects that hold secrets say of themselves."""
    setting, ground = hub._setup, hub._services
    yield repr(setting)
    yield repr(ground)
    yield repr(ground.environment)
    yield repr(hub.store.secrets)
    for provider in setting.providers.remote_providers().values():
        yield repr(provider)
        yield repr(provider.server)
        yield repr(provider.keys)
        yield repr(provider.keys.acquire().key)
        yield repr(provider._adapter)
        yield repr(provider._transport)
    for transport in setting.providers.transports:
        for connection in transport._connections:
            yield repr(connection)


async def ask_all(vault: Vault, http: httpx2.AsyncClient, key: str, *, ways: Sequence[Way]) -> int:
    """Every way in which secrets are said back; how many requests."""
    headers = {"authorization": f"Bearer {key}"}
    asking = [
        http.post(way.path, json=ask(stream=stream, model=f"{way.family}/{name}"), headers=headers)
        for way in ways
        for name in ECHOES
        for stream in (True, False)
    ]
    for name in ECHOES:
        for path, model in OTHERS:
            body = {**ask(stream=False, model=f"{model}/{name}"), "input": "hi"}
            asking.append(http.post(path, json=body, headers=headers))
    return await hear_all(vault, asking)


OTHERS = (
    ("/v1/chat/completions?dialect=hub", "openai"),
    ("/v1/chat/completions?dialect=ui", "anthropic"),
    ("/v1/messages/count_tokens", "anthropic"),
    ("/v1/embeddings", "openai"),
)


async def fail_all(vault: Vault, http: httpx2.AsyncClient, key: str) -> int:
    """All other failures; how many requests."""
    headers = {"authorization": f"Bearer {key}"}
    asking = []
    for name in MUTE:
        for way in MAIN:
            body = ask(stream=not name.startswith("whole"), model=f"{way.family}/{name}")
            asking.append(http.post(way.path, json=body, headers=headers))
    return await hear_all(vault, asking)


async def hear_all(vault: Vault, asking: Sequence[Awaitable[httpx2.Response]]) -> int:
    """Listen to all, not too many at once."""
    for at in range(0, len(asking), 60):
        for response in await asyncio.gather(*asking[at : at + 60]):
            vault.hear_response(response)
    return len(asking)


async def look_around(vault: Vault, http: httpx2.AsyncClient, key: str) -> None:
    """All other doors, and keys that are none."""
    headers = {"authorization": f"Bearer {key}"}
    for path in (
        "/metrics",
        "/readyz",
        "/healthz",
        "/openapi.json",
        "/docs/api",
        "/",
        "/v1/models",
        "/api/usage",
    ):
        vault.hear_response(await http.get(path, headers=headers))
    vault.hub.append(wrong := key[:-1] + ("a" if key[-1] != "a" else "b"))
    for path in ("/v1/models", "/api/usage", "/api/sessions"):
        vault.hear_response(await http.get(path, headers={"x-api-key": wrong}))
        vault.hear_response(await http.get(path, headers={"authorization": wrong}))
    falling = await http.post("/v1/messages", json=ask(stream=True, model="falling"), headers=headers)
    vault.hear_response(falling)


@pytest.mark.sqlite_file  # which is moved away
async def test_whatever_fails_no_secret_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The raw log records are searched: what the formatters blot out does not count as hidden."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    caplog.set_level(logging.DEBUG)
    vault, exporter = Vault(), InMemorySpanExporter()
    tracing = open_spans(TelemetrySettings(), SimpleSpanProcessor(exporter))
    async with hub_with(vault, tmp_path, tracing) as (hub, http):
        _, key = await hub.store.keys.create("ann")
        vault.hub.append(key)
        ways = rows(WAYS, quick=2)
        request_count = await ask_all(vault, http, key, ways=ways) + await fail_all(vault, http, key)
        await look_around(vault, http, key)
        assert request_count > rounds(quick=200, thorough=400)
        vault.hear(*await rows_of(hub, 100))
        with replaced(tmp_path / "hub"):
            await ask_all(vault, http, key, ways=[way for way in MAIN if way.relayed])
            await look_around(vault, http, key)
            vault.hear_files(tmp_path / "hub")
        with pytest.raises(DragomanError) as raised:
            await hub.store.secrets.get("no such secret")
        vault.hear(raised.value, repr(raised.value))
    vault.hear_files(tmp_path / "hub")
    vault.hear(*(span.to_json() for span in exporter.get_finished_spans()))
    vault.hear(caplog.text, *(TextFormatter().format(record) for record in caplog.records))
    vault.hear(*(JsonFormatter().format(record) for record in caplog.records))
    assert exporter.get_finished_spans()
    assert "***" in "\n".join(vault.output)  # they were there to be seen
    vault.search()


BAD: Mapping[str, Callable[[Vault], dict[str, Any]]] = {
    "an unknown field": lambda vault: {"api_key": vault.env},
    "a number for a name": lambda vault: {"api_key_env": {"value": vault.env}},
    "a header that is a list": lambda vault: {"headers": {"authorization": [vault.header]}},
    "an address with a password": lambda vault: {"base_url": f"ftp://user:{vault.query}@127.0.0.1/v1"},
    "an address with a query": lambda vault: {"base_url": f"nonsense?key={vault.query}"},
    "a key instead of its variable": lambda vault: {"api_key_env": f"sk-{vault.env}"},
    "keys that are texts": lambda vault: {"keys": [vault.env, vault.file]},
    "options that are a text": lambda vault: {"options": vault.env},
}


def test_no_command_shows_a_secret_whatever_is_wrong(tmp_path: Path) -> None:
    vault = Vault()
    env = {VARIABLE: vault.env, "DRAGOMAN_MASTER_KEY": vault.master}
    good = config_of(vault, tmp_path, "http://127.0.0.1:9")
    path = tmp_path / "dragoman.yaml"
    for wrong in BAD.values():
        place = {**good["providers"]["openai"], **wrong(vault)}
        path.write_bytes(msgspec.json.encode({**good, "providers": {"openai": place}}))
        reply = run("check", "--config", path, env=env)
        assert reply.code != 0, place
        vault.hear(reply.out, reply.err)
    path.write_text(f"providers: {{openai: {{type: openai, headers: {{a: {vault.env}\n")
    for command in (["check"], ["serve", "--port", "0", "--data", tmp_path / "data"]):
        reply = run(*command, "--config", path, env=env)
        assert reply.code != 0
        vault.hear(reply.out, reply.err)
    path.write_bytes(msgspec.json.encode(good))
    vault.hear(*said_of(run("check", "--config", path, env=env)))
    keys = ("secrets", "set", "table", "--data", tmp_path / "data")
    vault.hear(*said_of(run(*keys, input=vault.table, env=env)))
    vault.hear(*said_of(run(*keys, input=vault.table, env={"DRAGOMAN_MASTER_KEY": vault.master[:-4]})))
    vault.hear(*said_of(run("secrets", "list", "--data", tmp_path / "data", env=env)))
    vault.hear_files(tmp_path / "data")
    vault.search()


def said_of(reply: Any) -> tuple[str, str]:
    """What a command has printed."""
    return reply.out, reply.err


CRASH = """
import dragoman.cli.serving.lifecycle as hosting
from dragoman.cli import main
async def crash(options, listener, *, secrets):
    secrets.add({secret!r})
    raise RuntimeError("it crashed with " + {secret!r})
hosting.serve_until_signal = crash
arguments = ["--config", {config!r}, "--data", {data!r}, "--port", "0"]
main(["serve", *arguments, "--no-auth", *{flags!r}])
"""


@pytest.mark.parametrize("flags", [[], ["--log-json", "--log-level", "debug"]], ids=["people", "programs"])
def test_a_crash_shows_its_traceback_and_no_secret(tmp_path: Path, flags: list[str]) -> None:
    vault = Vault()
    path = tmp_path / "dragoman.yaml"
    path.write_bytes(msgspec.json.encode(config_of(vault, tmp_path, "http://127.0.0.1:9")))
    code = CRASH.format(secret=vault.env, config=str(path), data=str(tmp_path / "data"), flags=flags)
    env = {**environ(), VARIABLE: vault.env}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "it crashed with ***" in done.stderr
    vault.hear(done.stdout, done.stderr)
    vault.search()


async def test_a_hub_that_is_served_prints_no_secret_at_any_level(tmp_path: Path) -> None:
    vault = Vault()
    async with serving(script) as upstream:
        config = config_of(vault, tmp_path, upstream.url)
        flags = ("--no-auth", "--log-level", "debug", "--log-json")
        env = {VARIABLE: vault.env, "DRAGOMAN_MASTER_KEY": vault.master}
        async with started(tmp_path, config, *flags, **env) as hub:
            for family in SPEECHES:
                for name in ECHOES:
                    body = ask(stream=True, model=f"{family}/{name}")
                    vault.hear_response(await hub.http.post("/v1/chat/completions", json=body))
            vault.hear(hub.log)
            vault.hear_files(tmp_path / "data")
    assert "***" in "\n".join(vault.output)
    vault.search()
