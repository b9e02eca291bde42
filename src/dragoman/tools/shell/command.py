"""A shell command that runs: its output as it comes, and its end with all that it started."""

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

OUTPUT_SHOWN = 30_000  # bytes of a command's output: its beginning and its end
MIN_FREE = 1_000_000_000  # bytes of the workspace's disk that are left for others
ALLOWANCE = 50_000_000  # bytes that a command may write though less is free
DISK_INTERVAL = 0.25  # seconds between two looks at the disk
MAX_OUTPUT = 64_000_000  # bytes after which a command is ended


class ShellProgram(msgspec.Struct, frozen=True):
    """What is started: the program and its arguments, where, and its whole environment.

    `disk` is the folder that it writes to: it is ended before it has filled that disk. `hints` explain texts
    in the output of a command that has failed.
    """

    arguments: Sequence[str]
    folder: str
    environ: Mapping[str, str]
    on_end: Callable[[], None] | None = None
    disk: Path | None = None
    hints: Mapping[str, str] = {}


class ShellCommand:
    """A command that was started. Call `stop` at its end, whatever happened."""

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
        """Start a command without input. Raises OSError; then nothing of it is left."""
        program: Program | None = None
        try:
            program = await Program.spawn(spec.arguments, cwd=spec.folder, environ=spec.environ)
            await program.write_input(b"")
        except BaseException:
            if program is not None:
                await asyncio.shield(program.stop(grace=0))
            if spec.on_end is not None:
                spec.on_end()
            raise
        return cls(program, spec)

    def hint(self) -> str | None:
        """Return what explains its failure, if its output shows that."""
        if not self.exit_code:
            return None
        output = self.output.text()
        return next((hint for text, hint in self._spec.hints.items() if text in output), None)

    async def run(self, seconds: float, *, on_output: Callable[[], None] | None = None) -> CommandEnd:
        """Read its output to its end and stop it. Return why it ended."""
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
        """End the program once too little of its disk is free. All others write there, the hub too."""
        folder = self._spec.disk
        if folder is None:
            return
        floor = min(MIN_FREE, free_bytes(folder) - ALLOWANCE)
        while free_bytes(folder) > floor:  # noqa: ASYNC110 - the disk tells nobody
            await asyncio.sleep(DISK_INTERVAL)
        self._disk_is_full = True
        await self._program.stop(grace=0)

    async def _finish(self, end: CommandEnd) -> None:
        """Note the end once, and end what still runs."""
        if self._stopped:
            return
        self._stopped = True
        self.end = end
        await asyncio.shield(self._program.stop(grace=EXIT_GRACE if end == "exited" else 0))
        if self._spec.on_end is not None:
            self._spec.on_end()


def free_bytes(folder: Path) -> int:
    """Return how much of a folder's disk is free; a folder that is gone has room."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return MIN_FREE + ALLOWANCE
