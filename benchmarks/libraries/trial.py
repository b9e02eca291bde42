"""Gives one library one task, in a process of its own, and says what came of it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.build import HERE, Absent
from benchmarks.libraries.peers import Library
from benchmarks.libraries.tasks import MODEL, Idle, Turns

SECONDS = 900
Found = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a whole process took: seconds of CPU and of time, bytes of memory at its largest."""

    cpu: float
    wall: float
    peak: float


def turns(library: Library, task: Turns, *, url: str, seconds: float) -> Found:
    """Turns for some seconds; `Absent` when one of them was not right."""
    arguments = ["turns", "--seconds", str(seconds), "--at-once", str(task.at_once)]
    arguments += ["--stream"] if task.stream else []
    arguments += ["--url", url, "--name", MODEL] if task.http else []
    return work(library, arguments)


def idle(library: Library, task: Idle, *, count: int) -> Found:
    """What idle agents take, bytes each."""
    return work(library, ["memory", "--count", str(max(1, int(count * task.share))), *task.options])


def work(library: Library, arguments: Sequence[str]) -> Found:
    """What the worker prints; `Absent` with its last words when it fails."""
    command = [str(library.python), "-m", "benchmarks.libraries.worker", library.module, *arguments]
    try:
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=SECONDS, env=environment()
        )
    except subprocess.CalledProcessError as error:
        raise Absent((error.stderr.strip().splitlines() or ["it failed"])[-1]) from error
    except (subprocess.TimeoutExpired, OSError) as error:
        raise Absent(str(error)) from error
    found: Found = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def importing(library: Library, *, compiled: bool) -> Cost:
    """A process that imports what a small program would; `compiled`: its bytecode lies there already."""
    command = [str(library.python), "-c", library.imports]
    if compiled:
        return process(command, environment())
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return process(command, {**environment(), "PYTHONPYCACHEPREFIX": folder})


def script(library: Library, *, url: str) -> Cost:
    """A process that takes one turn over HTTP and ends."""
    arguments = ["script", "--url", url, "--name", MODEL, "--stream"]
    command = [str(library.python), "-m", "benchmarks.libraries.worker", library.module, *arguments]
    return process(command, environment())


def process(command: Sequence[str], env: Mapping[str, str]) -> Cost:
    """What a process took; `Absent` when it fails."""
    began = time.perf_counter()
    try:
        child = os.posix_spawn(
            command[0],
            list(command),
            env,
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
        )
    except OSError as error:
        raise Absent(str(error)) from error
    _, status, used = os.wait4(child, 0)
    if status:
        raise Absent(f"exit code {os.waitstatus_to_exitcode(status)}")
    wall = time.perf_counter() - began
    return Cost(cpu=used.ru_utime + used.ru_stime, wall=wall, peak=used.ru_maxrss * 1024.0)


def environment() -> dict[str, str]:
    """The environment with this source tree in front, and without the peers' telemetry."""
    paths = [str(HERE.parent / "src"), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {"AGNO_TELEMETRY": "false", "LANGSMITH_TRACING": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    return {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths)}


def bare() -> Library:
    """An interpreter that imports nothing."""
    return Library(name="Python alone", module="", python=Path(sys.executable), imports="pass")
