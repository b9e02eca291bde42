"""A program in a child process, which is ended together with everything that it started.

The process leads its own session. Its descendants may leave that session or outlive it, so each program has a
mark in its environment, by which they are found. A watchdog ends it if this process is killed.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Self, cast

from dragoman.processes.descendants import end_marked, signal_marked
from dragoman.processes.group import close_pipes, signal_group, wait_for_exit
from dragoman.processes.watchdog import Watchdog
from dragoman.redaction import safe_line

READ_SIZE = 64 * 1024
STDERR_TAIL = 4000  # last characters of its error output that are reported
ABORT_GRACE = 0.05  # seconds that an abandoned program gets to exit
EXIT_GRACE = 2.0  # seconds that a completed program gets to exit
# Each program's variable has its own name, so that nested programs keep the mark of the outer one as well.
MARK_PREFIX = "DRAGOMAN_PROGRAM_"


class Program:
    """A running program. Call `stop` at its end, whatever happened."""

    def __init__(self, process: Process, mark: str) -> None:
        self.process = process
        self._mark = mark
        self._watchdog = Watchdog()
        self._watchdog.guard(process.pid, mark)
        self._stderr_tail = ""
        self._stdin = cast(asyncio.StreamWriter, process.stdin)
        self._stdout = cast(asyncio.StreamReader, process.stdout)
        self._stderr_task = asyncio.create_task(self._read_stderr(), name=f"stderr of {process.pid}")

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        *,
        cwd: str | None,
        environ: Mapping[str, str],
        keeps_errors: bool = True,
    ) -> Self:
        """Start a program without a shell. Raises OSError or ValueError if it cannot be started.

        Without `keeps_errors` its error output is discarded unread: reading a flood costs as much as writing
        it.
        """
        name = MARK_PREFIX + secrets.token_hex(8)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE if keeps_errors else DEVNULL,
            cwd=cwd,
            env={**environ, name: "1"},
            start_new_session=True,
        )
        return cls(process, f"{name}=1")

    def write_input(self, data: bytes) -> None:
        """Send the input, and close it once the program has read it. Return at once.

        Waiting for that would never end where the program waits in turn until its output is read. A program
        may also exit before it has read everything.
        """
        with suppress(ConnectionError, RuntimeError):  # uvloop raises RuntimeError on a closed pipe
            self._stdin.write(data)
        self._stdin.close()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield its output as it is read."""
        while data := await self._stdout.read(READ_SIZE):
            yield data

    async def exit_report(self) -> tuple[str, str]:
        """Return how it exited, such as `ended with exit code 1`, and the end of its error output."""
        if not await wait_for_exit(self.process, EXIT_GRACE):
            return "closed its output and kept running", safe_line(self._stderr_tail)
        await asyncio.wait([self._stderr_task], timeout=ABORT_GRACE)
        code = self.process.returncode or 0
        reason = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
        return reason, safe_line(self._stderr_tail)

    async def stop(self, *, grace: float = ABORT_GRACE) -> None:
        """Wait `grace` seconds for it to exit, then kill its process group and descendants.

        With ABORT_GRACE or less, SIGTERM is sent first: nobody waits for its result.
        """
        self._stdin.close()
        try:
            if grace <= ABORT_GRACE:
                signal_group(self.process, signal.SIGTERM)
                signal_marked(self._mark, signal.SIGTERM)
            await wait_for_exit(self.process, grace)
        finally:
            signal_group(self.process, signal.SIGKILL)
            end_marked(self._mark)  # also descendants in other sessions
        await wait_for_exit(self.process, EXIT_GRACE)
        self._watchdog.release(self.process.pid)
        self._stderr_task.cancel()
        await asyncio.wait([self._stderr_task])
        await self._watchdog.close()
        close_pipes(self.process)

    async def _read_stderr(self) -> None:
        stream = self.process.stderr
        while stream is not None and (data := await stream.read(READ_SIZE)):
            self._stderr_tail = (self._stderr_tail + data.decode(errors="replace"))[-STDERR_TAIL:]


async def run_program(
    command: Sequence[str], *, input: bytes, environ: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Run a program with an input and return its output, whatever its exit code.

    It is killed if the caller is cancelled. Raises OSError or ValueError if it cannot be started.
    """
    program = await Program.spawn(command, cwd="/", environ=environ)
    try:
        program.write_input(input)
        return b"".join([chunk async for chunk in program.chunks()])
    finally:
        await program.stop(grace=0)
