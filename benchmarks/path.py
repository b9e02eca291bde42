"""Counts the Python calls on the paths of a chat: one text chunk, and one request.

A hub runs in this process behind its own HTTP server. A model server on the loopback sends one text chunk
at a time and waits in between, so that chunks are never batched. A profiler hook counts calls of functions
in `src/dragoman`; a generator or coroutine that is resumed counts as a call, since it costs about the same.

  chunk    from the read of the provider's socket to the write on the client's: calls, their files, and how
           many coroutines and generators are resumed one inside another when the socket has been read
  request  from `RunRegistry.start_run` to `Loop.run`: the functions that pass the request on (stops), in the
           order in which they are first called, and how often the path goes back to a module it has left

A function passes the request on if it is on the stack when the loop begins, or when the task is created that
runs it, or if it returns or initialises what is handed on: plan, context, turn, loop or run.
Functions that are asked for a value on the way (a row, a price, the tools) do not count as stops.

examples
  python benchmarks/path.py               the two figures
  python benchmarks/path.py --list        with every call of a chunk and every stop of the request
"""

import argparse
import asyncio
import inspect
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec

import dragoman
from dragoman.agent.loop import Loop
from dragoman.agent.turn_spec import TurnSpec
from dragoman.cli.serving.lifecycle import host_hub
from dragoman.config import parse_config
from dragoman.operations.context import Context
from dragoman.runs.history_changes import RunPlan
from dragoman.runs.registry import RunRegistry
from dragoman.runs.run import HubRun

PACKAGE = str(Path(dragoman.__file__).parent) + "/"
CHUNKS = 60
WARM_UP = 10  # chunks that are not counted: the first ones start a step and a journal timer
PAUSE = 0.004  # seconds between two chunks

Call = tuple[str, str]  # file, function
RESUMABLE = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
HANDED_ON = (RunPlan, Context, TurnSpec, Loop, HubRun)
START = RunRegistry.start_run.__code__
TURNING_POINTS = (HubRun.__init__.__code__, Loop.run.__code__)  # creates the task; runs in it


class CallCounter:
    """Records the calls into the package while it is installed, with the time of each chunk."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.nesting = 0
        """The most coroutines and generators resumed one inside another to read a provider's socket."""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not in_package(frame):
            return
        self.calls.append(call_of(frame.f_code))
        if frame.f_code.co_qualname == "HttpConnection.receive":
            resumed = sum(1 for each in stack(frame) if each.f_code.co_flags & RESUMABLE)
            self.nesting = max(self.nesting, resumed)

    def take(self) -> list[Call]:
        """Return the calls since the last time, and forget the nesting."""
        calls, self.calls, self.nesting = self.calls, [], 0
        return calls


def in_package(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


def call_of(code: CodeType) -> Call:
    return code.co_filename.removeprefix(PACKAGE), code.co_qualname


def stack(frame: FrameType | None, outermost: CodeType | None = None) -> list[FrameType]:
    """Return the package's frames from this one outwards, up to that of `outermost`."""
    frames: list[FrameType] = []
    while frame is not None and not (frames and frames[-1].f_code is outermost):
        if in_package(frame):
            frames.append(frame)
        frame = frame.f_back
    return frames


class StopRecorder:
    """Records the functions that pass a request on, from `RunRegistry.start_run` until the loop runs."""

    def __init__(self) -> None:
        self._order: dict[CodeType, None] = {}
        self._stops: set[CodeType] = set()
        self._has_ended = False

    @property
    def stops(self) -> list[Call]:
        """The stops in the order in which they were first called."""
        return [call_of(code) for code in self._order if code in self._stops]

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if self._has_ended or not in_package(frame):
            return
        if event == "return":
            if code in self._order and isinstance(result, HANDED_ON):
                self._stops.add(code)
        elif event == "call" and (self._order or code is START):
            self._order.setdefault(code)
            if isinstance(frame.f_locals.get("self"), HANDED_ON) and code.co_name == "__init__":
                self._stops.add(code)
            if code in TURNING_POINTS:
                self._stops.update(each.f_code for each in stack(frame, START))
            self._has_ended = code is Loop.run.__code__


class PacedModel:
    """An OpenAI-compatible server that sends single chunks and reports the calls that each one caused."""

    def __init__(self, counter: CallCounter) -> None:
        self.counter = counter
        self.chunks: list[list[Call]] = []
        self.nesting = 0
        self.connections: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests on one connection."""
        self.connections.add(asyncio.current_task())
        while head := await read_head(reader):
            await reader.readexactly(int(head.get("content-length", "0")))
            await self.answer(writer)
        writer.close()

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
            self.nesting = max(self.nesting, self.counter.nesting)
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


class Measurement(NamedTuple):
    """The calls of the usual chunk, the coroutines that its read resumed, and the stops of a request."""

    chunk: list[Call]
    nesting: int
    request: list[Call]


async def measure() -> Measurement:
    """Measure a chunk and a request."""
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
            model.nesting = 0
            sys.setprofile(counter)
            try:
                answer = await chat(port, "measured")
            finally:
                sys.setprofile(None)
            if b"[DONE]" not in answer or answer.count(b" word") < CHUNKS:
                raise SystemExit(f"the hub gave another answer: {answer[-500:]!r}")
            chunks = model.chunks[WARM_UP:]
            request = await measure_request(port)
    upstream.close()
    await asyncio.gather(*(task for task in model.connections if task is not None))
    chunks = chunks[: CHUNKS - WARM_UP]
    usual = statistics.mode(len(calls) for calls in chunks)
    chunk = next(calls for calls in chunks if len(calls) == usual)
    return Measurement(chunk, nesting=model.nesting, request=request)


async def measure_request(port: int) -> list[Call]:
    """Return the stops of a request."""
    recorder = StopRecorder()
    sys.setprofile(recorder)
    try:
        await chat(port, "request")
    finally:
        sys.setprofile(None)
    return recorder.stops


def returns(calls: list[Call]) -> int:
    """Return how often the path goes back to a module that it has left."""
    modules = [file for at, (file, _) in enumerate(calls) if at == 0 or calls[at - 1][0] != file]
    return len(modules) - len(set(modules))


def files(calls: list[Call]) -> int:
    """Return how many files the functions are in."""
    return len({file for file, _ in calls})


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--list", action="store_true", help="list the calls")
    arguments = options.parse_args()
    started_at = time.perf_counter()
    chunk, nesting, request = asyncio.run(measure())
    print(f"chunk: {len(chunk)} calls in {files(chunk)} files, {nesting} coroutines one inside another")
    print(
        f"request: {len(request)} stops in {files(request)} files, "
        f"{returns(request)} returns to a module already left"
    )
    if arguments.list:
        for (file, name), count in Counter(chunk).items():
            print(f"  {count} {file} {name}")
        print("request")
        for file, name in request:
            print(f"    {file} {name}")
    print(f"{time.perf_counter() - started_at:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
