"""A model server that plays recordings, and a hub in front of it, on one loop in their own thread."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from dragoman.config import parse_config
from dragoman.server.app import Hub
from tests.providers.servers import LIMIT, Peer, Received, chunk
from tests.serving import listening
from tests.wire.openai_streams import cut, cuts

SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}
KEY = "sk-upstream-0123456789abcdef"
T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says to a request. `seed` chooses where the body is cut into writes.

    `framing`: `length`, `chunked`, `end` (of the connection); `cut` stops early, `held` never ends.
    """

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = msgspec.field(default_factory=lambda: SSE)
    framing: str = "chunked"
    seed: int | None = None

    @property
    def head(self) -> bytes:
        reply = dict(self.headers)
        if self.framing == "length":
            reply["content-length"] = str(len(self.body))
        elif self.framing == "end":
            reply["connection"] = "close"
        else:
            reply["transfer-encoding"] = "chunked"
        lines = "".join(f"{name}: {value}\r\n" for name, value in reply.items())
        return f"HTTP/1.1 {self.status} Said\r\n{lines}\r\n".encode()

    def pieces(self) -> Iterator[bytes]:
        """The answer as it is written to the socket; a chunk may be cut anywhere, also its size."""
        body = self.body
        if self.framing not in ("length", "end"):
            sizes = random.Random(self.seed)
            places = [sizes.randrange(len(body) + 1) for _ in range(4)] if self.seed is not None else []
            body = b"".join(chunk(part) for part in cut(body, places) if part)
            body += b"0\r\n\r\n" if self.framing == "chunked" else b""
        if self.seed is None:
            yield self.head + body
            return
        whole = self.head + body
        yield from cut(whole, cuts(whole, self.seed))


def document(value: Any, status: int = 200, **headers: str) -> Answer:
    """A JSON value."""
    raw = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Answer(body=raw, status=status, headers={**JSON, **headers}, framing="length")


class Upstream:
    """Plays its answers one after the other, the last one again and again; keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Received] = []
        self.by_model: dict[str, Answer] = {}  # said whenever this model is asked
        self.left = 0  # clients that went during an answer that was held
        self._answers: list[Answer] = []

    def play(self, *answers: Answer) -> None:
        """Say these from now on."""
        self._answers = list(answers)
        self.requests = []

    async def turn(self) -> None:
        """Let the loop take a turn."""
        await asyncio.sleep(0)

    @property
    def body(self) -> dict[str, Any]:
        """The body of the last request."""
        read: dict[str, Any] = msgspec.json.decode(self.requests[-1].body)
        return read

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on a free port of the loopback; the address."""
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(cast("asyncio.Task[None]", asyncio.current_task()))
            try:
                with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                    await self._serve(Peer(0, reader, writer))
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, peer: Peer) -> None:
        while True:
            received = await peer.request()
            self.requests.append(received)
            answer = self._next(received)
            for piece in answer.pieces():
                await peer.send(piece)
                await asyncio.sleep(0)  # the hub runs on this loop: it reads each piece by itself
            if answer.framing == "held":
                await peer.gone()
                self.left += 1
            if answer.framing in ("end", "cut", "held"):
                return

    def _next(self, received: Received) -> Answer:
        if self.by_model:
            return self.by_model[msgspec.json.decode(received.body)["model"]]
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Stage:
    """The upstream and a hub that asks it by four names: `oai`, `ant`, `oll` and `res`."""

    def __init__(
        self, upstream: Upstream, hub: Hub, *, url: str, key: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.upstream = upstream
        self.hub = hub
        self.url = url
        self.key = key
        self._loop = loop

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done on the hub's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT)

    def new_key(self, **rules: Any) -> str:
        """A key of the hub."""
        _, secret = self.do(self.hub.store.keys.create("tester", **rules))
        return secret


def config(url: str) -> dict[str, Any]:
    """The hub's configuration: each family without retries, and `-again` with two."""
    secret = {"api_key_env": "UP_KEY"}
    places: dict[str, dict[str, Any]] = {
        "oai": {"type": "openai", "base_url": f"{url}/v1", "models": ["m"], **secret},
        "ant": {"type": "anthropic", "base_url": url, **secret},
        "oll": {"type": "ollama", "base_url": url},
        "res": {"type": "responses", "base_url": f"{url}/v1", **secret},
    }
    calm = {"cooldown": {"failures": 100_000}}
    once = {name: {**place, "retries": 0, **calm} for name, place in places.items()}
    again = {f"{name}-again": {**place, "retries": 2, **calm} for name, place in places.items()}
    return {
        "providers": {**once, **again},
        "model": "oai/m",
        "aliases": {"short": "oai/m", "falling": ["oai/m", "ant/m"], "gpt-5.5": "oai/m"},
        "prices": {"*": {"input": 1, "output": 2}},
    }


@contextmanager
def staged(data: Path) -> Iterator[Stage]:
    """A stage; all of it ends with the block."""
    loop = asyncio.new_event_loop()
    ready: Future[Stage] = Future()
    over = asyncio.Event()

    async def run() -> None:
        upstream = Upstream()
        async with upstream.listening() as upstream.url:
            parsed = parse_config(config(upstream.url))
            async with Hub.open(parsed, data, environ={"UP_KEY": KEY}) as hub, listening(hub) as url:
                _, key = await hub.store.keys.create("tester")
                ready.set_result(Stage(upstream, hub, url=url, key=key, loop=loop))
                await over.wait()

    def work() -> None:
        try:
            loop.run_until_complete(run())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield ready.result(LIMIT)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(LIMIT)
