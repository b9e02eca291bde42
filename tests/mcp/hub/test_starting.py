"""MCP servers that start slowly: the hub does not wait, calls to them do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2

from dragoman.processes import watchdog
from tests.cli.program import scripted
from tests.effort import rounds
from tests.mcp.hub.hub_process import World, is_alive, pids, raw, until, world
from tests.serving import frames_in


def slow(state: Path, seconds: float, **details: Any) -> dict[str, Any]:
    """A server that takes so long to start."""
    plain = raw(state, **details)
    return {**plain, "command": ["sh", "-c", f'sleep {seconds}; exec "$0" "$@"', *plain["command"]]}


def beside_others(state: Path, count: int) -> dict[str, Any]:
    """A server that starts once so many have begun to."""
    plain = raw(state)
    others = f'while [ "$(ls {state.parent} | grep -c begun)" -lt {count} ]; do sleep 0.05; done'
    script = f'touch {state}.begun; {others}; exec "$0" "$@"'
    return {**plain, "command": ["sh", "-c", script, *plain["command"]]}


def test_servers_that_start_slowly_or_never_do_not_delay_the_hub(tmp_path: Path) -> None:
    servers = {
        "slow": slow(tmp_path / "slow.txt", 600),
        "mute": raw(tmp_path / "mute.txt", "mute"),
        "dead": raw(tmp_path / "dead.txt", "dies"),
        "none": {"command": ["/no/such/program"]},
        "far": {"url": "http://127.0.0.1:9/mcp"},
        "fine": raw(tmp_path / "fine.txt"),
    }
    with world(tmp_path, servers) as hub:
        assert hub.batch("fine.echo", a=1)["result"] == '{"a": 1}'
        assert hub.server("slow")["state"] == "starting"
        assert hub.batch("time.now")["success"]
        assert hub.settled("none", "failed")["error"].startswith("'/no/such/program' cannot be started")
        assert hub.settled("far", "failed")["error"].startswith("it cannot be reached")
        refused = hub.batch("dead.echo")["error"]
        assert (refused["code"], "the MCP server 'dead' is" in refused["hint"]) == ("not_found", True)


def test_a_call_that_comes_while_its_server_starts_waits_for_it(tmp_path: Path) -> None:
    with world(tmp_path, {"slow": slow(tmp_path / "slow.txt", 2)}) as hub:
        assert hub.call("slow.echo", a=1)["result"] == '{"a": 1}'
        assert hub.server("slow")["state"] == "ready"
    with world(tmp_path, {"slow": slow(tmp_path / "slow.txt", 2)}) as hub:
        assert hub.batch("slow_echo", a=1)["result"] == '{"a": 1}'
    rules = [{"ask": "slow.*"}, {"allow": "*"}]
    with world(tmp_path / "asking", {"slow": slow(tmp_path / "slow.txt", 2)}, policy=rules) as hub:
        assert hub.batch("slow.echo", a=1)["error"]["code"] == "approval_needed"
        assert hub.ask("GET", "/api/operations/slow.echo")["source"] == "mcp:slow"


def test_a_pinned_operation_of_a_server_that_is_not_up_is_there_once_it_is(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "raw_echo", "input": {"a": 1}, "id": "c1"}]},
        {"text": "Done."},
    ]
    with world(
        tmp_path,
        {"raw": slow(tmp_path / "raw.txt", 1)},
        providers={"sim": scripted(tmp_path, "sim", steps)},
        model="sim/any",
        agents={"default": {"operations": ["raw.echo"]}},
        mcp={"pinned": ["raw.echo"]},
    ) as hub:
        names = [tool["name"] for tool in list_tools(hub)]
        hub.settled("raw")
        assert output_of(hub, session="s") == '{"a": 1}'
    assert names == ["hub_list", "hub_search", "hub_schema", "hub_call", "raw_echo"]


def list_tools(hub: World) -> list[dict[str, Any]]:
    headers = {"accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    answer = hub.http.post("/mcp", json=body, headers=headers)
    text = answer.text if answer.text.startswith("{") else answer.text.partition("data: ")[2]
    tools: list[dict[str, Any]] = httpx2.Response(200, text=text).json()["result"]["tools"]
    return tools


def output_of(hub: World, *, session: str) -> Any:
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "go"}]}
    body = {"id": session, "messages": [message], "trigger": "submit-message"}
    frames = frames_in(hub.http.post("/api/chat", json=body).text)
    [output] = [each["output"] for each in frames if each["type"] == "tool-output-available"]
    return output


def test_many_servers_start_at_the_same_time_and_are_gone_with_the_hub(tmp_path: Path) -> None:
    count = rounds(quick=10, thorough=50)
    states = {f"s{number}": tmp_path / f"s{number}.txt" for number in range(count)}
    servers = {name: beside_others(state, count) for name, state in states.items()}
    with world(tmp_path, servers) as hub:
        until(lambda: {each["state"] for each in servers_of(hub)} == {"ready"})
        calls = [{"tool": f"{name}.echo"} for name in list(states)[:32]]
        body = {"calls": calls}
        reply = hub.ask("POST", "/api/operations/hub.call/call", json=body)
        assert all(entry["success"] for entry in reply["result"])
        began_pids = [pid for state in states.values() for pid in pids(state)]
        assert len(began_pids) == count
    assert not any(map(is_alive, began_pids))


def servers_of(hub: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = hub.ask("GET", "/api/mcp/servers")["servers"]
    return found


WITHOUT = """
import asyncio, sys, tempfile
from pathlib import Path
from tests.serving import serving

BOTH = {"accept": "application/json, text/event-stream"}
CALL = {"calls": [{"tool": "time.now"}]}

def message(method, **params):
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

async def main(folder):
    async with serving(folder) as hub:
        await hub.http.post("/api/operations/hub.call/call", json=CALL)
        called = message("tools/call", name="hub_call", arguments=CALL)
        answer = await hub.http.post("/mcp", json=called, headers=BOTH)
        assert answer.json()["result"]["structuredContent"]["result"][0]["success"], answer.text
        print("mcp" in sys.modules or "prometheus_client" in sys.modules)
        await hub.http.post("/mcp", json=message("tools/list"), headers=BOTH)
        print("mcp" in sys.modules)

with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))
"""


def test_a_hub_without_mcp_servers_and_sessions_does_not_load_the_mcp_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_the_program_that_guards_the_servers_of_a_hub_loads_little_until_the_hub_is_gone() -> None:
    """Each hub with a child process has one, and nearly all of them end unused."""
    command = [sys.executable, "-I", "-S", "-X", "importtime", str(watchdog.PROGRAM)]
    done = subprocess.run(command, input=b"+1 A=1\n-1\n", capture_output=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "encodings" in loaded  # as in each program
    assert loaded.isdisjoint({"os", "enum", "signal", "typing", "pathlib", "importlib.util"})


TOGETHER = """
import threading
from dragoman.mcp.sdk_import import import_sdk_module

begin, failed = threading.Barrier(2), []

def get(module):
    begin.wait()
    try:
        import_sdk_module(module)
    except ImportError as error:
        failed.append(str(error))

modules = ("dragoman.mcp.client.connection", "dragoman.mcp.server.handlers")
threads = [threading.Thread(target=get, args=(each,)) for each in modules]
for each in threads: each.start()
for each in threads: each.join()
print(failed)
"""


def test_the_two_sides_of_mcp_are_loaded_at_the_same_time_without_harm() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
