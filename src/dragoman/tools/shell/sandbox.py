"""The sandbox: bubblewrap (https://github.com/containers/bubblewrap) around a command.

A command sees the system's programs read-only, its own folders, an empty /tmp, and only its own processes. It
has no capabilities, cannot create namespaces, and has no network unless that is allowed. It can write only to
its writable folders and to memory.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from dragoman.errors import CallError
from dragoman.processes.program import Program
from dragoman.processes.resource_limits import FILTER_DESCRIPTOR, with_limits
from dragoman.tools.shell.command import ShellProgram
from dragoman.tools.shell.control_groups import ControlGroups
from dragoman.tools.shell.mode_filter import is_known_machine, mode_filter
from dragoman.tools.shell.repository import READ_ONLY_HINT, nested_mounts, placeholder, repository_mounts

HOME = "/team"
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt")
SYSTEM_FILES = (
    "/etc/alternatives", "/etc/ca-certificates", "/etc/group", "/etc/ld.so.cache", "/etc/localtime",
    "/etc/nsswitch.conf", "/etc/passwd", "/etc/ssl",
)  # fmt: skip
NETWORK_FILES = ("/etc/hosts", "/etc/resolv.conf")
ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb"}  # noqa: S108
INSTALL_HINT = (
    "Install bubblewrap (on Debian: apt-get install bubblewrap) where user namespaces are permitted, "
    "or set `shell: unsafe` in dragoman.yaml to run commands without a sandbox."
)
SET_ID_HINT = (
    "The sandbox refuses the set-user-id and set-group-id bits, also of folders: make repositories without "
    "`--shared`, and leave these bits out of the modes for chmod and install."
)
HINTS = {
    "Operation not permitted": SET_ID_HINT,
    "writable by group": SET_ID_HINT,  # git's message
    "Read-only file system": READ_ONLY_HINT,
}
PROBE_SECONDS = 10.0


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one command: bytes of memory and of a file, processes; and whether it has the network."""

    memory: int = 1_000_000_000
    processes: int = 256
    file_size: int = 1_000_000_000
    network: bool = False


class Mount(msgspec.Struct, frozen=True):
    """A folder that a command sees under a name below HOME.

    `writable`: whether it may write there; `git`: also to repositories. `repositories` are those below the
    folder, as `find_nested` returns them.
    """

    name: str
    folder: Path
    writable: bool = False
    git: bool = False
    repositories: tuple[str, ...] = ()


class Sandbox:
    """Wraps commands into bubblewrap. `bwrap` is its path; by default the one that is installed.

    Commands do not see the files and folders in `hidden`, even below a folder of the system: the data of a
    hub may be in /opt. `machine` is the architecture in `uname`.
    """

    def __init__(
        self, bwrap: str | None = None, *, hidden: Sequence[Path] = (), machine: str = os.uname().machine
    ) -> None:
        self._hidden = hidden
        self._machine = machine
        self._bwrap = shutil.which("bwrap") if bwrap is None else bwrap
        self._works: bool | None = None
        self._reason = "bubblewrap is not installed"

    async def check(self) -> None:
        """Raise CallError where bubblewrap is missing or may not create namespaces. Probed once."""
        if not is_known_machine(self._machine):
            raise CallError(
                f"Commands cannot run here: the sandbox does not know the system calls of {self._machine}.",
                hint="Set `shell: unsafe` in dragoman.yaml to run commands without a sandbox.",
            )
        if self._works is None:
            self._works = self._bwrap is not None and await self._probe(self._bwrap)
        if not self._works:
            raise CallError(f"Commands cannot run here: {self._reason}.", hint=INSTALL_HINT)

    def program(
        self, arguments: Sequence[str], *, mounts: Sequence[Mount], limits: SandboxLimits, folder: str = HOME
    ) -> ShellProgram:
        """Return a program that runs in the sandbox. `folder` is its working directory.

        Raises CallError if the number of its processes cannot be limited, or a repository not protected.
        """
        with ExitStack() as cleanup:
            repositories = self._protect_repositories(mounts, cleanup)
            groups = ControlGroups.create(processes=limits.processes, memory=limits.memory)
            cleanup.callback(groups.remove)
            if not groups.limits_processes and os.getuid() == 0:
                raise CallError(
                    "Commands cannot run here: the hub runs as root and may not make control groups, so "
                    "nothing would limit the number of processes.",
                    hint="Run the hub as another user.",
                )
            count = limits.processes  # dash names the limit -p, other shells -u
            limited = f'ulimit -u {count} 2>/dev/null || ulimit -p {count} || exit 126; exec "$@"'
            inner = ["/bin/sh", "-c", limited, "sh", *arguments]
            shown = [*system_mounts(limits), *masks(self._hidden), *folder_mounts(mounts), *repositories]
            outer = [str(self._bwrap), *namespaces(limits), *shown]
            program = with_limits(
                [*outer, "--chdir", folder, "--", *inner],
                resource_limits(limits),
                groups=groups.folders,
                seccomp_filter=mode_filter(),
            )
            return ShellProgram(program, "/", {}, on_end=cleanup.pop_all().close, hints=HINTS)

    def _protect_repositories(self, mounts: Sequence[Mount], cleanup: ExitStack) -> list[str]:
        """Return the options that protect the repositories of writable folders."""
        options = []
        for mount in mounts:
            if mount.writable and not mount.git:
                cleanup.enter_context(placeholder(mount.folder))
                target = f"{HOME}/{mount.name}"
                options += nested_mounts(mount.repositories, mount.folder, target=target)
                options += repository_mounts(mount.folder, target)
        return options

    async def _probe(self, bwrap: str) -> bool:
        """Return whether bubblewrap can run a program; `_reason` says why not."""
        limits = SandboxLimits()
        command = [bwrap, *namespaces(limits), *system_mounts(limits), "--", "/bin/true"]
        arguments = with_limits(command, {}, seccomp_filter=mode_filter())
        try:
            program = await Program.spawn(arguments, cwd="/", environ={})
        except OSError as error:
            self._reason = f"bubblewrap cannot be started ({error.strerror})"
            return False
        try:
            program.write_input(b"")
            async with asyncio.timeout(PROBE_SECONDS):
                await program.process.wait()
            _, errors = await program.exit_report()
            self._reason = f"bubblewrap may not make a sandbox ({errors[:200]})"
            return program.process.returncode == 0
        except TimeoutError:
            self._reason = "bubblewrap does not end"
            return False
        finally:
            await program.stop(grace=0)


def namespaces(limits: SandboxLimits) -> list[str]:
    """Return the options that separate a command from the system."""
    options = [
        "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
        "--unshare-cgroup-try", "--disable-userns", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL",
        "--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv",
        "--seccomp", str(FILTER_DESCRIPTOR),
    ]  # fmt: skip
    if limits.network:
        options.remove("--unshare-net")
    for name, value in ENVIRON.items():
        options += ["--setenv", name, value]
    return options


def system_mounts(limits: SandboxLimits) -> list[str]:
    """Return the options that mount the system's programs read-only, and memory where programs write."""
    size = str(limits.memory)
    options = ["--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm"]  # noqa: S108
    options += ["--remount-ro", "/dev", "--size", size, "--tmpfs", "/tmp"]  # noqa: S108
    for folder in SYSTEM_FOLDERS:
        path = Path(folder)
        if path.is_symlink():
            options += ["--symlink", os.readlink(folder), folder]  # noqa: PTH115
        elif path.is_dir():
            options += ["--ro-bind", folder, folder]
    for file in (*SYSTEM_FILES, *(NETWORK_FILES if limits.network else ())):
        options += ["--ro-bind-try", file, file]
    return options


def masks(hidden: Sequence[Path]) -> list[str]:
    """Return the options that mount emptiness over the hidden files and folders below a system folder."""
    folders = [Path(folder) for folder in SYSTEM_FOLDERS if not Path(folder).is_symlink()]
    paths = {path.resolve() for path in hidden if path.exists()}
    visible = [path for path in sorted(paths) if any(path.is_relative_to(folder) for folder in folders)]
    options = []
    for path in visible:
        if any(parent in path.parents for parent in visible):  # masked together with its parent
            continue
        target = str(path)
        empty = ["--tmpfs", target, "--remount-ro", target]
        options += empty if path.is_dir() else ["--ro-bind", os.devnull, target]
    return options


def folder_mounts(mounts: Sequence[Mount]) -> list[str]:
    """Return the options that mount the folders of a command below HOME."""
    options = ["--tmpfs", HOME]
    for mount in mounts:
        kind = "--bind" if mount.writable else "--ro-bind"
        options += [kind, str(mount.folder), f"{HOME}/{mount.name}"]
    return [*options, "--remount-ro", HOME, "--remount-ro", "/"]


def resource_limits(limits: SandboxLimits) -> Mapping[str, int]:
    """Return the limits of each process, under the names of the `resource` module."""
    return {
        "RLIMIT_DATA": limits.memory,
        "RLIMIT_FSIZE": limits.file_size,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 1_024,
    }
