"""Opens many sockets of sessions on one hub; measures their memory, the delay of events, and what is lost.

A hub runs in a child process. This process opens the sockets, five a session, and publishes domain events
in the sessions one after the other; each has the time at which it was sent, and every socket of its session
must get it. The delay is from the request that publishes to the frame in the client: it has the commit of the
event in it, and the client's own work.

examples
  python benchmarks/sockets.py                    1,000 sockets for 20 seconds
  python benchmarks/sockets.py --sockets 200 --seconds 5
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2
import websockets

PER_SESSION = 5
RATE = 50  # events a second, of all sessions together


def resident_kib(pid: int) -> int:
    """Return the memory of a process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS")


async def receive(socket: websockets.ClientConnection, delays: list[float]) -> None:
    """Take frames until cancelled, with the delay of each event."""
    async for text in socket:
        frame = json.loads(text)
        if frame["type"] == "data-mark":
            delays.append(time.time() - frame["data"]["at"])


async def publish(http: httpx2.AsyncClient, sessions: int, *, seconds: float) -> int:
    """Publish events at the rate; return how many."""
    started, count = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        body = {"name": "mark", "data": {"at": time.time()}}
        await http.post(f"/api/sessions/s{count % sessions}/events", json=body)
        count += 1
        await asyncio.sleep(max(0.0, started + count / RATE - time.monotonic()))
    return count


async def measure(pid: int, url: str, *, sockets: int, seconds: float) -> None:
    """Open the sockets, publish, and print the figures."""
    sessions = sockets // PER_SESSION
    delays: list[float] = []
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        for number in range(sessions):
            await http.post("/api/sessions", json={"id": f"s{number}"})
        opened, tasks = [], []
        before = 0
        for number in range(sockets):
            if number == PER_SESSION:
                before = resident_kib(pid)
            at = f"{url.replace('http', 'ws')}/api/sessions/s{number % sessions}/socket"
            socket = await websockets.connect(at, proxy=None, compression=None)
            await socket.recv()  # init
            opened.append(socket)
        grown = resident_kib(pid) - before
        tasks = [asyncio.create_task(receive(socket, delays)) for socket in opened]
        count = await publish(http, sessions, seconds=seconds)
        expected = count * PER_SESSION
        for _ in range(50):
            if len(delays) >= expected:
                break
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        for socket in opened:
            await socket.close()
    ordered = sorted(delays)
    print(f"{sockets} sockets of {sessions} sessions: {grown / (sockets - PER_SESSION):.1f} KiB each")
    print(f"{count} events, {expected} frames expected, {expected - len(delays)} lost")
    p50, p99 = statistics.median(ordered) * 1000, ordered[int(len(ordered) * 0.99)] * 1000
    print(f"delay: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


def main() -> None:
    """Start a hub, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sockets", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "dragoman.yaml"
        config.write_text("model: none/none\nproviders: {none: {type: ollama}}\n", encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "dragoman",
            "serve",
            "--config",
            str(config),
            "--data",
            f"{folder}/data",
        ]
        command += ["--port", "8397", "--no-auth"]
        hub = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_ready("http://127.0.0.1:8397")
            asyncio.run(
                measure(hub.pid, "http://127.0.0.1:8397", sockets=options.sockets, seconds=options.seconds)
            )
        finally:
            hub.terminate()
            hub.wait()


def wait_ready(url: str) -> None:
    """Wait until the hub answers."""
    for _ in range(100):
        try:
            if httpx2.get(f"{url}/readyz", timeout=1, trust_env=False).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the hub does not answer")


if __name__ == "__main__":
    main()
