"""Events of sessions over `GET /api/events`: who gets which, resumed from the last one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from tests.serving import Served, serving
from tests.waiting import LIMIT

Events = list[dict[str, Any]]


class EventReader:
    """Reads a stream of events."""

    def __init__(self, response: httpx2.Response) -> None:
        self._lines = response.aiter_lines()

    async def opened(self) -> None:
        """Wait for the comment that begins the stream."""
        assert (await anext(self._lines)).startswith(":")

    async def until(self, name: str) -> Events:
        """Read events up to the first of this name."""
        found: Events = []
        async with asyncio.timeout(LIMIT):
            async for line in self._lines:
                if line.startswith("data: "):
                    found.append(msgspec.json.decode(line.removeprefix("data: ")))
                    if found[-1]["name"] == name:
                        return found
        raise AssertionError(f"no {name!r} in {names(found)}")


def an_operation(name: str, *, owner: str | None = None) -> Operation:
    """An operation that does nothing; one with an owner is private."""

    async def run(_: Any, __: Context) -> None: ...

    return Operation.from_schema(
        run, {"type": "object"}, namespace="shop", name=name, owner=owner, private=owner is not None
    )


def names(events: Events) -> list[str]:
    """The names of events."""
    return [event["name"] for event in events]


@asynccontextmanager
async def following(hub: Served, query: str = "", **headers: str) -> AsyncIterator[EventReader]:
    """Follow `/api/events`."""
    async with hub.http.stream("GET", f"/api/events{query}", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        reader = EventReader(response)
        await reader.opened()
        yield reader


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


TURN = ["session.created", "message", "run.started", "run.ended", "message"]


async def test_a_follower_hears_of_a_turn_from_its_session_to_its_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "Good day."}]) as hub, following(hub) as events:
        await hub.chat("hi")
        found = [*await events.until("run.ended"), *await events.until("message")]
        assert names(found) == TURN
        assert {event["sessionId"] for event in found} == {"s"}
        stored = await hub.messages()
        assert [event["data"]["messageId"] for event in found if event["name"] == "message"] == [
            message["id"] for message in stored
        ]
        assert found[3]["data"]["status"] == "finished"


async def test_a_follower_that_comes_back_gets_what_it_has_missed_once(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "one"}, {"text": "two"}], play="turns") as hub:
        async with following(hub) as events:
            await hub.chat("hi")
            last = (await events.until("run.started"))[-1]["id"]
        await hub.chat("more")
        async with following(hub, **{"last-event-id": last}) as events:
            missed = names(await events.until("run.started"))
            assert missed == ["run.ended", "message", "message", "run.started"]
        async with following(hub, f"?after={last}&name=run.") as events:
            found = [*await events.until("run.ended"), *await events.until("run.ended")]
            assert names(found) == ["run.ended", "run.started", "run.ended"]
        async with following(hub, "?after=0") as events:
            everything = [*await events.until("run.ended"), *await events.until("run.ended")]
            assert names(everything)[:4] == TURN[:4]


async def test_a_client_that_names_an_event_to_come_is_told_of_a_gap_and_hides_none_from_others(
    tmp_path: Path,
) -> None:
    """As one does that has followed until the hub's data was restored from a backup."""
    async with (
        serving(tmp_path, [{"text": "Good day."}]) as hub,
        following(hub, "?after=9999999") as own,
        following(hub) as events,
    ):
        assert names(await own.until("reset")) == ["reset"]
        await hub.chat("hi")
        for each in (own, events):
            assert names([*await each.until("run.ended"), *await each.until("message")]) == TURN


async def test_a_follower_that_is_cut_off_behind_any_event_misses_none(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "one"}]) as hub:
        await hub.chat("hi")
        async with following(hub, "?after=0") as events:
            found = [*await events.until("run.ended"), *await events.until("message")]
        for number in range(1, len(found)):
            ids = [event["id"] for event in found[:number] if event["id"] is not None]
            async with following(hub, f"?after={ids[-1] if ids else 0}") as events:
                missed = [*await events.until("run.ended"), *await events.until("message")]
            assert names(missed)[-(len(found) - number) :] == names(found)[number:]


async def test_only_the_events_of_the_session_are_sent_that_is_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "one"}, {"text": "two"}], play="turns") as hub:
        await hub.http.post("/api/sessions", json={"id": "a"})
        await hub.http.post("/api/sessions", json={"id": "b"})
        async with following(hub, "?session=a") as events:
            await hub.http.patch("/api/sessions/b", json={"title": "B"})
            await hub.http.patch("/api/sessions/a", json={"title": "A"})
            found = await events.until("session.updated")
            await hub.http.delete("/api/sessions/a")
            found = [*found, *await events.until("session.deleted")]
        assert [(event["name"], event["sessionId"]) for event in found] == [
            ("session.updated", "a"),
            ("session.deleted", "a"),
        ]
        assert found[0]["data"] == {"title": "A"}


async def test_a_key_gets_the_events_of_its_owner_and_an_admin_those_of_all(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        secrets = {}
        for owner, scopes in (("ada", ()), ("bob", ()), ("root", ("chat", "admin"))):
            _, secret = await hub.hub.store.keys.create(owner, scopes=frozenset(scopes))
            secrets[owner] = {"authorization": f"Bearer {secret}"}
        async with (
            following(hub, **secrets["ada"]) as ada,
            following(hub, **secrets["root"]) as root,
        ):
            for owner in ("bob", "ada"):
                made = await hub.http.post("/api/sessions", json={"id": "x"}, headers=secrets[owner])
                assert made.status_code == 201
            assert [event["owner"] for event in await ada.until("session.created")] == ["ada"]
            first, second = await root.until("session.created"), await root.until("session.created")
            assert [event["owner"] for event in (*first, *second)] == ["bob", "ada"]
            registry = hub.hub._services.registry
            registry.add(an_operation("of_bob", owner="bob"))  # a private one, which ada may not hear of
            assert [event["owner"] for event in await root.until("operations.changed")] == ["bob"]
            registry.add(an_operation("of_all"))
            registry.remove("shop.of_bob")
            assert [event["owner"] for event in await root.until("operations.changed")] == ["*"]
            assert [event["owner"] for event in await ada.until("operations.changed")] == ["*"]
        response = await hub.http.get("/api/events?session=y", headers=secrets["ada"])
        assert response.status_code == 404


async def test_an_approval_is_told_when_it_is_requested_and_when_it_is_answered(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [{"tools": [{"name": "time_now", "input": {}}]}, {"text": "It is late."}]
    config: dict[str, Any] = {"pinned": ["time.now"], "policy": [{"ask": "time.now"}]}
    async with serving(tmp_path, steps, **config) as hub, following(hub) as events:
        await hub.chat("what time is it?")
        requested = (await events.until("approval.requested"))[-1]["data"]
        assert requested["status"] == "pending"
        answered = await hub.http.post(f"/api/approvals/{requested['approvalId']}", json={"approved": True})
        assert answered.status_code == 200
        event = (await events.until("approval.answered"))[-1]
        assert (event["data"]["status"], event["actor"]) == ("approved", "local")
        assert (await events.until("run.ended"))[-1]["data"]["status"] == "finished"  # the script is played


async def test_a_slow_follower_misses_nothing_and_holds_nobody_up(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"followers": 1}) as hub:
        log = hub.hub._services.events
        log.settings = msgspec.structs.replace(log.settings, queue=5)
        await hub.http.post("/api/sessions", json={"id": "a"})
        async with following(hub, "?name=session.updated") as events:
            for number in range(40):
                await hub.http.patch("/api/sessions/a", json={"title": str(number)})
            titles: list[str] = []
            while len(titles) < 40:
                titles += [event["data"]["title"] for event in await events.until("session.updated")]
            assert titles == [str(number) for number in range(40)]
            refused = await hub.http.get("/api/events")
            assert refused.status_code == 429


@pytest.mark.parametrize("id", ["soon", "9223372036854775808", "9223372036854775808.1", "1" * 5000])
async def test_an_id_that_is_none_is_refused(tmp_path: Path, id: str) -> None:
    """The database has no integers above 2**63 - 1."""
    async with serving(tmp_path) as hub:
        await hub.http.post("/api/sessions", json={"id": "a"})
        for path in (f"/api/events?after={id}", f"/api/sessions/a/audit?before={id}"):
            response = await hub.http.get(path)
            assert response.status_code == 400, path


BUILD = '''
from dragoman import operation
from dragoman.operations.context import current


@operation("build", effect="read")
async def run(files: int) -> str:
    """Build."""
    current().publish("diff", {"files": files})
    return "built"
'''
STEPS: list[dict[str, Any]] = [{"tools": [{"name": "build_run", "input": {"files": 2}}]}, {"text": "Done."}]
SCHEMA = {
    "type": "object",
    "properties": {"files": {"type": "integer", "maximum": 10}},
    "required": ["files"],
}


def build_config(folder: Path, **events: Any) -> dict[str, Any]:
    """A hub whose operation publishes an event."""
    (folder / "build.py").write_text(BUILD, encoding="utf-8")
    return {"operations": [str(folder / "build.py")], "pinned": ["build.run"], "events": events}


async def test_an_operation_publishes_a_domain_event_in_its_session(tmp_path: Path) -> None:
    config = build_config(tmp_path, schemas={"diff": SCHEMA}, unknown="refuse")
    async with serving(tmp_path, STEPS, **config) as hub, following(hub) as events:
        await hub.chat("build it")
        found = {event["name"]: event for event in await events.until("run.ended")}
        while "call.ended" not in found:  # what is not stored comes later, if what is was still being read
            found |= {event["name"]: event for event in await events.until("call.ended")}
        assert (found["data-diff"]["data"], found["data-diff"]["sessionId"]) == ({"files": 2}, "s")
        assert found["call.started"]["data"]["operation"] == "build.run"
        assert (found["call.ended"]["id"], found["call.ended"]["data"]["status"]) == (None, "done")


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ({"schemas": {"diff": {**SCHEMA, "required": ["lines"]}}}, "lines"),
        ({"unknown": "refuse"}, "there is no event 'diff'"),
    ],
)
async def test_a_domain_event_that_does_not_fit_is_refused_with_the_reason(
    tmp_path: Path, events: dict[str, Any], reason: str
) -> None:
    async with serving(tmp_path, STEPS, **build_config(tmp_path, **events)) as hub:
        frames = await hub.chat("build it")
        failure = next(frame for frame in frames if frame["type"] == "tool-output-error")
        assert reason in failure["errorText"]
        async with following(hub, "?after=0") as stream:
            assert "data-diff" not in names(await stream.until("run.ended"))
