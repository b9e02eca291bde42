"""A hub in its own process, to be killed."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from tests.databases import process_environment
from tests.serving import write_script
from tests.waiting import LIMIT

READY = re.compile(rb"listening on (http://127\.0\.0\.1:\d+)")


class Process:
    """A running `dragoman serve`."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.http = httpx2.AsyncClient(base_url=url, timeout=LIMIT, trust_env=False)

    async def kill(self, how: signal.Signals = signal.SIGKILL) -> int:
        """Kill it and wait; its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(how)
        code = await self.process.wait()
        await self.http.aclose()
        return code

    async def messages(self, session: str) -> list[dict[str, Any]]:
        """What the session holds; an error is a failed test."""
        response = await self.http.get(f"/api/sessions/{session}/messages")
        assert response.status_code == 200, response.text
        pending: list[dict[str, Any]] = response.json()["messages"]
        return pending


def write_config(
    folder: Path, steps: Sequence[Mapping[str, Any]], *, play: str = "turns", **config: Any
) -> Path:
    """A dragoman.yaml (JSON is YAML) whose model plays these steps."""
    script = write_script(folder, steps, play=play)
    path = folder / "dragoman.yaml"
    providers = {"sim": {"type": "scripted", "script": str(script)}}
    path.write_bytes(msgspec.json.encode({"providers": providers, "model": "sim/any", **config}))
    return path


@asynccontextmanager
async def started(config: Path, data: Path) -> AsyncIterator[Process]:
    """A hub that is ready; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman", "serve", "--config", str(config)),
        *("--data", str(data), "--port", "0", "--no-auth"),
        env=process_environment(data),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    hub: Process | None = None
    try:
        async with asyncio.timeout(LIMIT):
            while not (found := READY.search(line := await process.stdout.readline())):
                assert line, "the hub ended before it was ready"
        hub = Process(process, found[1].decode())
        yield hub
    finally:
        if hub is not None:
            await hub.kill()
        elif process.returncode is None:
            process.kill()
            await process.wait()
