"""A hub in front of scripted model servers, with keys, limits and prices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import msgspec

from dragoman.config import Config, parse_config
from dragoman.server.app import Hub
from dragoman.usage_record import UsageRecord
from tests.providers.servers import CHUNKED, Peer, Received, chunk, ok, serving
from tests.serving import frames_in, listening
from tests.waiting import LIMIT
from tests.wire import anthropic_streams, openai_streams

SSE_HEAD = CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-type: text/event-stream\r\n\r\n")
END = b"0\r\n\r\n"
PRICE = {"input": 1.0, "output": 2.0}  # dollars a million: 1000 and 2000 nano-dollars a token
HI = [{"role": "user", "content": "hi"}]

Reply: TypeAlias = bytes | Callable[[Peer, Received], Awaitable[None]]


class Site:
    """A model server: each request gets the next reply, and when there is only one left, that one.

    `config` is what the hub's configuration says of it beside type, address and no retries.
    """

    def __init__(self, *replies: Reply, type: str = "openai", **config: Any) -> None:
        self.requests: list[Received] = []
        self.url = ""
        self.connections = 0
        self.type = type
        self._replies = list(replies)
        self._config = config

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What was asked."""
        return [msgspec.json.decode(received.body) for received in self.requests]

    @property
    def secrets(self) -> list[str]:
        """The keys that were used."""
        return [
            received["x-api-key"] or received["authorization"].removeprefix("Bearer ")
            for received in self.requests
        ]

    def replies(self, *replies: Reply) -> None:
        """Reply with these from now on."""
        self._replies = list(replies)

    @property
    def provider(self) -> dict[str, Any]:
        """Its part of the configuration."""
        base = f"{self.url}/v1" if self.type == "openai" else self.url
        return {"type": self.type, "base_url": base, "retries": 0, **self._config}

    async def script(self, peer: Peer) -> None:
        """See `tests.providers.servers.serving`."""
        while True:
            received = await peer.request()
            self.requests.append(received)
            reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
            if isinstance(reply, bytes):
                await peer.send(reply)
            else:
                await reply(peer, received)


class Desk:
    """A hub that is being served, and a client of it."""

    def __init__(self, hub: Hub, http: httpx2.AsyncClient, sites: Mapping[str, Site]) -> None:
        self.hub = hub
        self.http = http
        self.sites = sites

    async def key(self, owner: str = "ada", **rules: Any) -> dict[str, str]:
        """The headers of a new key."""
        _, secret = await self.hub.store.keys.create(owner, **rules)
        return {"authorization": f"Bearer {secret}"}

    async def chat(
        self, model: str = "up/m", key: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx2.Response:
        """Ask at OpenAI's door."""
        body = {"model": model, "messages": HI, **fields}
        return await self.http.post("/v1/chat/completions", json=body, headers=key or {})

    async def message(
        self, model: str = "up/m", key: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx2.Response:
        """Ask at Anthropic's door."""
        body = {"model": model, "messages": HI, "max_tokens": 100, **fields}
        return await self.http.post("/v1/messages", json=body, headers=key or {})

    async def run(
        self, text: str, key: Mapping[str, str] | None = None, *, session: str = "s", **fields: Any
    ) -> list[dict[str, Any]]:
        """Ask an agent; all frames of its answer."""
        message = {"id": f"u-{text}", "role": "user", "parts": [{"type": "text", "text": text}]}
        body = {"id": session, "messages": [message], "trigger": "submit-message", **fields}
        response = await self.http.post("/api/chat", json=body, headers=key or {})
        assert response.status_code == 200, response.text
        return frames_in(response.text)

    async def rush(self, count: int, key: Mapping[str, str], **fields: Any) -> list[int]:
        """So many requests at once, each over a connection of its own; the statuses of the answers."""
        body = msgspec.json.encode({"model": "up/m", "messages": HI, **fields})
        text = "".join(f"{name}: {value}\r\n" for name, value in key.items())
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: hub\r\n{text}content-length: {len(body)}\r\n"
        request = head.encode() + b"connection: close\r\n\r\n" + body
        url = self.http.base_url

        async def ask() -> int:
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(request)
            answer = await reader.read()
            writer.close()
            return int(answer.split(b" ", 2)[1])

        return await asyncio.gather(*(ask() for _ in range(count)))

    async def rows(self, count: int | None = None) -> list[UsageRecord]:
        """All that was written down, the oldest first; so many."""
        await self.hub.meter.ledger.flush()
        found = list(await self.hub.store.usage.list())
        assert count is None or len(found) == count, found
        return found

    async def row(self) -> UsageRecord:
        """The only one that was written down."""
        return (await self.rows(1))[0]


def configured(sites: Mapping[str, Site], **config: Any) -> Config:
    """The configuration of a hub before these servers."""
    providers = {name: site.provider for name, site in sites.items()}
    return parse_config({"providers": providers, "prices": {"*": PRICE}, **config})


@asynccontextmanager
async def placed(*sites: Site) -> AsyncIterator[None]:
    """The servers, on ports of their own."""
    async with AsyncExitStack() as stack:
        for site in sites:
            server = await stack.enter_async_context(serving(site.script))
            site.url = server.url
        yield


@asynccontextmanager
async def desk(
    data: Path, *, keys: bool = False, environ: Mapping[str, str] | None = None, **rest: Any
) -> AsyncIterator[Desk]:
    """A hub before the sites that are among the rest, which is the configuration."""
    sites = {name: value for name, value in rest.items() if isinstance(value, Site)}
    config = {name: value for name, value in rest.items() if name not in sites}
    async with (
        placed(*sites.values()),
        served(data, configured(sites, **config), keys=keys, environ=environ) as hub,
    ):
        yield Desk(hub.hub, hub.http, sites)


@asynccontextmanager
async def served(
    data: Path, config: Config, *, keys: bool = False, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Desk]:
    """A hub with this configuration."""
    async with (
        Hub.open(config, data, require_keys=keys, environ=environ or {}) as hub,
        listening(hub) as url,
        httpx2.AsyncClient(
            base_url=url,
            timeout=LIMIT,
            trust_env=False,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        ) as http,
    ):
        yield Desk(hub, http, {})


# ---- what servers say ------------------------------------------------------------------------------------


def usage(tokens_in: int, tokens_out: int) -> dict[str, Any]:
    """OpenAI's usage."""
    return {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }


def completion(text: str = "ok", counts: Any = None, **more: Any) -> bytes:
    """A chat.completion as a document; 10 tokens in and 5 out unless something else is said."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1,
        "model": "served-1",
        "choices": [choice],
        "usage": counts or usage(10, 5),
        **more,
    }
    return ok(msgspec.json.encode(body), "content-type: application/json")


def chunked(raw: bytes, *, over: bool = True) -> bytes:
    """A stream, or the beginning of one."""
    return SSE_HEAD + chunk(raw) + (END if over else b"")


def tokens(*pieces: str, counts: Any = None, over: bool = True) -> bytes:
    """A chat.completions stream with these pieces; without its end when it is not over."""
    replies: list[Any] = [openai_streams.chunk({"role": "assistant", "content": ""})]
    replies += [openai_streams.chunk({"content": piece}) for piece in pieces]
    if over:
        replies.append(openai_streams.chunk(finish="stop"))
        replies += [{"model": "m-1", "choices": [], "usage": counts}] if counts else []
    return chunked(openai_streams.sse(*replies, done=over), over=over)


def message(text: str = "ok", **counts: int) -> bytes:
    """A Message as a document."""
    body = {
        **anthropic_streams.start([{"type": "text", "text": text}], "end_turn", **counts)["message"],
        "type": "message",
    }
    return ok(msgspec.json.encode(body), "content-type: application/json")


def refusal(status: int, text: str = "no", *headers: str) -> bytes:
    """An error in OpenAI's words."""
    body = msgspec.json.encode({"error": {"message": text, "type": "some_error", "code": None}})
    return ok(body, "content-type: application/json", *headers).replace(b"200 OK", b"%d No" % status, 1)


async def silent(peer: Peer, _: Received) -> None:
    """Says nothing until the hub has gone."""
    await peer.gone()


def holding(start: bytes) -> Callable[[Peer, Received], Awaitable[None]]:
    """Says this, and no more until the hub has gone."""

    async def reply(peer: Peer, _: Received) -> None:
        await peer.send(start)
        await peer.gone()

    return reply
