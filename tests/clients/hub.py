"""A hub in its own process, and plain requests to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

COMMAND = (sys.executable, "-m", "dragoman")
READY = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")
START_LIMIT = 120.0
STOP_LIMIT = 120.0


class HubFailed(Exception):
    """The hub's program ended before it was ready, or did not do what was asked."""


@dataclass
class Hub:
    """A running `dragoman serve`; `key` is its owner's, empty when it asks for none."""

    process: subprocess.Popen[str]
    url: str
    key: str
    output: list[str]
    reader: threading.Thread = field(repr=False)

    @property
    def api(self) -> str:
        return f"{self.url}/api/chat"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of one request; errors are answers too."""
        data = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"content-type": "application/json"}
        question = urllib.request.Request(
            self.url + path, data=data, headers={**self.headers, **kind}, method=method
        )
        try:
            with urllib.request.urlopen(question, timeout=START_LIMIT) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the process and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            code = self.process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise HubFailed(f"{how.name} did not end it:\n" + "".join(self.output)) from None
        finally:
            self.reader.join(STOP_LIMIT)
            assert self.process.stdout is not None
            self.process.stdout.close()
        return code


StartHub = Callable[..., Hub]


def start(
    folder: Path,
    config: dict[str, Any],
    *,
    keyless: bool = False,
    key: str | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    port: int = 0,
) -> Hub:
    """Write the configuration, serve, and return when the hub says that it listens.

    Without a `key` one is created; an empty one is none, as with `keyless`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dragoman.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    data = folder / "data"
    key = key if key is not None else "" if keyless else create_key(data, "tester")
    arguments = ["serve", "--config", path, "--data", data, "--host", "127.0.0.1", "--port", port]
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments), *([] if key else ["--no-auth"])],
        env={**os.environ, "UP_KEY": "the-upstream-key", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output: list[str] = []
    heard = threading.Condition()
    reader = threading.Thread(target=listen, args=(process, output, heard), daemon=True)
    reader.start()
    with heard:
        heard.wait_for(lambda: process.poll() is not None or ready(output), START_LIMIT)
    hub = Hub(process, ready(output), key, output, reader)
    if not hub.url:
        hub.stop(signal.SIGKILL)
        raise HubFailed("the hub did not become ready:\n" + "".join(output))
    return hub


def listen(process: subprocess.Popen[str], output: list[str], heard: threading.Condition) -> None:
    """Keep what the hub prints, so that its pipe never fills."""
    assert process.stdout is not None
    for line in process.stdout:
        with heard:
            output.append(line)
            heard.notify_all()
    process.wait()
    with heard:
        heard.notify_all()


def ready(output: list[str]) -> str:
    """The address that the hub says it listens on; empty before that."""
    found = READY.search("".join(output))
    return found.group(1) if found else ""


def create_key(
    data: Path,
    owner: str,
    environ: Mapping[str, str] = MappingProxyType({}),
    *,
    scopes: Sequence[str] = (),
) -> str:
    """A new key, made by the program's own command."""
    named = [word for scope in scopes for word in ("--scope", scope)]
    command = [*COMMAND, "keys", "create", "--data", str(data), "--owner", owner, *named]
    made = subprocess.run(
        command,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=START_LIMIT,
        check=False,
    )
    words = made.stdout.split()
    if made.returncode or not words:
        raise HubFailed(f"keys create: {made.returncode}\n{made.stdout}{made.stderr}")
    return words[-1]
