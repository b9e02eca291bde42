"""The engine: a child process that serves a local model; started when needed, and again after a crash."""

from __future__ import annotations

import asyncio
import logging
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from secrets import token_urlsafe
from typing import cast

import msgspec

from dragoman.errors import ProviderError
from dragoman.providers.retry import clean
from dragoman.providers.server import Server

TAIL = 4_000  # characters of what the process said last
MOMENT = 2.0  # seconds within which a process that lets go of its connections has ended
PATIENCE = 5.0  # seconds that the process gets to end

log = logging.getLogger(__name__)


class Ready(msgspec.Struct, frozen=True):
    """What the process says when it is ready."""

    address: str


class Engine:
    """Runs `command`, which serves the OpenAI protocol as `providers/llama.py` says. For one event loop."""

    def __init__(self, command: Sequence[str], *, startup_timeout: float) -> None:
        self._command = tuple(command)
        self._startup_timeout = startup_timeout
        self._gate = asyncio.Lock()
        self._process: Process | None = None
        self._server: Server | None = None
        self._said = ""
        self._listener: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process that runs, if one does."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def start(self) -> Server:
        """Where the model is served; the process is started if none runs. ProviderError when it cannot be."""
        async with self._gate:
            if self._server is None or self.pid is None:
                await self._stop()
                self._server = await self._launch()
            return self._server

    async def ending(self, patience: float = MOMENT) -> str | None:
        """How the process ended, if it has or does so soon; its last words are logged."""
        process, listener = self._process, self._listener
        if process is None or listener is None:
            return None
        done, _ = await asyncio.wait([listener], timeout=patience)
        if not done:
            return None
        how = describe(await process.wait())
        log.warning(
            "the local model's process has ended (%s)%s", how, f":\n{self._said}" if self._said else ""
        )
        return how

    async def close(self) -> None:
        """End the process."""
        async with self._gate:
            await self._stop()

    async def _launch(self) -> Server:
        key = token_urlsafe(24)
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        self._process, self._said = process, ""
        self._listener = asyncio.create_task(self._listen(process))
        line = b""
        try:
            async with asyncio.timeout(self._startup_timeout):
                line = await greet(process, key)
            return Server(base_url=f"{msgspec.json.decode(line, type=Ready).address}/v1", api_key=key)
        except TimeoutError:
            problem = f"the local model was not ready after {self._startup_timeout:g} seconds"
        except msgspec.DecodeError:
            how = None if line else await self.ending(PATIENCE)
            problem = f"the local model could not start ({how or 'it gave no address'})"
            problem += f": {clean(self._said.splitlines()[-1])}" if self._said else ""
        except BaseException:
            await self._stop()
            raise
        await self._stop()
        raise ProviderError(problem, category="api_error")

    async def _listen(self, process: Process) -> None:
        """Keep the end of what the process says, so that its pipe never fills; until it has ended."""
        stderr = cast(asyncio.StreamReader, process.stderr)
        while piece := await stderr.read(TAIL):
            self._said = (self._said + piece.decode(errors="replace"))[-TAIL:]
        await process.wait()

    async def _stop(self) -> None:
        process, listener = self._process, self._listener
        self._process = self._server = self._listener = None
        if process is not None and listener is not None:
            await end(process)
            await listener


async def greet(process: Process, key: str) -> bytes:
    """Tell the process the key; the line that it answers, empty when it has ended."""
    cast(asyncio.StreamWriter, process.stdin).write(f"{key}\n".encode())
    return await cast(asyncio.StreamReader, process.stdout).readline()


async def end(process: Process) -> None:
    """Ask the process to end, then make it."""
    cast(asyncio.StreamWriter, process.stdin).close()
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def describe(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
