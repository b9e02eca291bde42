"""An answer is the same however its provider's bytes are cut into packets, for all who follow it."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from dragoman.cli.serving.lifecycle import host_hub
from dragoman.config import parse_config
from tests.effort import rounds
from tests.providers.servers import CHUNKED, LIMIT, Peer, chunk, serving
from tests.serving import Frames, ask, frames_in
from tests.wire import openai_streams
from tests.wire.openai_streams import cut, sse

WORDS = [
    openai_streams.chunk({"content": text}) for text in ("A", " wörd", " 🦜", " <b>", " more", " and more")
]
THOUGHTS = [openai_streams.chunk({"reasoning_content": text}) for text in ("Hm", ", so", " it is")]
USAGE = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}
FINISH = openai_streams.chunk(finish="stop")
STREAMS = [
    sse(*THOUGHTS, *WORDS, FINISH, USAGE),
    sse(*WORDS, FINISH) + sse(USAGE, done=False),
    sse(*WORDS, FINISH, done=False),
    sse(*WORDS),
    sse(*THOUGHTS, *WORDS, done=False),
    sse(*WORDS, done=False)[:-20],
    openai_streams.recording("think_tags"),
]
ENDS = [b"0\r\n\r\n", b"0\r\nx-trailer: 1\r\n\r\n", b"", b"no chunk\r\n"]


class Provider:
    """Answers each request with its packets; before the one at `stop_at` it waits for `go_on`.

    The connection stays open unless the body needs its end: what is whole must not wait for that.
    """

    def __init__(self) -> None:
        self.packets: Sequence[bytes] = ()
        self.turns = 0
        self.stop_at = -1
        self.has_stopped, self.go_on = asyncio.Event(), asyncio.Event()

    async def script(self, peer: Peer) -> None:
        while True:
            await peer.request()
            for place, packet in enumerate(self.packets):
                if place == self.stop_at:
                    self.has_stopped.set()
                    await self.go_on.wait()
                await peer.send(packet)
                for _ in range(self.turns):  # the hub runs on this loop: it reads each packet by itself
                    await asyncio.sleep(0)
            if not self.packets[-1].endswith((b"0\r\n\r\n", b"1\r\n\r\n")):
                return


def summary(frames: Frames) -> list[Any]:
    """The texts, with the deltas of each as one, the calls, the errors and the finish."""
    found: dict[str, Any] = {}
    for frame in frames:
        match frame:
            case {"type": "text-delta" | "reasoning-delta", "id": id, "delta": text}:
                found[id] = found.get(id, "") + text
            case {"type": "tool-input-available" | "tool-input-error", "toolCallId": id}:
                found[id] = frame["input"]
            case {"type": "error" | "finish" as kind}:
                found[kind] = frame.get("errorText", "").partition(" ")[2] or frame.get("finishReason")
            case _:
                pass
    return list(found.items())


async def hear(http: httpx2.AsyncClient, session: str) -> list[Any]:
    response = await http.post("/api/chat", json=ask("hi", session=session))
    return summary(frames_in(response.text))


async def hear_and_follow(
    http: httpx2.AsyncClient, session: str, provider: Provider
) -> tuple[list[Any], list[Any]]:
    """What two clients read; the second joins where the provider stops, which goes on once it is there."""
    async with http.stream("POST", "/api/chat", json=ask("hi", session=session)) as first:
        await provider.has_stopped.wait()
        async with http.stream("GET", f"/api/chat/{session}/stream") as second:
            provider.go_on.set()
            bodies = [await response.aread() for response in (first, second)]
    heard, followed = (summary(frames_in(body.decode())) for body in bodies)
    return heard, followed


async def test_an_answer_is_the_same_however_its_bytes_are_cut_into_packets(tmp_path: Path) -> None:
    provider = Provider()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    async with serving(provider.script) as server, asyncio.timeout(LIMIT):
        up = {"type": "openai", "base_url": f"{server.url}/v1", "retries": 0}
        config = parse_config({"providers": {"up": up}, "model": "up/m", "limits": {"drain": 0}})
        async with (
            host_hub(config, tmp_path, listener=listener, require_keys=False) as hub,
            httpx2.AsyncClient(base_url=hub.url, timeout=LIMIT, trust_env=False) as http,
        ):
            for seed in range(rounds(quick=12, thorough=1_000)):
                chance = random.Random(seed)
                stream = chance.choice(STREAMS)
                frames = [frame + b"\n\n" for frame in stream.split(b"\n\n") if frame]
                body = b"".join(map(chunk, frames)) + chance.choice(ENDS)
                provider.packets, provider.stop_at = [CHUNKED + body], -1
                whole = await hear(http, f"whole-{seed}")
                places = [len(b"".join(map(chunk, frames[:count]))) for count in range(len(frames))]
                if (
                    chance.random() < 0.5
                ):  # else each frame but the last comes by itself, as from most servers
                    places = chance.sample(places, chance.randrange(len(places) + 1))
                    places += [chance.randrange(len(body)) for _ in range(chance.randrange(4))]
                provider.packets = [CHUNKED, *cut(body, places)]
                provider.turns = chance.choice([0, 1, 4, 4])
                provider.stop_at = chance.randrange(len(provider.packets))
                provider.has_stopped.clear()
                provider.go_on.clear()
                heard = await hear_and_follow(http, f"cut-{seed}", provider)
                assert heard == (whole, whole), (seed, stream)
