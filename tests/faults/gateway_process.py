"""A gateway in its own process, with its log in a file."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from tests.databases import process_environment
from tests.faults.gateway_upstream import DEADLINE
from tests.faults.process import READY
from tests.waiting import until


class Process:
    """A `dragoman serve` in a process of its own; its log lies in a file."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.http = httpx2.AsyncClient(base_url=url, timeout=DEADLINE, trust_env=False)
        self._log = log

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()

    async def until_refused(self) -> None:
        """Wait until it takes no new connections."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    _, writer = await asyncio.open_connection(host, int(port))
                except ConnectionError:
                    return
                writer.close()

    async def until_logged(self, text: str) -> None:
        """Wait until it has logged this."""
        await until(lambda: text in self.log)


@asynccontextmanager
async def started(
    folder: Path, config: Mapping[str, Any], *flags: str, **environ: str
) -> AsyncIterator[Process]:
    """A hub that is ready; killed at the end if it still runs."""
    path = folder / "dragoman.yaml"
    named = ("--config", str(path))
    async with started_in(folder, config, *named, *(flags or ("--no-auth",)), environ=environ) as hub:
        yield hub


@asynccontextmanager
async def started_in(
    folder: Path, config: Mapping[str, Any], *flags: str, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """As `started`, with these flags only: the hub finds its configuration in its folder."""
    (folder / "dragoman.yaml").write_bytes(msgspec.json.encode(config))
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dragoman", "serve"),
            *("--data", str(folder / "data"), "--port", "0", *flags),
            env={**process_environment(folder / "data"), **(environ or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            cwd=folder,
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE):
            while not (found := READY.search(line := await process.stdout.readline())):
                assert line, (folder / "log").read_text()
        hub = Process(process, found[1].decode(), folder / "log")
        yield hub
        await hub.http.aclose()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
