"""Counts what a stored chat turn with one tool call costs: Python calls, SQL statements, or CPU time.

A hub with sessions, journal and usage records in SQLite runs in this process; its client and its model
server are a few lines beside it. The figures contain them, so only a comparison with another version means
something.

examples
  python benchmarks/chat_turn.py                      calls and statements a turn, one turn after the other
  python benchmarks/chat_turn.py --list               by function and by statement
  python benchmarks/chat_turn.py --cpu --turns 2000   with 32 clients at once
  PYTHONHASHSEED=0 valgrind --tool=cachegrind --cache-sim=no \\
      python benchmarks/chat_turn.py --cpu --turns 320
                                        instructions; less those with --turns 64, divided by 256
"""

import argparse
import asyncio
import gc
import json
import socket
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

import dragoman
from dragoman.cli.serving.lifecycle import GC_THRESHOLDS, host_hub
from dragoman.config import parse_config
from dragoman.store.sqlite import SQLiteConnection

PACKAGE = str(Path(dragoman.__file__).parent) + "/"
CONNECTIONS = 32
WARM_UP = 3  # turns on each connection that are not counted: imports, statements, connections
REST = 1.2  # seconds for what is written after the last turns
WORDS = 20
CALLS = json.dumps({"calls": [{"tool": "time.now", "input": {}}]})
USAGE = {"prompt_tokens": 12, "completion_tokens": 40, "total_tokens": 52}
END = b"data: [DONE]\n\n"


def frame(body: dict[str, Any]) -> bytes:
    """Return one event of a model's stream, as a piece of a chunked body."""
    whole = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **body}
    data = b"data: " + json.dumps(whole).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    return frame({"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]})


def stream(*frames: bytes) -> bytes:
    """Return the whole answer of a model server."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    usage = frame({"choices": [], "usage": USAGE})
    return head + b"".join(frames) + usage + b"%x\r\n%b\r\n0\r\n\r\n" % (len(END), END)


def tool_answer(call_id: str) -> bytes:
    function = {"name": "hub_call", "arguments": ""}
    begin = {"index": 0, "id": call_id, "type": "function", "function": function}
    pieces = [CALLS[: len(CALLS) // 2], CALLS[len(CALLS) // 2 :]]
    return stream(
        delta(role="assistant", content=None, tool_calls=[begin]),
        *(delta(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in pieces),
        delta("tool_calls"),
    )


TEXT_ANSWER = stream(
    delta(role="assistant", content=""), *(delta(content=f" word{at}") for at in range(WORDS)), delta("stop")
)


class ModelServer(asyncio.Protocol):
    """Asks for one tool call, and answers with words once it has the result."""

    call_ids = count()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, mark, body = self.received.partition(b"\r\n\r\n")
        if mark and len(body) >= int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            has_result = b'"role":"tool"' in body
            self.received = b""
            self.transport.write(TEXT_ANSWER if has_result else tool_answer(f"call_{next(self.call_ids)}"))


class Client(asyncio.Protocol):
    """Sends one turn after the other, each in a session of its own."""

    ids = count()

    def __init__(self) -> None:
        self.received = bytearray()
        self.left = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    async def send(self, turns: int) -> None:
        """Send turns and wait for their answers. SystemExit when one lacks a word or the tool's result."""
        self.left, self.done = turns, asyncio.get_running_loop().create_future()
        self.ask()
        await self.done

    def ask(self) -> None:
        number = next(self.ids)
        message = {"id": f"m-{number}", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
        turn = {"id": f"s-{number}", "trigger": "submit-message", "messages": [message]}
        body = json.dumps(turn).encode()
        head = b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the hub closed the connection"))

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.received.endswith(b"\r\n0\r\n\r\n"):
            return
        answer, self.received = self.received, bytearray()
        if b"tool-output-available" not in answer or f"word{WORDS - 1}".encode() not in answer:
            self.done.set_exception(SystemExit(f"the hub gave another answer: {bytes(answer)!r}"))
            return
        self.left -= 1
        if self.left:
            self.ask()
        else:
            self.done.set_result(None)


class CallCounter:
    """A profiler hook that counts Python calls; a coroutine that is resumed counts as a call."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.statements: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename != __file__:
            self.calls[code.co_filename.removeprefix(PACKAGE), code.co_qualname] += 1

    def of_package(self) -> int:
        """Return the calls of functions of the package."""
        return sum(calls for (file, _), calls in self.calls.items() if not file.startswith(("/", "<")))

    def note_statements(self) -> None:
        """Count the statements that SQLite runs, and the transactions around them, from now on."""
        trace = self.statements

        def counted(name: str) -> Any:
            run = getattr(SQLiteConnection, name)

            def wrapper(connection: SQLiteConnection, *values: Any, **options: Any) -> Any:
                rows = list(values[1]) if name == "execute_many" else [None]
                trace[f"{name}: {' '.join(values[0].split()) if values else ''}"] += len(rows)
                if name == "execute_many":
                    values = (values[0], rows)
                return run(connection, *values, **options)

            return wrapper

        for name in ("execute", "execute_batched", "execute_positional", "execute_many"):
            setattr(SQLiteConnection, name, counted(name))
        for name in ("fetch_one", "fetch_all", "begin", "commit"):
            setattr(SQLiteConnection, name, counted(name))


async def measure(turns: int, counter: CallCounter | None) -> float:
    """Take turns; return the CPU seconds of this process. With a counter they are taken one by one."""
    connections = CONNECTIONS if counter is None else 1
    loop = asyncio.get_running_loop()
    upstream = await loop.create_server(ModelServer, "127.0.0.1", 0)
    provider = {"type": "openai", "base_url": f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}/v1"}
    config = parse_config({"providers": {"up": provider}, "model": "up/m"})
    listener = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
    with tempfile.TemporaryDirectory() as folder:
        async with host_hub(config, Path(folder), listener=listener, require_keys=False):
            address = listener.getsockname()
            clients = [(await loop.create_connection(Client, *address))[1] for _ in range(connections)]
            await asyncio.gather(*(client.send(WARM_UP) for client in clients))
            await asyncio.sleep(REST)
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)  # as `dragoman serve` does
            started_at = time.process_time()
            if counter is not None:
                counter.note_statements()
                sys.setprofile(counter)
            await asyncio.gather(*(client.send(turns // connections) for client in clients))
            sys.setprofile(None)
            await asyncio.sleep(REST)
            seconds = time.process_time() - started_at
            for client in clients:
                client.transport.close()
            await asyncio.sleep(0)
    upstream.close()
    return seconds


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--turns", type=int, default=100)
    options.add_argument("--list", action="store_true", help="list the calls by function, and the statements")
    options.add_argument("--cpu", action="store_true", help="measure CPU time instead of calls")
    arguments = options.parse_args()
    counter = None if arguments.cpu else CallCounter()
    seconds = uvloop.run(measure(arguments.turns, counter))
    if counter is None:
        print(f"{seconds / arguments.turns * 1e6:.0f} µs of CPU a turn")
        return
    calls, statements = sum(counter.calls.values()), sum(counter.statements.values())
    print(
        f"{calls / arguments.turns:.0f} calls of Python functions a turn, "
        f"{counter.of_package() / arguments.turns:.0f} of them of the package; "
        f"{statements / arguments.turns:.1f} statements"
    )
    if arguments.list:
        for (file, name), calls in counter.calls.most_common():
            print(f"  {calls / arguments.turns:7.2f} {file} {name}")
        for statement, times in counter.statements.most_common():
            print(f"  {times / arguments.turns:7.2f} {statement}")


if __name__ == "__main__":
    main()
