"""A model server that gives its answers in turn, as OpenAI, Anthropic or Ollama would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from dragoman import Model, OpenAIProvider
from tests.providers.servers import Peer, Received, serving

SSE, LINES, JSON = "text/event-stream", "application/x-ndjson", "application/json"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is said to one request. Each piece is a write of its own.

    Before the piece at `gate_at`, the last one, it waits for `gate`, if there is one; with `endless` it never
    ends.
    """

    pieces: Sequence[bytes]
    kind: str = SSE
    status: int = 200
    headers: Mapping[str, str] = {}
    gate: asyncio.Event | None = None
    gate_at: int = -1
    endless: bool = False

    def head(self) -> bytes:
        headers = {"content-type": self.kind, "transfer-encoding": "chunked", **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} Said\r\n{lines}\r\n".encode()


class Upstream:
    """Keeps what it was asked. `gone` counts the clients that left in the middle of an answer."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.url = ""
        self.received: list[Received] = []
        self.gone = 0
        self.left = asyncio.Event()
        self._answers = list(answers)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of all requests."""
        return [msgspec.json.decode(each.body) for each in self.received]

    async def __call__(self, peer: Peer) -> None:
        """One connection: any number of requests. The last answer is said again and again."""
        while True:
            self.received.append(await peer.request())
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            await peer.send(answer.head())
            for at, piece in enumerate(answer.pieces):
                if answer.gate is not None and at == range(len(answer.pieces))[answer.gate_at]:
                    await answer.gate.wait()
                await peer.send(chunk(piece))
                await asyncio.sleep(0)  # whoever reads may see it by itself
            if answer.endless:
                await peer.gone()
                self.gone += 1
                self.left.set()
                return
            await peer.send(b"0\r\n\r\n")


@asynccontextmanager
async def upstream(*answers: Answer) -> AsyncIterator[Upstream]:
    """The server, on a free port."""
    script = Upstream(answers)
    async with serving(script) as server:
        script.url = server.url
        yield script


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def openai_model(*answers: Answer, name: str = "any") -> AsyncIterator[tuple[Upstream, Model]]:
    """The server, and a model of OpenAI's language there."""
    async with (
        upstream(*answers) as server,
        OpenAIProvider(base_url=f"{server.url}/v1", api_key="sk-0123456789") as provider,
    ):
        yield server, provider.model(name)


# ---- the three languages --------------------------------------------------------------------------------


def openai(*deltas: Mapping[str, Any], finish: str = "stop", usage: Any = None, **more: Any) -> Answer:
    """Chunks of chat.completions: one for each delta, one with the reason, one with the usage."""
    shape = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [{**shape, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({**shape, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage is not None:
        chunks.append({**shape, "choices": [], "usage": usage})
    return Answer(pieces=[*(event(each) for each in chunks), b"data: [DONE]\n\n"], **more)


def openai_call(name: str, *arguments: str, id: str = "call_1", index: int = 0) -> list[dict[str, Any]]:
    """The deltas of a tool call: its head, then its arguments as they were cut."""
    head = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": index, "function": {"arguments": piece}} for piece in arguments]
    return [{"tool_calls": [each]} for each in (head, *rest)]


def text(*pieces: str, **more: Any) -> Answer:
    """An answer of text in OpenAI's chunks."""
    return openai(*({"content": piece} for piece in pieces), **more)


def call(name: str, arguments: Mapping[str, Any], *, id: str = "call_1", **more: Any) -> Answer:
    """An answer of one tool call in OpenAI's chunks."""
    written = msgspec.json.encode(arguments).decode()
    return openai(*openai_call(name, written, id=id), finish="tool_calls", **more)


def anthropic(*blocks: tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]], **usage: int) -> Answer:
    """A message of Anthropic's: blocks, each with its deltas."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "usage": {"output_tokens": 1, **usage}}}
    ]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    output_usage = {"output_tokens": usage.get("output_tokens", 1)}
    events += [{"type": "message_delta", "delta": ending, "usage": output_usage}, {"type": "message_stop"}]
    return Answer(pieces=[event(each, name=each["type"]) for each in events])


def claude(words: str, **usage: int) -> Answer:
    """A text of Anthropic's."""
    return anthropic(({"type": "text", "text": ""}, [{"type": "text_delta", "text": words}]), **usage)


def ollama(*messages: Mapping[str, Any], **more: Any) -> Answer:
    """Lines of Ollama's /api/chat; the last message goes on the line that says `done`."""
    last = len(messages) - 1
    ending = {"done": True, "done_reason": "stop", "prompt_eval_count": 7, "eval_count": 3}
    lines = [
        {
            "model": "m",
            "created_at": "2026-01-01T00:00:00Z",
            "message": {"role": "assistant", "content": "", **message},
            **(ending if at == last else {"done": False}),
        }
        for at, message in enumerate(messages)
    ]
    return Answer(pieces=[msgspec.json.encode(each) + b"\n" for each in lines], kind=LINES, **more)


def refusal(status: int, body: Mapping[str, Any], **headers: str) -> Answer:
    """An error, as a document."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(pieces=[msgspec.json.encode(body)], kind=JSON, status=status, headers=named)


def event(value: Mapping[str, Any], *, name: str | None = None) -> bytes:
    line = b"event: " + name.encode() + b"\n" if name else b""
    return line + b"data: " + msgspec.json.encode(value) + b"\n\n"
