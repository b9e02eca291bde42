"""Operations of a spoke in its own process; they log to a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from dragoman.operations import Context, Registry, operation


def log_file() -> Path:
    """The file of this process, which may have been forked from one that had none."""
    return Path(os.environ.get("SPOKE_LOG", os.devnull))


def note(word: str) -> None:
    with log_file().open("a") as file:
        file.write(f"{os.getpid()} {word}\n")


def noted(words: str) -> bool:
    log = log_file()
    return log.exists() and any(line.endswith(words) for line in log.read_text().splitlines())


@operation("far", effect="read")
async def pid() -> int:
    """The process that serves."""
    return os.getpid()


@operation("far", effect="read")
async def echo(value: str) -> str:
    """Say it back."""
    return value


@operation("far", effect="once")
async def act(name: str) -> str:
    """Begin something that does not end."""
    await hang(name)
    return name


@operation("far", effect="read")
async def look(name: str) -> str:
    """Look for something that one process never finds."""
    if not noted(f"begin {name}"):
        await hang(name)
    note(f"found {name}")
    return name


@operation("far", effect="once")
async def chain(context: Context) -> Any:
    """Have the hub call something that does not end."""
    note("begin chain")
    try:
        return await context.call("near.hang", {"name": "below"})
    except asyncio.CancelledError:
        note("stopped chain")
        raise


async def hang(name: str) -> None:
    note(f"begin {name}")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note(f"stopped {name}")
        raise


registry = Registry(pid, echo, act, look, chain)
