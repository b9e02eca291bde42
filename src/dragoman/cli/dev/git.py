"""Runs git: bounded in time and output, without prompts, without the variables that would redirect it."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import BadRequest, CallError, ConfigError
from dragoman.processes.group import close_pipes, wait_for_exit
from dragoman.redaction import safe_line

GIT_SECONDS = 120.0
MAX_OUTPUT = 1_000_000  # bytes of an output; the rest is dropped
EXIT_SECONDS = 2.0
MAX_BRANCH = 200


class GitResult(NamedTuple):
    """How a git command ended. `truncated`: its output was longer."""

    code: int
    output: str
    error: str
    truncated: bool = False


def git_environ() -> dict[str, str]:
    """Return the environment for git: no prompts, in English, nothing of a git that runs around it."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "DRAGOMAN_"))
    }
    author = {name: os.environ[name] for name in AUTHOR_VARIABLES if name in os.environ}
    return {**inherited, **author, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


AUTHOR_VARIABLES = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")


async def run_git(
    *arguments: str, cwd: Path, limit: int = MAX_OUTPUT, index: Path | None = None
) -> GitResult:
    """Run git in a folder and return how it ended; with `index`, on a copy of the index. Raises CallError
    when it takes too long.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            *arguments,
            cwd=cwd,
            env=git_environ() if index is None else {**git_environ(), "GIT_INDEX_FILE": str(index)},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(f"git cannot be started in {str(cwd)!r}: {error.strerror}") from None
    try:
        async with asyncio.timeout(GIT_SECONDS):
            (output, truncated), (error_output, _) = await asyncio.gather(
                read_output(process.stdout, limit), read_output(process.stderr, 10_000)
            )
            code = await process.wait()
    except TimeoutError:
        raise CallError(f"git {arguments[0]} takes longer than {GIT_SECONDS:g} seconds") from None
    finally:
        if process.returncode is None:
            process.kill()
            await wait_for_exit(process, EXIT_SECONDS)
            close_pipes(process)
    return GitResult(
        code, output.decode(errors="replace"), safe_line(error_output.decode(errors="replace")), truncated
    )


async def read_output(stream: asyncio.StreamReader | None, limit: int) -> tuple[bytes, bool]:
    """Read a stream to its end; return its first `limit` bytes and whether there were more."""
    output = bytearray()
    truncated = False
    while stream is not None and (data := await stream.read(65_536)):
        truncated = truncated or len(output) + len(data) > limit
        output += data[: max(0, limit - len(output))]
    return bytes(output), truncated


async def git(*arguments: str, cwd: Path, index: Path | None = None) -> str:
    """Return the output of a git command. Raises CallError if it fails."""
    result = await run_git(*arguments, cwd=cwd, index=index)
    if result.code:
        raise CallError(f"git {arguments[0]} failed: {result.error or result.output.strip()[-500:]}")
    return result.output


async def check_branch(name: str, *, cwd: Path) -> str:
    """Return the name if it may name a branch. Raises BadRequest."""
    if len(name) > MAX_BRANCH or name.startswith("-"):
        raise BadRequest(f"{name[:60]!r} is not a valid name of a branch", field="branch")
    if (await run_git("check-ref-format", "--branch", name, cwd=cwd)).code:
        raise BadRequest(f"{name!r} is not a valid name of a branch", field="branch")
    return name
