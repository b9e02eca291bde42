"""MCP servers as child processes. They, and all processes that they started, end with the connection.

Each runs in a process group of its own, which is killed as a whole. A mark in its environment finds processes
that have left the group.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from dragoman.errors import ConfigError
from dragoman.ids import new_id
from dragoman.mcp.client.flood import PAUSE_SECONDS, ErrorOutput
from dragoman.mcp.client.server_log import RecentLines
from dragoman.mcp.server_spec import ServerSpec
from dragoman.processes.descendants import end_marked, signal_marked
from dragoman.processes.group import close_pipes, signal_group, wait_for_exit
from dragoman.processes.watchdog import Watchdog
from dragoman.redaction import Redactor

log = logging.getLogger(__name__)

INHERITED_VARIABLES = ("PATH", "HOME", "LANG")
GRACE_SECONDS = 1.0  # for it to exit after its input was closed
TERM_SECONDS = 1.0  # for it to exit after SIGTERM
KILL_SECONDS = 2.0  # for it to disappear after SIGKILL
EXIT_WAIT_SECONDS = 0.2  # for a lost process to exit before its end is described
BUFFER_BYTES = 262_144
MARK_VARIABLE = "DRAGOMAN_MCP_SERVER"


class McpServerProcess:
    """A server's process. Its error output goes to the log, with secrets removed."""

    def __init__(
        self, process: Process, name: str, *, mark: str, errors: ErrorOutput, watchdog: Watchdog
    ) -> None:
        self.process = process
        self._mark = mark
        self.name = name
        self.reader = cast("asyncio.StreamReader", process.stdout)  # it is started with pipes
        self.writer = cast("asyncio.StreamWriter", process.stdin)
        self._watchdog = watchdog
        self._errors = errors
        self._stderr_task = asyncio.create_task(self._read_stderr(), name=f"mcp stderr {name}")

    @classmethod
    async def start(
        cls,
        spec: ServerSpec,
        environ: Mapping[str, str],
        *,
        redactor: Redactor,
        watchdog: Watchdog,
        recent: RecentLines | None = None,
    ) -> McpServerProcess:
        """Start the process without a shell. `recent` gets the lines of its error output.

        Raises ConfigError if there is no such program or folder.
        """
        id = new_id("mcp")
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=spec.cwd,
                env={**process_environment(spec, environ), MARK_VARIABLE: id},
                start_new_session=True,
                limit=BUFFER_BYTES,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ConfigError(
                f"{redactor(spec.command[0])!r} cannot be started: {reason}",
                hint="the command is a program and its arguments, without a shell",
            ) from None
        mark = f"{MARK_VARIABLE}={id}"
        watchdog.guard(process.pid, mark)
        errors = ErrorOutput(spec.name, bytes_per_minute=spec.stderr_limit, redact=redactor, recent=recent)
        return cls(process, spec.name, mark=mark, errors=errors, watchdog=watchdog)

    async def exit_report(self) -> str:
        """Describe how the process ended, with its last lines of error output."""
        await wait_for_exit(self.process, EXIT_WAIT_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_WAIT_SECONDS):
                await asyncio.wait([self._stderr_task])
        code = self.process.returncode
        how = "closed its output" if code is None else f"ended {exit_text(code)}"
        stderr = self._errors.last_lines
        return f"its process {how}{f', and said last: {stderr}' if stderr else ''}"

    async def stop(self) -> None:
        """Close its input and wait for its exit; then kill its process group and processes that left it."""
        self.writer.close()
        ended = await wait_for_exit(self.process, GRACE_SECONDS)
        if not ended:
            signal_group(self.process, signal.SIGTERM)
            signal_marked(self._mark, signal.SIGTERM)
            ended = await wait_for_exit(self.process, TERM_SECONDS)
        signal_group(self.process, signal.SIGKILL)  # also what it started and left behind
        end_marked(self._mark)
        self._watchdog.release(self.process.pid)
        if not ended and not await wait_for_exit(self.process, KILL_SECONDS):
            log.warning("MCP server %s: process %d cannot be killed", self.name, self.process.pid)
        self._stderr_task.cancel()
        await asyncio.wait([self._stderr_task])
        close_pipes(self.process)

    async def _read_stderr(self) -> None:
        stream = cast("asyncio.StreamReader", self.process.stderr)
        try:
            while data := await stream.read(BUFFER_BYTES):
                if self._errors.feed(data):
                    await asyncio.sleep(PAUSE_SECONDS)  # the pipe fills up, and the program's writes block
        finally:
            self._errors.close()


def process_environment(spec: ServerSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment: a few common variables, and those of its spec."""
    named = {name: environ[name] for name in (*INHERITED_VARIABLES, *spec.env_from) if name in environ}
    return {**named, **spec.env, **spec.secrets}


def exit_text(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by signal {-code}"
