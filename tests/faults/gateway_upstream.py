"""Model servers of each family in pieces, a hub in front of them, and clients that may disconnect."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from dragoman.config import parse_config
from dragoman.server.app import Hub
from dragoman.usage_record import UsageRecord
from tests.providers.servers import CHUNKED, Peer, Script, Server, chunk
from tests.providers.servers import serving as upstream_serving
from tests.serving import listening
from tests.stopwatch import Stopwatch
from tests.waiting import poll, until

DEADLINE = 120.0
TEXT = "hello"
END = b"0\r\n\r\n"
OPEN = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"  # the body ends with the connection


def data(**body: Any) -> bytes:
    """A frame without a name."""
    raw: bytes = msgspec.json.encode(body)
    return b"data: " + raw + b"\n\n"


def named(**body: Any) -> bytes:
    """A frame as Anthropic sends it."""
    kind: str = body["type"]
    return b"event: " + kind.encode() + b"\n" + data(**body)


def line(**body: Any) -> bytes:
    """A line as Ollama sends it."""
    raw: bytes = msgspec.json.encode({"model": "m", "created_at": "2026-01-01T00:00:00Z", **body})
    return raw + b"\n"


def openai_chunk(*choices: Mapping[str, Any], **more: Any) -> bytes:
    """A chunk of chat.completions."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return data(**head, choices=list(choices), **more)


def openai_delta(reason: str | None = None, **delta: Any) -> bytes:
    """The same with one choice."""
    return openai_chunk({"index": 0, "delta": delta, "finish_reason": reason})


@dataclass(frozen=True)
class Speech:
    """An answer `hello`, 7 tokens in and 3 out, in pieces, and as one document; and a frame with an error.

    `final` is what ends the document.
    """

    family: str
    opening: bytes
    text: bytes
    finish: bytes
    usage: bytes
    ending: bytes
    document: Mapping[str, Any]
    error: bytes
    final: bytes

    @property
    def stream(self) -> bytes:
        """All of it."""
        return self.opening + self.text + self.finish + self.usage + self.ending

    @property
    def whole(self) -> bytes:
        """The document."""
        return msgspec.json.encode(self.document)


OPENAI = Speech(
    family="openai",
    opening=openai_delta(role="assistant", content=""),
    text=openai_delta(content=TEXT),
    finish=openai_delta("stop"),
    usage=openai_chunk(usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}),
    ending=b"data: [DONE]\n\n",
    document={
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    },
    error=data(error={"message": "it burns", "type": "server_error", "param": None, "code": None}),
    final=b'"finish_reason":"stop"',
)
MESSAGE: Mapping[str, Any] = {
    "id": "msg_up",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 7, "output_tokens": 1},
}
ANTHROPIC = Speech(
    family="anthropic",
    opening=named(type="message_start", message=MESSAGE)
    + named(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
    text=named(type="content_block_delta", index=0, delta={"type": "text_delta", "text": TEXT}),
    finish=named(type="content_block_stop", index=0),
    usage=named(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3}),
    ending=named(type="message_stop"),
    document={
        **MESSAGE,
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 7, "output_tokens": 3},
    },
    error=named(type="error", error={"type": "api_error", "message": "it burns"}),
    final=b'"stop_reason":"end_turn"',
)
DONE = {"done": True, "done_reason": "stop", "prompt_eval_count": 7, "eval_count": 3}
OLLAMA = Speech(
    family="ollama",
    opening=line(message={"role": "assistant", "content": ""}, done=False),
    text=line(message={"role": "assistant", "content": TEXT}, done=False),
    finish=b"",
    usage=b"",
    ending=line(message={"role": "assistant", "content": ""}, **DONE),
    document={"model": "m", "message": {"role": "assistant", "content": TEXT}, **DONE},
    error=msgspec.json.encode({"error": "it burns"}) + b"\n",
    final=b'"done":true',
)
SPEECHES = {speech.family: speech for speech in (OPENAI, ANTHROPIC, OLLAMA)}
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}


@dataclass(frozen=True)
class Way:
    """From a door to a family of servers."""

    door: str
    family: str

    @property
    def path(self) -> str:
        return PATHS[self.door]

    @property
    def speech(self) -> Speech:
        return SPEECHES[self.family]

    @property
    def relayed(self) -> bool:
        return self.door == self.family

    def __str__(self) -> str:
        return f"{self.door}-to-{self.family}"


WAYS = [Way(door, family) for door in PATHS for family in SPEECHES]
MAIN = [Way(door, family) for door in PATHS for family in PATHS]


def ask(*, stream: bool, model: str = "up/m", **more: Any) -> dict[str, Any]:
    """A request that both doors understand."""
    messages = [{"role": "user", "content": "Say hello, please."}]
    return {"model": model, "max_tokens": 50, "messages": messages, "stream": stream, **more}


def begun(body: bytes, *, head: bytes = CHUNKED) -> bytes:
    """An answer whose body goes on."""
    return head + chunk(body)


def complete(body: bytes) -> bytes:
    """A stream that ends as it should."""
    return begun(body) + END


@dataclass
class Client:
    """One raw connection to a hub, that can be left at any moment."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    read: bytes = b""

    @classmethod
    async def ask(
        cls, url: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Client:
        """Send a request."""
        host, _, port = url.removeprefix("http://").partition(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        raw = msgspec.json.encode(body)
        reply = {"host": host, "content-length": str(len(raw)), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in reply.items())
        client.writer.write(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + raw)
        return client

    async def until(self, text: bytes, times: int = 1) -> bytes:
        """All that was read, once this was, so many times."""
        async with asyncio.timeout(DEADLINE):
            while self.read.count(text) < times:
                piece = await self.reader.read(65536)
                assert piece, f"it ended before it said {text!r}: {self.read!r}"
                self.read += piece
        return self.read

    async def rest(self) -> bytes:
        """All that was read, once the server has closed the connection."""
        pieces = [self.read]
        async with asyncio.timeout(DEADLINE):
            while piece := await self.reader.read(65536):
                pieces.append(piece)
        self.writer.close()
        self.read = b"".join(pieces)
        return self.read

    def leave(self) -> Stopwatch:
        """Close it; the time since then."""
        watch = Stopwatch()
        self.writer.close()
        return watch


@dataclass
class House:
    """A hub before a server."""

    hub: Hub
    upstream: Server
    url: str
    http: httpx2.AsyncClient

    async def post(self, way: Way, **request: Any) -> httpx2.Response:
        """Ask, and read the whole answer."""
        return await self.http.post(way.path, json=ask(**request))

    async def rows(self, count: int = 1) -> Sequence[UsageRecord]:
        """The usage rows, once there are so many."""
        return await rows_of(self.hub, count)

    async def row(self) -> UsageRecord:
        """The only usage row."""
        rows = await self.rows()
        assert len(rows) == 1
        return rows[0]


async def rows_of(hub: Hub, count: int = 1) -> Sequence[UsageRecord]:
    """The usage rows of a hub, once there are so many."""

    async def look() -> Sequence[UsageRecord] | None:
        await hub.meter.ledger.flush()
        rows = await hub.store.usage.list()
        return rows if len(rows) >= count else None

    return await poll(look)


@asynccontextmanager
async def opened(
    folder: Path, config: Mapping[str, Any], *, keys: bool = False, environ: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Hub, str]]:
    """A served hub, and where."""
    parsed = parse_config(dict(config))
    async with (
        Hub.open(parsed, folder / "hub", require_keys=keys, environ=environ) as hub,
        listening(hub) as url,
    ):
        yield hub, url


def provider(family: str, url: str, **more: Any) -> dict[str, Any]:
    """The configuration of a provider."""
    return {"type": family, "base_url": f"{url}/v1" if family == "openai" else url, "retries": 0, **more}


@asynccontextmanager
async def house(
    folder: Path,
    family: str,
    script: Script,
    *,
    config: Mapping[str, Any] | None = None,
    others: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> AsyncIterator[House]:
    """A hub whose only provider `up` plays this script; `more` is said of the provider.

    `others` are further providers of the same server, and what is said of each.
    """
    async with upstream_serving(script) as upstream:
        providers = {"up": provider(family, upstream.url, **more)}
        for name, fields in (others or {}).items():
            providers[name] = provider(family, upstream.url, **fields)
        reply = {"providers": providers, **(config or {})}
        async with (
            opened(folder, reply) as (hub, url),
            httpx2.AsyncClient(base_url=url, timeout=DEADLINE, trust_env=False) as http,
        ):
            yield House(hub, upstream, url, http)


@dataclass
class Watch:
    """A script's eye: that it was asked, and that the hub closed each connection."""

    requests: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    closed: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    def then(self, *answer: bytes) -> Script:
        """Answers so much of each request, and looks on."""

        async def script(peer: Peer) -> None:
            await peer.request()
            self.requests.put_nowait(None)
            for piece in answer:
                await peer.send(piece)
            await peer.gone()
            self.closed.put_nowait(None)

        return script

    async def delay(self, left: Stopwatch) -> float:
        """Seconds from the client's leaving to the closed connection."""
        async with asyncio.timeout(DEADLINE):
            await self.closed.get()
        return left.seconds()


async def median(measure: Callable[[], Awaitable[float]], times: int = 3) -> float:
    """The median of so many measurements."""
    return statistics.median([await measure() for _ in range(times)])


def sockets() -> int:
    """How many sockets of TCP this process has open. Those to a database of the tests are of another kind."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in read_connections(name)]
    inodes = {f"socket:[{row[9]}]" for row in rows}
    count = 0
    for place in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(place.readlink()) in inodes
    return count


def read_connections(name: str) -> Sequence[str]:
    """The connections of this machine, as the kernel lists them."""
    table = Path("/proc/self/net", name)
    return table.read_text("ascii").splitlines()[1:] if table.exists() else ()


def tasks() -> Sequence[Any]:
    """What runs in this loop, but the waiting of a hub's own jobs.

    `asyncio.wait_for` makes a task for that, now and then; what waits in it for a request is a task itself.
    """
    found = [task.get_coro() for task in asyncio.all_tasks()]
    return [each for each in found if getattr(each, "__qualname__", "") != "Event.wait"]


@dataclass(frozen=True)
class Baseline:
    """What there was before, so that nothing is left behind."""

    tasks: int
    sockets: int

    @classmethod
    def now(cls) -> Baseline:
        """What there is."""
        return cls(len(tasks()), sockets())

    async def back(self) -> None:
        """Wait until there is not more than this."""
        with suppress(TimeoutError):
            await until(lambda: (now := Baseline.now()).tasks <= self.tasks and now.sockets <= self.sockets)
        now = Baseline.now()
        assert now.tasks <= self.tasks, tasks()
        assert now.sockets <= self.sockets, (now, self)
