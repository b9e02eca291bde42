"""The gateways that are measured: how each is started, asked and checked."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateways import configs, peer_files
from benchmarks.gateways.tasks import GROUPS, Group, Task
from benchmarks.harness import build

ROOT = build.HERE.parent


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a gateway is started: an empty folder, a free port, the upstream's port, and for which task."""

    folder: Path
    port: int
    upstream: int
    task: Task

    @property
    def key(self) -> str:
        """The key that lets clients in, where the gateway's preparation has left one."""
        file = self.folder / "key"
        return file.read_text() if file.exists() else "sk-benchmark"


@dataclass(frozen=True, kw_only=True)
class Ask:
    """How a client asks this gateway: the model's name there, and headers beside the usual ones."""

    model: str
    headers: Mapping[str, str]


def plain(place: Place) -> Ask:
    """As a client of either family asks, with its key."""
    headers = {"Authorization": f"Bearer {place.key}"}
    if place.task.door == "anthropic":
        headers = {"x-api-key": place.key, "anthropic-version": "2023-06-01"}
    return Ask(model=place.task.model, headers=headers)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Something to measure. Without a command it is the upstream itself, asked directly.

    `translates` says whether it can have another family behind a door; `groups` are the tests that say
    something of it. `most` bounds the connections of one that would not carry more on one core. `rows`
    counts the whole answers that it has written down.
    """

    name: str
    does: str
    command: Callable[[Place], Sequence[str]] | None = None
    install: Callable[[], None] | None = None
    size: Callable[[], peer_files.Size] | None = None
    ask: Callable[[Place], Ask] = plain
    environment: Mapping[str, str] | None = None
    groups: Sequence[Group] = GROUPS
    translates: bool = True
    reference: bool = False
    most: int | None = None
    rows: Callable[[Place], int] | None = None


def peers() -> Sequence[Peer]:
    """Everyone, limits first."""
    return [
        Peer(name="direct", does="the upstream, asked without anything between", translates=False),
        Peer(
            name="nginx",
            does="one worker, keep-alive to the upstream, no buffering, no log: the limit; no keys, no usage",
            command=_nginx,
            install=peer_files.install_nginx,
            size=peer_files.nginx_size,
            translates=False,
        ),
        Peer(
            name="raw relay",
            does="bare asyncio, passes bytes on unread; no keys, no usage",
            command=_raw_relay,
            translates=False,
        ),
        Peer(
            name="dragoman",
            does="a hub key, a usage row with its cost for every request (checked), no limits",
            command=_dragoman,
            size=peer_files.dragoman_size,
            ask=_ask_dragoman,
            rows=_usage_rows,
        ),
        Peer(
            name="dragoman, budget",
            does="the same, and a budget and limits that every request is held against",
            command=_dragoman_with_budget,
            groups=("json", "latency"),
            ask=_ask_dragoman,
            rows=_usage_rows,
        ),
        Peer(
            name=f"LiteLLM {peer_files.version_of('litellm')}",
            does="one worker, master key; no database, so no virtual keys and no rows; cost computed",
            command=_litellm,
            install=peer_files.install_litellm,
            size=peer_files.litellm_size,
            ask=_ask_litellm,
            environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"},
            reference=True,
            most=24,
        ),
        Peer(
            name=f"Portkey {peer_files.version_of('portkey')}",
            does="Node, its open-source gateway, which has neither keys of its own nor usage",
            command=_portkey,
            install=peer_files.install_portkey,
            size=peer_files.portkey_size,
            ask=_ask_portkey,
            environment={"NODE_ENV": "production"},
            reference=True,
            most=24,
        ),
    ]


# ---- the limits ----------------------------------------------------------------------------------------


def _nginx(place: Place) -> Sequence[str]:
    config = place.folder / "nginx.conf"
    config.write_text(configs.nginx(folder=place.folder, port=place.port, upstream=place.upstream))
    return [str(peer_files.nginx_program()), "-e", "stderr", "-p", str(place.folder), "-c", str(config)]


def _raw_relay(place: Place) -> Sequence[str]:
    url = f"http://127.0.0.1:{place.upstream}/v1"
    return [sys.executable, str(build.HERE / "relay.py"), "raw", "--upstream", url, "--port", str(place.port)]


# ---- dragoman ------------------------------------------------------------------------------------------


def _dragoman(place: Place) -> Sequence[str]:
    return _hub(place, limits=None)


def _dragoman_with_budget(place: Place) -> Sequence[str]:
    return _hub(place, limits={"key": {"requests_per_minute": 10_000_000, "usd_per_day": 1_000_000}})


def _hub(place: Place, *, limits: Mapping[str, object] | None) -> Sequence[str]:
    config, data = place.folder / "dragoman.yaml", str(place.folder / "data")
    config.write_text(configs.dragoman(upstream=place.upstream, limits=limits))
    program = [sys.executable, "-m", "dragoman"]
    keys = [*program, "keys", "create", "--data", data, "--owner", "bench", "--json"]
    made = subprocess.run(keys, env=environment({}), check=True, capture_output=True, text=True)
    (place.folder / "key").write_text(json.loads(made.stdout)["key"])
    options = ["--config", str(config), "--data", data, "--host", "127.0.0.1", "--port", str(place.port)]
    return [*program, "serve", "--log-level", "warning", *options]


def _ask_dragoman(place: Place) -> Ask:
    return Ask(model=f"{place.task.upstream}/{place.task.model}", headers=plain(place).headers)


def _usage_rows(place: Place) -> int:
    """Rows of whole answers that have a cost."""
    [file] = (place.folder / "data").glob("*.db")
    with closing(sqlite3.connect(file)) as connection:
        query = "SELECT count(*) FROM usage WHERE cost IS NOT NULL AND input_tokens = 20"
        return int(connection.execute(query).fetchone()[0])


# ---- the others ----------------------------------------------------------------------------------------


def _litellm(place: Place) -> Sequence[str]:
    config = place.folder / "litellm.yaml"
    config.write_text(configs.litellm(upstream=place.upstream, model=place.task.model))
    program = peer_files.LITELLM / ".venv" / "bin" / "litellm"
    options = ["--config", str(config), "--host", "127.0.0.1", "--port", str(place.port)]
    return [str(program), *options, "--num_workers", "1"]


def _ask_litellm(place: Place) -> Ask:
    return Ask(model=f"{place.task.upstream}/{place.task.model}", headers=plain(place).headers)


def _portkey(place: Place) -> Sequence[str]:
    server = peer_files.PORTKEY / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    return [shutil.which("node") or "node", str(server), f"--port={place.port}", "--headless"]


def _ask_portkey(place: Place) -> Ask:
    host = f"http://127.0.0.1:{place.upstream}/v1"
    routing = {"x-portkey-provider": place.task.upstream, "x-portkey-custom-host": host}
    return Ask(model=place.task.model, headers={**plain(place).headers, **routing})


def environment(more: Mapping[str, str]) -> Mapping[str, str]:
    """What a gateway finds in its environment."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"UP_KEY": "sk-upstream", "PYTHONPATH": os.pathsep.join(paths), **build.BYTECODE}
    return {**os.environ, **own, **more}
