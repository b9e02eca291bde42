"""Runs the program: in this process, in its own process, or at a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyte

COMMAND = (sys.executable, "-m", "dragoman")
LIMIT = 120.0
READY = re.compile(r'listening on (http://[^\s"]+)')


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)


def environ(**more: str) -> dict[str, str]:
    """The environment without what would steer the program, and with `more`."""
    stored = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
    return {**stored, "COLUMNS": "100", **more}


def run(
    *arguments: str | Path, input: str = "", env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Said:
    """Run the program to its end; `input` comes through a pipe."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=input,
        env=environ(**(env or {})),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def start(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[str]:
    """Start the program and go on."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        env=environ(**(env or {})),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What a process printed up to and with this text."""
    assert process.stdout is not None
    reply = ""
    deadline = time.monotonic() + LIMIT
    while text not in reply and time.monotonic() < deadline:
        piece = process.stdout.read(1)
        assert piece, f"it ended before it said {text!r}: {reply!r}"
        reply += piece
    return reply


def finish(process: subprocess.Popen[str], how: signal.Signals | None = None) -> Said:
    """Send a signal, if one is given, and wait for the end; the output is what was not read before."""
    if how is not None:
        process.send_signal(how)
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
    return Said(process.returncode, out, err)


@dataclass(frozen=True)
class Hub:
    """A hub that is being served by a process of its own."""

    url: str
    data: Path
    process: subprocess.Popen[str]

    def key(self, owner: str, *more: str) -> str:
        """A new key."""
        return run("keys", "create", "--data", self.data, "--owner", owner, *more).out.strip()


@contextmanager
def serving(folder: Path, config: Mapping[str, Any], *flags: str, **env: str) -> Iterator[Hub]:
    """A served hub; it is stopped afterwards, if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dragoman.yaml"
    path.write_bytes(msgspec.json.encode(config))  # JSON is YAML
    process = start("serve", "--config", path, "--data", folder / "data", "--port", "0", *flags, env=env)
    try:
        ready = READY.search(read_until(process, "listening on http://") + read_until(process, "\n"))
        assert ready is not None
        yield Hub(ready.group(1), folder / "data", process)
    finally:
        if process.poll() is None:
            finish(process, signal.SIGTERM)


def scripted(
    folder: Path, name: str, steps: Sequence[Mapping[str, Any]], *, play: str = "turns"
) -> dict[str, Any]:
    """A provider that plays these steps in each turn, or only `once`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_bytes(msgspec.json.encode({"steps": list(steps), "play": play}))
    return {"type": "scripted", "script": str(path)}


class Terminal:
    """A program at a terminal: type, read what it shows, press Ctrl-C."""

    def __init__(self, *arguments: str, env: Mapping[str, str], terminal: str = "dumb") -> None:
        self._screen, inside = pty.openpty()
        termios.tcsetwinsize(inside, (30, 80))
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environ(TERM=terminal, COLUMNS="80", LINES="30", PROMPT_TOOLKIT_NO_CPR="1", **env),
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)
        self._unread = ""
        self._emulator = pyte.Screen(80, 30)
        self._emulation = pyte.ByteStream(self._emulator)

    def see(self, text: str) -> str:
        """Read until this text is shown; everything up to it."""
        deadline = time.monotonic() + LIMIT
        while text not in self._unread:
            self._unread += self._read(deadline, text)
        seen, _, self._unread = self._unread.partition(text)
        return seen + text

    def watch(self, text: str) -> str:
        """Read until the screen shows this text; what is on the screen, as a person sees it."""
        deadline = time.monotonic() + LIMIT
        while text not in (shown := "".join(f"{line.rstrip()}\n" for line in self._emulator.display)):
            readable, _, _ = select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"it did not show {text!r} but {shown}"
            self._emulation.feed(os.read(self._screen, 4096))
        return shown

    def press_key(self, key: bytes) -> None:
        """A key that ends no line."""
        os.write(self._screen, key)

    def type(self, line: str) -> None:
        """A line from the keyboard."""
        os.write(self._screen, f"{line}\n".encode())

    def press(self, how: signal.Signals) -> None:
        """Ctrl-C, once the program waits, as it does by the time that anybody can press it."""
        self._until_it_waits()
        self.process.send_signal(how)

    def leave(self) -> int:
        """Ctrl-D at the prompt; the exit code."""
        self._until_it_waits()  # before, the terminal would take it for the end of a line
        os.write(self._screen, b"\x04")
        return self.wait()

    def see_rest(self) -> str:
        """Read what is shown until the program ends."""
        deadline = time.monotonic() + LIMIT
        with suppress(OSError):  # a terminal without a program ends with an error
            while piece := self._read(deadline, "the end"):
                self._unread += piece
        seen, self._unread = self._unread, ""
        return seen

    def wait(self) -> int:
        """The exit code, once it has ended."""
        code = self.process.wait(LIMIT)
        os.close(self._screen)
        return code

    def _until_it_waits(self) -> None:
        state = Path(f"/proc/{self.process.pid}/stat")
        deadline = time.monotonic() + LIMIT
        while state.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < deadline, "it never waits"

    def _read(self, deadline: float, text: str) -> str:
        readable, _, _ = select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))
        assert readable, f"it did not show {text!r} but {self._unread!r}"
        return os.read(self._screen, 4096).decode(errors="replace").replace("\r\n", "\n")
