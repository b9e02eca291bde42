"""A viewer at one host while the run that it follows changes its host: one whole stream."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.runs import remote
from tests.clients.driver import run_node
from tests.faults.process import started, write_config
from tests.hosts.conftest import HostCluster, host_id
from tests.hosts.test_remote_runs import STEPS, WHOLE, Gate, gate, reading
from tests.serving import Frames, Served, ask, text_of, types
from tests.waiting import until

__all__ = ["gate"]
pytestmark = pytest.mark.usefixtures("quick_ticks")
CALL = {"tools": [{"name": "files_list", "input": {}}]}


def violations(body: str) -> list[str]:
    """What the AI SDK's schemas and the grammar of streams do not accept in a body, but for `reset-step`."""
    found: list[list[str]] = run_node("check.mjs", value=[{"body": body, "method": "GET"}])
    return [
        violation for violation in found[0] if not ("ai 6.0.1" in violation and "reset-step" in violation)
    ]


async def close_connections(host: Served) -> None:
    """Close the connections of a host to other hosts, as the end of those does."""
    runs = host.hub.runs.remote
    assert runs is not None
    await runs._hosts.client._transport.close()


def read_message(body: str, sdk: int) -> dict[str, Any]:
    """The message that the AI SDK's own client makes of a body."""
    messages: list[dict[str, Any]] = run_node("fold.mjs", value=[{"body": body, "sdk": sdk}])
    return messages[0]


def text_behind_reset(frames: Frames) -> str:
    """The text of the last attempt at an answer."""
    kinds = [frame["type"] for frame in frames]
    start = max(at for at, kind in enumerate(kinds) if kind in ("reset-step", "start-step"))
    return "".join(frame["delta"] for frame in frames[start:] if frame["type"] == "text-delta")


@pytest.mark.parametrize("sdk", [6, 7])
@pytest.mark.parametrize("number", [2, 3])
async def test_a_viewer_of_a_run_whose_host_dies_gets_one_whole_stream(
    hosts: HostCluster, gate: Gate, sdk: int, number: int
) -> None:
    first, second, *_ = await hosts.open(number, steps=STEPS)
    async with asyncio.timeout(60), reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        async with reading(second, "GET", f"/api/chat/s/stream?sdk={sdk}") as viewer:
            await viewer.until("three ")
            hosts.lose(first)
            await until(lambda: hosts.execute("SELECT 1 FROM runs WHERE epoch = 2"))
            await close_connections(second)
            await viewer.until('"reset-step"' if sdk == 7 else '"finish-step"')
            gate.opened.set()
            frames = await viewer.frames()
    assert not violations(viewer.text)
    assert types(frames).count("start") == types(frames).count("finish") == 1
    assert ("reset-step" in types(frames)) == (sdk == 7)
    assert types(frames)[-1] == "finish", frames
    assert frames[-1].get("finishReason", "stop") == "stop"
    assert text_behind_reset(frames) == WHOLE
    parts: list[dict[str, Any]] = (await second.messages())[-1]["parts"]
    assert [(part["type"], part.get("text")) for part in parts] == [("step-start", None), ("text", WHOLE)]
    read = read_message(viewer.text, sdk)["parts"]
    withdrawn = [("step-start", None), ("text", "one two three ")] if sdk == 6 else []
    assert [(part["type"], part.get("text")) for part in read] == [
        *withdrawn,
        ("step-start", None),
        ("text", WHOLE),
    ]
    assert all(part.get("state", "done") == "done" for part in read)
    [(host, epoch, status)] = hosts.execute("SELECT host, epoch, status FROM runs")
    assert (epoch, status) == (2, "finished")
    assert host != host_id(first)


async def test_a_viewer_loses_nothing_when_the_connection_between_hosts_is_cut(
    hosts: HostCluster, gate: Gate
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with asyncio.timeout(60), reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        async with reading(second, "GET", "/api/chat/s/stream?sdk=7") as viewer:
            await viewer.until("three ")
            await close_connections(second)
            gate.opened.set()
            frames = await viewer.frames()
    assert not violations(viewer.text)
    assert text_of(frames) == WHOLE
    assert types(frames).count("start-step") == 1


async def test_a_viewer_at_a_host_that_stops_is_told_that_the_answer_goes_on(
    hosts: HostCluster, gate: Gate
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with asyncio.timeout(60), reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        async with reading(second, "GET", "/api/chat/s/stream") as viewer:
            await viewer.until("three ")
            await second.hub.stop()
            frames = await viewer.frames()
        gate.opened.set()
        assert text_of(await origin.frames()) == WHOLE
    assert not violations(viewer.text)
    assert [frame["errorText"] for frame in frames if frame["type"] == "error"] == [remote.STOPPING]


async def test_a_viewer_of_a_run_whose_process_is_killed_gets_one_whole_stream(
    hosts: HostCluster, tmp_path: Path
) -> None:
    steps = [{"text": ["one ", "two ", "three ", "four ", "five"], "delay": 0.3}]
    config = write_config(tmp_path / "killed", steps, database=hosts.url)
    async with asyncio.timeout(60), started(config, tmp_path / "killed") as killed:
        [second] = await hosts.open(1, steps=steps)
        sent = asyncio.ensure_future(killed.http.post("/api/chat", json=ask("go")))
        await until(lambda: hosts.execute("SELECT 1 FROM runs WHERE status = 'running'"))
        async with reading(second, "GET", "/api/chat/s/stream?sdk=7") as viewer:
            await viewer.until("two ")
            await killed.kill()
            frames = await viewer.frames()
        await asyncio.gather(sent, return_exceptions=True)
    assert not violations(viewer.text)
    assert types(frames).count("start") == types(frames).count("finish") == 1
    assert text_behind_reset(frames) == WHOLE
    assert hosts.execute("SELECT epoch, status FROM runs") == [(2, "finished")]
