"""The yardsticks: bare asyncio servers that do less than any hub can, so every ratio has a bound.

raw        passes bytes between its client and the upstream; knows nothing of what they say
transform  answers POST /api/chat: asks the upstream, turns its chunks into AI SDK frames, runs tool calls; no
           checks, no sessions, no persistence, one frame of text for what one read brought
"""

import argparse
import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

encode = msgspec.json.encode


class Sides(Protocol):
    """Makes the protocol object for one client that has connected."""

    def __call__(self) -> asyncio.Protocol: ...


class RawUpstream(asyncio.Protocol):
    """The upstream's end of a relayed connection."""

    def __init__(self, client: asyncio.Transport) -> None:
        self.client = client

    def data_received(self, data: bytes) -> None:
        self.client.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        self.client.close()


class RawClient(asyncio.Protocol):
    """The client's end of a relayed connection; what it sends before the upstream is there waits."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.upstream: asyncio.Transport | None = None
        self.waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.client = cast(asyncio.Transport, transport)
        self.connecting = asyncio.ensure_future(self.connect())

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        self.upstream, _ = await loop.create_connection(
            lambda: RawUpstream(self.client), self.host, self.port
        )
        self.upstream.writelines(self.waiting)

    def data_received(self, data: bytes) -> None:
        if self.upstream is None:
            self.waiting.append(data)
        else:
            self.upstream.write(data)

    def pause_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.pause_reading()

    def resume_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self.connecting.cancel()
        if self.upstream is not None:
            self.upstream.close()


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str = ""


class ToolCall(msgspec.Struct):
    index: int
    function: Function
    id: str | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[ToolCall] = []


class Choice(msgspec.Struct):
    delta: Delta
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    choices: list[Choice]


class Part(msgspec.Struct):
    text: str = ""


class Message(msgspec.Struct):
    role: str
    parts: list[Part]


class ChatRequest(msgspec.Struct):
    messages: list[Message]


chunk_decoder = msgspec.json.Decoder(Chunk)
request_decoder = msgspec.json.Decoder(ChatRequest)


def frame(**fields: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(fields) + b"\n\n"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
START = frame(type="start", messageId="m1")
START_STEP, FINISH_STEP = frame(type="start-step"), frame(type="finish-step")
TEXT_START, TEXT_END = frame(type="text-start", id="t1"), frame(type="text-end", id="t1")
FINISH = frame(type="finish", finishReason="stop") + b"data: [DONE]\n\n"


class Upstreams:
    """Open connections to the upstream that nobody uses now."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.idle: list[Upstream] = []

    async def take(self) -> "Upstream":
        if self.idle:
            return self.idle.pop()
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(lambda: Upstream(self), self.host, self.port)
        return upstream


class Upstream(asyncio.Protocol):
    """One connection to the upstream; gives a turn everything that one read brought, at once."""

    def __init__(self, pool: Upstreams) -> None:
        self.pool = pool
        self.turn: Turn | None = None
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, turn: "Turn", body: bytes) -> None:
        self.turn, self.complete, self.rest = turn, False, b""
        self.parser = httptools.HttpResponseParser(self)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: up\r\nContent-Type: application/json\r\n"
        self.transport.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def on_message_complete(self) -> None:
        self.complete = True

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        whole, end, rest = (self.rest + b"".join(self.pieces)).rpartition(b"\n\n")
        self.pieces.clear()
        self.rest = rest
        turn = self.turn
        if turn is None:
            return
        if end:
            lines = whole.removesuffix(b"data: [DONE]").removeprefix(b"data: ").replace(b"\ndata: ", b"\n")
            turn.take(chunk_decoder.decode_lines(lines))
        if self.complete:
            self.turn = None
            self.pool.idle.append(self)
            turn.end_step()


class Turn(asyncio.Protocol):
    """A client's connection and the answer that goes out on it."""

    def __init__(self, pool: Upstreams, model: str) -> None:
        self.pool, self.model = pool, model
        self.tasks: set[asyncio.Task[None]] = set()
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.upstream: Upstream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.client = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self.upstream is not None and self.upstream.turn is self:
            self.upstream.turn = None
            self.upstream.transport.close()

    def pause_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.upstream is not None:
            self.upstream.transport.resume_reading()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_message_complete(self) -> None:
        request = request_decoder.decode(b"".join(self.pieces))
        self.pieces.clear()
        self.messages: list[dict[str, Any]] = [
            {"role": message.role, "content": "".join(part.text for part in message.parts)}
            for message in request.messages
        ]
        self.client.write(HEAD)
        self.send(START)
        self.spawn(self.step())

    async def step(self) -> None:
        self.text_open = False
        self.calls: dict[int, ToolCall] = {}
        self.send(START_STEP)
        self.upstream = await self.pool.take()
        request = {"model": self.model, "stream": True, "messages": self.messages}
        self.upstream.ask(self, encode(request))

    def send(self, frames: bytes) -> None:
        if self.client.is_closing():
            return
        self.client.write(b"%x\r\n%b\r\n" % (len(frames), frames))

    def take(self, chunks: list[Chunk]) -> None:
        frames = []
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        if text:
            if not self.text_open:
                frames.append(TEXT_START)
                self.text_open = True
            frames.append(b'data: {"type":"text-delta","id":"t1","delta":%b}\n\n' % encode(text))
        for chunk in chunks:
            for choice in chunk.choices:
                frames.extend(map(self.grow, choice.delta.tool_calls))
        if frames:
            self.send(b"".join(frames))

    def grow(self, piece: ToolCall) -> bytes:
        call = self.calls.get(piece.index)
        if call is None:
            self.calls[piece.index] = piece
            return frame(type="tool-input-start", toolCallId=piece.id, toolName=piece.function.name)
        call.function.arguments += piece.function.arguments
        return frame(type="tool-input-delta", toolCallId=call.id, inputTextDelta=piece.function.arguments)

    def end_step(self) -> None:
        end = (TEXT_END if self.text_open else b"") + FINISH_STEP
        if not self.calls:
            self.send(end + FINISH)
            self.client.write(b"0\r\n\r\n")
            return
        self.send(b"".join([self.run(call) for call in self.calls.values()]) + end)
        self.spawn(self.step())

    def run(self, call: ToolCall) -> bytes:
        request = msgspec.json.decode(call.function.arguments)
        output = [
            {"tool": item["tool"], "output": datetime.now(UTC).isoformat()} for item in request["calls"]
        ]
        function = {"name": call.function.name, "arguments": call.function.arguments}
        self.messages.append(
            {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]}
        )
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": encode(output).decode()})
        available = frame(
            type="tool-input-available", toolCallId=call.id, toolName=call.function.name, input=request
        )
        return available + frame(type="tool-output-available", toolCallId=call.id, output=output)


async def serve(sides: Sides, port: int) -> None:
    """Serve until ended."""
    server = await asyncio.get_running_loop().create_server(sides, "127.0.0.1", port, backlog=2048)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["raw", "transform"])
    parser.add_argument("--upstream", required=True, help="http://HOST:PORT/v1")
    parser.add_argument("--model", default="bench")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    options = parser.parse_args()
    url = urlsplit(options.upstream)
    host, port = url.hostname or "127.0.0.1", url.port or 80
    pool = Upstreams(host, port)
    sides: Sides = (
        (lambda: RawClient(host, port)) if options.kind == "raw" else (lambda: Turn(pool, options.model))
    )
    with suppress(KeyboardInterrupt):
        uvloop.run(serve(sides, options.port))


if __name__ == "__main__":
    main()
