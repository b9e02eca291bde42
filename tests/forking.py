"""Fork servers: processes that have loaded what others need, and fork one for each `subprocess` that fits.

What is started is a process of its own all the same: a child of the one that asked, with its pid, signals,
streams and exit code. `tests/zygote.py` is the server of programs, `tests/loaded_workers.py` that of the
processes of pytest-xdist.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
STRICT = [sys.executable, "-W", "error"]
CLONE_PARENT = 0x00008000
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None
MADV_COLLAPSE = 25
HUGE_PAGE = 2 << 20
LARGEST = 1 << 20
ARGUMENTS = 20  # of `Popen._execute_child` behind the first three; where there are others, nothing is forked


class ForkServer:
    """The process that forks, from the side of those who want to start something.

    `module` is what it runs, with the number of a socket and `arguments`. It starts when something `fits`,
    unless this process was given one that is loaded already (`adopt`).
    """

    def __init__(
        self, module: str, fits: Callable[[Any, Mapping[str, str]], bool], arguments: Sequence[str] = ()
    ) -> None:
        self._module = module
        self._fits = fits
        self._arguments = arguments
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._wait: Callable[[], object] | None = None  # until the process has ended
        self._execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def install(self) -> None:
        """From now on `subprocess` asks here for what can be forked."""
        if CLONE is None:
            return

        def execute(popen: Any, *arguments: Any) -> None:
            self.execute(popen, *arguments)

        subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]

    def adopt(self, channel: socket.socket, pid: int) -> None:
        """Use a child of this process that serves already at the other end of a channel."""
        self._channel = channel
        self._wait = functools.partial(os.waitpid, pid, 0)

    def close(self) -> float:
        """Leave `subprocess` as it was, and end the process. Returns the CPU seconds that it used."""
        subprocess.Popen._execute_child = self._execute  # type: ignore[attr-defined]
        if self._channel is None or self._wait is None:
            return 0.0
        self._channel.close()
        before = os.times()
        self._wait()
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    def execute(self, popen: Any, args: Any, executable: Any, preexec: Any, *rest: Any) -> None:
        """In place of `Popen._execute_child`, whose arguments these are."""
        if len(rest) != ARGUMENTS:
            self._execute(popen, args, executable, preexec, *rest)
            return
        _, pass_fds, cwd, env, _, _, shell, *pipes = rest
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_, session, group = pipes
        env = os.environ if env is None else env
        if preexec or pass_fds or shell or executable or group != -1 or not self._fits(args, env):
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
                command = [sys.executable, "-m", self._module, str(theirs.fileno()), *self._arguments]
                with theirs:
                    self._wait = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()]).wait
            socket.send_fds(self._channel, [request], list(fds))
            return int(self._channel.recv(100))


def serve(channel: socket.socket, prepare: Callable[[Sequence[int]], None] | None = None) -> None:
    """Fork a process for each request that runs what it asks for. Returns in those processes.

    Each of them first calls `prepare`, with the descriptors that become its streams.
    """
    assert threading.active_count() == 1, "only a process of one thread can be forked"
    gc.freeze()
    collapse_pages()
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process ends with the one that asks
    while True:
        request, fds, _, _ = socket.recv_fds(channel, LARGEST, 3)
        if not request:
            os._exit(0)
        pid = clone()
        if pid == 0:
            channel.close()
            signal.signal(signal.SIGINT, on_interrupt)
            if prepare is not None:
                prepare(fds)
            return become(json.loads(request), fds)
        for fd in fds:
            os.close(fd)
        channel.send(str(pid).encode())


def collapse_pages() -> None:
    """Move what this process has loaded to huge pages, of which a fork has fewer to copy and to give back.

    With all tests loaded it takes 10 ms instead of 47. Kernels before Linux 6.1 refuse: nothing changes.
    """
    libc = ctypes.CDLL(None)
    for mapping in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        addresses, access, _, _, inode, *_ = mapping.split()
        start, end = (int(address, 16) for address in addresses.split("-"))
        first, last = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if access.startswith("rw") and inode == "0" and first < last:
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)


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
    if Path(python).name == "dragoman":
        rest = ["-m", "dragoman", *rest]
    elif args[:3] == STRICT:
        warnings.simplefilter("error")
        rest = rest[2:]
    elif rest[0] == "-u":
        rest = rest[1:]
    script, *words = rest
    if script == "-c":
        sys.argv[1:] = words[1:]
        exec(compile(words[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    elif script == "-m":
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
