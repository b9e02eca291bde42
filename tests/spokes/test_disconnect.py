"""A spoke disconnects during calls, and reconnects."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets

from dragoman.operations import Registry, operation
from dragoman.spokes import Spoke
from dragoman.spokes.protocol import VERSION, CallFrame, RegisteredFrame, WelcomeFrame, encode_frame
from tests.loop_clock import LoopClock
from tests.ports import free_port
from tests.spokes.hubs import LIMIT, PATIENT, house
from tests.spokes.processes import lines, process, words
from tests.waiting import until


@pytest.mark.promise("spoke-uncertain")
async def test_a_call_that_acts_is_uncertain_when_its_spoke_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    settings = replace(PATIENT, claim_timeout=0.1)
    async with house(settings=settings) as hub, process(hub.url, "one", log) as spoke:
        await hub.has("far.act")
        calling = asyncio.create_task(hub.call("far.act", {"name": "x"}))
        await until(lambda: words(log, "begin x") == 1)
        spoke.send_signal(signal.SIGKILL)
        async with asyncio.timeout(LIMIT):
            outcome = await calling
        assert (outcome.status, outcome.error and outcome.error.code) == ("uncertain", "uncertain")
        assert words(log, "begin x") == 1


async def test_a_call_that_reads_is_made_again_at_another_spoke_when_its_own_is_killed(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    async with (
        house() as hub,
        process(hub.url, "one", log) as one,
        process(hub.url, "two", log) as two,
    ):
        await until(lambda: len(hub.board.status()) == 2)
        await until(lambda: all(len(each["operations"]) == 5 for each in hub.board.status()))
        calling = asyncio.create_task(hub.result("far.look", {"name": "x"}))
        await until(lambda: words(log, "begin x") == 1)
        (first,) = lines(log, "begin x")
        (one if one.pid == first else two).send_signal(signal.SIGKILL)
        assert await calling == "x"
        assert lines(log, "found x") == [two.pid if one.pid == first else one.pid]


async def test_a_call_that_reads_waits_for_its_spoke_to_come_back_under_any_id(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house() as hub:
        async with process(hub.url, "one", log):
            await hub.has("far.look")
            calling = asyncio.create_task(hub.result("far.look", {"name": "x"}))
            await until(lambda: words(log, "begin x") == 1)
        async with process(hub.url, "two", log) as other:
            assert await calling == "x"
            assert lines(log, "found x") == [other.pid]


async def test_operations_go_when_their_spoke_does_not_come_back_within_the_grace(tmp_path: Path) -> None:
    clock = LoopClock()
    async with house() as hub:
        async with process(hub.url, "one", tmp_path / "log"):
            await hub.has("far.echo")
        await until(lambda: not hub.board.status()[0]["connected"])
        assert hub.registry.get("far.echo").id == "far.echo"
        calling = asyncio.create_task(hub.call("far.echo", {"value": "x"}))
        await until(hub.running)
        clock.set_ahead(PATIENT.grace)
        outcome = await calling
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.transient) == ("unavailable", True)
        await hub.lacks("far.echo")


async def test_a_new_call_waits_for_a_spoke_that_is_away_no_longer_than_its_deadline(tmp_path: Path) -> None:
    async with house() as hub:
        async with process(hub.url, "one", tmp_path / "log"):
            await hub.has("far.echo")
        await until(lambda: not hub.board.status()[0]["connected"])
        clock = LoopClock()
        deadline = asyncio.get_running_loop().time() + LIMIT / 2  # the grace is longer
        calling = asyncio.create_task(hub.call("far.echo", {"value": "x"}, deadline=deadline))
        await until(hub.running)
        clock.set_ahead(LIMIT / 2)
        outcome = await calling
        assert outcome.error is not None
        assert outcome.error.code == "call_timeout"


async def test_a_call_goes_on_over_a_broken_connection_and_its_result_arrives() -> None:
    began, go = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @operation("far", effect="once")
    async def work() -> str:
        """Work until told."""
        runs.append(1)
        began.set()
        await go.wait()
        return "done"

    async with house() as hub, Spoke(Registry(work), hub=hub.url, key="key-a") as spoke:
        calling = asyncio.create_task(hub.result("far.work"))
        await began.wait()
        await cut(spoke)
        await until(lambda: not hub.board.status()[0]["connected"])
        go.set()
        assert await calling == "done"
        assert runs == [1]


async def test_a_repeated_idempotency_key_does_not_run_twice() -> None:
    runs: list[str] = []

    @operation("far", effect="once")
    async def act(what: str) -> int:
        """Count."""
        runs.append(what)
        return len(runs)

    async with house() as hub, Spoke(Registry(act), hub=hub.url, key="key-a"):
        first = await hub.result("far.act", {"what": "a"}, idempotency_key="k")
        again = await hub.result("far.act", {"what": "a"}, idempotency_key="k")
        other = await hub.result("far.act", {"what": "b"}, idempotency_key="l")
        assert (first, again, other, runs) == (1, 1, 2, ["a", "b"])


async def test_what_the_hub_gave_up_while_the_connection_was_broken_is_stopped_at_the_spoke() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @operation("far", effect="once")
    async def work() -> None:
        """Work until stopped."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with house() as hub, Spoke(Registry(work), hub=hub.url, key="key-a") as spoke:
        calling = asyncio.create_task(hub.call("far.work"))
        await began.wait()
        await cut(spoke)
        await until(lambda: not hub.board.status()[0]["connected"])
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(LIMIT):
            await ended.wait()


@pytest.mark.promise("spoke-reconnect")
async def test_a_spoke_comes_back_by_itself_when_the_hub_is_started_again() -> None:
    @operation("far")
    async def hello() -> str:
        """Say hello."""
        return "hello"

    port = free_port()
    async with house(port=port) as hub:
        spoke = Spoke(Registry(hello), hub=hub.url, key="key-a")
        await spoke.__aenter__()
        assert await hub.result("far.hello") == "hello"
    async with house(port=port) as hub:
        await hub.has("far.hello")
        assert await hub.result("far.hello") == "hello"
        await spoke.close()
        await hub.lacks("far.hello")


async def cut(spoke: Spoke) -> None:
    """Break the spoke's connection as a failing network would."""
    assert spoke._connection is not None
    spoke._connection._socket.transport.abort()


class SlowHub:
    """A hub that hands out a call with a large result and one with a small one, and reads nothing until both
    wait to be sent.
    """

    SIZES = (12_000_000, 1)  # more than sockets take at once

    def __init__(self) -> None:
        self.begun, self.is_behind = asyncio.Event(), asyncio.Event()
        self.all_wait, self.done = asyncio.Event(), asyncio.Event()
        self.counts: list[tuple[int, int]] = []  # replies that a ping confirms, and that have come before it

    async def serve(self, socket: ServerConnection) -> None:
        await socket.recv()
        limits: dict[str, Any] = {"window": 9, "frame": 1_000_000, "message": 32_000_000}
        limits |= {"heartbeat": 0.01, "timeout": LIMIT, "grace": LIMIT}
        await socket.send(encode_frame(WelcomeFrame(protocol=VERSION, **limits)).decode())
        await socket.send(encode_frame(RegisteredFrame(id="all", operations=("far.give",))).decode())
        for number, size in enumerate(self.SIZES):
            name = f"c{number}"
            more: dict[str, Any] = {"owner": "o", "effect": "read", "idempotency_key": name}
            call = CallFrame(id=name, call_id=name, operation="far.give", input={"size": size}, **more)
            await socket.send(encode_frame(call).decode())
            self.begun.set()
            await self.is_behind.wait()
        await self.all_wait.wait()
        await self._read(socket)
        self.done.set()
        async for _ in socket:  # until the spoke leaves
            pass

    async def _read(self, socket: ServerConnection) -> None:
        replies = 0
        while replies < len(self.SIZES):
            frame = msgspec.json.decode(await socket.recv())
            replies += frame["type"] == "result" or bool(frame.get("last"))
            if frame["type"] == "ping":
                self.counts.append((frame.get("n", 0), replies))


async def test_a_ping_confirms_no_reply_that_waits_behind_it() -> None:
    @operation("far", effect="read")
    async def give(size: int) -> str:
        """Much text, or little."""
        return "x" * size

    hub = SlowHub()
    options: dict[str, Any] = {"max_size": None, "max_queue": 1, "ping_interval": None}
    async with serve_websockets(hub.serve, "127.0.0.1", 0, **options) as server:
        port = server.sockets[0].getsockname()[1]
        async with Spoke(Registry(give), hub=f"http://127.0.0.1:{port}") as spoke, asyncio.timeout(LIMIT):
            await hub.begun.wait()
            connection = spoke._connection
            assert connection is not None
            runner, outbox = connection._job_runner, connection._outbox
            await until(lambda: runner.sent_count == 1 and outbox.is_waiting("ping"))
            hub.is_behind.set()
            await until(lambda: runner.sent_count == 2)
            for _ in range(5):  # heartbeats
                await asyncio.sleep(0.02)
            hub.all_wait.set()
            await hub.done.wait()
    assert [each for each in hub.counts if each[0] > each[1]] == []
