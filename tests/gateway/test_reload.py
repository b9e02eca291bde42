"""A configuration reload: open requests keep the old one, new requests use the new one."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.config import parse_config
from dragoman.errors import ConfigError
from dragoman.server.app import Hub
from dragoman.usage_limits import Limits
from tests.providers.servers import Peer, Server, serving
from tests.serving import listening
from tests.waiting import until

from .metered_hub import (
    HI,
    PRICE,
    SSE_HEAD,
    Desk,
    Site,
    chunked,
    completion,
    configured,
    holding,
    placed,
    served,
    tokens,
    usage,
)


class Paced:
    """A model server that begins a stream, and ends it when it may."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.requests = 0

    async def script(self, peer: Peer) -> None:
        await peer.request()
        self.requests += 1
        whole = tokens("hel", "lo", counts=usage(10, 5))
        await peer.send(tokens("hel", over=False))
        await self.may_end.wait()
        rest = whole.removeprefix(SSE_HEAD).split(b"\r\n", 1)[1]
        rest = rest[rest.rindex(b"data: ", 0, rest.index(b'{"content":"lo"}')) :]
        frames = rest[: rest.rindex(b"\r\n0\r\n\r\n")]
        await peer.send(chunked(frames).removeprefix(SSE_HEAD))
        await peer.gone()


def config(url: str, **more: Any) -> Any:
    provider = {"type": "openai", "base_url": f"{url}/v1", "retries": 0}
    return parse_config({"providers": {"up": provider}, "prices": {"*": PRICE}, **more})


def stream(at: Desk) -> Any:
    body = {"model": "up/m", "messages": HI, "stream": True}
    return at.http.stream("POST", "/v1/chat/completions", json=body)


async def first(answer: httpx2.Response) -> str:
    pieces = answer.aiter_text()
    return await anext(pieces)


async def test_a_stream_ends_on_the_old_provider_and_new_requests_go_to_the_new_one(tmp_path: Path) -> None:
    old, new = Paced(), Site(completion("new"))
    async with serving(old.script) as server, placed(new), served(tmp_path, config(server.url)) as at:
        async with stream(at) as answer:
            pieces = answer.aiter_text()
            report = await anext(pieces)
            await at.hub.reload(config(new.url))
            fresh = await at.chat()
            assert fresh.json()["choices"][0]["message"]["content"] == "new"
            assert (old.requests, server.closed) == (1, 0)  # its connection stays open
            old.may_end.set()
            report += "".join([piece async for piece in pieces])
        assert report.endswith(": x-dragoman-cost 0.00002\n\n")
        assert "data: [DONE]" in report
        await server.wait_closed(1)  # and is closed when the stream is over
        assert [row.status for row in await at.rows(2)] == ["finished", "finished"]


async def test_idle_connections_of_the_old_providers_are_closed_at_once(tmp_path: Path) -> None:
    old = Site(completion())
    async with serving(old.script) as server, placed(old), served(tmp_path, config(server.url)) as at:
        assert (await at.chat()).status_code == 200
        assert server.closed == 0
        await at.hub.reload(config(old.url))
        await server.wait_closed(1)


async def test_what_a_hub_that_closes_has_left_of_an_old_configuration_is_closed_too(tmp_path: Path) -> None:
    old = Site(holding(b""))
    async with serving(old.script) as server, AsyncExitStack() as stack:
        hub = await stack.enter_async_context(Hub.open(config(server.url), tmp_path, require_keys=False))
        url = await stack.enter_async_context(listening(hub))
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60))
        reading = asyncio.ensure_future(
            http.post("/v1/chat/completions", json={"model": "up/m", "messages": HI})
        )
        await until(lambda: len(old.requests) == 1)
        await hub.reload(config(server.url))
        await hub.close()
        await server.wait_closed(1)
        await asyncio.gather(reading, return_exceptions=True)


async def test_limits_prices_aliases_and_fallbacks_change_and_what_was_counted_counts(tmp_path: Path) -> None:
    up = Site(completion(counts=usage(1000, 0)))
    async with placed(up), served(tmp_path, configured({"up": up}), keys=True) as at:
        key = await at.key(limits=Limits(requests_per_minute=4))
        assert (await at.chat("fast", key)).status_code == 404
        assert (await at.chat("up/m", key)).status_code == 200
        await at.hub.reload(
            configured(
                {"up": up},
                aliases={"fast": "up/m"},
                prices={"*": {"input": 7, "output": 0}},
                limits={"owners": {"ada": {"usd_total": 0.02}}},
            )
        )
        assert [(await at.chat("fast", key)).status_code for _ in range(3)] == [200, 200, 429]
        assert [row.cost for row in await at.rows()] == [0.001, 0.007, 0.007]
        other = await at.key()
        refused = await at.chat("fast", other)
        assert refused.status_code == 200
        assert "has spent $0.022" in (await at.chat("fast", other)).json()["error"]["message"]


async def test_agents_go_by_the_new_configuration(tmp_path: Path) -> None:
    one, two = Site(tokens("one")), Site(tokens("two"))
    async with placed(one, two), served(tmp_path, configured({"one": one}, model="one/m")) as at:
        await at.run("hi")
        await at.hub.reload(configured({"two": two}, model="two/m"))
        frames = await at.run("again", session="t")
        assert "".join(frame.get("delta", "") for frame in frames) == "two"
        assert [row.provider for row in await at.rows(2)] == ["one", "two"]


def broken(url: str, folder: Path) -> dict[str, Any]:
    """Configurations whose fields are right and that cannot be."""
    provider = {"type": "openai", "base_url": f"{url}/v1"}
    return {
        "a key file that is not there": {
            "providers": {"up": {**provider, "api_key_file": str(folder / "none")}}
        },
        "an operation that is not there": {"providers": {"up": provider}, "pinned": ["no.such"]},
        "a script that is not there": {
            "providers": {"up": {"type": "scripted", "script": str(folder / "none")}}
        },
    }


async def test_a_configuration_that_cannot_be_changes_nothing(tmp_path: Path) -> None:
    up = Site(completion())
    async with placed(up), served(tmp_path, configured({"up": up}, aliases={"fast": "up/m"})) as at:
        assert (await at.chat("fast")).status_code == 200
        before = (
            at.hub.gateway.catalog,
            at.hub.runs.agents,
            at.hub.runs.factory.billing,
            at.hub.meter.limits,
            at.hub.meter.prices,
        )
        for case, wrong in broken(up.url, tmp_path).items():
            with pytest.raises(ConfigError):
                await at.hub.reload(parse_config(wrong))
            assert (await at.chat("fast")).status_code == 200, case
        after = (
            at.hub.gateway.catalog,
            at.hub.runs.agents,
            at.hub.runs.factory.billing,
            at.hub.meter.limits,
            at.hub.meter.prices,
        )
        assert all(one is other for one, other in zip(before, after, strict=True))
        assert len({received["host"] for received in up.requests}) == 1


async def test_many_reloads_leave_nothing_open(tmp_path: Path) -> None:
    up = Site(completion())
    seen: list[Server] = []
    async with serving(up.script) as server, served(tmp_path, config(server.url)) as at:
        seen.append(server)
        for number in range(1, 11):
            assert (await at.chat()).status_code == 200
            await at.hub.reload(config(server.url))
            await server.wait_closed(number)
        assert server.connections == 10
        await until(lambda: not at.hub._tasks)
