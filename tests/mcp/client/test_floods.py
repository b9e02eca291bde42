"""A server that sends too much costs the hub little, is told apart from its answers, and is quarantined."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dragoman.mcp.client import server_supervisor
from dragoman.mcp.client.flood import ErrorOutput, FloodMeter, TrafficLimits
from dragoman.mcp.server_spec import ServerSpec
from dragoman.operations.call_limiter import Rate
from tests.mcp.client.conftest import hub

SERVER = Path(__file__).with_name("line_server.py")
LIST_CHANGED = '{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}'
TICK = '{"progressToken": $TOKEN, "progress": 1}'
PROGRESS = f'{{"jsonrpc": "2.0", "method": "notifications/progress", "params": {TICK}}}'
LOG = '{"method": "notifications/message", "jsonrpc": "2.0", "params": {"level": "info", "data": "x"}}'
QUESTION = '{"jsonrpc": "2.0", "id": 7, "method": "roots/list"}'
STRAY = '{"jsonrpc": "2.0", "id": 99999, "result": {"content": []}}'
FLOODS = {
    "list_changed": (LIST_CHANGED, "notifications/tools/list_changed"),
    "progress": (PROGRESS, "notifications/progress"),
    "log messages": (LOG, "notifications/message"),
    "requests": (QUESTION, "roots/list"),
    "stray responses": (STRAY, "responses to no request"),
    "junk": ("loading 37 % ...", "lines that are not messages"),
}
TIMES = 3_000


def spec(**details: Any) -> ServerSpec:
    return ServerSpec(name="lines", command=(sys.executable, "-S", "-E", str(SERVER)), timeout=60, **details)


@pytest.mark.parametrize("name", FLOODS)
async def test_what_is_above_the_rate_is_dropped_and_answers_arrive(name: str) -> None:
    line, kind = FLOODS[name]
    async with hub(spec(notification_rate="20/second")) as here:
        await here.servers.wait_until_started()
        assert (await here.call("lines.write", {"lines": [line], "times": TIMES})).status in (
            "done",
            "failed",
        )
        assert (await here.call("lines.echo")).ok
        (problem,) = here.servers.status("lines").problems
        assert "messages were dropped, since it sent more than 20 in 1 s" in problem
        assert kind in problem
        assert here.servers.status("lines").state == "ready"


async def test_a_flood_costs_the_hub_a_small_part_of_what_decoding_it_would() -> None:
    async def cpu(times: int, *, rate: str) -> float:
        async with hub(spec(notification_rate=rate)) as here:
            await here.servers.wait_until_started()
            began = time.process_time()
            assert (await here.call("lines.write", {"lines": [LOG], "times": times})).ok
            return time.process_time() - began

    decoded = await cpu(2_000, rate="1000000/second") / 2_000
    dropped = await cpu(20_000, rate="20/second") / 20_000
    assert dropped < decoded / 3


async def test_lists_that_change_all_the_time_are_read_a_few_times_only(
    until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_supervisor, "REFRESH_GAP", 60.0)  # the test takes less, on any machine
    async with hub(spec(notification_rate="1000000/second")) as here:
        await here.servers.wait_until_started()
        updates = 0
        offered = here.servers._find("lines").offered_tools
        update = offered.update

        async def counting(*arguments: Any) -> None:
            nonlocal updates
            updates += 1
            await update(*arguments)

        offered.update = counting  # type: ignore[assignment, method-assign]
        for _ in range(100):
            assert (await here.call("lines.write", {"lines": [LIST_CHANGED], "times": 20})).ok
        await until(lambda: updates > 0)
        assert updates == 1


async def test_a_server_that_goes_on_is_quarantined_until_somebody_reconnects_it(until: Any) -> None:
    limits = TrafficLimits(quarantine_after=0.2, quarantine=3600)
    async with hub(spec(notification_rate="50/second"), limits=limits) as here:
        await here.servers.wait_until_started()
        flooding = asyncio.create_task(
            here.call("lines.write", {"lines": [LOG], "times": 2_000_000, "answer": False})
        )
        await until(lambda: here.servers.status("lines").state == "quarantined")
        assert not (await flooding).ok
        status = here.servers.status("lines")
        assert status.error is not None
        assert "quarantined for 3600 seconds: it sent" in status.error
        assert "notifications/message" in status.error
        failed = await here.call("lines.echo")
        assert failed.error is not None
        assert "quarantined" in failed.error.message
        assert here.servers.status("lines").state == "quarantined"
        here.servers.reconnect("lines")
        await here.servers.wait_until_started()
        assert (await here.call("lines.echo")).ok
        assert here.servers.status("lines").last_error == status.error


async def test_a_quarantine_ends_by_itself(until: Any) -> None:
    async with hub(spec(), limits=TrafficLimits(quarantine=0.01)) as here:
        await here.servers.wait_until_started()
        here.servers._find("lines")._quarantine("it sent too much")
        await until(lambda: here.servers.status("lines").attempts == 2)
        await here.servers.wait_until_started()
        assert (await here.call("lines.echo")).ok


async def test_tools_above_the_limit_of_a_server_are_left_out() -> None:
    async with hub(spec(max_tools=2)) as here:
        (status,) = await here.servers.wait_until_started()
        assert (status.state, here.ids()) == ("ready", ["lines.echo", "lines.write"])
        assert status.problems == ("1 tools are left out: this server may have 2 (`max_tools`)",)


def ticking(seconds: float) -> Callable[[], float]:
    times = (number * seconds for number in count())
    return lambda: next(times)


def test_a_server_just_above_the_rate_is_not_quarantined_and_one_far_above_it_is() -> None:
    def reasons(gap: float, messages: int) -> list[str]:
        heard: list[str] = []
        limits = TrafficLimits(rate=Rate(100, 1.0), quarantine_after=10)
        meter = FloodMeter("s", limits, on_flood=heard.append, clock=ticking(gap))
        for _ in range(messages):
            meter.admit("notifications/progress")
        return heard

    assert reasons(1 / 150, 10_000) == []
    assert reasons(1 / 1_000, 9_000) == []
    assert "notifications/progress" in reasons(1 / 1_000, 20_000)[0]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.INFO, logger="dragoman.mcp"):
        yield lambda: [record.getMessage() for record in caplog.records]


def error_output(clock: Callable[[], float], *, limit: int = 1_000) -> ErrorOutput:
    return ErrorOutput(
        "s", bytes_per_minute=limit, redact=lambda text: text.replace("hunter2", "***"), clock=clock
    )


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_error_output_is_logged_up_to_a_limit_each_minute_however_it_is_cut(
    logged: Callable[[], list[str]], size: int
) -> None:
    now = 0.0
    output = error_output(lambda: now)
    text = b"".join(b"line %05d with hunter2\n" % number for number in range(1_000))
    for start in range(0, len(text), size):
        output.feed(text[start : start + size])
    assert logged()[:2] == [f"MCP server s, stderr: line 0000{number} with ***" for number in (0, 1)]
    assert 40 <= len(logged()) <= 50
    assert "hunter2" not in "".join(logged())
    now = 61.0
    output.feed(b"later\n")
    lines, later = logged()[-2:]
    assert "lines (" in lines
    assert "were dropped; 1000 bytes a minute are logged" in lines
    assert later == "MCP server s, stderr: later"
    assert output.last_lines.endswith("line 00999 with *** / later")


def test_a_line_without_an_end_costs_no_memory_and_its_beginning_is_logged(
    logged: Callable[[], list[str]],
) -> None:
    output = error_output(lambda: 0.0, limit=1_000_000)
    for _ in range(1_000):
        output.feed(b"x" * 100_000)
    assert len(output._partial) < 20_000
    output.close()
    assert logged() == ["MCP server s, stderr: " + "x" * 1_999 + "…"]


async def test_error_output_of_a_program_is_limited_and_its_last_words_are_known(
    logged: Callable[[], list[str]],
) -> None:
    async with hub(spec(stderr_limit=5_000)) as here:
        await here.servers.wait_until_started()
        assert (await here.call("lines.write", {"errors": ["again"] * 10, "times": 2_000})).ok
    again = [line for line in logged() if "stderr: again" in line]
    assert 900 <= len(again) <= 1_100
    assert any("of its error output were dropped" in line for line in logged())
