"""A host that others took for dead writes nothing any more, whatever it still does."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman.errors import HostFenced
from dragoman.store.answer_spool import AnswerSnapshot, SpooledAnswer
from dragoman.store.connection import DatabaseConnection
from dragoman.store.postgres import membership
from dragoman.store.sessions.run_ends import RunEnding
from dragoman.store.store import DatabaseSettings, Store
from tests.faults.process import started, write_config
from tests.hosts.conftest import TIMEOUT, HostCluster, abandon, host_id
from tests.serving import ask
from tests.store.samples import assistant, run, session
from tests.waiting import until

WORDS = [f"word{number} " for number in range(40)]
SLOW = {"text": WORDS, "delay": 0.05}
TABLES = ("sessions", "messages", "parts", "runs", "calls", "approvals", "usage")


async def follow(http: httpx2.AsyncClient, text: str, received: list[str]) -> None:
    """Send a user message, and collect the lines of its answer until the connection ends."""
    async with http.stream("POST", "/api/chat", json=ask(text)) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            received.append(line)  # noqa: PERF401 - others look at them while they come


def contents(hosts: HostCluster) -> dict[str, list[Any]]:
    """All rows that a run writes, in order."""
    return {table: sorted(hosts.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES}


@pytest.mark.usefixtures("quick_ticks")
async def test_a_fenced_host_stops_its_runs_unwritten_and_refuses_everything(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, steps=[SLOW])
    received: list[str] = []
    following = asyncio.create_task(follow(first.http, "hello", received))
    await until(lambda: len(received) > 6)
    hosts.execute(f"UPDATE hosts SET fenced_at = 1 WHERE id = '{host_id(first)}'")
    with pytest.raises(httpx2.RemoteProtocolError):
        await following
    assert "data: [DONE]" not in received
    assert first.hub.runs.active_count == 0
    for path in ("/readyz", "/api/sessions", "/v1/models"):
        refused = await first.http.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "host_fenced")
        assert refused.headers["retry-after"] == "1"
    with pytest.raises(HostFenced):
        await first.hub.store.session_deletion.delete("s")
    await until(lambda: hosts.execute("SELECT status FROM runs") == [("finished",)])
    assert hosts.execute("SELECT host, epoch FROM runs") == [(host_id(second), 2)]
    _, answer = await second.messages()
    assert "".join(part["text"] for part in answer["parts"] if part["type"] == "text") == "".join(WORDS)
    assert not list((first.hub.store.host_folder / "answers.spool").glob("*"))
    assert not (first.hub.store.host_folder / "usage.spool").exists()


async def test_a_process_that_was_frozen_ends_with_code_75_and_has_written_nothing(
    hosts: HostCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path / "frozen", [{**SLOW, "delay": 0.2}], database=hosts.url)
    async with started(config, tmp_path / "frozen" / "data") as frozen:
        received: list[str] = []
        following = asyncio.create_task(follow(frozen.http, "hello", received))
        await until(lambda: len(received) > 6)
        frozen.process.send_signal(signal.SIGSTOP)
        (other,) = await hosts.open(1, steps=[SLOW])
        monkeypatch.setattr(membership, "FROZEN", 0.5)
        await until(lambda: hosts.execute("SELECT status FROM runs") == [("finished",)])
        await until(lambda: len(hosts.execute("SELECT id FROM usage")) == 2)
        await other.hub.meter.ledger.flush()
        before = contents(hosts)
        frozen.process.send_signal(signal.SIGCONT)
        assert await frozen.process.wait() == 75
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert contents(hosts) == before
    _, answer = await other.messages()
    assert "".join(part["text"] for part in answer["parts"] if part["type"] == "text") == "".join(WORDS)


@pytest.mark.usefixtures("quick_ticks")
async def test_a_fence_ends_a_transaction_that_does_not_end(schema_url: str, tmp_path: Path) -> None:
    database = DatabaseSettings(schema_url)
    async with (
        await Store.open(tmp_path / "a", database=database) as frozen,
        await Store.open(tmp_path / "b", database=database) as other,
    ):
        entered, may_end = threading.Event(), threading.Event()

        def job(connection: DatabaseConnection) -> None:
            connection.execute("INSERT INTO mcp_servers VALUES ('x', '', 1)", {})
            entered.set()
            may_end.wait(timeout=TIMEOUT)

        write = asyncio.ensure_future(frozen.write(job))
        await until(entered.is_set)
        assert frozen.membership is not None
        abandon(frozen.membership)
        fenced = "SELECT id FROM hosts WHERE fenced_at IS NOT NULL"
        await until(lambda: other.database.read(lambda connection: connection.fetch_all(fenced, {})))
        may_end.set()
        with pytest.raises(HostFenced):
            await write
        assert await other.mcp_servers.list() == []


async def test_a_fence_waits_for_a_transaction_that_ends(schema_url: str, tmp_path: Path) -> None:
    database = DatabaseSettings(schema_url)
    async with (
        await Store.open(tmp_path / "a", database=database) as writing,
        await Store.open(tmp_path / "b", database=database) as other,
    ):
        entered, may_end = threading.Event(), threading.Event()

        def job(connection: DatabaseConnection) -> None:
            connection.execute("INSERT INTO sessions VALUES ('s', 'o', '', NULL, NULL, NULL, 1, 1)", {})
            entered.set()
            may_end.wait(timeout=TIMEOUT)

        write = asyncio.ensure_future(writing.write(job))
        await until(entered.is_set)
        fence = asyncio.ensure_future(other.hosts.fence(writing.host_id or "", 1.0))
        blocked = "SELECT 1 FROM pg_locks WHERE NOT granted"
        await until(lambda: other.database.read(lambda connection: connection.fetch_all(blocked, {})))
        assert not write.done()
        may_end.set()
        await write
        assert await fence
        with pytest.raises(HostFenced):
            await writing.session_deletion.delete("s")


@pytest.mark.parametrize("ending", [None, RunEnding(status="finished", finished_at=2.0)])
async def test_an_answer_on_disk_is_dropped_when_another_host_has_its_run(
    schema_url: str, tmp_path: Path, ending: RunEnding | None
) -> None:
    database = DatabaseSettings(schema_url)
    async with await Store.open(tmp_path / "a", database=database) as store:
        await store.runs.create(run(), session=session(), assistant=assistant())
        row = await store.runs.get("r")
        assert row is not None
        part = msgspec.Raw(b'{"type":"text","text":"lost","state":"done"}')
        answer = SpooledAnswer(
            run_id="r", session_id="s", message_id="a", parts=[part], ending=ending, epoch=row.epoch
        )
        await store.answers.save(AnswerSnapshot(answer))
        moved = await store.runs.move(row, to="other")
        before = await store.messages.get("s", "a")
        assert await store.answers.replay(at_start=True) == 1
        assert await store.messages.get("s", "a") == before
        assert await store.runs.get("r") == moved
        assert await store.answers.replay(at_start=True) == 0
