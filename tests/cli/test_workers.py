"""`dragoman serve --workers`: several processes behind one port."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.serving.workers import worker_command
from tests.cli.program import Hub, finish, run, scripted, serving, start
from tests.databases import VARIABLE
from tests.postgres_server import shared_server
from tests.serving import ask

LIMIT = 120.0
SLOW: list[dict[str, Any]] = [{"text": ["first ", *(f"word{n} " for n in range(100))], "delay": 0.02}]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Two workers on an empty schema."""
    server = shared_server()
    with server.schema() as schema:
        config = {"providers": {"sim": scripted(tmp_path, "sim", SLOW)}, "model": "sim/x"}
        environ = {VARIABLE: server.url(schema)}
        with serving(tmp_path, config, "--no-auth", "--workers", "2", **environ) as started:
            yield started


def workers(hub: Hub) -> set[int]:
    """The processes that serve."""
    found: set[int] = set()
    for file in Path(f"/proc/{hub.process.pid}/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has ended meanwhile
            found |= set(map(int, file.read_text().split()))
    return found


def hosts(hub: Hub) -> set[str]:
    """The hosts that any of them knows."""
    with urllib.request.urlopen(f"{hub.url}/api/hosts", timeout=LIMIT) as response:
        return {host["id"] for host in json.load(response)["hosts"]}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            if condition():
                return
        except OSError:  # a connection to a worker that was killed
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def post_chat(hub: Hub, session: str) -> Any:
    body = json.dumps(ask("hi", session=session)).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{hub.url}/api/chat", data=body, headers=headers)
    return urllib.request.urlopen(request, timeout=LIMIT)


def test_several_workers_need_postgres(tmp_path: Path) -> None:
    result = run("serve", "--data", tmp_path / "data", "--port", "0", "--workers", "2", cwd=tmp_path)
    assert result.code == 1
    assert "several workers need a Postgres database" in result.err


def test_workers_share_a_port_are_replaced_one_by_one_and_end_with_their_parent(hub: Hub) -> None:
    """One hub for all of it: each worker costs seconds of processor time to start."""
    first = workers(hub)
    assert len(first) == 2
    wait_until(lambda: len(hosts(hub)) == 2)
    before = hosts(hub)
    killed = min(first)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len(workers(hub) - {killed}) == 2)
    wait_until(lambda: len(hosts(hub)) == 2 and hosts(hub) != before)
    second = workers(hub)
    with post_chat(hub, "s") as response:
        while b'"text-delta"' not in response.readline():
            pass
        hub.process.send_signal(signal.SIGHUP)
        rest = response.read()
    assert b"word99" in rest, "a reload drops no answer"
    assert rest.endswith(b"data: [DONE]\n\n")
    wait_until(lambda: len(workers(hub)) == 2 and not workers(hub) & second)
    third = workers(hub)
    (hub.data.parent / "dragoman.yaml").write_text("")
    hub.process.send_signal(signal.SIGHUP)
    assert hub.process.stderr is not None
    while "the configuration was not reloaded: " not in hub.process.stderr.readline():
        pass
    assert workers(hub) == third
    finish(hub.process, signal.SIGKILL)  # returns when nobody can write to its output any more
    wait_until(lambda: not any(map(is_running, third)))


def test_workers_get_the_configuration_that_their_parent_has_found() -> None:
    command = worker_command(["serve", "--workers", "2"], found_file=Path("dragoman.yaml"))
    assert command[-5:] == ["serve", "--workers", "2", "--config", "dragoman.yaml"]
    assert worker_command(["serve"], found_file=None)[-1] == "serve"


def test_a_signal_ends_all_workers_and_the_program_with_0(hub: Hub) -> None:
    pids = workers(hub)
    assert finish(hub.process, signal.SIGTERM).code == 0
    assert not any(map(is_running, pids))


SECOND_HANGS = """
import pathlib, time
from dragoman import operation
@operation(namespace="shop")
def stock() -> int:
    return 1
with pathlib.Path("started").open("a+") as file:
    file.write("worker\\n")
    file.flush()
    file.seek(0)
    if len(file.readlines()) > 1:
        time.sleep(3600)
"""


@pytest.mark.thorough
def test_a_signal_ends_the_program_while_a_worker_that_never_serves_is_started(tmp_path: Path) -> None:
    server = shared_server()
    (tmp_path / "tools.py").write_text(SECOND_HANGS)
    config = {
        "providers": {"sim": scripted(tmp_path, "sim", SLOW)},
        "model": "sim/x",
        "operations": ["tools.py"],
    }
    (tmp_path / "dragoman.yaml").write_text(json.dumps(config))
    with server.schema() as schema:
        command = ("serve", "--port", "0", "--no-auth", "--workers", "3")
        process = start(*command, cwd=tmp_path, env={VARIABLE: server.url(schema)})
        started = tmp_path / "started"
        try:
            wait_until(lambda: started.exists() and started.read_text().count("worker") == 2)
        finally:
            result = finish(process, signal.SIGTERM)
        assert result.code == 0
        assert started.read_text().count("worker") == 2
