"""The process of a Claude Code run: of it, and of all that it started, nothing is left behind.

The CLI starts each command of its model in a session of its own, and leaves it behind when it is ended. So a
run has a mark in its environment, by which those are found.
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
from dragoman.providers.retry import safe_line
from dragoman.wire.ndjson import NdjsonSplitter

READ_SIZE = 64 * 1024
STDERR_TAIL = 4000  # characters of its error output that are kept
ABORT_GRACE = 0.05  # seconds that a run that is given up gets to end
EXIT_GRACE = 2.0  # seconds that a run that has answered gets
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
INSTALL = "install it (`npm install --global @anthropic-ai/claude-code`), log in once, or name the executable"


def inherited_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the CLI needs: those of any program, and of the clouds that serve its models.

    Other providers' keys stay here: its model runs commands, which could read them.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in INHERITED_VARIABLES or name.startswith(INHERITED_PREFIXES)
    }


def without_local_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables, with this machine left out of what goes through a proxy: tools of ours are here."""
    names = [name for name in ("NO_PROXY", "no_proxy") if environ.get(name)] or ["NO_PROXY"]
    listed = {name: ",".join(filter(None, (environ.get(name), "127.0.0.1"))) for name in names}
    return {**environ, **(listed if any(name in environ for name in PROXY_VARIABLES) else {})}


class ClaudeCodeProcess:
    """A run's process. Where this process is killed, a watchdog ends it."""

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
        """Start it, without a shell. ProviderError when there is no such program or folder."""
        program = shutil.which(command[0], path=environ.get("PATH", os.defpath))
        if program is None:
            raise ProviderError(
                f"there is no Claude Code CLI {command[0]!r} here", category="bad_request", hint=INSTALL
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
            where = f" in {cwd!r}" if cwd else ""
            raise ProviderError(
                f"the Claude Code CLI {command[0]!r} cannot be started{where}: {reason}",
                category="bad_request",
                hint=INSTALL if cwd is None else "the folder must be there",
            ) from None
        return cls(process, f"{MARK_VARIABLE}={run}")

    async def write_input(self, line: bytes) -> None:
        """Write its whole input."""
        with suppress(ConnectionError):  # it has ended early, which its output will show
            self._stdin.write(line)
            await self._stdin.drain()
        self._stdin.close()

    async def lines(self) -> AsyncGenerator[list[bytes], None]:
        """The lines of its output: what one read brought at a time."""
        cutter = NdjsonSplitter()
        while data := await self._stdout.read(READ_SIZE):
            if block := cutter.feed(data):
                yield block.splitlines()
            if cutter.failure is not None:
                raise ProviderError(cutter.failure.message, category="api_error")
        if last := cutter.close():
            yield [last]

    async def exit_report(self) -> tuple[str, str]:
        """How it ended, and its last words."""
        if not await wait_for_exit(self.process, EXIT_GRACE):
            return "closed its output and went on", safe_line(self._stderr_tail)
        await asyncio.wait([self._stderr_task], timeout=ABORT_GRACE)
        code = self.process.returncode or 0
        how = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
        return how, safe_line(self._stderr_tail)

    async def stop(self, *, grace: float = ABORT_GRACE) -> None:
        """Let it end by itself for so long, then end its whole group at once."""
        self._stdin.close()
        try:
            if grace <= ABORT_GRACE:
                signal_group(self.process, signal.SIGTERM)
                signal_marked(self._mark, signal.SIGTERM)
            await wait_for_exit(self.process, grace)
        finally:
            signal_group(self.process, signal.SIGKILL)
            end_marked(self._mark)  # also what it started and left behind
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
