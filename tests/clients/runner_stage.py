"""A session that a runner answers: the runner's process, its gates, and HTTP requests that steer both."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.clients.http1 import Request, Server, Wire
from tests.clients.hub import Hub

PUPPET = Path(__file__).with_name("puppet_runner.py")


class RunnerStage:
    """The runner of one session. `POST /open/NAME`, `/kill` and `/start` do what they say."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.session = f"runner-{uuid.uuid4().hex}"
        self._hub = hub
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._server = Server(self._respond)

    def start(self) -> None:
        """Start the runner, and wait until the hub has its session."""
        hosts = getattr(self._hub, "hosts", (self._hub,))  # of a cluster, whose proxy forwards no WebSockets
        command = [sys.executable, PUPPET, hosts[0].url, self._folder, self.session]
        self._process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        """End the runner as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def do(self, what: str, **more: Any) -> dict[str, Any]:
        """The action that makes such a request."""
        return {"do": "request", "method": "POST", "path": f"{self._server.url}/{what}", "name": what, **more}

    def do_in_page(self, what: str) -> dict[str, Any]:
        """The same for a browser."""
        return {"do": "request", "method": "POST", "url": f"{self._server.url}/{what}"}

    def close(self) -> None:
        """End the runner and its steering."""
        self.kill()
        self._server.close()

    async def _respond(self, wire: Wire, request: Request) -> None:
        _, what, *name = request.path.split("/")
        if what == "open":
            (self._folder / name[0]).touch()
        elif what == "kill":
            self.kill()
        else:
            self.start()
        await wire.send(200, "done")


@contextmanager
def runner_stage(hub: Hub, folder: Path) -> Iterator[RunnerStage]:
    """A session with its runner."""
    stage = RunnerStage(hub, folder)
    try:
        status, body = hub.request("POST", "/api/sessions", {"id": stage.session, "runner": True})
        assert status == 201, body
        stage.start()
        yield stage
    finally:
        stage.close()
