"""The spokes of examples/."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.operations import Context, Registry
from dragoman.tools.builtin import builtin_operations
from tests.ports import free_port
from tests.spokes.hubs import LIMIT, House, house
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "spoke.mjs"
MODULE = """
from dragoman.operations import Registry, operation

@operation("mine", effect="read")
def double(n: int) -> int:
    "Double a number."
    return 2 * n

registry = Registry(double)
"""


@asynccontextmanager
async def program(
    *command: str, cwd: Path | None = None, **env: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A running program; stopped at the end if it still runs."""
    stored = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
    running = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**stored, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


def javascript(hub: House) -> Any:
    command = ("node", "--experimental-websocket", "--no-warnings", str(PROGRAM), hub.url, "js-1")
    return program(*command, DRAGOMAN_KEY="key-a")


def test_the_javascript_spoke_has_60_lines_at_most() -> None:
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) <= 60


async def test_the_javascript_spoke_serves_reports_calls_the_hub_and_stops() -> None:
    async with house() as hub, javascript(hub):
        await hub.has("js.reverse", "js.shout", "js.count")
        assert hub.registry.get("js.reverse").source == "spoke:js"
        assert await hub.result("js.reverse", {"text": "añb"}) == "bña"
        assert await hub.result("js.shout", {"text": "abc"}) == "CBA"
        heard: list[Any] = []
        calling = asyncio.create_task(
            hub.calls.call("js.count", {"to": 1000}, context=Context(), on_progress=heard.append)
        )
        await until(lambda: len(heard) >= 3)
        assert heard[:2] == [{"n": 1}, {"n": 2}]
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await until(lambda: hub.board.status()[0]["calls"] == 0)


async def test_the_javascript_spoke_comes_back_when_the_hub_does() -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        async with house(port=port) as hub:
            await stack.enter_async_context(javascript(hub))
            await hub.has("js.reverse")
        await refuse(port, times=2)
        async with house(port=port) as again:
            await again.has("js.reverse")
            assert await again.result("js.reverse", {"text": "ab"}) == "ba"


async def test_the_python_spoke_describes_its_machine_and_uses_the_hub_s_calculator() -> None:
    registry = Registry(*builtin_operations(None))
    async with (
        house(*registry.list()) as hub,
        program(sys.executable, str(ROOT / "examples" / "spoke.py"), hub.url, DRAGOMAN_KEY="key-a"),
    ):
        await hub.has("machine.describe", "machine.total")
        assert "python" in await hub.result("machine.describe")
        assert await hub.result("machine.countdown", {"start": 2}) == "lift-off"
        assert await hub.result("machine.total", {"numbers": [1, 2, 3.5]}) == 6.5


@pytest.mark.promise("spoke-command")
async def test_the_command_serves_a_registry_with_the_key_of_a_variable(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    async with (
        house() as hub,
        program(*spoke("mine:registry", hub, "--id", "cli"), cwd=tmp_path, HUB_KEY="key-a") as running,
    ):
        assert running.stdout is not None
        async with asyncio.timeout(LIMIT):
            text = (await running.stdout.readline()).decode()
        assert text.startswith("dragoman: spoke cli serves at ws://")
        assert await hub.result("mine.double", {"n": 21}) == 42
        running.send_signal(signal.SIGTERM)
        assert await running.wait() == 0
        await hub.lacks("mine.double")


async def test_the_command_ends_with_the_hub_s_words_when_the_key_is_no_good(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE, encoding="utf-8")
    async with (
        house() as hub,
        program(*spoke("mine:registry", hub), cwd=tmp_path, HUB_KEY="key-nobody") as running,
    ):
        async with asyncio.timeout(LIMIT):
            _, raw = await running.communicate()
        assert running.returncode == 1
        assert b"this key is unknown" in raw
        assert b"key-nobody" not in raw


async def refuse(port: int, *, times: int) -> None:
    """Be nothing but a port that hangs up, until somebody has tried so many times."""
    tried = asyncio.Semaphore(0)

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        tried.release()

    async with asyncio.timeout(LIMIT), await asyncio.start_server(hang_up, "127.0.0.1", port):
        for _ in range(times):
            await tried.acquire()


def spoke(reference: str, hub: House, *more: str) -> tuple[str, ...]:
    """The command for a spoke."""
    called = (sys.executable, "-m", "dragoman", "spoke", reference)
    return (*called, "--hub", hub.url, "--key-env", "HUB_KEY", *more)
