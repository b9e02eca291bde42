"""Opens many sockets of sessions on one hub; measures their memory, the delay of events, and what is lost.

A hub runs in a child process. This process opens the sockets, five a session, and publishes domain events
in the sessions one after the other; each has the time at which it was sent, and every socket of its session
must get it. The delay is from the request that publishes to the frame in the client: it has the commit of the
event in it, and the client's own work. With `--runners` as many sessions are answered by a runner each, over
a connection of its own, and are prompted one after the other: every socket must get the whole answer.

examples
  python benchmarks/sockets.py                    1,000 sockets for 20 seconds
  python benchmarks/sockets.py --sockets 200 --seconds 5
  python benchmarks/sockets.py --runners 200 --seconds 60
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
CONFIG = "model: none/none\nproviders: {none: {type: ollama}}\nlimits: {background_runs: 1000}\n"
RATE = 50  # events a second, of all sessions together
PROMPT_RATE = 5  # prompts a second, of all runners together


def resident_kib(pid: int) -> int:
    """Return the memory of a process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS")


async def receive(socket: websockets.ClientConnection, delays: list[float], answers: list[float]) -> None:
    """Take frames until cancelled, with the delay of each event and of each whole answer."""
    async for text in socket:
        frame = json.loads(text)
        if frame["type"] == "data-mark":
            delays.append(time.time() - frame["data"]["at"])
        elif frame["type"] == "message.updated":
            answers.append(time.time() - float(frame["message"]["parts"][-1]["text"]))


async def connect_runner(url: str, session: str) -> websockets.ClientConnection:
    """Connect the runner of a session."""
    socket = await websockets.connect(url, proxy=None, compression=None)
    await socket.send(json.dumps({"type": "hello", "protocol": 1, "sessions": [session]}))
    await socket.recv()  # welcome
    return socket


async def answer_prompts(socket: websockets.ClientConnection, session: str) -> None:
    """Answer the prompts of a session with the time of the answer."""
    async for text in socket:
        frame = json.loads(text)
        if frame["type"] == "prompt":
            place = {"sessionId": session, "turnId": frame["turnId"]}
            create = {"type": "message.create"}
            delta = {"type": "message.part.text-delta", "delta": str(time.time())}
            finalize = {"type": "message.finalize", "reason": "end_turn"}
            for seq, fields in enumerate((create, delta, finalize), start=1):
                await socket.send(json.dumps({**fields, **place, "seq": seq}))


async def prompt(http: httpx2.AsyncClient, sessions: int, *, seconds: float) -> int:
    """Prompt the sessions of runners at the rate; return how many times."""
    started, count = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        message = {"id": f"u{count}", "role": "user", "parts": [{"type": "text", "text": "now?"}]}
        body = {"id": f"s{count % sessions}", "messages": [message], "background": True}
        (await http.post("/api/chat", json=body)).raise_for_status()
        count += 1
        await asyncio.sleep(max(0.0, started + count / PROMPT_RATE - time.monotonic()))
    return count


async def publish(http: httpx2.AsyncClient, sessions: int, *, seconds: float) -> int:
    """Publish events at the rate; return how many."""
    started, count = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        body = {"name": "mark", "data": {"at": time.time()}}
        await http.post(f"/api/sessions/s{count % sessions}/events", json=body)
        count += 1
        await asyncio.sleep(max(0.0, started + count / RATE - time.monotonic()))
    return count


async def open_sockets(
    pid: int, url: str, *, sockets: int
) -> tuple[list[websockets.ClientConnection], float]:
    """Open the sockets; return them, and how much memory each takes in the hub, in KiB."""
    opened, before = [], 0
    for number in range(sockets):
        if number == PER_SESSION:
            before = resident_kib(pid)
        at = f"{url.replace('http', 'ws')}/api/sessions/s{number % (sockets // PER_SESSION)}/socket"
        socket = await websockets.connect(at, proxy=None, compression=None)
        await socket.recv()  # init
        opened.append(socket)
    return opened, (resident_kib(pid) - before) / (sockets - PER_SESSION)


async def wait_for_frames(found: list[float], expected: int) -> None:
    """Wait some seconds until as many have arrived as are expected."""
    for _ in range(50):
        if len(found) >= expected:
            return
        await asyncio.sleep(0.1)


async def measure(pid: int, url: str, *, sockets: int, runners: int, seconds: float) -> None:
    """Open the sockets, publish, and print the figures."""
    sessions = sockets // PER_SESSION
    delays: list[float] = []
    answers: list[float] = []
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        for number in range(sessions):
            body = {"id": f"s{number}", "runner": number < runners}
            (await http.post("/api/sessions", json=body)).raise_for_status()
        at = f"{url.replace('http', 'ws')}/api/runners"
        running = []
        for number in range(runners):
            runner = await connect_runner(at, f"s{number}")
            running.append(asyncio.create_task(answer_prompts(runner, f"s{number}")))
        opened, each = await open_sockets(pid, url, sockets=sockets)
        tasks = [asyncio.create_task(receive(socket, delays, answers)) for socket in opened]
        prompting = asyncio.create_task(prompt(http, runners, seconds=seconds if runners else 0))
        count = await publish(http, sessions, seconds=seconds)
        prompts = await prompting
        await wait_for_frames(delays, count * PER_SESSION)
        await wait_for_frames(answers, prompts * PER_SESSION)
        for task in (*tasks, *running):
            task.cancel()
        for socket in opened:
            await socket.close()
    print(f"{sockets} sockets of {sessions} sessions: {each:.1f} KiB each")
    print(f"{count} events to {PER_SESSION} sockets each, {count * PER_SESSION - len(delays)} frames lost")
    print(f"delay of an event: {percentiles(delays)}")
    if runners:
        print(f"{runners} runners, {prompts} answers, {prompts * PER_SESSION - len(answers)} frames lost")
        print(f"from a runner's answer to its stored message in a client: {percentiles(answers)}")


def percentiles(delays: list[float]) -> str:
    """Return percentiles of delays in seconds as text."""
    ordered = sorted(delays)
    p50, p99 = statistics.median(ordered) * 1000, ordered[int(len(ordered) * 0.99)] * 1000
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def main() -> None:
    """Start a hub, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sockets", type=int, default=1_000)
    parser.add_argument("--runners", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "dragoman.yaml"
        config.write_text(CONFIG, encoding="utf-8")
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
            counts = {"sockets": options.sockets, "runners": options.runners}
            asyncio.run(measure(hub.pid, "http://127.0.0.1:8397", seconds=options.seconds, **counts))
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
