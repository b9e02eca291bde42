"""Measures what readers that do not keep up cost a hub: memory, and the first byte of another client.

A hub runs in a process of its own. A model server in this one sends long answers as fast as it is let.
Twenty clients read a little of theirs each second; meanwhile another client asks for short answers.

examples
  python benchmarks/slow_readers.py                     20 readers of 50 MB for 15 s
  python benchmarks/slow_readers.py --readers 5 --seconds 5
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec

PIECE = 2_000  # characters of one chunk of the model
TAKEN = 200_000  # bytes that a slow reader takes each second
READY = re.compile(rb"listening on http://127\.0\.0\.1:(\d+)")


class Model:
    """An OpenAI-compatible server: a long answer for the model `long`, a word for any other."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.sent = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"(?i)content-length: *(\d+)", head)
            body = await reader.readexactly(int(found[1]) if found else 0)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            text, count = ("x" * PIECE, self._size // PIECE) if b'"long"' in body else ("word", 1)
            piece = frame({"delta": {"role": "assistant", "content": text}})
            for _ in range(count):
                writer.write(piece)
                self.sent += len(text)
                await writer.drain()
            writer.write(frame({"delta": {}, "finish_reason": "stop"}) + b"data: [DONE]\n\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def frame(choice: dict[str, object]) -> bytes:
    """Return a chunk of an answer."""
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + msgspec.json.encode({**body, "choices": [{"index": 0, **choice}]}) + b"\n\n"


async def ask(port: int, session: str, model: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a chat message; return the connection."""
    message = {"id": f"u{session}", "role": "user", "parts": [{"type": "text", "text": "go"}]}
    body = msgspec.json.encode({"id": session, "messages": [message], "model": f"up/{model}"})
    sock = socket.socket()
    # The system would keep megabytes for each reader, and that is not what is measured.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=65_536)
    writer.write(
        b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    return reader, writer


async def read_slowly(port: int, number: int) -> None:
    """Take a little of a long answer each second, until cancelled."""
    reader, writer = await ask(port, f"slow{number}", "long")
    try:
        while await reader.read(TAKEN):  # noqa: ASYNC110 - a pace, not a poll
            await asyncio.sleep(1.0)
    finally:
        writer.close()


async def first_byte(port: int, number: int) -> float:
    """Return the seconds to the first text of a short answer."""
    start = time.perf_counter()
    reader, writer = await ask(port, f"quick{number}", "short")
    await reader.readuntil(b'"text-delta"')
    seconds = time.perf_counter() - start
    await reader.read()
    writer.close()
    return seconds


def resident(pid: int) -> float:
    """Return the resident memory of a process in megabytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1000 if found else 0.0


async def measure(readers: int, size: int, seconds: float) -> None:
    """Run the hub and the clients, and print the figures."""
    model = Model(size)
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0)
    upstream = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "dragoman.yaml"
        provider = {"type": "openai", "base_url": f"http://127.0.0.1:{upstream}/v1"}
        config.write_bytes(msgspec.json.encode({"providers": {"up": provider}, "model": "up/short"}))
        hub = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dragoman", "serve", "--config", str(config), "--data", f"{folder}/hub"),
            *("--port", "0", "--no-auth"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            assert hub.stdout is not None
            while not (found := READY.search(line := await hub.stdout.readline())):
                assert line, "the hub ended before it was ready"
            await report(int(found[1]), hub.pid, model, readers=readers, seconds=seconds)
        finally:
            if hub.returncode is None:
                hub.kill()
            await hub.wait()
    server.close()


async def report(port: int, pid: int, model: Model, *, readers: int, seconds: float) -> None:
    """Print memory and first bytes without and with slow readers."""
    alone = [await first_byte(port, -number - 1) for number in range(20)]
    memory = resident(pid)
    slow = [asyncio.create_task(read_slowly(port, number)) for number in range(readers)]
    await asyncio.sleep(1.0)
    end, times, most = time.perf_counter() + seconds, list[float](), memory
    while time.perf_counter() < end:
        times.append(await first_byte(port, len(times)))
        most = max(most, resident(pid))
        await asyncio.sleep(0.05)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    print(f"memory: {memory:.0f} MB, {most - memory:+.0f} MB with {readers} slow readers")
    print(f"sent by the model: {model.sent / 1e6:.0f} MB")
    for name, values in (("alone", alone), ("beside them", times)):
        worst = max(values)
        print(
            f"first byte {name}: {statistics.median(values) * 1e3:.0f} ms median, {worst * 1e3:.0f} ms worst"
        )


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    asyncio.run(measure(options.readers, options.megabytes * 1_000_000, options.seconds))


if __name__ == "__main__":
    main()
