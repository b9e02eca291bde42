"""Faults of a model server, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from tests.faults.gateway_upstream import DEADLINE, END, OPEN, SPEECHES, Speech, begun, complete
from tests.providers.servers import CHUNKED, Peer, ok

RESET: Final = "reset"
HANG: Final = "hang"
Step: TypeAlias = bytes | str
Steps: TypeAlias = Sequence[Step]
Fault: TypeAlias = Callable[[Speech], Steps]

PAGE = b"<!doctype html><html><head><title>Bad Gateway</title></head><body>nginx</body></html>"
BUSY = msgspec.json.encode({"error": {"message": "it burns", "type": "server_error", "code": "fire"}})
KIND = "content-type: text/html"


def failed(status: int, body: bytes, kind: str = "application/json") -> bytes:
    """An answer with another status."""
    head = f"HTTP/1.1 {status} No\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def talk(speech: Speech) -> bytes:
    """The beginning of an answer, with some text."""
    return speech.opening + speech.text


EARLY: Mapping[str, Fault] = {
    "says nothing": lambda _: [HANG],
    "says only a head": lambda _: [CHUNKED, HANG],
    "resets": lambda _: [RESET],
    "closes": lambda _: [],
    "speaks no HTTP": lambda _: [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "stops in its head": lambda _: [b"HTTP/1.1 200 OK\r\ncontent-ty"],
    "sends headers without end": lambda _: [b"HTTP/1.1 200 OK\r\n", b"x-more: and more\r\n" * 10_000],
    "sends a page": lambda _: [ok(PAGE, KIND)],
    "sends a page as a failure": lambda _: [failed(502, PAGE, "text/html")],
    "fails": lambda _: [failed(500, BUSY)],
    "fails with 200": lambda _: [ok(BUSY)],
    "sends nothing": lambda _: [ok(b"")],
    "sends nothing in chunks": lambda _: [CHUNKED + END],
    "compresses in an unknown coding": lambda speech: [ok(speech.stream, "content-encoding: lzma")],
    "sends garbage": lambda _: [complete(b"data: {what?\n\n")],
    "sends half a frame": lambda speech: [complete(talk(speech)[:30])],
    "says less than it promised": lambda speech: [ok(speech.stream)[:-1].replace(speech.stream[:-1], b"")],
    "breaks its chunks": lambda _: [CHUNKED + b"zz\r\n"],
}
LATE: Mapping[str, Fault] = {
    "resets": lambda speech: [begun(talk(speech)), RESET],
    "ends without its end": lambda speech: [complete(talk(speech))],
    "closes an open body": lambda speech: [OPEN + talk(speech)],
    "closes in mid-chunk": lambda speech: [begun(talk(speech)) + b"ff\r\nda"],
    "breaks its chunks": lambda speech: [begun(talk(speech)) + b"zz\r\n"],
    "promises more": lambda speech: [ok(talk(speech) + b"x")[:-1]],
    "says too much": lambda speech: [ok(talk(speech)) + talk(speech)],
    "hangs": lambda speech: [begun(talk(speech)), HANG],
    "sends garbage": lambda speech: [complete(talk(speech) + b"data: {what?\n\n")],
    "sends half a frame": lambda speech: [complete(talk(speech) + speech.text[:20])],
    "sends an error": lambda speech: [complete(talk(speech) + speech.error)],
    "sends an error and goes on": lambda speech: [complete(talk(speech) + speech.error + speech.stream)],
    "sends an error and hangs": lambda speech: [begun(talk(speech) + speech.error), HANG],
}


DOCUMENTS: Mapping[str, Fault] = {
    **{name: fault for name, fault in EARLY.items() if name != "sends half a frame"},
    "compresses in an unknown coding": lambda speech: [ok(speech.whole, "content-encoding: lzma")],
    "sends half a document": lambda speech: [ok(speech.whole[:60])],
    "promises more": lambda speech: [ok(speech.whole + b" ")[:-1]],
    "resets in mid-document": lambda speech: [begun(speech.whole[:60]), RESET],
    "hangs in mid-document": lambda speech: [begun(speech.whole[:60]), HANG],
    "sends JSON that is not an answer": lambda _: [ok(b'{"hello": "world"}')],
    "sends JSON that is not an object": lambda _: [ok(b"[]")],
}
UNFINISHED: Mapping[str, Fault] = {  # an answer of OpenAI's family is complete without its finish
    "sends a document without its finish": lambda speech: [
        ok(speech.whole.replace(speech.final, b'"never": null'))
    ],
}


async def play(peer: Peer, steps: Steps) -> None:
    """Do what the steps say, and close the connection behind them."""
    for step in steps:
        if step is HANG:
            async with asyncio.timeout(DEADLINE):
                await peer.gone()
        elif step is RESET:
            peer.writer.transport.abort()
        elif isinstance(step, bytes):
            await peer.send(step)


class Faulty:
    """A script: whoever asks for a model gets the fault of this name; the family is told by the address."""

    def __init__(self, faults: Mapping[str, Fault]) -> None:
        self._faults = faults
        self.requests: dict[str, int] = {}

    async def script(self, peer: Peer) -> None:
        """See `tests.providers.servers.serving`. One request a connection, which is closed behind it."""
        received = await peer.request()
        body: dict[str, Any] = msgspec.json.decode(received.body)
        name = body["model"]
        self.requests[name] = self.requests.get(name, 0) + 1
        await play(peer, self._faults[name](speech_at(received.line)))


def speech_at(line: str) -> Speech:
    """What is spoken at this address."""
    places = {
        "/chat/completions": "openai",
        "/embeddings": "openai",
        "/v1/messages": "anthropic",
        "/api/chat": "ollama",
    }
    return SPEECHES[next(family for place, family in places.items() if place in line)]
