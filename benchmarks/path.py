"""Counts the Python calls on the paths of a chat: one text chunk, and one request.

A hub runs in this process behind its own HTTP server. A model server on the loopback sends one text chunk
at a time and waits in between, so that chunks are never batched. A profiler hook counts calls of functions
in `src/dragoman`; a generator or coroutine that is resumed counts as a call, since it costs about the same.

  chunk    from the read of the provider's socket to the write on the client's: calls, and their files
  request  from `RunRegistry.start_run` to `Loop.run`: every function that passes the request on (a stop), in
           order, and how often the path goes back to a module that it has left

examples
  python benchmarks/path.py               the two figures
  python benchmarks/path.py --list        with every call of a chunk and every stop of the request
"""

import argparse
import asyncio
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import dragoman
from dragoman.cli.hosting import host_hub
from dragoman.config import parse_config

PACKAGE = str(Path(dragoman.__file__).parent) + "/"
CHUNKS = 60
WARM_UP = 10  # chunks that are not counted: the first ones start a step and a journal timer
PAUSE = 0.004  # seconds between two chunks

Call = tuple[str, str]  # file, function


class CallCounter:
    """Records the calls into the package while it is installed, with the time of each chunk."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            name = frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name
            self.calls.append((frame.f_code.co_filename.removeprefix(PACKAGE), name))

    def take(self) -> list[Call]:
        """Return the calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


class PacedModel:
    """An OpenAI-compatible server that sends single chunks and reports the calls that each one caused."""

    def __init__(self, counter: CallCounter) -> None:
        self.counter = counter
        self.chunks: list[list[Call]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests on one connection."""
        while head := await read_head(reader):
            await reader.readexactly(int(head.get("content-length", "0")))
            await self.answer(writer)

    async def answer(self, writer: asyncio.StreamWriter) -> None:
        """Send a text in single chunks."""
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        send_chunk(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "A"}}]})
        await asyncio.sleep(0.05)
        for _ in range(CHUNKS):
            self.counter.take()
            send_chunk(writer, {"choices": [{"index": 0, "delta": {"content": " word"}}]})
            await asyncio.sleep(PAUSE)
            self.chunks.append(self.counter.take())
        send_chunk(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        end = b"data: [DONE]\n\n"
        writer.write(f"{len(end):x}\r\n".encode() + end + b"\r\n0\r\n\r\n")
        await writer.drain()


def send_chunk(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    frame = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **body}
    data = b"data: " + msgspec.json.encode(frame) + b"\n\n"
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def read_head(reader: asyncio.StreamReader) -> dict[str, str]:
    """Return the headers of the next message; empty at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return {}
    lines = head.decode().split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}


async def chat(port: int, text: str) -> bytes:
    """Send a chat message and read the whole answer."""
    message = {"id": f"u{text}", "role": "user", "parts": [{"type": "text", "text": text}]}
    body = msgspec.json.encode({"id": f"s{text}", "messages": [message], "trigger": "submit-message"})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"content-type: application/json\r\n" + f"content-length: {len(body)}\r\n\r\n".encode() + body
    )
    answer = await reader.read()
    writer.close()
    return answer


async def measure() -> tuple[list[list[Call]], list[Call]]:
    """Return the calls of each chunk, and those of a request until the loop starts."""
    counter = CallCounter()
    model = PacedModel(counter)
    upstream = await asyncio.start_server(model.serve, "127.0.0.1", 0)
    address = upstream.sockets[0].getsockname()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    with tempfile.TemporaryDirectory() as folder:
        provider = {"type": "openai", "base_url": f"http://127.0.0.1:{address[1]}/v1"}
        config = parse_config({"providers": {"up": provider}, "model": "up/m"})
        async with host_hub(config, Path(folder), listener=listener, require_keys=False):
            port = listener.getsockname()[1]
            await chat(port, "warm up")  # imports, connections, statements
            model.chunks.clear()
            sys.setprofile(counter)
            try:
                answer = await chat(port, "measured")
            finally:
                sys.setprofile(None)
            if b"[DONE]" not in answer or answer.count(b" word") < CHUNKS:
                raise SystemExit(f"the hub gave another answer: {answer[-500:]!r}")
            chunks = model.chunks[WARM_UP:]
            request = await measure_request(port, counter)
    upstream.close()
    return chunks[: CHUNKS - WARM_UP], request


async def measure_request(port: int, counter: CallCounter) -> list[Call]:
    """Return the calls from `start_run` until the loop runs for the first time."""
    counter.take()
    calls: list[Call] = []
    running = False

    def hook(frame: FrameType, event: str, _: Any) -> None:
        nonlocal running
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        call = (frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_qualname)
        if call[1] == "RunRegistry.start_run" and not calls:
            running = True
        if running and call not in calls and call[0].partition("/")[0] not in IN_PASSING:
            calls.append(call)
        if call[1] == "Loop.run":
            running = False

    sys.setprofile(hook)
    try:
        await chat(port, "request")
    finally:
        sys.setprofile(None)
    return calls


IN_PASSING = ("store",)  # what is called for its value, and does not pass the request on


def returns(calls: list[Call]) -> int:
    """Return how often the path goes back to a module that it has left."""
    modules = [file for at, (file, _) in enumerate(calls) if at == 0 or calls[at - 1][0] != file]
    return len(modules) - len(set(modules))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--list", action="store_true", help="list the calls")
    arguments = options.parse_args()
    started_at = time.perf_counter()
    chunks, request = asyncio.run(measure())
    sizes = [len(calls) for calls in chunks]
    usual = next(calls for calls in chunks if len(calls) == statistics.mode(sizes))
    print(
        f"chunk: {len(usual)} calls in {len({file for file, _ in usual})} files (median of {len(sizes)}: "
        f"{statistics.median(sizes):g})"
    )
    print(
        f"request: {len(request)} functions in {len({file for file, _ in request})} files, "
        f"{returns(request)} returns to a module already left"
    )
    if arguments.list:
        for (file, name), count in Counter(usual).items():
            print(f"  {count} {file} {name}")
        print("request")
        for file, name in request:
            print(f"    {file} {name}")
    print(f"{time.perf_counter() - started_at:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
