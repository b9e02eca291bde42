"""The gateway without its database: known keys continue, usage is written later, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import pytest

from dragoman.accounts import usage_ledger
from dragoman.server import auth
from dragoman.server.app import Hub
from dragoman.store import sqlite
from dragoman.store.store import DATABASE_FILE
from tests.faults.gateway_upstream import DEADLINE, OPENAI, PATHS, Way, ask, opened, provider
from tests.faults.test_usage_database_down import busy
from tests.moved_database import replaced, unreadable
from tests.providers.servers import Peer, ok, serving
from tests.waiting import until

Trouble: TypeAlias = Callable[[Path], AbstractContextManager[None]]
WAY = Way("openai", "openai")


pytestmark = pytest.mark.sqlite_file  # the file itself is moved away, locked or overwritten


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are waited for a moment only, what was refused is soon tried again, keys are looked up."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(usage_ledger, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(auth, "RECHECK_INTERVAL", 0.0)


async def script(peer: Peer) -> None:
    """Answers well."""
    while True:
        await peer.request()
        await peer.send(ok(OPENAI.whole))


@dataclass
class Rooms:
    """A hub with keys, and a client."""

    hub: Hub
    http: httpx2.AsyncClient

    async def ask(self, key: str, path: str = WAY.path) -> httpx2.Response:
        """A model request."""
        return await self.http.post(path, json=ask(stream=False), headers={"authorization": f"Bearer {key}"})

    async def ready(self) -> tuple[int, dict[str, Any]]:
        """What /readyz says."""
        response = await self.http.get("/readyz")
        return response.status_code, response.json()

    async def waiting(self) -> str:
        """What is said of the spool, once what was consumed has got there: a moment after the answer."""
        async with asyncio.timeout(DEADLINE):
            while "spool" not in (reply := (await self.ready())[1]):
                pass
        return str(reply["spool"])

    async def up(self) -> None:
        """The database is up, and nothing waits."""
        async with asyncio.timeout(DEADLINE):
            usage_ledger = self.hub.meter.ledger
            await usage_ledger.flush()
            while usage_ledger.spool.row_count or not self.hub.store.database.is_up:
                await usage_ledger.flush()
                await asyncio.sleep(0)

    async def ids(self) -> list[str | None]:
        """The requests in the database."""
        return [row.request_id for row in await self.hub.store.usage.list()]


@asynccontextmanager
async def rooms(folder: Path, url: str) -> AsyncIterator[Rooms]:
    async with (
        opened(folder, {"providers": {"up": provider("openai", url)}}, keys=True) as (hub, address),
        httpx2.AsyncClient(base_url=address, timeout=DEADLINE, trust_env=False) as http,
    ):
        yield Rooms(hub, http)


async def check_down(it: Rooms, *, existing: str, unknown: str) -> list[str]:
    """A key that was seen goes on at both doors, another does not, and all else says 503; the requests."""
    answers = [await it.ask(existing), await it.ask(existing, PATHS["anthropic"])]
    assert [answer.status_code for answer in answers] == [200, 200]
    for path, door in zip(PATHS.values(), PATHS, strict=True):
        refused = await it.ask(unknown, path)
        assert refused.status_code == 503
        assert "database" in refused.json()["error"]["message"], door
    assert (await it.ask("dgm_made-up")).status_code == 503
    headers = {"authorization": f"Bearer {existing}"}
    assert (await it.http.get("/api/sessions", headers=headers)).status_code == 503
    message = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
    chat = await it.http.post("/api/chat", json={"id": "s", "messages": [message]}, headers=headers)
    assert chat.status_code == 503
    return [answer.headers["x-request-id"] for answer in answers]


@pytest.mark.parametrize("trouble", [replaced, unreadable])
async def test_a_hub_that_starts_without_its_database_serves_who_was_seen_before(
    tmp_path: Path, trouble: Trouble
) -> None:
    async with serving(script) as upstream:
        async with rooms(tmp_path, upstream.url) as it:
            _, existing = await it.hub.store.keys.create("ann")
            _, unknown = await it.hub.store.keys.create("bob")
            request_ids = [(await it.ask(existing)).headers["x-request-id"]]
        with trouble(tmp_path / "hub"):
            async with rooms(tmp_path, upstream.url) as it:
                status, reply = await it.ready()
                assert (status, reply["status"]) == (503, "unavailable")
                assert DATABASE_FILE in reply["store"]
                request_ids += await check_down(it, existing=existing, unknown=unknown)
                assert await it.waiting() == "2 usage records wait for the database"
        async with rooms(tmp_path, upstream.url) as it:
            await it.up()
            assert await it.ids() == request_ids
            assert await it.ready() == (200, {"status": "ready", "store": "ok"})
            assert (await it.ask(unknown)).status_code == 200
        async with rooms(tmp_path, upstream.url) as it:
            assert len(await it.ids()) == len(request_ids) + 1


@pytest.mark.promise("no-database-no-outage")
@pytest.mark.parametrize("trouble", [replaced, unreadable, busy])
async def test_a_database_that_goes_down_and_up_again_loses_and_repeats_nothing(
    tmp_path: Path, trouble: Trouble
) -> None:
    """With 20 requests under way when it happens."""
    async with serving(script) as upstream, rooms(tmp_path, upstream.url) as it:
        _, existing = await it.hub.store.keys.create("ann")
        _, unknown = await it.hub.store.keys.create("bob")
        request_ids = [(await it.ask(existing)).headers["x-request-id"]]
        with trouble(tmp_path / "hub"):
            answers = await asyncio.gather(*(it.ask(existing) for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}
            request_ids += [answer.headers["x-request-id"] for answer in answers]
            if trouble is not busy:  # it can be read then, and knows the keys
                await until(lambda: not it.hub.store.database.is_up)  # seen as the usage is written
                request_ids += await check_down(it, existing=existing, unknown=unknown)
                assert (await it.ready())[0] == 503
        await it.up()
        assert sorted(map(str, await it.ids())) == sorted(request_ids)
        assert (await it.ready())[0] == 200
