"""Calls to an MCP server that misbehaves end with a result or a clear error."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.store.mcp_servers import MemoryPinStore
from tests.loop_clock import LoopClock
from tests.waiting import LIMIT


@pytest.mark.parametrize(
    ("tool", "result"),
    [
        ("echo", "{}"),
        ("several", ["one", "two"]),
        ("structured", {"sum": 5}),
        ("quiet", None),
        ("junk", "fine"),
        (
            "files",
            {
                "content": [
                    {"type": "image", "data": "aGk=", "mimeType": "image/png"},
                    {"type": "text", "text": "page"},
                    {"type": "text", "text": "(a resource: file:///etc/passwd)"},
                ]
            },
        ),
    ],
)
async def test_what_a_tool_gives_arrives_in_one_shape(
    open_hub: Any, raw: Any, tool: str, result: Any
) -> None:
    async with open_hub(raw()) as hub:
        await hub.servers.wait_until_started()
        assert (await hub.call(f"raw.{tool}")).result == result


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("fail", "no such city"),
        ("garble", "MCP server 'raw': its response is not valid JSON"),
        ("list_answer", "the server's response does not follow MCP: its content is not a list"),
    ],
)
async def test_a_tool_that_fails_or_answers_garbage_fails_at_once_and_says_so(
    open_hub: Any, raw: Any, tool: str, text: str
) -> None:
    async with open_hub(raw()) as hub:
        await hub.servers.wait_until_started()
        failed = await hub.call(f"raw.{tool}")
        assert (failed.status, failed.error.message) == ("failed", text)
        assert (await hub.call("raw.echo")).ok


async def test_progress_is_reported_as_it_comes(open_hub: Any, raw: Any) -> None:
    async with open_hub(raw()) as hub:
        await hub.servers.wait_until_started()
        heard: list[Any] = []
        assert (await hub.call("raw.progress", on_progress=heard.append)).result == "done"
        assert heard == [{"progress": n, "total": 2.0, "message": f"step {n}"} for n in (1, 2)]


async def test_a_huge_result_passes_up_to_the_limit_and_is_refused_above_it(open_hub: Any, raw: Any) -> None:
    async with open_hub(raw(message_limit=5_000_000)) as hub:
        await hub.servers.wait_until_started()
        assert len((await hub.call("raw.huge", {"size": 4_900_000})).result) == 4_900_000
        refused = await hub.call("raw.huge", {"size": 6_000_000})
        assert "more than 5,000,000 bytes" in refused.error.message
        assert (await hub.call("raw.echo")).ok


async def test_a_server_that_never_answers_ends_in_a_timeout_and_is_reported(
    open_hub: Any, raw: Any, until: Any, tmp_path: Path
) -> None:
    async with open_hub(raw(timeout=0.3)) as hub:
        await hub.servers.wait_until_started()
        outcome = await hub.call("raw.hang")
        assert outcome.error.code == "call_timeout"
        await until(lambda: "cancelled" in (tmp_path / "raw.txt").read_text())


async def test_an_aborted_call_ends_at_once_and_the_server_is_told(
    open_hub: Any, raw: Any, until: Any, tmp_path: Path
) -> None:
    async with open_hub(raw()) as hub:
        await hub.servers.wait_until_started()
        clock = LoopClock()
        for turn in range(1, 6):
            task = asyncio.create_task(hub.call("raw.hang"))
            await until(lambda turn=turn: (tmp_path / "raw.txt").read_text().count("call hang") == turn)
            task.cancel()
            with clock.stopped(), pytest.raises(asyncio.CancelledError):  # it waits for no time
                await task
        await until(lambda: (tmp_path / "raw.txt").read_text().count("cancelled") == 5)


async def test_an_aborted_call_ends_though_the_server_reads_nothing_any_more(open_hub: Any, raw: Any) -> None:
    async with open_hub(raw()) as hub:
        await hub.servers.wait_until_started()
        tasks = [asyncio.create_task(hub.call("raw.huge", {"size": 30_000_000})) for _ in range(3)]
        tasks.append(asyncio.create_task(hub.call("raw.echo", {"pad": "x" * 5_000_000})))
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        with LoopClock().stopped():  # they wait for no time
            done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in done)


@pytest.mark.promise("mcp-crash")
async def test_a_crash_in_mid_call_leaves_an_action_uncertain(
    open_hub: Any, raw: Any, tmp_path: Path
) -> None:
    async with open_hub(raw()) as hub:
        await hub.servers.wait_until_started()
        outcome = await hub.call("raw.crash")
        assert outcome.status == "uncertain"
        assert "exit code 3, and said last: token is / giving up" in outcome.error.message
        assert (tmp_path / "raw.txt").read_text().count("call crash") == 1
        assert (await hub.call("raw.echo")).ok


@pytest.mark.promise("mcp-crash")
async def test_a_read_whose_server_crashed_is_repeated_once(open_hub: Any, raw: Any, tmp_path: Path) -> None:
    async with open_hub(raw()) as hub:
        await hub.servers.wait_until_started()
        assert (await hub.call("raw.flaky")).result == "second time"
        failed = await hub.call("raw.crash_again")
        assert (failed.error.transient, failed.status) == (True, "failed")
        assert (tmp_path / "raw.txt").read_text().count("call crash_again") == 2


@pytest.mark.parametrize("tool", ["ask", "askhang"])
async def test_a_server_that_asks_for_input_is_refused_and_the_call_says_what_it_asked(
    open_hub: Any, raw: Any, tmp_path: Path, tool: str
) -> None:
    async with open_hub(raw(timeout=2 * LIMIT)) as hub:
        await hub.servers.wait_until_started()
        async with asyncio.timeout(LIMIT):
            outcome = await hub.call(f"raw.{tool}")
        assert "What is your mother's name?" in outcome.error.message
        assert "refused" in (tmp_path / "raw.txt").read_text()
        assert (await hub.call("raw.echo")).ok


@pytest.mark.promise("mcp-secrets")
async def test_a_server_gets_the_named_variables_only_and_secrets_show_nowhere(
    open_hub: Any, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    spec = raw(env={"PLAIN": "yes"}, secrets={"API_TOKEN": "s3cret-value"})
    async with open_hub(spec) as hub:
        await hub.servers.wait_until_started()
        seen = json.loads((await hub.call("raw.env")).result)
        assert seen.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python's own
        assert seen.pop("DRAGOMAN_MCP_SERVER").startswith("mcp_")  # by which what it starts is found
        assert seen == {
            "PATH": "/usr/bin:/bin",
            "HOME": "/",
            "LANG": "C.UTF-8",
            "PLAIN": "yes",
            "API_TOKEN": "***",
        }
        crash = await hub.call("raw.crash")
    assert "token is ***" in caplog.text
    assert "s3cret-value" not in caplog.text + str(crash) + repr(spec)


async def test_a_call_that_comes_while_the_server_starts_waits_for_it(
    open_hub: Any, raw: Any, until: Any, tmp_path: Path
) -> None:
    pins = MemoryPinStore()
    async with open_hub(raw(), pins=pins) as hub:
        await hub.servers.wait_until_started()
    spec, gate = raw(), tmp_path / "open"
    wait = f'until [ -e {gate} ]; do sleep 0.01; done; exec "$0" "$@"'
    async with open_hub(replace(spec, command=("sh", "-c", wait, *spec.command)), pins=pins) as hub:
        await until(hub.ids)
        assert hub.servers.status("raw").state == "starting"
        calling = asyncio.create_task(hub.call("raw.echo"))
        gate.touch()
        assert (await calling).ok


async def test_resources_and_prompts_are_operations_of_servers_that_have_them(
    open_hub: Any, raw: Any
) -> None:
    async with open_hub(raw("has", "extras"), raw("not")) as hub:
        await hub.servers.wait_until_started()
        assert [id for id in hub.ids() if "resources" in id or "prompts" in id] == [
            "has.prompts.get",
            "has.prompts.list",
            "has.resources.list",
            "has.resources.read",
        ]
        assert (await hub.call("has.resources.read", {"uri": "a://b"})).result == "the page"
        assert (await hub.call("has.resources.list")).result["resources"] == [{"uri": "a://b", "name": "b"}]
        assert (await hub.call("has.prompts.list")).result == {"prompts": [{"name": "greet"}]}
        greeting = (await hub.call("has.prompts.get", {"name": "greet"})).result["messages"]
        assert greeting == [{"role": "user", "content": {"type": "text", "text": "Hello"}}]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("empty", []),  # as most SDKs' servers: the capability is declared, the lists are empty
        ("unlisted", []),
        ("templates", ["resources.list", "resources.read"]),
        ("extras", ["prompts.get", "prompts.list", "resources.list", "resources.read"]),
    ],
)
async def test_only_servers_that_list_resources_or_prompts_get_operations_for_them(
    open_hub: Any, raw: Any, mode: str, expected: list[str]
) -> None:
    async with open_hub(raw("raw", mode)) as hub:
        await hub.servers.wait_until_started()
        assert [id for id in hub.ids() if "resources" in id or "prompts" in id] == [
            f"raw.{name}" for name in expected
        ]
        assert (await hub.call("raw.echo")).ok


async def test_calls_of_one_server_run_side_by_side(open_hub: Any, raw: Any) -> None:
    async with open_hub(raw()) as hub:
        await hub.servers.wait_until_started()
        hung = asyncio.create_task(hub.call("raw.hang"))
        outcomes = await asyncio.gather(*(hub.call("raw.echo", {"n": n}) for n in range(50)))
        assert [json.loads(each.result)["n"] for each in outcomes] == list(range(50))
        hung.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung


async def test_what_servers_claim_of_effects_yields_to_the_spec(open_hub: Any, raw: Any) -> None:
    spec = raw(effects={"echo": "idempotent", "crash_*": "once"})
    async with open_hub(raw("claims"), spec) as hub:
        await hub.servers.wait_until_started()
        effects = {each.id: each.effect for each in hub.registry.list()}
        assert [effects[f"claims.{name}"] for name in ("echo", "crash_read", "crash_again")] == [
            "once",
            "read",
            "idempotent",
        ]
        assert [effects[f"raw.{name}"] for name in ("echo", "crash_read", "crash_again")] == [
            "idempotent",
            "once",
            "once",
        ]
