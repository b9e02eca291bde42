"""A spoke disconnects during calls, and reconnects."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from dragoman.operations import Registry, operation
from dragoman.spokes import Spoke
from dragoman.spokes.hub.settings import SpokeSettings
from tests.spokes.hubs import LIMIT, QUICK, house
from tests.spokes.processes import lines, process, words
from tests.waiting import until


@pytest.mark.promise("spoke-uncertain")
async def test_a_call_that_acts_is_uncertain_when_its_spoke_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with house() as hub, process(hub.url, "one", log) as spoke:
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
    settings = SpokeSettings(grace=0.5, claim_timeout=0.1)
    async with house(settings=settings) as hub:
        async with process(hub.url, "one", tmp_path / "log"):
            await hub.has("far.echo")
        assert hub.registry.get("far.echo").id == "far.echo"
        outcome = await hub.call("far.echo", {"value": "x"})
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.transient) == ("unavailable", True)
        await hub.lacks("far.echo")


async def test_a_new_call_waits_for_a_spoke_that_is_away_no_longer_than_its_deadline(tmp_path: Path) -> None:
    async with house() as hub:
        async with process(hub.url, "one", tmp_path / "log"):
            await hub.has("far.echo")
        await until(lambda: not hub.board.status()[0]["connected"])
        deadline = asyncio.get_running_loop().time() + 0.2
        outcome = await hub.call("far.echo", {"value": "x"}, deadline=deadline)
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

    async with house() as hub:
        spoke = Spoke(Registry(hello), hub=hub.url, key="key-a")
        await spoke.__aenter__()
        assert await hub.result("far.hello") == "hello"
    port = int(hub.url.rpartition(":")[2])
    async with house(port=port, settings=QUICK) as hub:
        await hub.has("far.hello")
        assert await hub.result("far.hello") == "hello"
        await spoke.close()
        await hub.lacks("far.hello")


async def cut(spoke: Spoke) -> None:
    """Break the spoke's connection as a failing network would."""
    assert spoke._connection is not None
    spoke._connection._socket.transport.abort()
