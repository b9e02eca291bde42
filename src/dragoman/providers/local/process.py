"""Run the server of a local model in a child process: start on demand, restart after a crash."""

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
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.providers.endpoint import UpstreamServer
from dragoman.redaction import safe_line

STDERR_TAIL = 4_000  # last characters of its error output that are logged
EXIT_WAIT = 2.0  # seconds in which a process that closed its connections exits
TERMINATE_WAIT = 5.0  # seconds between SIGTERM and SIGKILL

log = logging.getLogger(__name__)


class ReadyLine(msgspec.Struct, frozen=True):
    """The line that the process writes when it is ready, or cannot be."""

    address: str = ""
    problem: str = ""


class LocalModelProcess:
    """Runs `command`, a server as described in `llama_server.py`. For one event loop."""

    def __init__(self, command: Sequence[str], *, startup_timeout: float) -> None:
        self._command = tuple(command)
        self._startup_timeout = startup_timeout
        self._lock = asyncio.Lock()
        self._process: Process | None = None
        self._server: UpstreamServer | None = None
        self._stderr_tail = ""
        self._stderr_task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the running process, if any."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def start(self) -> UpstreamServer:
        """Return the server; start its process if none is running. Raises ProviderError if that fails."""
        async with self._lock:
            if self._server is None or self.pid is None:
                await self._stop()
                self._server = await self._launch()
            return self._server

    async def exit_reason(self, timeout: float = EXIT_WAIT) -> str | None:
        """Wait up to `timeout` seconds for the process to exit; log and return how it did, or None."""
        process, stderr_task = self._process, self._stderr_task
        if process is None or stderr_task is None:
            return None
        done, _ = await asyncio.wait([stderr_task], timeout=timeout)
        if not done:
            return None
        reason = describe_exit(await process.wait())
        log.warning(
            "the local model's process exited (%s)%s",
            reason,
            f":\n{self._stderr_tail}" if self._stderr_tail else "",
        )
        return reason

    async def close(self) -> None:
        """End the process."""
        async with self._lock:
            await self._stop()

    async def _launch(self) -> UpstreamServer:
        key = token_urlsafe(24)
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        self._process, self._stderr_tail = process, ""
        self._stderr_task = asyncio.create_task(self._read_stderr(process))
        line = b""
        try:
            async with asyncio.timeout(self._startup_timeout):
                line = await send_key(process, key)
            ready = msgspec.json.decode(line, type=ReadyLine)
            if ready.address:
                return UpstreamServer(base_url=f"{ready.address}/v1", api_key=key)
            problem = self._start_problem(await self.exit_reason(TERMINATE_WAIT), ready.problem)
        except TimeoutError:
            problem = f"the local model was not ready after {self._startup_timeout:g} seconds"
        except DECODE_ERRORS:
            reason = None if line else await self.exit_reason(TERMINATE_WAIT)
            problem = self._start_problem(reason, "")
        except BaseException:
            await self._stop()
            raise
        await self._stop()
        raise ProviderError(problem, category="api_error")

    def _start_problem(self, reason: str | None, problem: str) -> str:
        """Return why there is no server: what the process reports, else the last line of its errors."""
        line = problem or "".join(self._stderr_tail.splitlines()[-1:])
        text = f"the local model could not start ({reason or 'it sent no address'})"
        return f"{text}: {safe_line(line)}" if line else text

    async def _read_stderr(self, process: Process) -> None:
        """Read the error output until the process exits, so that the pipe never fills up; store its end."""
        stderr = cast(asyncio.StreamReader, process.stderr)
        while data := await stderr.read(STDERR_TAIL):
            self._stderr_tail = (self._stderr_tail + data.decode(errors="replace"))[-STDERR_TAIL:]
        await process.wait()

    async def _stop(self) -> None:
        process, stderr_task = self._process, self._stderr_task
        self._process = self._server = self._stderr_task = None
        if process is not None and stderr_task is not None:
            await terminate(process)
            await stderr_task


async def send_key(process: Process, key: str) -> bytes:
    """Send the API key to the process; return its ready line, empty if it has exited."""
    cast(asyncio.StreamWriter, process.stdin).write(f"{key}\n".encode())
    return await cast(asyncio.StreamReader, process.stdout).readline()


async def terminate(process: Process) -> None:
    """End the process with SIGTERM, then SIGKILL."""
    cast(asyncio.StreamWriter, process.stdin).close()
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(TERMINATE_WAIT):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def describe_exit(code: int) -> str:
    """Describe an exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
