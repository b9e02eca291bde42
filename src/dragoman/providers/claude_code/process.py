"""The child process of a Claude Code run.

The CLI starts each command of its model in a new session, which survives the CLI; `Program` ends these, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Self

from dragoman.errors import ProviderError
from dragoman.processes.program import ABORT_GRACE, EXIT_GRACE, Program
from dragoman.wire.ndjson import NdjsonSplitter

__all__ = ["ABORT_GRACE", "EXIT_GRACE", "ClaudeCodeProcess"]

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
    """Return the variables with 127.0.0.1 added to NO_PROXY: the agent's tools are served there."""
    names = [name for name in ("NO_PROXY", "no_proxy") if environ.get(name)] or ["NO_PROXY"]
    exceptions = {name: ",".join(filter(None, (environ.get(name), "127.0.0.1"))) for name in names}
    return {**environ, **(exceptions if any(name in environ for name in PROXY_VARIABLES) else {})}


class ClaudeCodeProcess(Program):
    """The process of one run."""

    @classmethod
    async def start(cls, command: Sequence[str], *, cwd: str | None, environ: Mapping[str, str]) -> Self:
        """Start the process, without a shell. Raises ProviderError if the program or folder is missing."""
        program = shutil.which(command[0], path=environ.get("PATH", os.defpath))
        if program is None:
            raise ProviderError(
                f"the Claude Code CLI {command[0]!r} is not installed", category="bad_request", hint=INSTALL
            )
        try:
            return await cls.spawn([program, *command[1:]], cwd=cwd, environ=environ)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            location = f" in {cwd!r}" if cwd else ""
            raise ProviderError(
                f"the Claude Code CLI {command[0]!r} cannot be started{location}: {reason}",
                category="bad_request",
                hint=INSTALL if cwd is None else "check that the folder exists",
            ) from None

    async def lines(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of its output, in one list per read."""
        splitter = NdjsonSplitter()
        async with aclosing(self.chunks()) as chunks:
            async for data in chunks:
                if block := splitter.feed(data):
                    yield block.splitlines()
                if splitter.failure is not None:
                    raise ProviderError(splitter.failure.message, category="api_error")
        if last := splitter.close():
            yield [last]
