"""A hub in its own process with MCP servers that misbehave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from tests.cli.program import COMMAND, READY, Hub, Said, environ, read_until, run

SERVERS = Path(__file__).parents[1] / "client"
RAW = SERVERS / "raw_server.py"
SDK = SERVERS / "sdk_server.py"
LIMIT = 120.0
PAUSE = 0.01
PATIENCE: dict[str, Any] = {"connect_timeout": 120}  # seconds: a loaded machine starts programs slowly
SCOPES = ("--scope", "admin", "--scope", "operations", "--scope", "chat")
Json = dict[str, Any]


def raw(state: Path, *modes: str, **details: Any) -> Json:
    """The configuration of a server that misbehaves, and writes down what it hears."""
    return {"command": [sys.executable, "-S", "-E", str(RAW), str(state), *modes], **PATIENCE, **details}


def sdk(**details: Any) -> Json:
    """The configuration of a server that the SDK made."""
    return {"command": [sys.executable, str(SDK), "stdio"], **PATIENCE, **details}


def until(true: Callable[[], Any], *, seconds: float = LIMIT) -> Any:
    """What is true in the end."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(PAUSE)
    return found


def pids(state: Path) -> list[int]:
    """The processes that wrote themselves down in a server's state."""
    if not state.exists():
        return []
    return [int(line.split()[1]) for line in state.read_text().splitlines() if line.startswith("pid ")]


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@dataclass(frozen=True)
class World:
    """A served hub, and a client of its HTTP API."""

    hub: Hub
    http: httpx2.Client
    folder: Path
    key: str | None = None

    @property
    def log(self) -> Path:
        return self.folder / "hub.log"

    def dragoman(self, *arguments: str, key: str | None = None) -> Said:
        """Run a command against this hub."""
        fields = {"DRAGOMAN_HUB": self.hub.url, **({"DRAGOMAN_KEY": key} if key else {})}
        return run(*arguments, env=fields)

    def call(self, tool: str, /, **input: Any) -> Json:
        """What comes of an operation that is called alone."""
        return self.ask("POST", f"/api/operations/{tool}/call", json=input)

    def batch(self, tool: str, /, **input: Any) -> Json:
        """What comes of an operation that is called through hub.call: its entry."""
        reply = self.ask(
            "POST", "/api/operations/hub.call/call", json={"calls": [{"tool": tool, "input": input}]}
        )
        entry: Json = reply["result"][0] if reply["success"] else reply
        return entry

    def server(self, name: str) -> Json:
        """How an MCP server stands."""
        return self.ask("GET", f"/api/mcp/servers/{name}")

    def settled(self, name: str, *states: str) -> Json:
        """How it stands once it is ready, or in one of these states."""
        wanted = states or ("ready",)
        found: Json = until(lambda: (state := self.server(name))["state"] in wanted and state)
        return found

    def tree(self, id: str) -> Json:
        return self.ask("GET", f"/api/calls/{id}/tree")

    def ask(self, method: str, path: str, **options: Any) -> Json:
        """A request that has to go well."""
        response = self.http.request(method, path, **options)
        assert response.status_code < 300, (response.status_code, response.text)
        reply: Json = response.json()
        return reply


@contextmanager
def world(
    folder: Path,
    servers: Mapping[str, Json],
    *,
    owner: str | None = None,
    env: Mapping[str, str] | None = None,
    **config: Any,
) -> Iterator[World]:
    """A served hub with these MCP servers. It wants keys when there is an `owner`, who has one."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, servers, **config)
    with served(folder, *(() if owner else ("--no-auth",)), env=environ(**(env or {}))) as hub:
        key = hub.key(owner, *SCOPES) if owner else None
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with httpx2.Client(base_url=hub.url, headers=headers, timeout=60, trust_env=False) as http:
            yield World(hub, http, folder, key)


def write(folder: Path, servers: Mapping[str, Json], **config: Any) -> None:
    """The configuration of a hub with these servers; JSON is YAML."""
    body = msgspec.json.encode({"mcp_servers": servers, **config})
    (folder / "dragoman.yaml").write_bytes(body)


@contextmanager
def served(folder: Path, *flags: str, env: Mapping[str, str]) -> Iterator[Hub]:
    """`dragoman serve` of a folder's configuration, once it is ready; its log goes to a file there."""
    data = folder / "data"
    places = ("--config", folder / "dragoman.yaml", "--data", data, "--port", "0")
    with (folder / "hub.log").open("ab") as log:
        process = subprocess.Popen(
            [*COMMAND, "serve", *map(str, places), *flags],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        text = read_until(process, "listening on http://") + read_until(process, "\n")
        ready = READY.search(text)
        assert ready is not None, text
        yield Hub(ready.group(1), data, process)
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=LIMIT)
