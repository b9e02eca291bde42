"""A runner for tests that speaks the protocol frame by frame, over a WebSocket of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.serving import Served

LIMIT = 120.0
PATIENT = {"grace": LIMIT, "stop": LIMIT}  # seconds that a hub waits for runners, however slow the machine is
Frame = Mapping[str, Any]


class WireRunner:
    """One connection. `arrived` are all frames of the hub, in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.welcome: dict[str, Any] = {}
        self.arrived: list[dict[str, Any]] = []
        self._frames: list[dict[str, Any]] = []
        self._arrived = asyncio.Event()
        self.closed = asyncio.Event()
        self._pings = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with suppress(ConnectionClosed):
            async for text in self.socket:
                self.arrived.append(json.loads(text))
                self._frames.append(self.arrived[-1])
                self._arrived.set()
        self.closed.set()
        self._arrived.set()

    async def send(self, *frames: Frame) -> None:
        """Send frames."""
        for frame in frames:
            await self.socket.send(json.dumps(frame))

    async def next(
        self, type: str, check: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, Any]:
        """Return the next frame of this type, and drop it; others stay."""
        async with asyncio.timeout(LIMIT):
            while True:
                for frame in self._frames:
                    if frame["type"] == type and check(frame):
                        self._frames.remove(frame)
                        return frame
                assert not self.closed.is_set(), f"closed before {type}: {self._frames}"
                self._arrived.clear()
                await self._arrived.wait()

    def received(self, type: str) -> list[dict[str, Any]]:
        """Return the frames of this type that were received and not returned."""
        return [frame for frame in self._frames if frame["type"] == type]

    async def acknowledged(self, seq: int) -> None:
        """Wait until the hub has stored this frame."""
        await self.next("ack", lambda frame: frame["seq"] >= seq)

    async def pong(self) -> None:
        """Wait until the hub has read all that was sent before, and all that it has sent has come."""
        self._pings += 1
        number = self._pings
        await self.send({"type": "ping", "n": number})
        await self.next("pong", lambda frame: frame["n"] == number)

    async def prompt(self) -> Turn:
        """Return the next turn to answer."""
        return Turn(self, await self.next("prompt"))

    async def drop(self) -> None:
        """End the connection without a word."""
        self.socket.transport.abort()
        await self.closed.wait()


class Turn:
    """A turn that is answered frame by frame, numbered."""

    def __init__(self, runner: WireRunner, prompt: Frame, *, seq: int = 0) -> None:
        self.runner = runner
        self.prompt = prompt
        self.seq = seq
        self.sent: list[Frame] = []

    def frame(self, type: str, **fields: Any) -> Frame:
        """Make the next frame."""
        self.seq += 1
        place = {"sessionId": self.prompt["sessionId"], "turnId": self.prompt["turnId"], "seq": self.seq}
        frame = {"type": type, **place, **fields}
        self.sent.append(frame)
        return frame

    async def send(self, type: str, **fields: Any) -> None:
        """Send the next frame."""
        await self.runner.send(self.frame(type, **fields))

    async def create(self) -> None:
        await self.send("message.create")

    async def text(self, delta: str) -> None:
        await self.send("message.part.text-delta", delta=delta)

    async def tool(self, status: str, id: str = "c1", **fields: Any) -> None:
        update = {"callId": id, "toolName": "bash", "status": status}
        await self.send("message.part.tool-update", **update, **fields)

    async def finalize(self, reason: str = "end_turn", **fields: Any) -> None:
        await self.send("message.finalize", reason=reason, **fields)

    async def answer(self, text: str) -> None:
        """Answer with one text."""
        await self.create()
        await self.text(text)
        await self.finalize()


@asynccontextmanager
async def connected(
    hub: Served, *sessions: str, key: str = "", hello: Frame | None = None
) -> AsyncIterator[WireRunner]:
    """Connect a runner that has been welcomed."""
    async with opened(hub, key=key) as runner:
        await runner.send({"type": "hello", "protocol": 1, "sessions": list(sessions), **(hello or {})})
        runner.welcome = await runner.next("welcome")
        yield runner


@asynccontextmanager
async def opened(hub: Served, *, key: str = "") -> AsyncIterator[WireRunner]:
    """Open a WebSocket without a hello."""
    url = hub.url.replace("http:", "ws:") + "/api/runners"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with connect(url, additional_headers=headers, proxy=None, max_size=None) as socket:
        runner = WireRunner(socket)
        try:
            yield runner
        finally:
            runner._reading.cancel()


async def new_session(hub: Served, id: str = "s", **headers: str) -> str:
    """Make a session that a runner answers."""
    response = await hub.http.post("/api/sessions", json={"id": id, "runner": True}, headers=headers)
    assert response.status_code == 201, response.text
    return id


def states(welcome: Frame) -> Sequence[Frame]:
    """Return the sessions of a welcome."""
    return list(welcome.get("sessions", ()))
