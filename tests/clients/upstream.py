"""A scripted model server that records requests and disconnects.

`Upstream()` runs it on a thread of the tests; `python -m tests.clients.upstream --port 9000` runs it alone,
steered by `POST /control/scripts/KEY` `{"answers": [[move, …], …], "repeat": bool, "in_order": bool}`,
`POST /control/gates/NAME` and `GET /control/requests`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tests.clients.behaviours import Answer, Behaviour, defaults, key_of, step_of
from tests.clients.http1 import Request, Server, Wire


@dataclass
class Asked:
    """One request to the model: what it said, how much was answered, and who ended it."""

    number: int
    key: str
    step: int
    body: dict[str, Any]
    headers: dict[str, str]
    began: float
    chunks: int = 0
    left: float | None = None
    answered: float | None = None

    @property
    def ended(self) -> bool:
        return self.left is not None or self.answered is not None


class Upstream:
    """The server on its own thread. Times are seconds since the epoch, for other processes to compare."""

    def __init__(self, port: int = 0) -> None:
        self.behaviours = defaults()
        self.questions: list[Asked] = []
        self.changed = threading.Condition()
        self._gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._server = Server(self._respond, port)
        self.root = self._server.url
        self.url = f"{self.root}/v1"

    def script(self, key: str, answers: list[Answer], **options: bool) -> str:
        """Teach the model a behaviour; returns the mark that asks for it in a user's text."""
        self.behaviours[key] = Behaviour(answers, **options)
        return f"#{key}"

    def teach(self, *answers: Answer, **options: bool) -> str:
        """Teach the model a behaviour that no other test asks for."""
        return self.script(uuid.uuid4().hex, list(answers), **options)

    def gate(self, name: str) -> str:
        """The address to POST to for opening a gate from another process."""
        return f"{self.root}/control/gates/{name}"

    def open(self, gate: str) -> None:
        """Let the answers that wait at this gate go on."""
        self._server.loop.call_soon_threadsafe(self._gates[gate].set)

    def requests(self, mark: str) -> list[Asked]:
        """The requests so far that asked for this behaviour."""
        with self.changed:
            return [request for request in self.questions if request.key == mark.removeprefix("#")]

    def wait(self, true: Callable[[], object], limit: float = 120.0) -> None:
        """Return when `true()` holds; fail at the deadline."""
        with self.changed:
            if not self.changed.wait_for(true, limit):
                raise TimeoutError(f"nothing of the kind within {limit} s")

    def close(self) -> None:
        """Stop serving and cut what is open."""
        self._server.close()

    async def _respond(self, wire: Wire, request: Request) -> None:
        match [request.method, *request.path.strip("/").split("/")]:
            case ["POST", "v1", "chat", "completions"]:
                await self._complete(wire, request)
            case ["GET", "v1", "models"]:
                names = [{"id": key, "object": "model"} for key in self.behaviours]
                await wire.send(200, {"object": "list", "data": names})
            case ["POST", "control", "scripts", key]:
                self.script(key, **json.loads(request.body))
                await wire.send(200, {"key": key})
            case ["POST", "control", "gates", name]:
                self._gates[name].set()
                await wire.send(200, {"gate": name})
            case ["GET", "control", "requests"]:
                await wire.send(200, {"requests": [asdict(question) for question in self.questions]})
            case _:
                await wire.send(404, {"error": {"message": f"no such path: {request.path}"}})

    async def _complete(self, wire: Wire, request: Request) -> None:
        body = json.loads(request.body)
        key, step = key_of(body), step_of(body)
        with self.changed:
            number = len(self.questions) + 1
            question = Asked(number, key, step, body, request.headers, time.time())
            self.questions.append(question)
            self.changed.notify_all()
        behaviour = self.behaviours.get(key) or self.behaviours["plain"]
        answer = asyncio.ensure_future(self._answer(wire, question, behaviour.answer(step)))
        watch = asyncio.ensure_future(wire.left())
        await asyncio.wait({answer, watch}, return_when=asyncio.FIRST_COMPLETED)
        self._note(question, **{"answered" if answer.done() else "left": time.time()})
        for task in (answer, watch):
            task.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await answer

    def _note(self, request: Asked, **changes: Any) -> None:
        with self.changed:
            for name, value in changes.items():
                setattr(request, name, value)
            self.changed.notify_all()

    async def _answer(self, wire: Wire, request: Asked, answer: Answer) -> None:
        if answer and "status" in answer[0]:
            refusal = answer[0]
            await wire.send(refusal["status"], refusal["body"], refusal.get("headers", {}))
            return
        await wire.begin()
        await self._chunk(wire, request, {"role": "assistant", "content": ""})
        for move in answer:
            if await self._move(wire, request, move):
                return
        if not any("finish" in move for move in answer):
            called = any("calls" in move for move in answer)
            await self._finish(wire, request, "tool_calls" if called else "stop")
        await wire.end()

    async def _move(self, wire: Wire, request: Asked, move: dict[str, Any]) -> bool:
        """Carry out one move; true when the answer ends with it."""
        match move:
            case {"wait": seconds}:
                await asyncio.sleep(seconds)
            case {"gate": name}:
                await self._gates[name].wait()
            case {"error": _}:
                await wire.event(json.dumps(move))
                await wire.end()
                return True
            case {"cut": how}:
                await (wire.end() if how == "clean" else wire.reset())
                return True
            case {"finish": reason}:
                await self._finish(wire, request, reason)
            case _:
                for delta in deltas(move, request.number):
                    await self._chunk(wire, request, delta)
                    await asyncio.sleep(move.get("pace", 0))
        return False

    async def _chunk(self, wire: Wire, request: Asked, delta: dict[str, Any]) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        await wire.event(json.dumps(chunk(request, [choice])))
        self._note(request, chunks=request.chunks + 1)

    async def _finish(self, wire: Wire, request: Asked, reason: str) -> None:
        choice = {"index": 0, "delta": {}, "finish_reason": reason}
        await wire.event(json.dumps(chunk(request, [choice])))
        if (request.body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
            await wire.event(json.dumps({**chunk(request, []), "usage": usage}))
        await wire.event("[DONE]")


def chunk(request: Asked, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """One `chat.completion.chunk`."""
    return {
        "id": f"chatcmpl-{request.number}",
        "object": "chat.completion.chunk",
        "created": int(request.began),
        "model": request.body.get("model", ""),
        "choices": choices,
    }


def deltas(move: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The deltas that spell a text, a reasoning or a list of tool calls."""
    if "delta" in move:
        return [move["delta"]]
    for word, field in (("text", "content"), ("reasoning", "reasoning_content")):
        if word in move:
            pieces = [move[word]] if isinstance(move[word], str) else move[word]
            return [{field: piece} for piece in pieces]
    spelled: list[dict[str, Any]] = []
    for index, call in enumerate(move["calls"]):
        name = {"name": call["name"], "arguments": ""}
        call_id = call.get("id", f"call_{number}_{index}")
        head = {"index": index, "id": call_id, "type": "function", "function": name}
        spelled.append({"tool_calls": [head]})
        spelled += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in thirds(json.dumps(call["arguments"]))
        ]
    return spelled


def thirds(text: str) -> list[str]:
    """The text in three pieces, so that it has to be put together again."""
    size = len(text) // 3 + 1
    return [text[start : start + size] for start in range(0, len(text), size)]


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9000)
    upstream = Upstream(parser.parse_args().port)
    print(f"model server on {upstream.url}", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        upstream.close()


if __name__ == "__main__":
    main()
