"""`kill -9` of random hosts under load: nothing acknowledged is lost, nothing runs twice, all end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman.messages import FINAL_STATES
from tests.clients import hub as hubs
from tests.clients.hub import Hub
from tests.databases import VARIABLE
from tests.effort import rounds
from tests.hosts.cluster import Cluster, ports, start_cluster
from tests.serving import ask, write_script
from tests.waiting import LIMIT

KILLS = rounds(quick=4, thorough=200)
TALKERS = 4
WORDS = [f"word{n} " for n in range(8)]
MARKS = Path(__file__).with_name("session_marks.py")


def call(name: str, word: str) -> dict[str, Any]:
    return {"name": "hub_call", "input": {"calls": [{"tool": f"marks.{name}", "input": {"word": word}}]}}


STEPS = [
    {"reasoning": WORDS, "text": WORDS, "tools": [call("add", "one"), call("look", "two")], "delay": 0.01},
    {"text": WORDS, "tools": [call("add", "three")], "delay": 0.01},
    {"text": WORDS, "delay": 0.01},
]


class Talker:
    """A client with one session after the other: it follows each turn to its end, whatever dies meanwhile."""

    def __init__(self, http: httpx2.AsyncClient, name: str) -> None:
        self._http = http
        self._name = name
        self.frames: dict[str, list[dict[str, Any]]] = {}
        """What was told about each session's answer, over all connections."""

    async def talk(self, is_over: asyncio.Event) -> None:
        """Have turns until it is over; the last one is whole."""
        number = 0
        while not is_over.is_set():
            session = f"{self._name}-{number}"
            number += 1
            await self.turn(session)

    async def turn(self, session: str) -> None:
        """One user message, and its answer to the end."""
        seen = self.frames[session] = []
        while not await self._stream("POST", "/api/chat", seen, json=ask("go", session=session)):
            pass
        while not await self._is_complete(session):
            await self._answer_questions(session)
            await self._stream("GET", f"/api/chat/{session}/stream", seen)
            await asyncio.sleep(0.05)

    async def _stream(self, method: str, path: str, seen: list[dict[str, Any]], **options: Any) -> bool:
        """Read a stream to its end or until it is cut; return whether there was a response."""
        left = ""
        try:
            async with self._http.stream(method, path, **options) as response:
                if response.status_code != 200:
                    assert response.status_code in (204, 409, 502, 503), await response.aread()
                    return response.status_code == 409
                async for piece in response.aiter_text():
                    *frames, left = (left + piece).split("\n\n")
                    seen += [msgspec.json.decode(f[6:]) for f in frames if f.startswith("data: {")]
        except httpx2.TransportError:
            return bool(seen)
        return True

    async def _answer_questions(self, session: str) -> None:
        """Answer what nobody knows: whether a call that a kill cut off took effect."""
        found = await self._get("/api/approvals?status=pending")
        for approval in (found or {}).get("approvals", ()):
            if approval.get("sessionId") == session:
                assert approval["question"]["options"] == ["done", "not done", "try again"]
                try:
                    await self._http.post(f"/api/approvals/{approval['id']}", json={"answer": "done"})
                except httpx2.TransportError:
                    return

    async def _is_complete(self, session: str) -> bool:
        found = await self._get(f"/api/sessions/{session}/messages")
        messages = (found or {}).get("messages", ())
        return len(messages) == 2 and texts(messages[1]) == ["".join(WORDS)] * 3

    async def _get(self, path: str) -> dict[str, Any] | None:
        try:
            response = await self._http.get(path)
        except httpx2.TransportError:
            return None
        found: dict[str, Any] | None = response.json() if response.status_code == 200 else None
        return found


def texts(message: dict[str, Any]) -> list[str]:
    return [part["text"] for part in message["parts"] if part["type"] == "text" and part["state"] == "done"]


def check_session(seen: list[dict[str, Any]], answer: dict[str, Any]) -> None:
    """Everything that the client was told for sure is there, and the message is valid."""
    calls = {part["toolCallId"]: part for part in answer["parts"] if part["type"].startswith("tool-")}
    assert all(part["state"] in FINAL_STATES for part in calls.values())
    inputs: dict[str, list[Any]] = {}
    for frame in seen:
        assert frame["type"] != "error", frame
        if frame["type"] == "tool-output-available":
            assert calls[frame["toolCallId"]]["output"] == frame["output"]
        if frame["type"] == "tool-input-available" and frame["toolCallId"] in calls:
            inputs.setdefault(frame["toolCallId"], []).append(frame["input"])
    # A step that was cut off is asked for again: a call of it that had not begun is gone. The script of
    # another host counts anew, and may give its id to a call of a later step: both are in the answer then.
    stored = [part["input"] for part in calls.values()]
    for id, versions in inputs.items():
        assert versions[-1] == calls[id]["input"]
        assert all(each in stored for each in versions)


async def kill_and_restart(cluster: Cluster, folder: Path, config: dict[str, Any], *, number: int) -> None:
    """Kill a host, and start another one in its place."""
    killed = cluster.hosts[number]
    killed.process.kill()
    await asyncio.to_thread(killed.stop)
    environ = {VARIABLE: cluster.environ[VARIABLE]}
    started: Hub = await asyncio.to_thread(
        hubs.start, folder / f"host{number}", config, key="", environ=environ
    )
    cluster.hosts[number] = started
    cluster.proxy.ports[:] = ports(cluster.hosts)


@pytest.mark.timeout(300 + 30 * KILLS)
@pytest.mark.promise("hosts-take-over")
async def test_random_kills_of_hosts_under_load_lose_nothing_and_repeat_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    script = write_script(tmp_path, STEPS, play="turns")
    providers = {"sim": {"type": "scripted", "script": str(script)}}
    config: dict[str, Any] = {"providers": providers, "model": "sim/any", "operations": [str(MARKS)]}
    cluster = await asyncio.to_thread(start_cluster, tmp_path, config, count=3, keyless=True)
    chance = random.Random(11)
    is_over = asyncio.Event()
    try:
        async with httpx2.AsyncClient(base_url=cluster.url, timeout=LIMIT, trust_env=False) as http:
            talkers = [Talker(http, f"t{number}") for number in range(TALKERS)]
            async with asyncio.TaskGroup() as group:
                for talker in talkers:
                    group.create_task(talker.talk(is_over))
                for _ in range(KILLS):
                    await asyncio.sleep(chance.uniform(0.1, 0.8))
                    number = chance.randrange(len(cluster.hosts))
                    await kill_and_restart(cluster, tmp_path, config, number=number)
                is_over.set()
            for talker in talkers:
                for session, seen in talker.frames.items():
                    response = await http.get(f"/api/sessions/{session}/messages")
                    check_session(seen, response.json()["messages"][1])
    finally:
        await asyncio.to_thread(cluster.stop)
    sessions = [session for talker in talkers for session in talker.frames]
    marks = Counter((tmp_path / "marks").read_text().splitlines())
    assert max(marks.values()) == 1, "a call that may run once ran twice"
    assert len(marks) <= 2 * len(sessions)
    assert len(sessions) >= KILLS
