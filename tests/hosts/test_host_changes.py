"""A viewer at one host while the run that it follows changes its host: one whole stream."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.runs.remote import RemoteRun
from dragoman.store.runs import RunRecord
from tests.answer_gate import Gate
from tests.clients.driver import HERE, require, violations_in
from tests.faults.process import started, write_config
from tests.hosts.conftest import HostCluster, host_id
from tests.hosts.test_remote_runs import STEPS, WHOLE, gate, reading
from tests.serving import Frames, Served, ask, text_of, types
from tests.waiting import LIMIT, until

__all__ = ["gate"]
pytestmark = pytest.mark.usefixtures("quick_ticks")
GUIDE = Path(__file__).parents[2] / "docs" / "usechat.md"


def violations(body: str) -> list[str]:
    """What the AI SDK's schemas and the grammar of streams do not accept in a body, but for `reset-step`."""
    [found] = violations_in([{"body": body, "method": "GET"}])
    return [violation for violation in found if not ("ai 6.0.1" in violation and "reset-step" in violation)]


async def close_connections(host: Served) -> None:
    """Close the connections of a host to other hosts, as the end of those does."""
    runs = host.hub.runs.remote
    assert runs is not None
    await runs._hosts.client._transport.close()


@asynccontextmanager
async def page(host: Served, sdk: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A page of the AI SDK's own `Chat` that follows the session's answer at a host, as the guide says."""
    [code] = re.findall(
        r"```js\n(.*?)```", GUIDE.read_text().partition("## After a crash of the hub")[2], re.DOTALL
    )[:1]
    script = {
        "sdk": str(sdk),
        "hub": str(host.http.base_url).rstrip("/"),
        "session": "s",
        "words": "three ",
        "code": code,
    }
    process = await asyncio.create_subprocess_exec(
        require("node"),
        "lost_step.mjs",
        cwd=HERE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(script).encode())
    process.stdin.close()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def text_behind_reset(frames: Frames) -> str:
    """The text of the last attempt at an answer."""
    kinds = [frame["type"] for frame in frames]
    start = max(at for at, kind in enumerate(kinds) if kind in ("reset-step", "start-step"))
    return "".join(frame["delta"] for frame in frames[start:] if frame["type"] == "text-delta")


@pytest.mark.parametrize(("sdk", "number"), [(6, 3), (7, 2)])
async def test_a_viewer_of_a_run_whose_host_dies_gets_one_whole_stream(
    hosts: HostCluster, gate: Gate, sdk: int, number: int
) -> None:
    first, second, *_ = await hosts.open(number, steps=STEPS)
    async with asyncio.timeout(LIMIT), reading(first, "POST", "/api/chat", json=ask("go")) as origin:
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
    [(host, epoch, status)] = hosts.execute("SELECT host, epoch, status FROM runs")
    assert (epoch, status) == (2, "finished")
    assert host != host_id(first)


@pytest.mark.parametrize("sdk", [6, 7])
async def test_a_live_page_shows_no_word_of_a_step_that_was_lost_with_its_host(
    hosts: HostCluster, gate: Gate, sdk: int
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with asyncio.timeout(LIMIT), reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        async with page(second, sdk) as viewer:
            assert viewer.stdout is not None
            assert await viewer.stdout.readline() == b"shown\n"
            hosts.lose(first)
            await until(lambda: hosts.execute("SELECT 1 FROM runs WHERE epoch = 2"))
            await close_connections(second)
            gate.opened.set()
            seen = json.loads(await viewer.stdout.read())
    whole = [{"type": "step-start"}, {"type": "text", "text": WHOLE, "state": "done"}]
    assert seen["before"] == "one two three "
    assert seen["shown"] == whole
    if sdk == 7:
        assert seen["parts"] == whole
    sent = {**ask("more"), "messages": [{"id": "m1", "role": "assistant", "parts": seen["parts"]}]}
    sent["messages"] += ask("more")["messages"]
    assert (await second.http.post("/api/chat", json=sent)).status_code == 200
    assert [part.get("text") for part in (await second.messages())[1]["parts"]] == [None, WHOLE]


async def test_a_viewer_loses_nothing_when_the_connection_between_hosts_is_cut(
    hosts: HostCluster, gate: Gate
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with asyncio.timeout(LIMIT), reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        async with reading(second, "GET", "/api/chat/s/stream?sdk=7") as viewer:
            await viewer.until("three ")
            await close_connections(second)
            gate.opened.set()
            frames = await viewer.frames()
    assert not violations(viewer.text)
    assert text_of(frames) == WHOLE
    assert types(frames).count("start-step") == 1


async def test_viewers_at_a_host_that_stops_are_disconnected_to_follow_the_run_at_another_one(
    hosts: HostCluster, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of its own runs are. One of them asks while it stops."""
    first, second = await hosts.open(2, steps=STEPS)
    async with asyncio.timeout(LIMIT), reading(first, "POST", "/api/chat", json=ask("go")) as origin:
        await origin.until("three ")
        assert second.hub.runs.remote is not None
        attach, late = second.hub.runs.remote._attach, asyncio.Event()

        async def attach_late(row: RunRecord) -> RemoteRun:
            run = await attach(row)
            await late.wait()
            return run

        async with reading(second, "GET", "/api/chat/s/stream") as viewer:
            await viewer.until("three ")
            monkeypatch.setattr(second.hub.runs.remote, "_attach", attach_late)
            asking = asyncio.create_task(second.http.get("/api/chat/s/stream"))
            await second.hub.stop()
            late.set()
            with pytest.raises(httpx2.TransportError):
                await viewer.frames()
            with pytest.raises(httpx2.TransportError):
                await asking
        async with reading(first, "GET", "/api/chat/s/stream") as resumed:
            gate.opened.set()
            for reader in (origin, resumed):
                assert text_of(await reader.frames()) == WHOLE
    assert '"error"' not in viewer.text
    assert '"finish"' not in viewer.text


async def test_a_viewer_of_a_run_whose_process_is_killed_gets_one_whole_stream(
    hosts: HostCluster, tmp_path: Path
) -> None:
    endless = [{"text": [*STEPS[0]["text"], *["more "] * 1_000], "delay": 0.3}]
    config = write_config(tmp_path / "killed", endless, database=hosts.url)
    async with asyncio.timeout(LIMIT), started(config, tmp_path / "killed") as killed:
        [second] = await hosts.open(1, steps=STEPS)
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
