"""Sessions of tens of thousands of messages: their pages, and how long requests hold the event loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import parse_config
from dragoman.errors import RunActive
from dragoman.identity import LOCAL
from dragoman.messages import Message, TextPart
from dragoman.runs.run_queue import RunQueue
from dragoman.server.app import Hub
from dragoman.server.app.background_jobs import RetentionPurge
from dragoman.session_ids import hub_session_id
from dragoman.store import retention
from dragoman.store.hub_events import EventPosition
from dragoman.store.runs import RunRecord
from dragoman.store.sessions.sessions import Session, SessionKind
from tests.effort import rounds
from tests.loop_lag import MOST, best_lag
from tests.serving import write_script
from tests.waiting import poll

from .asgi_client import AsgiClient

MESSAGES = rounds(quick=25_000, thorough=50_000)
PATH = "/api/sessions/long/messages"
CHAT = '{"id":"long","messages":[{"id":"n%d","role":"user","parts":[{"type":"text","text":"hi"}]}]%s}'
AG_UI = '{"threadId":"long","runId":"r","messages":[{"id":"n%d","role":"user","content":"hi"}]}'


@pytest.fixture(autouse=True)
def no_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The purge at a hub's start would finish the deletions that are cut off here."""

    async def wait(_: RetentionPurge) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RetentionPurge, "run", wait)


@asynccontextmanager
async def long_session(
    folder: Path, count: int, *, kind: SessionKind | None = None
) -> AsyncIterator[tuple[Hub, AsgiClient]]:
    """A hub with a session of so many messages."""
    script = write_script(folder, [{"text": "ok"}], play="turns")
    config = parse_config(
        {
            "providers": {
                "sim": {"type": "scripted", "script": str(script)},
                "anthropic": {"type": "anthropic", "base_url": "http://127.0.0.1:9", "retries": 0},
            },
            "model": "sim/x",
            "agents": {"default": {"context": {"policy": "truncate", "limit": 8_000}}},
        }
    )
    async with Hub.open(config, folder / "hub", require_keys=False) as hub:
        now, id = time.time(), hub_session_id("long", owner=LOCAL.owner)
        then = now + 1 if kind is None else now - 3_600
        session = Session(id=id, owner=LOCAL.owner, created_at=now, updated_at=then, kind=kind)
        await hub.store.sessions.create(session, by=LOCAL)
        messages = [
            Message(f"m{index}", "assistant" if index % 2 else "user", (TextPart(f"text {index}"),))
            for index in range(count)
        ]
        await hub.store.messages.import_messages(id, messages, start=0)
        yield hub, AsgiClient(hub.app)


async def read(client: AsgiClient, query: bytes = b"") -> Any:
    status, body = await client.request("GET", PATH, b"", query=query)
    return (status, json.loads(body)) if status != 200 else json.loads(body)


def ids(page: Any) -> list[str]:
    return [message["id"] for message in page["messages"]]


async def test_a_session_is_read_page_by_page_from_its_end(tmp_path: Path) -> None:
    async with long_session(tmp_path, 120) as (_, client):
        whole = await read(client)
        assert (len(whole["messages"]), "earlierMessages" in whole) == (120, False)
        page, found = await read(client, b"limit=50"), list[str]()
        assert (ids(page), page["earlierMessages"]) == ([f"m{n}" for n in range(70, 120)], 70)
        while True:
            found = [*ids(page), *found]
            if not page["earlierMessages"]:
                break
            page = await read(client, b"before=" + found[0].encode())
        assert found == ids(whole)
        assert await read(client, b"before=m0") == {"messages": [], "earlierMessages": 0}
        assert (await read(client, b"before=m3&limit=1"))["messages"] == whole["messages"][2:3]


async def test_what_is_no_page_of_a_session_is_refused(tmp_path: Path) -> None:
    async with long_session(tmp_path, 2) as (_, client):
        for query, status in ((b"limit=0", 400), (b"limit=201", 400), (b"limit=x", 400), (b"before=no", 404)):
            assert (await read(client, query))[0] == status, query


async def test_a_page_of_large_messages_ends_early(tmp_path: Path) -> None:
    async with long_session(tmp_path, 2) as (hub, client):
        large = [Message(f"l{index}", "user", (TextPart("x" * 300_000),)) for index in range(3)]
        await hub.store.messages.import_messages(hub_session_id("long", owner=LOCAL.owner), large, start=2)
        page = await read(client, b"limit=50")
        assert (ids(page), page["earlierMessages"]) == (["l2"], 4)


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each transaction of a deletion do as little as it can, on a machine of any speed."""
    monkeypatch.setattr(retention, "MAX_BATCH_SECONDS", 0.0)


@contextmanager
def writing_beside_steps(hub: Hub, client: AsgiClient) -> Iterator[list[int]]:
    """Create a session beside each transaction of a deletion; the statuses of the answers."""
    statuses: list[int] = []
    submit = hub.store.retention._submit

    async def submit_and_write(job: Any) -> Any:
        result, (status, _) = await asyncio.gather(submit(job), client.post("/api/sessions", b"{}"))
        statuses.append(status)
        return result

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hub.store.retention, "_submit", submit_and_write)
        yield statuses


@pytest.mark.usefixtures("short_steps")
async def test_others_write_while_a_long_session_is_deleted(tmp_path: Path) -> None:
    async with long_session(tmp_path, 1_000) as (hub, client):
        with writing_beside_steps(hub, client) as statuses:
            assert (await client.request("DELETE", "/api/sessions/long", b""))[0] == 204
        assert len(statuses) > 20
        assert set(statuses) == {201}
        assert (await client.get("/api/sessions/long"))[0] == 404
        assert await read(client) == {"messages": []}
        id = hub_session_id("long", owner=LOCAL.owner)
        page = await hub.store.events.list(EventPosition(), session_id=id)
        assert [event.name for event in page.events] == ["session.deleted"]
        assert (await client.post("/api/chat", (CHAT % (1, "")).encode()))[0] == 200
        assert ids(await read(client))[:1] == ["n1"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", CHAT % (1, "")),
        ("/api/sessions", '{"id":"long"}'),
        ("/api/sessions/other/fork", '{"id":"long","messageId":"n1"}'),
        ("/api/sessions/import?id=long", '{"format":"dragoman-session","version":1}'),
    ],
    ids=["chat", "create", "fork", "import"],
)
async def test_a_session_whose_deletion_was_cut_off_is_made_anew(
    tmp_path: Path, path: str, body: str
) -> None:
    async with long_session(tmp_path, 600) as (hub, client):
        other = (CHAT % (1, "")).replace("long", "other")
        assert (await client.post("/api/chat", other.encode()))[0] == 200
        id = hub_session_id("long", owner=LOCAL.owner)
        await hub.store.database.write(partial(hub.store.retention.hide, id=id))
        assert (await client.get("/api/sessions/long"))[0] == 404
        address, _, query = path.partition("?")
        status, answer = await client.request("POST", address, body.encode(), query=query.encode())
        assert status in (200, 201), answer
        assert (await client.get("/api/sessions/long"))[0] == 200
        assert set(ids(await read(client))[:1]) <= {"n1"}


@pytest.mark.parametrize("settings", ["", ',"background":true,"whenBusy":"queue"'], ids=["run", "queued"])
async def test_a_session_is_made_anew_also_when_its_deletion_ends_just_after_it_was_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    async with long_session(tmp_path, 600) as (hub, client):
        id = hub_session_id("long", owner=LOCAL.owner)
        await hub.store.database.write(partial(hub.store.retention.hide, id=id))
        finish, ends = hub.store.session_deletion.finish, list[bool]()

        async def finish_late(id: str) -> Any:
            ends.append(await finish(id))  # by whoever deletes it
            return await finish(id)

        monkeypatch.setattr(hub.store.session_deletion, "finish", finish_late)
        monkeypatch.setattr(RunQueue, "is_full", bool(settings))
        status, answer = await client.post("/api/chat", (CHAT % (1, settings)).encode())
        assert (status, ends) == (202 if settings else 200, [True]), answer
        session = await hub.store.sessions.get(id)
        assert session is not None
        assert (session.owner, session.title) == (LOCAL.owner, "hi")


async def test_a_message_that_is_queued_in_a_session_that_is_being_deleted_makes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with long_session(tmp_path, 600) as (hub, client):
        id = hub_session_id("long", owner=LOCAL.owner)
        find = hub.store.sessions.get_own

        async def find_and_hide(*arguments: Any, **named: Any) -> Session | None:
            session = await find(*arguments, **named)
            if not await hub.store.retention.is_hidden(id):
                await hub.store.database.write(partial(hub.store.retention.hide, id=id))
            return session

        body = (CHAT % (1, ',"background":true,"whenBusy":"queue"')).encode()
        with monkeypatch.context() as patched:
            patched.setattr(RunQueue, "is_full", True)
            patched.setattr(hub.store.sessions, "get_own", find_and_hide)
            assert (await client.post("/api/chat", body))[0] == 202
            assert (await hub.store.queued_runs.list(id))[0].message_id == "n1"
            session = await hub.store.sessions.get(id)
            assert session is not None
            assert session.title == "hi"
            assert await hub.store.messages.list(id) == []


async def test_a_session_that_is_made_anew_while_it_is_deleted_keeps_its_messages(tmp_path: Path) -> None:
    async with long_session(tmp_path, 4_000) as (hub, client):
        id, released = hub_session_id("long", owner=LOCAL.owner), asyncio.Event()
        submit = hub.store.retention._submit
        with pytest.MonkeyPatch.context() as patched:  # the deletion waits; a second one passes it
            patched.setattr(hub.store.retention, "_submit", partial(submit_after, released, submit))
            deleting = asyncio.ensure_future(client.request("DELETE", "/api/sessions/long", b""))
            await poll(lambda: hub.store.retention.is_hidden(id))
        assert (await client.post("/api/chat", (CHAT % (1, "")).encode()))[0] == 200
        released.set()
        assert (await deleting)[0] == 204
        assert len(ids(await read(client))) == 2


async def submit_after(flag: asyncio.Event, submit: Any, job: Any) -> Any:
    await flag.wait()
    return await submit(job)


@pytest.mark.usefixtures("short_steps")
async def test_others_write_while_a_long_import_that_was_cut_off_makes_room_for_another(
    tmp_path: Path,
) -> None:
    async with long_session(tmp_path, 1_000, kind="importing") as (hub, client):
        file = b'{"format":"dragoman-session","version":1}\n{"id":"m","role":"user","parts":[]}'
        with writing_beside_steps(hub, client) as statuses:
            imported = await client.request("POST", "/api/sessions/import", file, query=b"id=long")
        assert imported[0] == 201
        assert len(statuses) > 20
        assert set(statuses) == {201}
        assert ids(await read(client)) == ["m"]


async def test_a_long_session_with_an_active_run_is_not_deleted(tmp_path: Path) -> None:
    async with long_session(tmp_path, 1_000) as (hub, _):
        id = hub_session_id("long", owner=LOCAL.owner)
        run = RunRecord(id="run_1", session_id=id, message_id="a", owner=LOCAL.owner, started_at=time.time())
        await hub.store.runs.create(run, assistant=Message("a", "assistant"), user=Message("u", "user"))
        with pytest.raises(RunActive):
            await hub.store.session_deletion.delete(id, by=LOCAL)
        assert len(await hub.store.messages.list(id)) == 1_002


async def test_no_request_on_a_session_of_very_many_messages_holds_the_event_loop(tmp_path: Path) -> None:
    numbers = iter(range(1_000))
    requests: dict[str, tuple[str, str, str]] = {
        "its messages": ("GET", PATH, ""),
        "a chat": ("POST", "/api/chat", CHAT.replace("%s", "")),
        "a chat whose provider fails": ("POST", "/api/chat", CHAT.replace("%s", ',"model":"anthropic/x"')),
        "ag-ui": ("POST", "/agui/default", AG_UI),
    }
    lags: dict[str, float] = {}
    async with long_session(tmp_path, MESSAGES) as (_, client):
        for name, (method, path, template) in requests.items():

            async def ask(method: str, path: str, template: str) -> tuple[int, bytes]:
                return await client.request(method, path, template.replace("%d", str(next(numbers))).encode())

            (status, body), lags[name] = await best_lag(partial(ask, method, path, template))
            assert (status, len(body) > 100) == (200, True), name
        page = partial(client.request, "GET", PATH, b"", query=b"limit=200")
        (status, body), lags["a page"] = await best_lag(page)
        assert (status, json.loads(body)["earlierMessages"] > MESSAGES - 200) == (200, True)
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}
