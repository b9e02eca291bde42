"""Random kills of the hub and of a runner's connection in the middle of turns: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.effort import rounds
from tests.faults.process import Process, started, write_config
from tests.serving import ask
from tests.waiting import LIMIT

pytestmark = pytest.mark.anyio
KILLS = rounds(quick=4, thorough=500)
TURN_KILLS = 3  # kills in one turn, at most
CONFIG: Any = {"runners": {"grace": 60.0}, "disconnect_grace": "never"}
LENGTH = 40  # frames of text of a turn


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Steady:
    """A runner that survives: it keeps its frames until they are acknowledged, and connects again."""

    def __init__(self, source: random.Random) -> None:
        self.url = ""
        self.turn = ""
        self.frames: list[Mapping[str, Any]] = []
        self.acknowledged = 0
        self.ended = asyncio.Event()
        self.expected = ""
        self._source = source
        self._reached = asyncio.Event()

    def begin(self, prompt: Mapping[str, Any]) -> None:
        """Make all frames of a turn."""
        if prompt["turnId"] == self.turn:
            return
        self.turn, self.frames, self.acknowledged = prompt["turnId"], [], 0
        self.expected = ""
        self._add("message.create")
        for number in range(LENGTH):
            if self._source.random() < 0.1:
                call = {"callId": f"c{number}", "toolName": "t"}
                self._add("message.part.tool-update", **call, status="running", args={"n": number})
                self._add("message.part.tool-update", **call, status="completed", result=number)
            word = f"w{number} "
            self.expected += word
            self._add("message.part.text-delta", delta=word)
        self._add("message.finalize", reason="end_turn")

    def _add(self, type: str, **fields: Any) -> None:
        place = {"sessionId": "s", "turnId": self.turn, "seq": len(self.frames) + 1}
        self.frames.append({"type": type, **place, **fields})

    async def run(self) -> None:
        """Serve until cancelled, over as many connections as it takes."""
        while True:
            with suppress(OSError, ConnectionClosed, InvalidHandshake, TimeoutError):
                async with connect(self.url + "/api/runners", proxy=None) as socket:
                    await self._serve(socket)
            await asyncio.sleep(0.02)

    async def _serve(self, socket: Any) -> None:
        turns = [] if not self.turn or self.ended.is_set() else [self.turn]
        await socket.send(json.dumps({"type": "hello", "protocol": 1, "sessions": ["s"], "turns": turns}))
        welcome = json.loads(await socket.recv())
        assert welcome["type"] == "welcome", welcome
        state = welcome["sessions"][0]
        at = len(self.frames) if state.get("turnId") != self.turn else state.get("seq", 0)
        sent = self.turn
        if self.turn and state.get("turnId") is None:
            self.ended.set()
        reading = asyncio.create_task(self._read(socket))
        try:
            while not reading.done():
                if self.turn and not self.ended.is_set() and at < len(self.frames) and self._is_open(state):
                    await socket.send(json.dumps(self.frames[at]))
                    at += 1
                    await asyncio.sleep(0.002)
                    continue
                self._reached.clear()
                waiting = asyncio.create_task(self._reached.wait())
                await asyncio.wait([waiting, reading], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if self.turn != sent:  # the prompt may be of the turn that the welcome named
                    at, sent, state = 0, self.turn, {"turnId": self.turn}
        finally:
            reading.cancel()

    def _is_open(self, state: Mapping[str, Any]) -> bool:
        return state.get("turnId") == self.turn

    async def _read(self, socket: Any) -> None:
        async for text in socket:
            frame = json.loads(text)
            if frame["type"] == "prompt":
                if frame["turnId"] != self.turn:
                    self.ended.clear()
                self.begin(frame)
            elif frame["type"] == "ack" and frame["turnId"] == self.turn:
                self.acknowledged = frame["seq"]
                if self.acknowledged == len(self.frames):
                    self.ended.set()
            assert frame["type"] != "refused" or frame["error"]["code"] in ("repeated", "late"), frame
            self._reached.set()


async def post(hub: Process, number: int) -> None:
    with suppress(httpx2.HTTPError):
        await hub.http.post("/api/sessions/s/chat", json=ask(f"go {number}", session="s", id=f"u{number}"))


@pytest.mark.parity
async def test_no_kill_of_the_hub_or_the_runner_loses_or_doubles_anything(tmp_path: Path) -> None:
    source = random.Random(14)
    config, data = write_config(tmp_path, [], **CONFIG), tmp_path / "data"
    runner = Steady(source)
    killed, number = 0, 0
    serving: asyncio.Task[None] | None = None
    async with started(config, data) as hub:
        await hub.http.post("/api/sessions", json={"id": "s", "runner": True})
    try:
        while killed < KILLS:
            number += 1
            runner.ended.clear()
            posted: asyncio.Task[None] | None = None
            for _ in range(TURN_KILLS):
                async with started(config, data) as hub:
                    runner.url = str(hub.http.base_url).replace("http:", "ws:").rstrip("/")
                    if serving is None:
                        serving = asyncio.create_task(runner.run())
                    if posted is None:
                        posted = asyncio.create_task(post(hub, number))
                    after = asyncio.create_task(asyncio.sleep(source.uniform(0.0, 0.3)))
                    await asyncio.wait(
                        [after, asyncio.create_task(runner.ended.wait())], return_when="FIRST_COMPLETED"
                    )
                    if source.random() < 0.4:
                        serving.cancel()
                        serving = asyncio.create_task(runner.run())
                        killed += 1
                        await asyncio.sleep(0.05)
                    killed += 1
                await posted
            async with started(config, data) as hub:
                runner.url = str(hub.http.base_url).replace("http:", "ws:").rstrip("/")
                await post(hub, number)  # the same message: begins the turn, or follows it
                async with asyncio.timeout(LIMIT):
                    await runner.ended.wait()
                await hub.http.get("/api/sessions/s/stream")
                messages = await hub.messages("s")
                assert len(messages) == 2 * number, (killed, len(messages))
                texts = [part["text"] for part in messages[-1]["parts"] if part["type"] == "text"]
                assert "".join(texts) == runner.expected, killed
                states = {part["state"] for part in messages[-1]["parts"] if part["type"] == "dynamic-tool"}
                assert states <= {"output-available"}, states
    finally:
        if serving is not None:
            serving.cancel()
