"""Runners in processes of their own: the examples, and `dragoman runner`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "examples" / "runners" / "runner.py"
TYPESCRIPT = ROOT / "examples" / "runners" / "runner.mts"
LIMIT = 120.0


@cache
def stripped() -> Path:
    """The TypeScript example without its types, for a node that does not strip them itself."""
    made = Path(mkdtemp(prefix="runner-")) / "runner.mjs"
    esbuild = ROOT / "tests" / "clients" / "node_modules" / ".bin" / "esbuild"
    subprocess.run(
        [esbuild, TYPESCRIPT, "--format=esm", f"--outfile={made}", "--log-level=error"],
        check=True,
        timeout=LIMIT,
    )
    return made


@cache
def strips_types() -> bool:
    """Whether node runs TypeScript as it is."""
    printed = subprocess.run(
        ["node", "-p", "Boolean(process.features.typescript)"], capture_output=True, text=True, check=True
    )
    return printed.stdout.strip() == "true"


def command(language: str) -> Sequence[str]:
    """The command for an example."""
    if language == "python":
        return (sys.executable, str(PYTHON))
    if strips_types():
        return ("node", "--no-warnings", str(TYPESCRIPT))
    return ("node", "--experimental-websocket", "--no-warnings", str(stripped()))


class Program:
    """A running runner."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def see(self, text: str) -> str:
        """Read lines until one has this text; that line."""
        assert self.process.stdout is not None
        async with asyncio.timeout(LIMIT):
            while line := (await self.process.stdout.readline()).decode():
                if text in line:
                    return line
        raise AssertionError(f"it ended before it said {text!r}")


@asynccontextmanager
async def program(*arguments: str, key: str = "", cwd: Path | None = None) -> AsyncIterator[Program]:
    """A running program; killed at the end if it still runs."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
    process = await asyncio.create_subprocess_exec(
        *arguments,
        env={**inherited, "DRAGOMAN_KEY": key, "PYTHONUNBUFFERED": "1"},
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
