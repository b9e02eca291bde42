"""The servers that are measured: how each is started, and what it is."""

import atexit
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.harness import build
from benchmarks.harness.workloads import Dialect

ROOT = build.HERE.parent
READY = "listening on http://127.0.0.1:"
START_SECONDS = 180.0  # eight processes on two cores that others use, too
_postgres: list[Any] = []
_schemas = count()


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a server is started with: the upstream's address, the model's name, an empty folder."""

    upstream: str
    model: str
    folder: Path

    @property
    def options(self) -> list[str]:
        """As the relays and the peers take it."""
        return ["--upstream", self.upstream, "--model", self.model]


Command = Callable[[Place], list[str]]


@dataclass(frozen=True, kw_only=True)
class Server:
    """Something to measure. Without a command it is the upstream itself, asked directly."""

    name: str
    does: str
    dialect: Dialect
    reference: bool = False  # the others are compared with it
    groups: Sequence[str] = ("stream", "turns", "memory", "first")
    command: Command | None = None
    prepare: Callable[[], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server that has been started, with the process that was started first."""

    pid: int | None
    port: int

    @property
    def pids(self) -> Sequence[int]:
        """Its processes: the first one and everything that came from it."""
        return [] if self.pid is None else process_family(self.pid)


def servers() -> Sequence[Server]:
    """Every server, yardsticks first."""
    return [
        Server(name="direct", does="the upstream, asked without anything between", dialect="openai"),
        Server(
            name="raw relay",
            does="bare asyncio, passes bytes on unread",
            dialect="openai",
            reference=True,
            command=_relay("raw"),
        ),
        Server(
            name="bare transform",
            does="bare asyncio, no checks, nothing kept",
            dialect="ui",
            command=_relay("transform"),
        ),
        Server(
            name="dragoman",
            does="the hub: sessions, journal, usage, everything kept",
            dialect="ui",
            command=hub_command,
        ),
        Server(
            name="dragoman, Postgres",
            does="the same, everything kept in Postgres, which syncs at each commit; its CPU is not counted",
            dialect="ui",
            groups=("turns", "first"),
            command=_hub_on_postgres,
            prepare=_start_postgres,
        ),
        Server(
            name=f"AI SDK {build.version_of('ai_sdk')}",
            does="Node, streamText to a UI message stream, nothing kept",
            dialect="ui",
            reference=True,
            command=_ai_sdk,
            prepare=build.install_ai_sdk,
        ),
        Server(
            name=f"Pydantic AI {build.version_of('pydantic_ai')}",
            does="its Vercel AI adapter on uvicorn and uvloop, nothing kept",
            dialect="ui",
            reference=True,
            command=_pydantic_ai,
            prepare=build.install_pydantic_ai,
        ),
    ]


@contextmanager
def started(command: Sequence[str], *, log: Path) -> Iterator[Running]:
    """A program that prints where it listens, ended on the way out; `build.Absent` when it won't start."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "UP_KEY": "benchmark",
        "NODE_ENV": "production",
        "PYTHONPATH": os.pathsep.join(paths),
        **build.BYTECODE,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=log.parent
        )
    try:
        yield Running(pid=process.pid, port=_await_port(process, log))
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def start(server: Server, *, upstream: Running, model: str) -> Iterator[Running]:
    """Start a server with a folder of its own, which goes with it."""
    if server.command is None:
        yield Running(pid=None, port=upstream.port)
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        place = Place(upstream=f"http://127.0.0.1:{upstream.port}/v1", model=model, folder=Path(folder))
        with started(server.command(place), log=Path(folder) / "output") as running:
            yield running


def _await_port(process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        log_text = log.read_text(errors="replace")
        for line in log_text.splitlines(keepends=True):
            if READY in line and line.endswith("\n"):
                return int(line.split(READY, 1)[1].split()[0].rstrip("/"))
        if process.poll() is not None:
            last = log_text.strip().splitlines()[-3:] or [f"exit code {process.returncode}"]
            raise build.Absent(f"did not start: {' / '.join(line.strip() for line in last)}")
        time.sleep(0.01)
    raise build.Absent(f"did not say where it listens within {START_SECONDS} s")


def process_family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in task.read_text().split()
    ]
    return [pid, *(member for child in children for member in process_family(child))]


def _relay(kind: str) -> Command:
    return lambda place: [sys.executable, str(build.HERE / "relay.py"), kind, *place.options]


def hub_command(place: Place) -> list[str]:
    """Return the command of a hub with one provider."""
    config = place.folder / "dragoman.yaml"
    provider = f"{{type: openai, base_url: {place.upstream!r}, api_key_env: UP_KEY}}"
    config.write_text(f"providers: {{up: {provider}}}\nmodel: up/{place.model}\n")
    serve = [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        "--config",
        str(config),
        "--data",
        str(place.folder / "data"),
    ]
    return [*serve, "--host", "127.0.0.1", "--port", "0", "--no-auth"]


def _start_postgres() -> None:
    """Start one server of Postgres for all runs, until this process ends."""
    try:
        from tests.postgres_server import PostgresServer  # late: needs the driver

        if not _postgres:
            _postgres.append(PostgresServer({"fsync": "on", "full_page_writes": "on", "autovacuum": "on"}))
            atexit.register(_postgres[0].close)
    except (AssertionError, ModuleNotFoundError) as error:
        raise build.Absent(str(error)) from error


def _hub_on_postgres(place: Place) -> list[str]:
    schema = f"bench_{next(_schemas)}"
    _postgres[0].execute(f"CREATE SCHEMA {schema}")
    return [*hub_command(place), "--database", _postgres[0].url(schema)]


def _ai_sdk(place: Place) -> list[str]:
    return ["node", str(build.AI_SDK / "server.mjs"), *place.options]


def _pydantic_ai(place: Place) -> list[str]:
    return [str(build.PEER_PYTHON), str(build.PYDANTIC_AI / "server.py"), *place.options]
