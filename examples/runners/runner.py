"""A runner: this process answers sessions of a hub. It needs nothing of Dragoman, only `websockets`.

    DRAGOMAN_KEY=dgm_... python examples/runners/runner.py http://127.0.0.1:8000 my-session

Put your agent in place of `answer`. Frames of a turn are numbered. The hub acknowledges what it has stored;
what it has not is sent again after a reconnection, so nothing is lost and nothing is there twice.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

BUFFER = 1_000_000  # characters that may wait for the hub before the agent does
Frame = dict[str, Any]


class Turn:
    """One prompt, and the frames of its answer that the hub has not acknowledged."""

    def __init__(self, prompt: Frame, send: Callable[[], None]) -> None:
        self.session, self.id, self.text = prompt["sessionId"], prompt["turnId"], prompt["text"]
        self.frames: list[tuple[int, str]] = []
        self.sent = self.last = 0
        self.task: asyncio.Task[None] | None = None
        self.answers: dict[str, asyncio.Future[Frame]] = {}
        self._send = send
        self._room = asyncio.Event()

    def put(self, type: str, **fields: Any) -> None:
        """Add a frame."""
        self.last += 1
        place = {"sessionId": self.session, "turnId": self.id, "seq": self.last}
        self.frames.append((self.last, json.dumps({"type": type, **place, **fields})))
        self._send()

    async def write(self, type: str, **fields: Any) -> None:
        """Add a frame, once there is room."""
        while sum(len(text) for _, text in self.frames) > BUFFER:
            self._room.clear()
            await self._room.wait()
        self.put(type, **fields)

    async def text_delta(self, delta: str) -> None:
        """Add text to the answer."""
        await self.write("message.part.text-delta", delta=delta)

    async def tool(self, call_id: str, name: str, status: str, **fields: Any) -> None:
        """Show a call: pending, running with `args`, completed with a `result`, error with an `error`."""
        await self.write("message.part.tool-update", callId=call_id, toolName=name, status=status, **fields)

    async def ask(self, text: str, options: list[str]) -> Frame:
        """Ask the user, and wait for the answer."""
        id = f"question-{self.last}"
        self.answers[id] = asyncio.get_running_loop().create_future()
        await self.write("question", questionId=id, text=text, options=options)
        return await self.answers[id]

    def acknowledge(self, seq: int) -> None:
        """Forget what the hub has."""
        self.frames = [each for each in self.frames if each[0] > seq]
        self._room.set()


async def answer(turn: Turn) -> None:
    """The agent: counts letters with a tool, asks if it is told to, and repeats the prompt word by word."""
    await turn.tool("count-1", "count", "running", args={"text": turn.text})
    await turn.tool("count-1", "count", "completed", result={"letters": len(turn.text)})
    if "ask" in turn.text:
        reply = await turn.ask("Which colour?", ["red", "blue"])
        await turn.text_delta(f"You chose {reply.get('answer')}. ")
    for word in turn.text.split():
        await turn.text_delta(f"{word} ")
        await asyncio.sleep(0.01)  # as long as a model takes


class Runner:
    """Serves sessions over as many connections as it takes."""

    def __init__(
        self, hub: str, key: str, sessions: list[str], agent: Callable[[Turn], Awaitable[None]]
    ) -> None:
        self._url = hub.replace("http", "ws", 1).rstrip("/") + "/api/runners"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._sessions = sessions
        self._agent = agent
        self._turns: dict[str, Turn] = {}
        self._wakeup = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled."""
        delay = 0.2
        while True:
            try:
                async with connect(self._url, additional_headers=self._headers, max_size=None) as socket:
                    delay = 0.2
                    await self._serve(socket)
            except (OSError, TimeoutError, ConnectionClosed, InvalidHandshake) as error:
                print(f"no connection: {error}; trying again", file=sys.stderr)
            await asyncio.sleep(delay)
            delay = min(15, delay * 2)

    async def _serve(self, socket: ClientConnection) -> None:
        hello = {"type": "hello", "protocol": 1, "sessions": self._sessions, "turns": list(self._turns)}
        await socket.send(json.dumps(hello))
        welcome = json.loads(await socket.recv())
        if welcome["type"] != "welcome":
            sys.exit(f"the hub refused: {welcome}")
        states = {state.get("turnId"): state.get("seq", 0) for state in welcome.get("sessions", [])}
        for turn in list(self._turns.values()):
            if turn.id in states:
                turn.acknowledge(states[turn.id])
                turn.sent = states[turn.id]
            else:  # the hub has closed it
                self._drop(turn)
        print(f"answering {', '.join(self._sessions)}", flush=True)
        sender = asyncio.create_task(self._send_frames(socket))
        try:
            async for text in socket:
                self._handle(json.loads(text))
        finally:
            sender.cancel()

    async def _send_frames(self, socket: ClientConnection) -> None:
        while True:
            self._wakeup.clear()
            for turn in list(self._turns.values()):
                for seq, text in [each for each in turn.frames if each[0] > turn.sent]:
                    turn.sent = seq
                    await socket.send(text)
            await self._wakeup.wait()

    def _handle(self, frame: Frame) -> None:
        turn = self._turns.get(frame.get("turnId", ""))
        match frame["type"]:
            case "prompt" if turn is None:
                turn = self._turns[frame["turnId"]] = Turn(frame, self._wakeup.set)
                turn.task = asyncio.create_task(self._answer(turn))
            case "abort" if turn is not None and turn.task is not None:
                turn.task.cancel()
            case "answer" if turn is not None and frame["questionId"] in turn.answers:
                turn.answers[frame["questionId"]].set_result(frame)
            case "ack" if turn is not None:
                turn.acknowledge(frame["seq"])
                if turn.task is not None and turn.task.done() and not turn.frames:
                    del self._turns[turn.id]
            case "refused":
                print(f"the hub refused a frame: {frame['error']['message']}", file=sys.stderr)
            case _:
                pass  # what a later version of the protocol adds

    async def _answer(self, turn: Turn) -> None:
        turn.put("message.create")
        try:
            await self._agent(turn)
        except asyncio.CancelledError:
            turn.put("message.finalize", reason="canceled")
        except Exception as error:  # noqa: BLE001 - the user is told, and the runner goes on
            turn.put("message.finalize", reason="error", error=str(error) or type(error).__name__)
        else:
            turn.put("message.finalize", reason="end_turn")

    def _drop(self, turn: Turn) -> None:
        self._turns.pop(turn.id)
        if turn.task is not None:
            turn.task.cancel()


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    asyncio.run(Runner(url, os.environ.get("DRAGOMAN_KEY", ""), sys.argv[2:] or ["demo"], answer).run())
