"""A hub, a spoke and a peer, each in a process of its own, and the load generator beside them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.build import HERE, Absent

TOOLS = HERE / "calls"
PROGRAM = (sys.executable, "-m", "dragoman")
READY = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
START_SECONDS = 30.0
SCOPES = ("--scope", "operations", "--scope", "chat")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A server that listens; `pid` is its process, `key` opens it."""

    port: int
    pid: int
    key: str = ""
    spoke: int = 0


@contextmanager
def hub() -> Iterator[Place]:
    """A hub as an operator starts it, with a key, and with a spoke that serves `far`."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        data = Path(folder, "data")
        config = Path(folder, "dragoman.yaml")
        config.write_text(json.dumps({"operations": [str(TOOLS / "tools.py")]}))
        command = [
            "serve",
            "--config",
            str(config),
            "--data",
            str(data),
            "--port",
            "0",
            "--log-level",
            "warning",
        ]
        with process([*PROGRAM, *command]) as running:
            port = int(wait_for(running, READY)[1])
            made = [*PROGRAM, "keys", "create", "--data", str(data), "--owner", "bench", *SCOPES]
            key = subprocess.run(
                made, env=environment(), capture_output=True, text=True, check=True
            ).stdout.strip()
            serve = [
                "spoke",
                str(TOOLS / "far.py"),
                "--hub",
                f"http://127.0.0.1:{port}",
                "--log-level",
                "warning",
            ]
            with process([*PROGRAM, *serve], DRAGOMAN_KEY=key) as spoke:
                wait_for(spoke, re.compile("serves at"))
                yield Place(port=port, pid=running.pid, key=key, spoke=spoke.pid)


@contextmanager
def peer(python: Path, script: Path) -> Iterator[Place]:
    """Another server, told its port. `Absent` when it does not come up."""
    port = free_port()
    with process([str(python), str(script), str(port)]) as running:
        until = time.monotonic() + START_SECONDS
        while not answers(port):
            if running.poll() is not None or time.monotonic() > until:
                raise Absent("it does not start")
            time.sleep(0.1)
        yield Place(port=port, pid=running.pid)


def paced(place: Place, request: str, **how: Any) -> Mapping[str, Any]:
    """What the load generator finds; see `paced.py`."""
    options = {"port": place.port, "request": request, "pid": place.pid, **how}
    command = [sys.executable, str(TOOLS / "paced.py")]
    done = subprocess.run(command, input=json.dumps(options), capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def process(command: Sequence[str], **env: str) -> Iterator[subprocess.Popen[str]]:
    """A process, ended afterwards."""
    running = subprocess.Popen(
        command,
        env={**environment(), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()


def wait_for(running: subprocess.Popen[str], pattern: re.Pattern[str]) -> re.Match[str]:
    """The first line that says this. `Absent` when the process ends before."""
    assert running.stdout is not None
    for line in running.stdout:
        if found := pattern.search(line):
            return found
    raise Absent("it ended before it was ready")


def environment() -> dict[str, str]:
    """The environment with this source tree in front."""
    paths = [str(HERE.parent / "src"), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
