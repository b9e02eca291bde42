"""Counts what a chunk of a stored chat stream costs: Python calls, CPU time, or memory of a stream.

A hub with sessions, journal and usage records in SQLite runs in this process; its clients and its model
server are a few lines beside it. A model sends one chunk of text on one stream, and the next one, on the next
stream, once the client has the frame: chunks never come together. The figures contain clients and model
server, so only a comparison with another version means something.

examples
  python benchmarks/chat_stream.py                       CPU time of a chunk, 200 streams
  python benchmarks/chat_stream.py --rounds 5            the median of five measurements
  python benchmarks/chat_stream.py --memory              what a stream that waits takes, by kind of object
  PYTHONHASHSEED=0 valgrind --tool=cachegrind --cache-sim=no \\
      python benchmarks/chat_stream.py --streams 20 --no-journal --chunks 1900
                                     instructions; less those with --chunks 400, divided by 1500
"""

import argparse
import asyncio
import gc
import json
import socket
import statistics
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, cycle
from pathlib import Path
from typing import Any, ClassVar

import uvloop

from dragoman.cli.serving.lifecycle import GC_THRESHOLDS, host_hub
from dragoman.config import parse_config
from dragoman.runs import journal

STREAMS = 200
REST = 2.5  # seconds after which streams have written what they have
SHOWN = 60
WARM_UP = 10  # chunks of each stream that are not counted
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def frame(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    """Return one event of a model's stream, as a piece of a chunked body."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    whole = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return piece(b"data: " + json.dumps(whole).encode() + b"\n\n")


def piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


BEGIN = HEAD + frame({"role": "assistant", "content": ""}) + frame({"content": "A"})
CHUNK = frame({"content": " word"})
END = frame({}, "stop") + piece(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class ModelServer(asyncio.Protocol):
    """Begins an answer to each request; the stages send its chunks."""

    answering: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.received = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, mark, body = self.received.partition(b"\r\n\r\n")
        if mark and len(body) >= int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            self.received = b""
            self.answering.append(self.transport)
            self.transport.write(BEGIN)


class Client(asyncio.Protocol):
    """Sends one message in a session of its own, and counts the words of its answer."""

    ids = count()

    def __init__(self, stage: "Stage") -> None:
        self.stage = stage
        self.is_leaving = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self) -> None:
        number = next(self.ids)
        message = {"id": f"m-{number}", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
        body = json.dumps({"id": f"s-{number}", "trigger": "submit-message", "messages": [message]}).encode()
        head = b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_leaving:
            self.stage.fail(error or ConnectionError("the hub closed the connection"))

    def data_received(self, data: bytes) -> None:
        if b'"delta":" word"' in data:
            self.stage.advance()
        elif data.endswith(b"0\r\n\r\n") or b'"delta":"A"' in data:
            self.stage.arrive()


class Stage:
    """What is under way: `arrivals` that are waited for, then chunks in turn."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.arrivals = self.chunks = 0
        self.turns: Iterator[Any] = iter(())

    async def wait(self) -> None:
        await self.done
        self.done = asyncio.get_running_loop().create_future()

    async def pass_chunks(self, chunks: int, at_once: int) -> None:
        self.chunks, self.turns = chunks, cycle(ModelServer.answering)
        for _ in range(at_once):
            self.next_chunk()
        await self.wait()

    def next_chunk(self) -> None:
        next(self.turns).write(CHUNK)

    def advance(self) -> None:
        self.chunks -= 1
        if self.chunks > 0:
            self.next_chunk()
        elif not self.done.done():
            self.done.set_result(None)

    def arrive(self) -> None:
        self.arrivals -= 1
        if not self.arrivals:
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def measure(options: argparse.Namespace) -> None:
    """Open the streams, send the chunks, and end the streams; print what the parts took."""
    loop = asyncio.get_running_loop()
    upstream = await loop.create_server(ModelServer, "127.0.0.1", 0, backlog=STREAMS)
    provider = {"type": "openai", "base_url": f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}/v1"}
    config = parse_config({"providers": {"up": provider}, "model": "up/m"})
    listener = socket.create_server(("127.0.0.1", 0), backlog=STREAMS)
    with tempfile.TemporaryDirectory() as folder:
        async with host_hub(config, Path(folder), listener=listener, require_keys=False):
            stage = Stage()
            for _ in range(2):  # imports, statements, connections
                clients = await open_clients(stage, listener.getsockname(), 4)
                await end_streams(stage, clients)
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)  # as `dragoman serve` does
            if options.memory:
                await measure_memory(stage, listener.getsockname(), options)
            else:
                await measure_chunks(stage, listener.getsockname(), options)
    upstream.close()


async def measure_chunks(stage: Stage, address: Any, options: argparse.Namespace) -> None:
    figures: list[tuple[float, float, float]] = []
    for _ in range(options.rounds):
        began_at = time.process_time()
        clients = await open_clients(stage, address, options.streams)
        opened = time.process_time() - began_at
        await stage.pass_chunks(WARM_UP * options.streams, options.at_once)
        began_at = time.process_time()
        await stage.pass_chunks(options.chunks, options.at_once)
        took = time.process_time() - began_at
        began_at = time.process_time()
        await end_streams(stage, clients)
        ended = time.process_time() - began_at
        figures.append((took / options.chunks, opened / options.streams, ended / options.streams))
    chunk, opening, ending = (statistics.median(each) * 1e6 for each in zip(*figures, strict=True))
    lowest = min(figures)[0] * 1e6
    ends = f"{opening:.0f} to open a stream, {ending:.0f} to end it"
    print(f"{chunk:.1f} µs of CPU a chunk (lowest {lowest:.1f}); {ends}")


async def open_clients(stage: Stage, address: Any, streams: int) -> Sequence[Client]:
    loop = asyncio.get_running_loop()
    clients = [(await loop.create_connection(lambda: Client(stage), *address))[1] for _ in range(streams)]
    stage.arrivals = streams
    for client in clients:
        client.ask()
    await stage.wait()
    return clients


async def end_streams(stage: Stage, clients: Sequence[Client]) -> None:
    stage.arrivals = len(clients)
    for transport in ModelServer.answering:
        transport.write(END)
    ModelServer.answering = []
    await stage.wait()
    for client in clients:
        client.is_leaving = True
        client.transport.close()
    await asyncio.sleep(0.05)


async def measure_memory(stage: Stage, address: Any, options: argparse.Namespace) -> None:
    """Print what a stream that waits for the next chunk adds."""
    first = await open_clients(stage, address, options.streams)
    await asyncio.sleep(REST)
    gc.collect()
    before, objects = private_bytes(), count_objects()
    if options.trace:
        tracemalloc.start()
    more = await open_clients(stage, address, options.streams)
    await asyncio.sleep(REST)
    gc.collect()
    memory = (private_bytes() - before) / options.streams / 1024
    added = count_objects() - objects
    objects_each = added.total() / options.streams
    print(f"{memory:.1f} KiB a stream, {objects_each:.0f} objects that the garbage collector tracks")
    for name, number in added.most_common(SHOWN):
        print(f"  {number / options.streams:7.2f} {name}")
    if options.trace:
        lines = tracemalloc.take_snapshot().statistics("lineno")
        print(f"{sum(each.size for each in lines) / options.streams / 1024:.1f} KiB allocated a stream")
        for each in lines[:SHOWN]:
            size, blocks = each.size / options.streams, each.count / options.streams
            print(f"  {size:7.0f} B {blocks:6.1f} {each.traceback}")
    await end_streams(stage, [*first, *more])


def private_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) * 1024


def count_objects() -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects())


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--streams", type=int, default=STREAMS)
    options.add_argument("--chunks", type=int, default=20_000)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--at-once", type=int, default=1, help="chunks under way")
    options.add_argument("--no-journal", action="store_true", help="write no open part")
    options.add_argument("--memory", action="store_true", help="memory of a stream")
    options.add_argument("--trace", action="store_true", help="and the lines that allocated it")
    arguments = options.parse_args()
    if arguments.no_journal:
        journal.Journal.__init__.__kwdefaults__ = {"interval": 3_600.0}
    uvloop.run(measure(arguments))


if __name__ == "__main__":
    main()
