"""A gateway that runs: started on a free port, asked until it answers whole, and ended again."""

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from benchmarks.gateways.peers import Ask, Peer, Place, environment
from benchmarks.gateways.tasks import Task
from benchmarks.harness.build import Absent
from benchmarks.harness.servers import Running

START_SECONDS = 120
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A gateway that has answered: how it is asked, and what that took, in seconds and CPU-seconds."""

    place: Place
    ask: Ask
    running: Running
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def body(self) -> str:
        """The request."""
        return self.place.task.body(self.ask.model)


@contextmanager
def started(peer: Peer, task: Task, *, upstream: Running) -> Iterator[Ready]:
    """Start it in a folder of its own; `Absent` when it does not start, or answers wrongly."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        port = free_port() if peer.command else upstream.port
        place = Place(folder=Path(folder), port=port, upstream=upstream.port, task=task)
        if peer.command is None:
            running = Running(pid=None, port=port)
            yield await_ready(Ready(place=place, ask=peer.ask(place), running=running), process=None)
            return
        with _process(peer, place) as process:
            running = Running(pid=process.pid, port=port)
            yield await_ready(Ready(place=place, ask=peer.ask(place), running=running), process=process)


@contextmanager
def _process(peer: Peer, place: Place) -> Iterator[subprocess.Popen[bytes]]:
    assert peer.command is not None
    command = peer.command(place)
    with (place.folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(peer.environment or {}),
            cwd=place.folder,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and see that it does."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def await_ready(ready: Ready, *, process: subprocess.Popen[bytes] | None) -> Ready:
    """Ask until it answers; the answer must be the right one."""
    began = time.monotonic()
    while True:
        try:
            status, text = post(ready)
        except ConnectionRefusedError:
            _look(ready.place, process, since=began)
            time.sleep(0.005)
            continue
        except (OSError, HTTPException) as error:
            raise Absent(f"gave no answer: {error!r}") from error
        break
    if status != 200:
        raise Absent(f"answered with status {status}: {text[:200]!r}")
    for fault in faults(ready.place.task, text):
        raise Absent(f"answered with {fault}")
    return Ready(
        place=ready.place,
        ask=ready.ask,
        running=ready.running,
        seconds=time.monotonic() - began,
        cpu=sum(cpu_of(pid) for pid in ready.running.pids),
    )


def faults(task: Task, text: str) -> Iterator[str]:
    """What is wrong with an answer."""
    if task.pace:
        return  # it was not waited for
    if text.count("t@") != task.chunks:
        yield f"{text.count('t@')} chunks instead of {task.chunks}"
    if not task.stream:
        answer = json.loads(text)
        usage = answer.get("usage") or {}
        if 20 not in (usage.get("prompt_tokens"), usage.get("input_tokens")):
            yield f"a usage that is not the upstream's: {usage}"
    elif task.last_words not in text[-128:]:
        yield f"no {task.last_words} at the end"


def post(ready: Ready) -> tuple[int, str]:
    """One answer; of a paced one only the beginning."""
    task = ready.place.task
    connection = HTTPConnection("127.0.0.1", ready.place.port, timeout=60)
    try:
        headers = {"Content-Type": "application/json", **ready.ask.headers}
        connection.request("POST", task.path, ready.body, headers)
        response = connection.getresponse()
        return response.status, (response.read1(4096) if task.pace else response.read()).decode()
    finally:
        connection.close()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def cpu_of(pid: int) -> float:
    """CPU-seconds that a process has used, its ended children's too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(int(field) for field in fields[11:15]) / TICKS


def _look(place: Place, process: subprocess.Popen[bytes] | None, *, since: float) -> None:
    """`Absent` when there is nothing to wait for."""
    if process is not None and process.poll() is not None:
        last_lines = (place.folder / "output").read_text(errors="replace").strip().splitlines()[-3:]
        raise Absent(f"did not start: {' / '.join(line.strip() for line in last_lines)}")
    if time.monotonic() - since > START_SECONDS:
        raise Absent(f"was not there after {START_SECONDS} s")
