"""The child process of a Claude Code run, which is ended with all its descendants.

The CLI starts each command of its model in a new session, which survives the CLI. So each run has a mark in
its environment, by which its descendants are found.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import cast

from dragoman.errors import ProviderError
from dragoman.ids import new_id
from dragoman.processes.descendants import end_marked, signal_marked
from dragoman.processes.group import close_pipes, signal_group, wait_for_exit
from dragoman.processes.watchdog import Watchdog
from dragoman.redaction import safe_line
from dragoman.wire.ndjson import NdjsonSplitter

READ_SIZE = 64 * 1024
STDERR_TAIL = 4000  # last characters of its error output that are shown
ABORT_GRACE = 0.05  # seconds that an abandoned run gets to exit
EXIT_GRACE = 2.0  # seconds that a completed run gets to exit
INHERITED_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "TZ", "CLOUD_ML_REGION"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("DO_NOT_TRACK", "MAX_MCP_OUTPUT_TOKENS", "MAX_THINKING_TOKENS", "MCP_TIMEOUT", "MCP_TOOL_TIMEOUT"),
        *("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    }
)
INHERITED_PREFIXES = ("ANTHROPIC_", "AWS_", "CLAUDE_", "DISABLE_", "GOOGLE_", "LC_", "VERTEX_", "XDG_")
PROXY_VARIABLES = ("HTTP_PROXY", "http_proxy")
MARK_VARIABLE = "DRAGOMAN_CLAUDE_CODE_RUN"
INSTALL = "install it (`npm install --global @anthropic-ai/claude-code`), log in once, or set the executable"


def inherited_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the CLI needs: those of any program and of the clouds that serve its models.

    Other providers' keys are not passed on: the model runs commands, which could read them.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in INHERITED_VARIABLES or name.startswith(INHERITED_PREFIXES)
    }


def without_local_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with 127.0.0.1 added to NO_PROXY: borrowed tools are served there."""
    names = [name for name in ("NO_PROXY", "no_proxy") if environ.get(name)] or ["NO_PROXY"]
    exceptions = {name: ",".join(filter(None, (environ.get(name), "127.0.0.1"))) for name in names}
    return {**environ, **(exceptions if any(name in environ for name in PROXY_VARIABLES) else {})}


class ClaudeCodeProcess:
    """A run's process. A watchdog ends it if this process is killed."""

    def __init__(self, process: Process, mark: str) -> None:
        self.process = process
        self._mark = mark
        self._watchdog = Watchdog()
        self._watchdog.guard(process.pid, mark)
        self._stderr_tail = ""
        self._stdin = cast(asyncio.StreamWriter, process.stdin)
        self._stdout = cast(asyncio.StreamReader, process.stdout)
        self._stderr_task = asyncio.create_task(self._read_stderr(), name=f"claude code {process.pid} stderr")

    @classmethod
    async def start(
        cls, command: Sequence[str], *, cwd: str | None, environ: Mapping[str, str]
    ) -> ClaudeCodeProcess:
        """Start the process, without a shell. Raises ProviderError if the program or folder is missing."""
        program = shutil.which(command[0], path=environ.get("PATH", os.defpath))
        if program is None:
            raise ProviderError(
                f"the Claude Code CLI {command[0]!r} is not installed", category="bad_request", hint=INSTALL
            )
        run = new_id("claude")
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *command[1:],
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=cwd,
                env={**environ, MARK_VARIABLE: run},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            location = f" in {cwd!r}" if cwd else ""
            raise ProviderError(
                f"the Claude Code CLI {command[0]!r} cannot be started{location}: {reason}",
                category="bad_request",
                hint=INSTALL if cwd is None else "check that the folder exists",
            ) from None
        return cls(process, f"{MARK_VARIABLE}={run}")

    async def write_input(self, line: bytes) -> None:
        """Write the input and close it."""
        with suppress(ConnectionError):  # it exited early; its output shows why
            self._stdin.write(line)
            await self._stdin.drain()
        self._stdin.close()

    async def lines(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of its output, in one list per read."""
        splitter = NdjsonSplitter()
        while data := await self._stdout.read(READ_SIZE):
            if block := splitter.feed(data):
                yield block.splitlines()
            if splitter.failure is not None:
                raise ProviderError(splitter.failure.message, category="api_error")
        if last := splitter.close():
            yield [last]

    async def exit_report(self) -> tuple[str, str]:
        """Return how it exited, and the end of its error output."""
        if not await wait_for_exit(self.process, EXIT_GRACE):
            return "closed its output and kept running", safe_line(self._stderr_tail)
        await asyncio.wait([self._stderr_task], timeout=ABORT_GRACE)
        code = self.process.returncode or 0
        reason = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
        return reason, safe_line(self._stderr_tail)

    async def stop(self, *, grace: float = ABORT_GRACE) -> None:
        """Wait `grace` seconds for it to exit, then kill its process group and descendants."""
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
        stream = cast(asyncio.StreamReader, self.process.stderr)
        while data := await stream.read(READ_SIZE):
            self._stderr_tail = (self._stderr_tail + data.decode(errors="replace"))[-STDERR_TAIL:]
