"""Workplaces: where and within which limits the commands of a caller run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Protocol

import msgspec

from dragoman.operations.context import Context
from dragoman.tools.shell.command import ShellProgram
from dragoman.tools.shell.environment import shell_environ
from dragoman.tools.shell.repository import find_nested
from dragoman.tools.shell.sandbox import HOME, Mount, Sandbox, SandboxLimits


class Workplace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a caller's commands run. The first mount is the workspace; `seconds` limits each command.

    Without a sandbox, commands run in the workspace with the rights of the hub.
    """

    mounts: Sequence[Mount]
    limits: SandboxLimits
    seconds: float
    sandbox: Sandbox | None

    async def program(self, command: str) -> ShellProgram:
        """Return the program that runs a shell command. Raises CallError if it cannot be sandboxed."""
        arguments = ["/bin/sh", "-c", f"exec 2>&1\n{command}"]
        workspace = self.mounts[0]
        if self.sandbox is None:
            return ShellProgram(
                arguments, str(workspace.folder), shell_environ(os.environ), disk=workspace.folder
            )
        mounts = [await with_repositories(mount) for mount in self.mounts]
        program = self.sandbox.program(
            arguments, mounts=mounts, limits=self.limits, folder=f"{HOME}/{workspace.name}"
        )
        return msgspec.structs.replace(program, disk=workspace.folder)


async def with_repositories(mount: Mount) -> Mount:
    """Return a mount with the repositories in it that a command must not change. Raises CallError."""
    if not mount.writable or mount.git:
        return mount
    return msgspec.structs.replace(mount, repositories=await asyncio.to_thread(find_nested, mount.folder))


class Workplaces(Protocol):
    """Finds the workplace of a caller."""

    async def workplace(self, context: Context) -> Workplace:
        """Return where the caller's commands run. Raises CallError where they may not."""
