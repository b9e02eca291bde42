"""The hub's end of the runner protocol, without a hub: sends prompts, notes frames, loses connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from dragoman.runners.client.runner import AnswerFunction, Runner, RunnerSettings
from dragoman.wire.runner.frames import (
    RunnerAbort,
    RunnerAck,
    RunnerAnswer,
    RunnerFrame,
    RunnerPong,
    RunnerPrompt,
    RunnerWelcome,
    SessionState,
    encode_runner_frame,
)

LIMIT = 120.0
Frame = dict[str, Any]


class StandInHub:
    """Keeps the frames of each turn in the order of their numbers; `acks` says whether it acknowledges."""

    def __init__(self) -> None:
        self.url = ""
        self.acks = True
        self.window = 100_000
        self.frame = 50_000
        self.hellos: list[Frame] = []
        self.frames: dict[str, list[Frame]] = {}  # by turn
        self.repeated = 0
        self.left: list[str] = []
        self.completed: list[tuple[str, str]] = []
        self._open: dict[str, str] = {}  # turns by session
        self._socket: ServerConnection | None = None
        self._changed = asyncio.Condition()

    async def serve(self, socket: ServerConnection) -> None:
        """Serve one connection."""
        hello = msgspec.json.decode(await socket.recv())
        self.hellos.append(hello)
        states = tuple(
            SessionState(session_id=id, turn_id=self._open.get(id), seq=len(self.turn(id)))
            for id in hello["sessions"]
        )
        self._socket = socket
        await self.send(RunnerWelcome(sessions=states, frame=self.frame, window=self.window))
        await self._note()
        try:
            async for text in socket:
                await self._take(msgspec.json.decode(text))
        except ConnectionClosed:
            return
        finally:
            if self._socket is socket:
                self._socket = None

    def turn(self, session: str) -> list[Frame]:
        """The frames of the session's open turn."""
        return self.frames.get(self._open.get(session, ""), [])

    async def send(self, frame: RunnerFrame) -> None:
        assert self._socket is not None
        await self._socket.send(encode_runner_frame(frame))

    async def prompt(self, text: str, *, turn: str = "t1", session: str = "s", message: Any = None) -> None:
        self._open[session] = turn
        self.frames.setdefault(turn, [])
        await self.send(RunnerPrompt(session_id=session, turn_id=turn, text=text, message=message))

    async def ask(self, text: str, *, turn: str = "t1", session: str = "s") -> list[Frame]:
        """Prompt, and return all frames of the answer."""
        await self.prompt(text, turn=turn, session=session)
        return await self.ended(turn)

    async def ended(self, turn: str = "t1") -> list[Frame]:
        """Wait until the turn is over; its frames."""
        await self.until(lambda: any(each["type"] == "message.finalize" for each in self.frames[turn]))
        return self.frames[turn]

    async def finalized(self, text: str) -> list[Frame]:
        """Prompt, answer the question that comes with the second choice, and return all frames."""
        await self.prompt(text)
        await self.until(lambda: self.frames["t1"][-1:] != [] and self.frames["t1"][-1]["type"] == "question")
        question = self.frames["t1"][-1]
        await self.answer(question["questionId"], question["options"][1])
        await self.until(lambda: self.frames["t1"][-1]["type"] == "message.finalize")
        return self.frames["t1"]

    async def abort(self, turn: str = "t1", session: str = "s") -> None:
        await self.send(RunnerAbort(session_id=session, turn_id=turn))

    async def answer(self, question: str, text: str, *, turn: str = "t1", session: str = "s") -> None:
        await self.send(
            RunnerAnswer(session_id=session, turn_id=turn, question_id=question, approved=True, answer=text)
        )

    async def acknowledge(self, turn: str = "t1", session: str = "s") -> None:
        """Acknowledge all that has come."""
        await self.send(RunnerAck(session_id=session, turn_id=turn, seq=len(self.frames[turn])))

    async def lose(self) -> None:
        """Drop the connection, as a network does."""
        assert self._socket is not None
        self._socket.transport.abort()
        await self._socket.wait_closed()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is true of what has come."""
        async with asyncio.timeout(LIMIT), self._changed:
            await self._changed.wait_for(true)

    async def _take(self, frame: Frame) -> None:
        if frame["type"] == "ping":
            await self.send(RunnerPong(n=frame["n"]))
        elif "seq" in frame:
            frames = self.frames[frame["turnId"]]
            if frame["seq"] == len(frames) + 1:
                frames.append(frame)
            else:
                assert frame["seq"] <= len(frames), "a frame is missing"
                self.repeated += 1
            if self.acks:
                await self.acknowledge(frame["turnId"], frame["sessionId"])
        elif frame["type"] == "complete":
            self.completed.append((frame["sessionId"], frame["turnId"]))
        elif frame["type"] == "join":
            states = tuple(SessionState(session_id=id) for id in frame["sessions"])
            await self.send(RunnerWelcome(sessions=states, frame=self.frame, window=self.window))
        elif frame["type"] == "leave":
            self.left += frame["sessions"]
        await self._note()

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def stand_in_hub() -> AsyncIterator[StandInHub]:
    """A hub that is served."""
    hub = StandInHub()
    async with serve(hub.serve, "127.0.0.1", 0) as server:
        hub.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield hub


@asynccontextmanager
async def running(answer: AnswerFunction, **settings: Any) -> AsyncIterator[StandInHub]:
    """A hub with a runner of the session `s`."""
    async with (
        stand_in_hub() as hub,
        Runner(answer, hub=hub.url, key="k", sessions=["s"], settings=RunnerSettings(**settings)),
    ):
        yield hub


def text_of(frames: list[Frame]) -> str:
    """The text of an answer."""
    return "".join(each["delta"] for each in frames if each["type"] == "message.part.text-delta")


def final(frames: list[Frame]) -> Frame:
    """The frame that ends an answer."""
    [frame] = [each for each in frames if each["type"] == "message.finalize"]
    return frame
