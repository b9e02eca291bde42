"""Children: MCP servers that the hub starts; of each, and of all that it started, nothing is left behind.

Each has a process group that is ended whole, and a mark in its environment, by which that is found which has
left the group.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import cast

from dragoman.errors import ConfigError
from dragoman.ids import new_id
from dragoman.mcp.client.blot import Blot
from dragoman.mcp.spec import ServerSpec
from dragoman.operations.cleaning import clean
from dragoman.processes.child import close_pipes, gone, signal_group
from dragoman.processes.started import end_marked, signal_marked
from dragoman.processes.watchdog import Watchdog

log = logging.getLogger(__name__)

INHERITED = ("PATH", "HOME", "LANG")
GRACE_SECONDS = 1.0  # to end by itself once its input is closed
TERM_SECONDS = 1.0  # to end once it is told to
KILL_SECONDS = 2.0
SHORTLY = 0.2  # seconds
BUFFER = 262_144
LINE_LIMIT = 2_000
LAST_LINES = 5
MARK = "DRAGOMAN_MCP_SERVER"


class Child:
    """A server's process. What it writes to its error output goes into the log, without secrets."""

    def __init__(self, process: Process, name: str, *, mark: str, blot: Blot, watchdog: Watchdog) -> None:
        self.process = process
        self._mark = mark
        self.name = name
        self.reader = cast("asyncio.StreamReader", process.stdout)  # it is started with pipes
        self.writer = cast("asyncio.StreamWriter", process.stdin)
        self._watchdog = watchdog
        self._blot = blot
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._listening = asyncio.create_task(self._listen(), name=f"mcp stderr {name}")

    @classmethod
    async def start(
        cls, spec: ServerSpec, environ: Mapping[str, str], *, blot: Blot, watchdog: Watchdog
    ) -> Child:
        """Start it, without a shell. ConfigError when there is no such program or folder."""
        id = new_id("mcp")
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=spec.cwd,
                env={**environment(spec, environ), MARK: id},
                start_new_session=True,
                limit=BUFFER,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ConfigError(
                f"{blot(spec.command[0])!r} cannot be started: {reason}",
                hint="the command is a program and its arguments, without a shell",
            ) from None
        mark = f"{MARK}={id}"
        watchdog.guard(process.pid, mark)
        return cls(process, spec.name, mark=mark, blot=blot, watchdog=watchdog)

    async def obituary(self) -> str:
        """How it ended, with its last words; for a message."""
        await gone(self.process, SHORTLY)
        with suppress(TimeoutError):
            async with asyncio.timeout(SHORTLY):
                await asyncio.wait([self._listening])
        code = self.process.returncode
        how = "closed its output" if code is None else f"ended {ending(code)}"
        words = clean(" / ".join(self._last), 500)
        return f"its process {how}{f', and said last: {words}' if words else ''}"

    async def stop(self) -> None:
        """Close its input and give it a moment; then end its whole group, and what has left that."""
        self.writer.close()
        ended = await gone(self.process, GRACE_SECONDS)
        if not ended:
            signal_group(self.process, signal.SIGTERM)
            signal_marked(self._mark, signal.SIGTERM)
            ended = await gone(self.process, TERM_SECONDS)
        signal_group(self.process, signal.SIGKILL)  # also what it started and left behind
        end_marked(self._mark)
        self._watchdog.release(self.process.pid)
        if not ended and not await gone(self.process, KILL_SECONDS):
            log.warning("MCP server %s: process %d cannot be killed", self.name, self.process.pid)
        self._listening.cancel()
        await asyncio.wait([self._listening])
        close_pipes(self.process)

    async def _listen(self) -> None:
        stream = cast("asyncio.StreamReader", self.process.stderr)
        while data := await stream.read(BUFFER):
            for line in data.decode(errors="replace").splitlines():
                words = clean(self._blot(line), LINE_LIMIT)
                if words:
                    self._last.append(words)
                    log.info("MCP server %s says: %s", self.name, words)


def environment(spec: ServerSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the server gets: those few that any program needs, and those that its spec names."""
    named = {name: environ[name] for name in (*INHERITED, *spec.env_from) if name in environ}
    return {**named, **spec.env, **spec.secrets}


def ending(code: int) -> str:
    return f"with exit code {code}" if code >= 0 else f"by signal {-code}"
