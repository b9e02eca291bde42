"""MCP servers at a URL, through the whole hub: headers, outages, reconnects."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from tests.mcp.hub.hub_process import SDK, World, until, world
from tests.ports import free_port

PATHS = {"http": "mcp", "sse": "sse"}
HEADER = "Bearer what-only-the-server-may-see"


@contextmanager
def served(way: str, port: int) -> Iterator[None]:
    """The server, once it listens."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, str(SDK), way, str(port)], stdout=quiet, stderr=quiet) as process:
        try:
            until(lambda: listens(port))
            yield
        finally:
            process.kill()


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextmanager
def hub_with(way: str, port: int, folder: Path) -> Iterator[World]:
    far = {"url": f"http://127.0.0.1:{port}/{PATHS[way]}", "headers": {"authorization": HEADER}}
    with world(folder, {"far": far}, owner="ada") as hub:
        yield hub


@pytest.mark.parametrize("way", PATHS)
def test_nothing_of_the_caller_reaches_the_server_and_its_own_header_does(way: str, tmp_path: Path) -> None:
    port = free_port()
    with served(way, port), hub_with(way, port, tmp_path) as hub:
        hub.settled("far")
        source = hub.batch("far.headers")["result"]
        assert source["authorization"] == "***"
        assert not [value for value in source.values() if hub.key in value]
        assert "x-request-id" not in source
        assert hub.batch("far.add", a=20, b=22)["result"] == {"sum": 42}
        assert hub.batch("far.resources.read", uri="note://one")["result"] == "note one"
        tools = hub.server("far")["tools"]
    assert tools == 13
    assert HEADER not in hub.log.read_text()


def test_a_server_that_was_away_is_called_again_once_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    with hub_with("http", port, tmp_path) as hub:
        with served("http", port):
            hub.dragoman("servers", "reconnect", "far", key=hub.key)
            hub.settled("far")
            assert hub.batch("far.add", a=1, b=2)["success"]
        gone = hub.batch("far.add", a=1, b=2)
        assert (gone["success"], gone["error"]["transient"]) == (False, True)
        with served("http", port):
            until(lambda: hub.batch("far.add", a=1, b=2)["success"])


@pytest.mark.parametrize("way", PATHS)
def test_an_aborted_call_is_ended_in_the_server(way: str, tmp_path: Path) -> None:
    port = free_port()
    with served(way, port), hub_with(way, port, tmp_path) as hub:
        hub.settled("far")
        headers = {"authorization": f"Bearer {hub.key}"}
        address = f"{hub.hub.url}/api/operations/far.wait/call"
        options = {"json": {}, "headers": headers, "timeout": 60, "trust_env": False}
        waiting = threading.Thread(target=httpx2.post, args=(address,), kwargs=options)
        waiting.start()
        until(lambda: hub.batch("far.waits")["result"] == {"result": ["began"]})
        [call] = hub.ask("GET", "/api/calls", params={"status": "running"})["calls"]
        hub.ask("POST", f"/api/calls/{call['id']}/abort")
        until(lambda: hub.batch("far.waits")["result"] == {"result": ["began", "stopped"]})
        waiting.join(120)
