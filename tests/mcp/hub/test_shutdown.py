"""When the hub ends in any way, no MCP server process is left and cut calls are recorded."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.mcp.hub.hub_process import World, is_alive, pids, raw, until, world

BENCH = str(Path(__file__).parents[2] / "flows/slow_operations.py")
MODES = {
    "plain": (),
    "stubborn": ("stubborn",),
    "litter": ("litter", "stubborn"),
    "astray": ("astray", "stubborn"),
}


def servers(folder: Path) -> dict[str, Any]:
    """Servers that end with their input, that don't, and that start a process in their group or away."""
    return {name: raw(folder / f"{name}.txt", *modes) for name, modes in MODES.items()}


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def hang(hub: World, tool: str, threads: ThreadPoolExecutor) -> None:
    """Call a tool that never answers; returns once its server has the call."""
    state = hub.folder / f"{tool.partition('.')[0]}.txt"
    threads.submit(post, f"{hub.hub.url}/api/operations/{tool}/call")
    until(lambda: "call hang" in state.read_text())


def post(address: str) -> None:
    try:
        httpx2.post(address, json={}, timeout=60, trust_env=False)
    except httpx2.HTTPError:
        return


@pytest.mark.promise("mcp-no-orphans")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_of_a_server_survives_the_hub(
    tmp_path: Path, how: signal.Signals, threads: ThreadPoolExecutor
) -> None:
    with world(tmp_path, servers(tmp_path), limits={"drain": 0.5}) as hub:
        for name in MODES:
            hub.settled(name)
            hang(hub, f"{name}.hang", threads)
        started = [pid for name in MODES for pid in pids(tmp_path / f"{name}.txt")]
        assert len(started) == 6
        assert all(map(is_alive, started))
        hub.hub.process.send_signal(how)
        hub.hub.process.wait(120)
        until(lambda: not any(map(is_alive, started)))


def test_a_call_that_a_crash_of_the_hub_cut_off_is_uncertain(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    with world(tmp_path, servers(tmp_path)) as hub:
        hub.settled("plain")
        hang(hub, "plain.hang", threads)
        hub.hub.process.kill()
        hub.hub.process.wait(120)
    with world(tmp_path, servers(tmp_path)) as hub:
        [call] = hub.ask("GET", "/api/calls", params={"operation": "plain.hang"})["calls"]
        assert call["status"] == "uncertain"
        assert hub.call("plain.echo")["success"]


def test_a_hub_that_is_stopped_lets_calls_end_and_says_so_to_those_that_do_not(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    with world(
        tmp_path, servers(tmp_path), operations=[BENCH], mcp={"pinned": ["lab.count"]}, limits={"drain": 12}
    ) as hub:
        hub.settled("plain")
        ways = [(f"{hub.hub.url}{path}", body) for path, body in (API, STATELESS, SDK)]
        endless = f"{hub.hub.url}/api/operations/plain.hang/call"
        answers = [threads.submit(text_of, *way) for way in (*ways, (endless, {}))]
        until(lambda: "call hang" in (tmp_path / "plain.txt").read_text())
        until(lambda: len(hub.ask("GET", "/api/calls", params={"operation": "lab.count"})["calls"]) == 3)
        hub.hub.process.terminate()
        *counted, hung = [each.result(120) for each in answers]
        assert hub.hub.process.wait(120) == 0
    assert [status for status, _ in counted] == [200, 200, 200]
    assert all('"at":30' in text.replace(" ", "").replace("\\", "") for _, text in counted)
    assert (hung[0], "the hub is shutting down" in hung[1]) == (503, True)
    assert "Traceback" not in hub.log.read_text()


COUNT = {"calls": [{"tool": "lab.count", "input": {"to": 30}}]}
CALL = {"name": "hub_call", "arguments": COUNT}
API = ("/api/operations/hub.call/call", COUNT)
STATELESS = ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL})
SDK = ("/mcp", {**STATELESS[1], "params": {"name": "lab_count", "arguments": {"to": 30}}})


def text_of(address: str, body: Any) -> tuple[int, str]:
    """The status and the text of an answer."""
    both = {"accept": "application/json, text/event-stream"}
    answer = httpx2.post(address, json=body, headers=both, timeout=60, trust_env=False)
    return answer.status_code, answer.text


def test_the_watchdog_keeps_nothing_of_a_server_that_was_removed(tmp_path: Path) -> None:
    with world(tmp_path, servers(tmp_path)) as hub:
        for name in MODES:
            hub.settled(name)
        started = [pid for name in MODES for pid in pids(tmp_path / f"{name}.txt")]
        [watchdog] = [each for each in children(hub.hub.process.pid) if each not in started]
        hub.dragoman("servers", "reconnect", "plain")
        until(lambda: len(pids(tmp_path / "plain.txt")) == 2)
        assert is_alive(watchdog)
    assert not is_alive(watchdog)


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
