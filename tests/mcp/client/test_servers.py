"""MCP servers start in the background, independently, and leave no process behind."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import ConfigError, Conflict, NotFound
from dragoman.mcp.server_spec import ServerSpec
from dragoman.store.mcp_servers import MemoryPinStore
from tests.effort import rounds, rows
from tests.living import is_running
from tests.ports import free_port


def pids(path: Path) -> list[int]:
    text = path.read_text() if path.exists() else ""
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("pid ")]


@pytest.mark.promise("mcp-start")
async def test_many_servers_start_in_parallel_beside_dead_and_silent_ones(open_hub: Any, raw: Any) -> None:
    good = [raw(f"s{n}") for n in range(rounds(quick=20, thorough=50))]
    bad = [
        raw("mute", "mute", connect_timeout=600),
        raw("dies", "dies"),
        ServerSpec(name="none", command=("/no/such",)),
    ]
    async with open_hub(*bad, *good) as hub:
        states = {hub.servers.status(spec.name).state for spec in good}
        assert states == {"starting"}, "nothing waits for them"
        await asyncio.gather(*(hub.servers.wait_until_started(spec.name) for spec in good))
        assert [hub.servers.status(spec.name).state for spec in good] == ["ready"] * len(good)
        assert (await hub.call(f"{good[-1].name}.echo")).ok
        assert hub.servers.status("mute").state == "starting"


async def test_a_server_that_cannot_start_says_why(open_hub: Any, raw: Any) -> None:
    mute = raw("mute", "mute", connect_timeout=0.3)
    missing = ServerSpec(name="none", command=("/no/such",))
    async with open_hub(raw("dies", "dies"), missing, mute) as hub:
        await hub.servers.wait_until_started()
        assert [(each.name, each.state, each.error) for each in hub.servers.list()] == [
            (
                "dies",
                "failed",
                "its process ended with exit code 2, and said last: token is / no configuration",
            ),
            ("mute", "failed", "it did not start within 0.3 seconds"),
            ("none", "failed", "'/no/such' cannot be started: No such file or directory"),
        ]


async def test_a_call_to_a_failed_server_fails_at_once_and_has_it_tried_again(
    open_hub: Any, raw: Any, until: Any
) -> None:
    pins = MemoryPinStore()
    async with open_hub(raw(), pins=pins) as hub:
        await hub.servers.wait_until_started()
    async with open_hub(raw("raw", "dies"), pins=pins) as hub:
        await hub.servers.wait_until_started()
        attempts = hub.servers.status("raw").attempts
        failed = await hub.call("raw.echo")
        assert failed.error.transient
        assert "exit code 2" in failed.error.message
        await until(lambda: hub.servers.status("raw").attempts > attempts)


async def test_a_lazy_server_is_known_from_its_pins_and_starts_at_its_first_call(
    open_hub: Any, raw: Any, tmp_path: Path
) -> None:
    pins = MemoryPinStore()
    async with open_hub(raw("raw", lazy=True), pins=pins) as hub:
        (status,) = await hub.servers.wait_until_started()
        assert (status.state, "raw.echo" in hub.ids()) == ("lazy", True)  # it was asked once what it offers
        assert not any(map(is_running, pids(tmp_path / "raw.txt")))
    started = len(pids(tmp_path / "raw.txt"))
    async with open_hub(raw("raw", lazy=True), pins=pins) as hub:
        (status,) = await hub.servers.wait_until_started()
        assert (status.state, len(pids(tmp_path / "raw.txt"))) == ("lazy", started)
        assert (await hub.call("raw.echo")).ok
        assert hub.servers.status("raw").state == "ready"


@pytest.mark.promise("mcp-no-process")
@pytest.mark.parametrize("mode", ["litter", "stubborn"])
async def test_a_server_that_is_removed_leaves_no_process(
    open_hub: Any, raw: Any, until: Any, tmp_path: Path, mode: str
) -> None:
    async with open_hub(raw("raw", mode)) as hub:
        await hub.servers.wait_until_started()
        running = pids(tmp_path / "raw.txt")
        assert [is_running(pid) for pid in running] == [True] * (2 if mode == "litter" else 1)
    assert not is_running(running[0])
    await until(lambda: not any(map(is_running, running)))


@pytest.mark.parametrize("transport", ["auto", "sse", "http"])
async def test_a_server_that_is_removed_while_it_connects_ends_at_once(open_hub: Any, transport: Any) -> None:
    spec = ServerSpec(name="gone", url=f"http://127.0.0.1:{free_port()}/", transport=transport)
    async with open_hub(spec) as hub:
        await hub.servers.wait_until_started()  # the SDK is loaded
        await hub.servers.remove("gone")
        for turns in rows(range(200), quick=4):
            hub.servers.add(spec)
            for _ in range(turns):
                await asyncio.sleep(0)
            await hub.servers.remove("gone")
            assert [task for task in asyncio.all_tasks() if task.get_name() == "mcp gone"] == []
    gc.collect()  # what is left unclosed is a warning, and that an error


async def test_a_server_that_is_killed_is_started_again(
    open_hub: Any, raw: Any, until: Any, tmp_path: Path
) -> None:
    async with open_hub(raw()) as hub:
        await hub.servers.wait_until_started()
        os.kill(pids(tmp_path / "raw.txt")[0], 9)
        await until(lambda: len(pids(tmp_path / "raw.txt")) == 2)
        assert (await hub.call("raw.echo")).ok


async def test_new_specs_replace_old_ones_and_leave_the_same_alone(
    open_hub: Any, raw: Any, tmp_path: Path
) -> None:
    async with open_hub(raw("same"), raw("other"), raw("gone")) as hub:
        await hub.servers.wait_until_started()
        await hub.servers.replace_all([raw("same"), raw("other", tools=("echo",)), raw("new")])
        await hub.servers.wait_until_started()
        assert [each.name for each in hub.servers.list()] == ["new", "other", "same"]
        assert hub.registry.namespaces() == {"new": 20, "other": 1, "same": 20}
        assert [len(pids(tmp_path / f"{name}.txt")) for name in ("same", "other")] == [1, 2]


async def test_reconnect_opens_another_connection(open_hub: Any, raw: Any, tmp_path: Path) -> None:
    async with open_hub(raw()) as hub:
        await hub.servers.wait_until_started()
        assert hub.servers.reconnect("raw").state == "starting"
        await hub.servers.wait_until_started()
        assert len(pids(tmp_path / "raw.txt")) == 2
        assert (await hub.call("raw.echo")).ok


async def test_a_disabled_server_is_listed_and_not_started(open_hub: Any, raw: Any, tmp_path: Path) -> None:
    async with open_hub(raw(enabled=False)) as hub:
        (status,) = await hub.servers.wait_until_started()
        assert (status.state, pids(tmp_path / "raw.txt"), hub.ids()) == ("disabled", [], [])


async def test_names_are_taken_once_and_wrong_specs_are_refused(open_hub: Any, raw: Any) -> None:
    async with open_hub(raw()) as hub:
        with pytest.raises(Conflict):
            hub.servers.add(raw("RAW"))
        with pytest.raises(NotFound):
            hub.servers.status("nobody")
    for name, url in (("hub", "http://x"), ("x", None), ("x", "file:///x"), ("a b", "http://x")):
        with pytest.raises(ConfigError):
            ServerSpec(name=name, url=url)


def test_a_hub_without_mcp_servers_does_not_load_the_sdk() -> None:
    code = (
        "import asyncio, sys\n"
        "from dragoman.mcp.client.client import McpClient\n"
        "from dragoman.operations import Registry\n"
        "async def main():\n"
        "    async with McpClient(Registry()): pass\n"
        "asyncio.run(main())\n"
        "assert 'mcp' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_the_operations_of_a_server_share_one_gate(open_hub: Any, raw: Any) -> None:
    async with open_hub(raw("one", rate="2/minute"), raw("two")) as hub:
        await hub.servers.wait_until_started()
        gates = {each.namespace: each.gate for each in hub.registry.list()}
        assert all(each.gate is gates[each.namespace] for each in hub.registry.list())
        assert gates["one"] is not gates["two"]
