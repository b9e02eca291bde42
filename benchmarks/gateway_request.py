"""Counts what a JSON request of the gateway costs: calls of Python functions of the package, or CPU time.

A hub with a key, a price and usage records in SQLite runs in this process; its client and model server are
a few lines beside it. The figures contain them, so only a comparison with another version means something.

examples
  python benchmarks/gateway_request.py                      calls a request
  python benchmarks/gateway_request.py --list               by function
  python benchmarks/gateway_request.py --cpu --requests 8000
  PYTHONHASHSEED=0 valgrind --tool=cachegrind --cache-sim=no \\
      python benchmarks/gateway_request.py --cpu --slow --requests 480
                                        instructions; less those with --requests 80, divided by 400
"""

import argparse
import asyncio
import gc
import json
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

import dragoman
from dragoman.accounts import usage_ledger
from dragoman.cli.serving.lifecycle import host_hub
from dragoman.config import Config, parse_config
from dragoman.http import disconnect

PACKAGE = str(Path(dragoman.__file__).parent) + "/"
CONNECTIONS = 8
WARM_UP = 5  # requests on each connection that are not counted: imports, statements, connections
REST = 1.0  # seconds for the usage records of the last requests
MESSAGES = [{"role": "user", "content": "Say something nice, please. " * 4}]
USAGE = {"prompt_tokens": 12, "completion_tokens": 40, "total_tokens": 52}
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "word " * 40}, "finish_reason": "stop"}
ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [CHOICE],
    "usage": USAGE,
}


def message(first_line: str, headers: str, body: object) -> bytes:
    """Return an HTTP message with a JSON body."""
    encoded = json.dumps(body).encode()
    length = f"content-type: application/json\r\ncontent-length: {len(encoded)}"
    return f"{first_line}\r\n{headers}{length}\r\n\r\n".encode() + encoded


def is_whole(data: bytes) -> bool:
    """Return whether all of a message has arrived."""
    head, mark, body = data.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return bool(mark) and len(body) >= int(length)


class ModelServer(asyncio.Protocol):
    """Answers each request with the same completion."""

    answer = message("HTTP/1.1 200 OK", "", ANSWER)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        if is_whole(self.received):
            self.received = b""
            self.transport.write(self.answer)


class Client(asyncio.Protocol):
    """Sends one request after the other."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.received = b""
        self.left = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    async def send(self, count: int) -> None:
        """Send requests and wait for their answers. SystemExit when one has no cost."""
        self.left, self.done = count, asyncio.get_running_loop().create_future()
        self.transport.write(self.request)
        await self.done

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the hub closed the connection"))

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not is_whole(self.received):
            return
        if b"x-dragoman-cost: 0.000066" not in self.received:
            self.done.set_exception(SystemExit(f"the hub gave another answer: {self.received!r}"))
            return
        self.received = b""
        self.left -= 1
        if self.left:
            self.transport.write(self.request)
        else:
            self.done.set_result(None)


class FunctionCounter:
    """A profiler hook that counts calls into the package; a coroutine that is resumed counts as a call."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.calls[frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_qualname] += 1


def configure(port: int) -> Config:
    os.environ["BENCHMARK_KEY"] = "sk-upstream"
    provider = {
        "type": "openai",
        "base_url": f"http://127.0.0.1:{port}/v1",
        "api_key_env": "BENCHMARK_KEY",
        "prices": {"*": {"input": 0.5, "output": 1.5}},
    }
    return parse_config({"providers": {"up": provider}})


async def connect(address: tuple[str, int], secret: str, count: int) -> list[Client]:
    headers = (
        f"host: localhost\r\nauthorization: Bearer {secret}\r\nuser-agent: benchmark\r\n"
        "accept: application/json\r\naccept-encoding: gzip\r\nconnection: keep-alive\r\n"
    )
    body = {"model": "up/m", "messages": MESSAGES, "temperature": 0.2}
    request = message("POST /v1/chat/completions HTTP/1.1", headers, body)
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(lambda: Client(request), *address))[1] for _ in range(count)]


async def measure(requests: int, counter: FunctionCounter | None) -> float:
    """Send requests; return the CPU seconds of this process. With a counter they are sent one by one."""
    connections = CONNECTIONS if counter is None else 1
    upstream = await asyncio.get_running_loop().create_server(ModelServer, "127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
    with tempfile.TemporaryDirectory() as folder:
        config = configure(upstream.sockets[0].getsockname()[1])
        async with host_hub(config, Path(folder), listener=listener, require_keys=True) as hosted:
            _, secret = await hosted.hub.store.keys.create("ann")
            gc.collect()  # before the first request: it may last longer than a connection may rest
            gc.disable()
            try:
                clients = await connect(listener.getsockname(), secret, connections)
                await asyncio.gather(*(client.send(WARM_UP) for client in clients))
                started_at = time.process_time()
                sys.setprofile(counter)
                await asyncio.gather(*(client.send(requests // connections) for client in clients))
                sys.setprofile(None)
                await asyncio.sleep(REST)
                seconds = time.process_time() - started_at
            finally:
                sys.setprofile(None)
                gc.enable()
            for client in clients:
                client.transport.close()
            await asyncio.sleep(0)
    upstream.close()
    return seconds


def make_waits_long() -> None:
    """Lengthen the waits that a request of a fast process does not reach the end of."""
    usage_ledger.BATCH_SECONDS = REST / 2
    disconnect.WATCH_DELAY = 60.0


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--requests", type=int, default=400)
    options.add_argument("--list", action="store_true", help="list the calls by function")
    options.add_argument("--cpu", action="store_true", help="measure CPU time instead of calls")
    options.add_argument("--slow", action="store_true", help="under valgrind: lengthen the hub's short waits")
    arguments = options.parse_args()
    if arguments.slow:
        make_waits_long()
    counter = None if arguments.cpu else FunctionCounter()
    seconds = uvloop.run(measure(arguments.requests, counter))
    if counter is None:
        print(f"{seconds / arguments.requests * 1e6:.0f} µs of CPU a request")
        return
    print(f"{sum(counter.calls.values()) / arguments.requests:.1f} calls a request")
    if arguments.list:
        for (file, name), count in counter.calls.most_common():
            print(f"  {count / arguments.requests:5.2f} {file} {name}")


if __name__ == "__main__":
    main()
