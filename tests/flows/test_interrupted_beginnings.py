"""Runs that are cut off while they are stored and begun: their sessions go on, and nothing is told early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.runs import run_factory
from dragoman.runs.preparation import wait_stored
from dragoman.runs.run_queue import QueueSettings
from dragoman.server.app import background_jobs
from dragoman.store.connection import DatabaseConnection
from tests.flows.background import answer_of, send_away, until_state
from tests.gateway.metered_hub import desk
from tests.server.test_key_endings import Upstream
from tests.server.test_sockets import connected, create
from tests.serving import Served, ask, frames_in, serving, text_of, types
from tests.waiting import LIMIT, until

ENDLESS = {"text": ["word "] * 10_000, "delay": 0.05}


class HeldWriter:
    """The database's writer, which commits nothing until `release`, or the end of the block."""

    def __init__(self, served: Any) -> None:
        self._gate, self._reached = threading.Event(), threading.Event()
        self._store = served.hub.store

    async def __aenter__(self) -> HeldWriter:
        def wait(_: DatabaseConnection) -> None:
            self._reached.set()
            self._gate.wait(LIMIT)

        self._writing = asyncio.ensure_future(self._store.write(wait))
        await until(self._reached.is_set)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        await self._writing

    def release(self) -> None:
        """Let it go on."""
        self._gate.set()

    async def until_storing(self) -> None:
        """Wait until the database has something to store behind what it waits for."""
        await until(lambda: self._store.database._queued_count > 1)


class HeldBeginning:
    """A moment between the commit that stores a run and the news of it: nobody knows the run by then."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_stored, self.may_begin = asyncio.Event(), asyncio.Event()
        self._starting = served.hub.runs.starting
        monkeypatch.setattr(run_factory, "wait_stored", self._wait)

    async def _wait(self, storing: asyncio.Future[None]) -> None:
        await wait_stored(storing)
        self.is_stored.set()
        await self.may_begin.wait()

    async def release_for(self, request: asyncio.Task[Any]) -> None:
        """End it once a request waits for that, or has not."""
        [starting] = self._starting.values()
        await until(lambda: request.done() or starting.lock._waiters)
        self.may_begin.set()


@asynccontextmanager
async def answering(tmp_path: Path, **options: Any) -> AsyncIterator[Served]:
    async with serving(tmp_path, [{"text": "Hello."}], play="turns", disconnect_grace=0, **options) as hub:
        yield hub


async def test_a_socket_that_closes_while_its_prompt_is_being_stored_leaves_no_busy_session(
    tmp_path: Path,
) -> None:
    async with answering(tmp_path) as hub:
        await create(hub)
        async with connected(hub) as client:
            await client.until("init")
            async with HeldWriter(hub) as writer:
                await client.send("prompt", text="first", id="m1", requestId="r1")
                await writer.until_storing()
                await client.socket.close()
        assert text_of(await hub.chat("second", whenBusy="queue")) == "Hello."
        assert {run.status for run in await hub.runs()} <= {"finished", "stopped"}


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_stop_while_a_message_is_being_stored_stops_its_run(tmp_path: Path, is_first: bool) -> None:
    async with serving(tmp_path, [ENDLESS] if is_first else [{"text": "Hello."}, ENDLESS]) as hub:
        if not is_first:
            await hub.chat("first")
        async with HeldWriter(hub) as writer:
            asking = asyncio.create_task(hub.chat("go"))
            await until(lambda: any(each.lock.locked() for each in hub.hub.runs.starting.values()))
            starting = next(iter(hub.hub.runs.starting.values()))
            await writer.until_storing()
            stopping = asyncio.create_task(hub.http.post("/api/chat/s/stop"))
            await until(lambda: stopping.done() or starting.lock._waiters)
        assert (await stopping).json()["stopped"]
        assert "abort" in types(await asking)
        assert [run.status for run in await hub.runs()].count("stopped") == 1


async def test_a_run_is_stopped_by_its_id_also_between_being_stored_and_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, [ENDLESS]) as hub:
        beginning = HeldBeginning(hub, monkeypatch)
        asking = asyncio.create_task(hub.chat("go"))
        await beginning.is_stored.wait()
        [row] = await hub.runs()
        stopping = asyncio.create_task(hub.http.post(f"/api/runs/{row.id}/stop"))
        await beginning.release_for(stopping)
        assert (await stopping).json()["stopped"]
        assert "abort" in types(await asking)


@pytest.mark.sqlite_file  # on Postgres the request asks the database again until the run has begun
async def test_a_page_that_is_loaded_between_the_storing_of_a_run_and_its_beginning_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, [ENDLESS]) as hub:
        beginning = HeldBeginning(hub, monkeypatch)
        asking = asyncio.create_task(hub.chat("go"))
        await beginning.is_stored.wait()
        loading = asyncio.create_task(hub.http.get("/api/chat/s/stream"))
        await beginning.release_for(loading)
        await until(lambda: (run := hub.active_run()) is not None and run.tail.follower_count == 2)
        assert (await hub.http.post("/api/chat/s/stop")).json()["stopped"]
        assert types(frames_in((await loading).text)) == types(await asking)


async def test_a_socket_that_hears_of_a_run_before_it_has_begun_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, [ENDLESS]) as hub:
        await create(hub)
        async with connected(hub) as client:
            await client.until("init")
            beginning = HeldBeginning(hub, monkeypatch)
            asking = asyncio.create_task(hub.chat("go"))
            await client.until("status")
            beginning.may_begin.set()
            await client.until("chunk")
            assert (await hub.http.post("/api/chat/s/stop")).json()["stopped"]
            await asking


async def test_a_run_that_cannot_begin_once_it_is_stored_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(tmp_path) as hub:
        with monkeypatch.context() as broken:
            broken.setattr(run_factory, "make_turn", None)
            assert (await hub.http.post("/api/chat", json=ask("go"))).status_code == 500
        [failed] = await hub.runs()
        assert (failed.status, failed.finish_reason) == ("failed", "error")
        assert text_of(await hub.chat("go")) == "Hello.", "the same message is answered again"
        assert [message["role"] for message in await hub.messages()] == ["user", "assistant"]


@pytest.mark.sqlite_file  # it holds the one writer of SQLite, and breaks a table in its SQL
async def test_nothing_is_told_of_a_run_that_cannot_be_stored_and_its_model_call_is_paid_for(
    tmp_path: Path,
) -> None:
    up = Upstream()
    async with desk(tmp_path, up=up, model="up/m") as at:
        refuse = "CREATE TRIGGER no_runs BEFORE INSERT ON runs BEGIN INSERT INTO missing VALUES (1); END"
        await at.hub.store.write(lambda connection: connection.execute(refuse, {}))
        async with HeldWriter(at):
            asking = asyncio.create_task(at.http.post("/api/chat", json=ask("hi")))
            await up.began.wait()
        response = await asking
        assert (response.status_code, "Once" in response.text) == (503, False)
        await up.closed.wait()
        await until(at.rows)
        row = await at.row()
        assert (row.status, row.tokens.estimated) == ("aborted", True)
        assert (await at.http.get("/api/sessions/s/messages")).json() == {"messages": []}
        await at.hub.store.write(lambda connection: connection.execute("DROP TRIGGER no_runs", {}))
        asking = asyncio.create_task(at.http.post("/api/chat", json=ask("hi")))
        await until(lambda: [run for run in at.hub.runs._active.values() if run.fold.size])
        assert (await at.http.post("/api/sessions/s/stop")).json()["stopped"]
        assert text_of(frames_in((await asking).text)) == "Once"


async def test_a_queued_message_that_cannot_be_read_holds_up_none_behind_it(tmp_path: Path) -> None:
    async with answering(tmp_path) as hub:
        hub.hub.runs.queue.settings = QueueSettings(background_runs=0)
        broken, sound = await send_away(hub, "one", session="a"), await send_away(hub, "two", session="b")
        spoil = f"UPDATE queued_runs SET body = '[]' WHERE id = '{broken}'"
        await hub.hub.store.write(lambda connection: connection.execute(spoil, {}))
        hub.hub.runs.queue.settings = QueueSettings(background_runs=1)
        assert answer_of(await until_state(hub, sound, "done")) == "Hello."
        failed = await until_state(hub, broken, "failed")
        assert failed["error"] == "an internal error of the hub"


async def test_a_background_job_that_fails_is_logged_and_begins_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background_jobs, "RESTART_INTERVAL", 0.0)
    begun, has_ended = 0, asyncio.Event()

    async def job() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise RuntimeError("of this time only")
        has_ended.set()

    with background_jobs.run_in_background(job):
        await has_ended.wait()
    assert caplog.text.count("RuntimeError: of this time only") == 2
