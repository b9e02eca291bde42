"""Forks programs from a process that has already imported the package.

Loading takes a second of processor time, and the tests start the program some hundred times. What is started
is a process of its own all the same: a child of the one that asked, with its pid, signals, streams and exit
code. `make soak` and `make coverage` start every program anew, and `make test` what is neither the program,
nor a script of the tests, nor an example of the documentation.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import pkgutil
import platform
import runpy
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import typer.main

import dragoman
from tests.certificates import trust_no_certificates

ROOT = Path(__file__).parents[1]
PROGRAM = [sys.executable, "-m", "dragoman"]
INSTALLED = str(Path(sysconfig.get_path("scripts")) / "dragoman")
STRICT = [sys.executable, "-W", "error"]
SCRIPTS = (Path(__file__).parent, ROOT / "examples")
PACKAGES = ("cli", "server", "mcp", "spokes")
SDK = ("mcp.server.mcpserver", "uvicorn")  # what the MCP servers of tests and examples import besides
HARMLESS = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
CLONE_PARENT = 0x00008000
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None
LARGEST = 1 << 20
ARGUMENTS = 20  # of `Popen._execute_child` behind the first three; where there are others, nothing is forked


class Zygote:
    """The process that forks, from the side of those who want to start something."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def install(self) -> None:
        """From now on `subprocess` asks here for what can be forked, and commands are built once."""
        build_commands_once()

        def execute(popen: Any, *arguments: Any) -> None:
            self.execute(popen, *arguments)

        subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]

    def close(self) -> None:
        """Leave `subprocess` as it was, and end the process."""
        subprocess.Popen._execute_child = self._execute  # type: ignore[attr-defined]
        if self._channel is not None and self._process is not None:
            self._channel.close()
            self._process.wait()

    def execute(self, popen: Any, args: Any, executable: Any, preexec: Any, *rest: Any) -> None:
        """In place of `Popen._execute_child`, whose arguments these are."""
        if len(rest) != ARGUMENTS:
            self._execute(popen, args, executable, preexec, *rest)
            return
        _, pass_fds, cwd, env, _, _, shell, *pipes = rest
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_, session, group = pipes
        env = os.environ if env is None else env
        if preexec or pass_fds or shell or executable or group != -1 or not fits(args, env):
            self._execute(popen, args, executable, preexec, *rest)
            return
        fds = [value if value != -1 else own for own, value in enumerate((p2cread, c2pwrite, errwrite))]
        request = {
            "args": [os.fspath(each) for each in args],
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(env),
            "session": session,
        }
        popen.pid = self._fork(json.dumps(request).encode(), fds)
        popen._child_created = True
        popen._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _fork(self, request: bytes, fds: Sequence[int]) -> int:
        with self._lock:
            if self._channel is None:
                self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                command = [sys.executable, "-m", "tests.zygote", str(theirs.fileno())]
                with theirs:
                    self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
            socket.send_fds(self._channel, [request], list(fds))
            return int(self._channel.recv(100))


def build_commands_once() -> None:
    """Typer builds all commands anew at each call, which costs more than most of them do."""
    typer.main.get_command = functools.cache(typer.main.get_command)


def fits(args: Any, env: Mapping[str, str]) -> bool:
    """Whether this is the program or a script of the tests, under the settings of Python that forks have."""

    def settings(environ: Mapping[str, str]) -> Mapping[str, str]:
        return {
            name: value
            for name, value in environ.items()
            if name.startswith("PYTHON") and name not in HARMLESS
        }

    is_ours = list(args[:3]) == PROGRAM or os.fspath(args[0]) == INSTALLED or is_script(args)
    return CLONE is not None and is_ours and settings(env) == settings(os.environ)


def is_script(args: Any) -> bool:
    """Whether this is Python with a program of the tests, or any script whose warnings are errors."""
    if list(args[:3]) == STRICT:
        return len(args) > 3 and os.fspath(args[3]).endswith(".py")
    is_python = len(args) > 1 and args[0] == sys.executable
    is_module = list(args[1:2]) == ["-m"] and len(args) > 2 and args[2].startswith("tests.")
    return is_python and (is_module or any(folder in Path(args[1]).parents for folder in SCRIPTS))


def serve(channel: socket.socket) -> None:
    """Load the program, then fork a process that runs it for each request. Returns in those processes."""
    load()
    gc.freeze()
    while True:
        request, fds, _, _ = socket.recv_fds(channel, LARGEST, 3)
        if not request:
            os._exit(0)
        pid = clone()
        if pid == 0:
            channel.close()
            return become(json.loads(request), fds)
        for fd in fds:
            os.close(fd)
        channel.send(str(pid).encode())


def load() -> None:
    """Import what the program imports, also what it imports late."""
    for package in PACKAGES:
        found = importlib.import_module(f"dragoman.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            with suppress(ImportError):
                importlib.import_module(module.name)
    for name in SDK:
        importlib.import_module(name)
    for name in dragoman.__all__:
        getattr(dragoman, name)
    build_commands_once()
    typer.main.get_command(importlib.import_module("dragoman.cli.program").build_program())
    asyncio.run(open_hub())
    trust_no_certificates(ROOT / "tests")
    assert threading.active_count() == 1, "only a process of one thread can be forked"


async def open_hub() -> None:
    """Open a hub and compile all SQL, so that no process that is forked has to: it takes most of a start."""
    config = importlib.import_module("dragoman.config").parse_config({})
    hubs = importlib.import_module("dragoman.server.app").Hub
    with tempfile.TemporaryDirectory() as folder:
        async with hubs.open(config, Path(folder), require_keys=False, environ={}) as hub:
            for kind in statement_classes():
                hub.store.database.statements(kind)
    vars(tempfile)["tempdir"] = None  # found anew: each process has a TMPDIR of its own


def statement_classes() -> Iterator[type]:
    """The classes that hold the compiled SQL of a part of the store."""
    store = importlib.import_module("dragoman.store")
    for module in pkgutil.walk_packages(store.__path__, f"{store.__name__}."):
        if ".migrations" in module.name:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            is_holder = isinstance(value, type) and value.__name__.endswith("Statements")
            if is_holder and list(inspect.signature(value).parameters) == ["compiler"]:
                yield value


def clone() -> int:
    """As `os.fork`, but the new process is a child of this one's parent, who waits for it."""
    python = ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid: int = python.syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


def become(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Run the program as if it had just been started."""
    for own, number in enumerate(fds):
        os.dup2(number, own)
    for number in fds:
        if number > 2:
            os.close(number)
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    try:
        run(request["args"], request["cwd"])
    except SystemExit as end:
        leave(end.code)
    leave(0)


def run(args: Sequence[str], folder: str) -> None:
    """Run the program or the script in this process."""
    python, *rest = args
    if python == INSTALLED:
        rest = ["-m", "dragoman", *rest]
    elif args[:3] == STRICT:
        warnings.simplefilter("error")
        rest = rest[2:]
    script, *words = rest
    if script == "-m":
        sys.path[0] = folder
        sys.argv[1:] = words[1:]
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(script).parent)
        sys.argv = [script, *words]
        runpy.run_path(script, run_name="__main__")


def leave(code: object) -> NoReturn:
    """End as the interpreter does, without freeing its memory, which costs more than most commands."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(int(code or 0) & 0xFF)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
