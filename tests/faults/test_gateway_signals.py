"""SIGTERM drains and SIGHUP reloads while streams are open."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.faults.gateway_faults import speech_at, talk
from tests.faults.gateway_process import Process, started, started_in
from tests.faults.gateway_upstream import END, MAIN, TEXT, Client, Way, ask, begun, provider
from tests.providers.servers import Peer, chunk, serving
from tests.waiting import until

DRAIN = 3.0  # seconds: long enough for the stream that ends, however busy the machine is


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Upstream:
    """Begins to answer; the models `soon` end when they are told to, `never` and `silent` do not."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.requests: dict[str, int] = {}
        self.keys: list[str] = []

    async def script(self, peer: Peer) -> None:
        """See `Script`."""
        received = await peer.request()
        name = msgspec.json.decode(received.body)["model"]
        self.keys.append((received["authorization"] or received["x-api-key"]).removeprefix("Bearer "))
        speech = speech_at(received.line)
        if name != "silent":
            await peer.send(begun(talk(speech)))
        self.requests[name] = self.requests.get(name, 0) + 1
        if name == "soon":
            await self.end.wait()
            await peer.send(chunk(speech.finish + speech.usage + speech.ending) + END)
        await peer.gone()


async def rows(folder: Path) -> Mapping[str | None, UsageRecord]:
    """The usage rows of a hub that has ended, by model."""
    async with await Store.open(folder / "data") as store:
        return {row.model_asked: row for row in await store.usage.list()}


@pytest.mark.parametrize("way", MAIN, ids=str)
async def test_sigterm_lets_streams_end_tells_those_that_do_not_and_takes_nothing_new(
    tmp_path: Path, way: Way
) -> None:
    up = Upstream()
    async with serving(up.script) as server:
        config = {"providers": {"up": provider(way.family, server.url)}, "limits": {"drain": DRAIN}}
        async with started(tmp_path, config) as hub:
            soon, never, silent = [
                await Client.ask(hub.url, way.path, ask(stream=True, model=f"up/{name}"))
                for name in ("soon", "never", "silent")
            ]
            client = await Client.ask(hub.url, "/v1/nothing", {})
            await client.until(b"nothing at")
            await soon.until(TEXT.encode())
            await never.until(TEXT.encode())
            await until(lambda: "silent" in up.requests)
            hub.process.send_signal(signal.SIGTERM)
            await hub.until_refused()
            up.end.set()
            again = await later(client, way)
            assert again.startswith(b"HTTP/1.1 503") or again == b""
            check_ends(way, await soon.rest(), await never.rest(), silent=await silent.rest())
            assert await hub.process.wait() == 0
    found = await rows(tmp_path)
    assert {name: row.status for name, row in found.items()} == {
        "up/soon": "finished",
        "up/never": "aborted",
        "up/silent": "aborted",
    }
    assert found["up/soon"].tokens.output_tokens == 3
    assert (found["up/never"].tokens.estimated, found["up/never"].tokens.output_tokens) == (True, 2)


async def later(client: Client, way: Way) -> bytes:
    """What a request on an open connection gets while the hub drains: a refusal, or nothing any more."""
    client.read = b""
    raw = msgspec.json.encode(ask(stream=True, model="up/late"))
    head = f"POST {way.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
    client.writer.write(head + raw)
    return await client.rest()


def check_ends(way: Way, soon: bytes, never: bytes, *, silent: bytes) -> None:
    """Each has ended as it should, with a body that is complete."""
    end = b"data: [DONE]" if way.door == "openai" else b"event: message_stop"
    assert end in soon
    assert soon.endswith(END)
    assert end not in never
    assert never.endswith(END)
    error = rb'data: \{"error":\{' if way.door == "openai" else rb'event: error\ndata: \{"type":"error",'
    assert re.search(error + rb".*the hub is shutting down", never), never
    assert silent.startswith(b"HTTP/1.1 503")
    assert b"the hub is shutting down" in silent


@pytest.mark.promise("a-reload-drops-no-stream")
async def test_sighup_takes_a_new_configuration_and_drops_no_stream(tmp_path: Path) -> None:
    way, up, key = Way("openai", "openai"), Upstream(), tmp_path / "key"
    key.write_text("first-key")
    async with serving(up.script) as server:
        place = provider("openai", server.url, api_key_file=str(key))
        config: dict[str, Any] = {"providers": {"up": place}, "aliases": {"old": "up/never"}}
        async with started(tmp_path, config) as hub:
            running = await Client.ask(hub.url, way.path, ask(stream=True, model="up/soon"))
            await running.until(TEXT.encode())
            key.write_text("second-key")
            await reload(hub, tmp_path, {**config, "aliases": {"new": "up/never"}}, "was reloaded")
            assert await models(hub) == ["new"]
            (tmp_path / "dragoman.yaml").write_text('{"providers": {"up": {"type": "nonsense"}}}')
            await reload(hub, tmp_path, None, "was not reloaded")
            assert "providers.up.type" in hub.log
            assert await models(hub) == ["new"]
            other = await Client.ask(hub.url, way.path, ask(stream=True, model="new"))
            await other.until(TEXT.encode())
            assert up.keys == ["first-key", "second-key"]
            up.end.set()
            assert b"data: [DONE]" in await running.until(END)
            other.leave()
            running.leave()


def remove(file: Path) -> None:
    file.unlink()


def replace_by_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def truncate(file: Path) -> None:
    file.write_text("\n")


def truncate_to_comments(file: Path) -> None:
    file.write_text("# the policy of this hub\n---\n")


@pytest.mark.parametrize("finds_config", [False, True], ids=["named", "found"])
@pytest.mark.parametrize("change", [remove, replace_by_pipe, truncate, truncate_to_comments])
async def test_a_configuration_that_is_gone_or_empty_for_a_moment_opens_nothing(
    tmp_path: Path, change: Callable[[Path], None], *, finds_config: bool
) -> None:
    """Without it, the hub would go on without its policy, limits and providers."""
    file = tmp_path / "dragoman.yaml"
    aliases = {"providers": {"up": provider("openai", "http://127.0.0.1:9")}, "aliases": {"old": "up/m"}}
    config: dict[str, Any] = {**aliases, "policy_default": "deny"}
    flags = ("--no-auth",) if finds_config else ("--no-auth", "--config", str(file))
    async with started_in(tmp_path, config, *flags) as hub:
        change(file)
        hub.process.send_signal(signal.SIGHUP)
        await hub.until_logged("was not reloaded")
        assert await models(hub) == ["old"]
        found = (await hub.http.get("/api/config")).json()
        assert [rule["decision"] for rule in found["policy"]] == ["deny"]
        file.unlink(missing_ok=True)
        await reload(hub, tmp_path, {**config, "aliases": {"new": "up/m"}}, "was reloaded")
        assert await models(hub) == ["new"]


async def reload(hub: Process, folder: Path, config: Mapping[str, Any] | None, text: str) -> None:
    """Write the configuration and say so; until that is answered in the log."""
    if config is not None:
        (folder / "dragoman.yaml").write_bytes(msgspec.json.encode(config))
    hub.process.send_signal(signal.SIGHUP)
    await hub.until_logged(text)


async def models(hub: Process) -> list[str]:
    """The models that it shows."""
    return [model["id"] for model in (await hub.http.get("/v1/models")).json()["data"]]
