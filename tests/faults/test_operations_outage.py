"""The database goes down while calls run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dragoman.providers import scripted
from dragoman.store import sqlite
from tests.answer_gate import Gate
from tests.faults import operations_chain
from tests.faults.operations_hub import Json, batch, words
from tests.faults.test_usage_database_down import busy
from tests.moved_database import replaced
from tests.serving import Served, serving
from tests.waiting import until

Trouble: TypeAlias = Callable[[Path], AbstractContextManager[None]]
HOLD = batch("near.hold")
LATER = [{"text": "Good day."}]


pytestmark = pytest.mark.sqlite_file  # the file itself is moved away, locked or overwritten


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the operations write; others' locks are waited for a moment only."""
    monkeypatch.setenv("CHAIN_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    for name in ("arrived", "released"):
        monkeypatch.setattr(operations_chain, name, asyncio.Event())
    return tmp_path / "log"


async def call(hub: Served, operation: str, **input: Any) -> Json:
    """What comes of an operation that is called alone."""
    found: Json = (await hub.http.post(f"/api/operations/{operation}/call", json=input)).json()
    return found


async def collect(hub: Served, operation: str, **input: Any) -> Json:
    """What a model would be told of it."""
    reply = await call(hub, "hub.call", calls=[{"tool": operation, "input": input}])
    entry: Json = reply["result"][0] if reply["success"] else reply
    return entry


async def begun(log: Path, word: str, calling: Any) -> asyncio.Task[Any]:
    """A call, once it is under way."""
    task = asyncio.create_task(calling)
    await until(lambda: words(log)[f"begin {word}"] >= 1)
    return task


async def up(hub: Served) -> None:
    """The database is up again, and what waited is written."""
    await until(lambda: hub.hub.store.database.is_up)
    await hub.hub.store.flush()


@pytest.mark.promise("outage-calls")
@pytest.mark.parametrize("trouble", [replaced, busy])
async def test_a_call_that_ends_while_the_database_is_down_is_told_and_is_written_down_later(
    tmp_path: Path, log: Path, trouble: Trouble
) -> None:
    async with serving(tmp_path, operations=["tests.faults.operations_chain"]) as hub:
        holding = await begun(log, "hold", call(hub, "near.hold"))
        with trouble(tmp_path / "hub"):
            refused = await call(hub, "danger.quick", disk="a")
            assert (refused["status"], refused["error"]["code"]) == ("failed", "unavailable")
            assert words(log)["wiped a"] == 0
            operations_chain.released.set()
            assert (await holding)["result"] == "held"
        await up(hub)
        [call_record] = (await hub.http.get("/api/calls?operation=near.hold")).json()["calls"]
        assert (call_record["status"], call_record["result"]) == ("done", '"held"')
        assert (await call(hub, "danger.quick", disk="a"))["result"] == "wiped a"


async def test_what_acts_below_a_call_is_not_done_while_the_database_is_down(
    tmp_path: Path, log: Path
) -> None:
    async with serving(tmp_path, operations=["tests.faults.operations_chain"]) as hub:
        relaying = await begun(log, "hold", call(hub, "near.relay"))
        with replaced(tmp_path / "hub"):
            assert (await call(hub, "danger.quick", disk="a"))["error"]["code"] == "unavailable"
            operations_chain.released.set()
            reply = await relaying
        assert (reply["status"], reply["error"]["transient"]) == ("failed", True)
        assert words(log)["wiped b"] == 0


async def test_a_result_that_cannot_be_kept_is_reported_in_part(tmp_path: Path, log: Path) -> None:
    async with serving(tmp_path, operations=["tests.faults.operations_chain"]) as hub:
        piling = await begun(log, "pile", collect(hub, "big.pile", rows=2_000))
        with replaced(tmp_path / "hub"):
            assert (await call(hub, "danger.quick", disk="a"))["error"]["code"] == "unavailable"
            operations_chain.released.set()
            entry = await piling
        assert entry["success"]
        assert "artifact" not in entry["result"]
        assert entry["result"]["head"].startswith('[{"row":0')
        assert "could not be stored" in entry["result"]["hint"]


async def test_nobody_is_asked_while_the_database_is_down_and_an_answer_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, operations=["tests.faults.operations_chain"]) as hub:
        approval_id = (await call(hub, "danger.wipe", disk="a"))["approvalId"]
        with replaced(tmp_path / "hub"):
            for _ in range(2):  # the first one finds out that it is down
                reply = await collect(hub, "danger.wipe", disk="b")
                assert not reply["success"]
                assert reply["error"]["code"] in ("store", "unavailable")
            answer = await hub.http.post(f"/api/approvals/{approval_id}", json={"approved": True})
            assert answer.status_code == 503
        await up(hub)
        answer = await hub.http.post(f"/api/approvals/{approval_id}", json={"approved": True})
        assert answer.json()["status"] == "approved"


async def test_a_session_whose_answer_ended_while_the_database_was_down_goes_on(
    tmp_path: Path, log: Path
) -> None:
    steps = [*HOLD, *LATER]
    async with serving(tmp_path, steps, operations=["tests.faults.operations_chain"]) as hub:
        chatting = await begun(log, "hold", hub.chat("go"))
        with replaced(tmp_path / "hub"):
            operations_chain.released.set()
            assert (await chatting)[-1]["finishReason"] == "stop"
        await up(hub)
        assert await states(hub) == ["output-available", "done"]
        assert (await hub.chat("more"))[-1]["finishReason"] == "stop"


async def test_what_an_answer_said_while_the_database_was_down_is_written_with_its_end(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(behind="word5 ")
    monkeypatch.setattr(scripted, "play", gate.play)
    slow = {"text": [f"word{number} " for number in range(40)], "delay": 0.01}
    async with serving(tmp_path, [HOLD[0], slow], operations=["tests.faults.operations_chain"]) as hub:
        chatting = await begun(log, "hold", hub.chat("go"))
        run = hub.active_run()
        assert run is not None
        with replaced(tmp_path / "hub"):
            operations_chain.released.set()
            await until(lambda: len(run.fold.builders) > 3)
        await up(hub)
        assert not chatting.done()
        gate.opened.set()
        assert (await chatting)[-1]["finishReason"] == "stop"
        assert await states(hub) == ["output-available", "done"]


async def states(hub: Served) -> list[str]:
    """The states of the answer's parts, as they are kept."""
    parts = (await hub.messages())[1]["parts"]
    return [part["state"] for part in parts if part["type"] != "step-start"]
