"""Plugins that are replaced, deactivated or overtaken while they are called, also at several hosts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import CallError
from dragoman.identity import LOCAL
from dragoman.operations import Context
from dragoman.server.app.hub import Hub
from dragoman.store.mcp_servers import MemoryPinStore
from dragoman.teams.plugins.process import PluginProcess
from dragoman.teams.plugins.static_check import PluginSource, parse_plugin
from dragoman.tools.shell.command import ShellProgram
from dragoman.tools.shell.sandbox import Sandbox
from tests.teams.test_plugins import GOOD, Bench, accept_all_sources, activate_in, bench, pins, plugin
from tests.teams.test_team_agents import config_of, write_team
from tests.tools.test_shell import WORKS
from tests.waiting import until

__all__ = ["bench", "pins"]  # fixtures

BETTER = GOOD.replace("len(", "10 * len(").replace('"output": 2', '"output": 20')


async def replace_by(bench: Bench, text: str) -> None:
    """Deactivate the plugin, and activate another source under its name."""
    await bench.plugins.deprecate("main", "count", reason="old", by=LOCAL)
    await bench.active(text)


async def test_a_plugin_that_is_replaced_at_one_host_is_replaced_at_the_others(
    bench: Bench, pins: MemoryPinStore, tmp_path: Path
) -> None:
    write_team(tmp_path / "elsewhere", "main")
    other = Bench(tmp_path / "elsewhere", pins)
    if await bench.active() is None:
        return
    await other.plugins.refresh()
    try:
        assert await other.call(text="a b") == 2
        await replace_by(bench, BETTER)
        await other.plugins.refresh()
        assert await other.call(text="a b") == 20
        assert other.file.read_text() == BETTER
        await replace_by(bench, GOOD)
        other.file.write_text(BETTER + "\n# harmless")  # what somebody has changed is not overwritten
        await other.plugins.refresh()
        with pytest.raises(CallError, match="its file was changed"):
            await other.call(text="a b")
    finally:
        await other.plugins.close()


@pytest.mark.parametrize("change", ["deactivated", "replaced"])
async def test_a_call_that_began_before_a_change_neither_runs_the_old_source_nor_undoes_the_change(
    bench: Bench, change: str
) -> None:
    if await bench.active() is None:
        return
    bench.file.unlink()
    os.mkfifo(bench.file)  # the call waits where it reads the file
    calling = asyncio.ensure_future(bench.call(text="a b"))
    writer = await asyncio.to_thread(os.open, bench.file, os.O_WRONLY)
    if change == "deactivated":
        await bench.plugins.deprecate("main", "count", reason="old", by=LOCAL)
    else:
        await replace_by(bench, BETTER)
    os.write(writer, GOOD.encode() if change == "deactivated" else b"something else")
    os.close(writer)
    with pytest.raises(CallError):
        await calling
    assert bench.state()[0] == ("deprecated" if change == "deactivated" else "active")
    if change == "replaced":
        assert await bench.call(text="a b") == 20


async def test_calls_that_wait_for_a_plugin_fail_once_it_is_deactivated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if await bench.active() is None:
        return
    running, may_go = asyncio.Event(), asyncio.Event()
    ask = PluginProcess._ask

    async def gated(self: PluginProcess, input: Any, *, seconds: float) -> Any:
        running.set()
        await may_go.wait()
        return await ask(self, input, seconds=seconds)

    monkeypatch.setattr(PluginProcess, "_ask", gated)
    first = asyncio.ensure_future(bench.call(text="a"))
    await running.wait()
    second = asyncio.ensure_future(bench.call(text="b"))
    await until(lambda: waiters(bench))
    await bench.plugins.deprecate("main", "count", reason="old", by=LOCAL)  # waits for neither
    may_go.set()
    assert await first == 1
    with pytest.raises(CallError, match="deactivated"):
        await second


def waiters(bench: Bench) -> list[object]:
    """The calls that wait for the process of the plugin."""
    return [each for process in bench.plugins._processes.values() for each in process._lock._waiters or ()]


async def test_what_a_plugin_prints_as_errors_is_not_read_by_the_hub(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_all_sources(monkeypatch)
    text = plugin("    import os\n    return os.readlink('/proc/self/fd/2')", output="/dev/null")
    if await bench.active(text) is not None:
        assert await bench.call() == "/dev/null"


async def test_half_a_character_in_a_result_does_not_count_as_a_crash(bench: Bench) -> None:
    if await bench.active(plugin("    return '\\ud83d' if input else 1")) is not None:
        assert await bench.call(half=1) == "\ufffd"


async def test_an_owner_has_two_sources_tested_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int] = []
    running, pair = 0, asyncio.Barrier(2)

    async def verify(_: object) -> None:
        nonlocal running
        running += 1
        numbers.append(running)
        await pair.wait()  # each is tested beside another one
        running -= 1

    async def parse(name: str, _: str) -> PluginSource:
        return msgspec.structs.replace(source, name=name)

    source = await parse_plugin("count", GOOD)
    monkeypatch.setattr("dragoman.teams.plugins.service.parse_plugin", parse)
    monkeypatch.setattr(bench.plugins, "verify", verify)
    names = [f"count{number}" for number in range(6)]
    await asyncio.gather(*(bench.plugins.propose("main", name, text=GOOD, by=LOCAL) for name in names))
    assert max(numbers) == 2
    assert len(numbers) == 6


async def test_a_sub_agent_that_people_write_takes_the_place_of_a_plugin(tmp_path: Path) -> None:
    if not WORKS:
        return
    root = tmp_path / "teams"
    write_team(root, "main", "allowed_tools: ['plugins.*', 'main.count']")
    async with Hub.open(config_of(root), tmp_path / "data", require_keys=False) as hub:
        await activate_in(hub)
        (root / "main/subagents").mkdir()
        (root / "main/subagents/count.md").write_text("---\ndescription: Counts\n---\nCount.")
        assert hub._services.teams.registry.reload()
        [operation] = hub._services.registry.list("main")
        assert (operation.source, operation.private) == ("agent", False)
        listed = await hub._services.calls.call("plugins.list", {}, context=Context(agent="main"))
        [found] = listed.unwrap()
        input = {"name": "count", "reason": "there is an agent"}
        (await hub._services.calls.call("plugins.deprecate", input, context=Context(agent="main"))).unwrap()
        assert found["state"] == "active"
        assert [each.id for each in hub._services.registry.list("main")] == ["main.count"]


async def test_a_source_whose_process_cannot_start_leaves_no_control_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not WORKS:
        return
    ended: list[object] = []
    sandbox = Sandbox()
    source = await parse_plugin("count", GOOD)
    program = sandbox.program

    def broken(*args: Any, **options: Any) -> Any:
        made: ShellProgram = program(*args, **options)
        assert made.on_end is not None

        made.on_end()
        return msgspec.structs.replace(
            made, arguments=["/no/such/program"], on_end=lambda: ended.append(None)
        )

    monkeypatch.setattr(sandbox, "program", broken)
    with pytest.raises(OSError, match="No such file"):
        await PluginProcess(source.text, sandbox).call({})
    assert len(ended) == 1
