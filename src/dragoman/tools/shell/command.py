"""A running shell command: its output as it comes, and its end together with all that it started."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Literal, Self

import msgspec

from dragoman.processes.program import EXIT_GRACE, Program
from dragoman.tools.shell.output import HeadAndTail

CommandEnd = Literal["exited", "timeout", "output", "disk", "stopped"]

OUTPUT_SHOWN = 30_000  # bytes of a command's output that are returned: its beginning and its end
MIN_FREE = 1_000_000_000  # bytes of the workspace's disk that a command leaves free
ALLOWANCE = 50_000_000  # bytes that a command may write even if less than MIN_FREE is free
DISK_INTERVAL = 0.25  # seconds between two checks of the disk
MAX_OUTPUT = 64_000_000  # bytes after which a command is ended


class ShellProgram(msgspec.Struct, frozen=True):
    """A program to start: its arguments, its working directory and its whole environment.

    `disk` is the folder that it writes to: the command is ended before it has filled that disk. `on_end` is
    called once it has ended. `hints` explain texts in the output of a command that has failed.
    """

    arguments: Sequence[str]
    folder: str
    environ: Mapping[str, str]
    on_end: Callable[[], None] | None = None
    disk: Path | None = None
    hints: Mapping[str, str] = {}


class ShellCommand:
    """A command that was started. Call `run`, which reads its output and ends it."""

    def __init__(self, program: Program, spec: ShellProgram) -> None:
        self.output = HeadAndTail(OUTPUT_SHOWN)
        self.end: CommandEnd | None = None
        self.exit_code: int | None = None
        self._program = program
        self._spec = spec
        self._stopped = False
        self._disk_is_full = False

    @classmethod
    async def start(cls, spec: ShellProgram) -> Self:
        """Start a command without input. Raises OSError if it cannot be started, after its `on_end`."""
        try:
            program = await Program.spawn(spec.arguments, cwd=spec.folder, environ=spec.environ)
        except BaseException:
            if spec.on_end is not None:
                spec.on_end()
            raise
        program.write_input(b"")
        return cls(program, spec)

    def hint(self) -> str | None:
        """Return the hint for a text in the output of a command that has failed; else None."""
        if not self.exit_code:
            return None
        output = self.output.text()
        return next((hint for text, hint in self._spec.hints.items() if text in output), None)

    async def run(self, seconds: float, *, on_output: Callable[[], None] | None = None) -> CommandEnd:
        """Read its output until it ends, at most `seconds`, and stop it. Return why it ended.

        `on_output` is called after each piece of output.
        """
        end: CommandEnd = "stopped"
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch_disk())
                end = await self._read(on_output)
                watch.cancel()
        except TimeoutError:
            end = "timeout"
        finally:
            await self._finish(end)
        return end

    async def _read(self, on_output: Callable[[], None] | None) -> CommandEnd:
        async with aclosing(self._program.chunks()) as chunks:
            async for data in chunks:
                self.output.add(data)
                if on_output is not None:
                    on_output()
                if self.output.size > MAX_OUTPUT:
                    return "output"
        self.exit_code = await self._program.process.wait()
        return "disk" if self._disk_is_full else "exited"

    async def _watch_disk(self) -> None:
        """End the program once too little of its disk is free: others, such as the hub, write there too."""
        folder = self._spec.disk
        if folder is None:
            return
        floor = min(MIN_FREE, free_bytes(folder) - ALLOWANCE)
        while free_bytes(folder) > floor:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(DISK_INTERVAL)
        self._disk_is_full = True
        await self._program.stop(grace=0)

    async def _finish(self, end: CommandEnd) -> None:
        """Record the end once, and end what still runs, even if this task is cancelled meanwhile."""
        if self._stopped:
            return
        self._stopped = True
        self.end = end
        await asyncio.shield(self._stop_program(EXIT_GRACE if end == "exited" else 0))

    async def _stop_program(self, grace: float) -> None:
        try:
            await self._program.stop(grace=grace)
        finally:
            if self._spec.on_end is not None:
                self._spec.on_end()


def free_bytes(folder: Path) -> int:
    """Return how many bytes of a folder's disk are free; enough if the folder no longer exists."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return MIN_FREE + ALLOWANCE
