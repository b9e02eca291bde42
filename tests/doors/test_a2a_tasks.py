"""A2A tasks that wait for their turn, that end while they are canceled, and of who lost their grant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.providers import scripted
from dragoman.runs import run_factory
from dragoman.runs.active_run import ActiveRun
from dragoman.runs.preparation import wait_stored
from tests.doors.test_a2a_push import LOOPBACK, receiving
from tests.doors.test_a2a_rules import VERSION, Json, error_of, rpc, sent, task_of
from tests.gateway.metered_hub import Site, holding, placed, tokens
from tests.providers.servers import Peer, Received
from tests.server.test_grants import SESSION, TURNS, status
from tests.server.test_participants import people_of
from tests.serving import Served, serving
from tests.waiting import until

SLOW: Json = {"text": [f"word{n} " for n in range(2_000)], "delay": 0.05}  # longer than any test
AT_ONCE: Json = {"configuration": {"returnImmediately": True}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def begin(hub: Served, text: str, id: str, **fields: Any) -> Json:
    params = sent(text, contextId="c", messageId=id) | AT_ONCE
    task: Json = (await rpc(hub, "SendMessage", params, **fields))["result"]["task"]
    return task


async def state_of(hub: Served, id: str) -> str:
    state: str = (await rpc(hub, "GetTask", {"id": id}))["result"]["status"]["state"]
    return state.removeprefix("TASK_STATE_")


async def test_a_message_to_a_busy_context_is_a_submitted_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, play = asyncio.Event(), scripted.play

    async def play_late(step: scripted.Step, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        if step.text == "the third":  # a task that has ended before it is followed is sent as a whole
            await may_answer.wait()
        async for batch in play(step, *arguments, **options):
            yield batch

    monkeypatch.setattr(scripted, "play", play_late)
    async with serving(tmp_path, [SLOW, {"text": "the third"}]) as hub:
        first = await begin(hub, "one", "m1")
        second = await begin(hub, "two", "m2")
        assert (second["status"]["state"], second["contextId"]) == ("TASK_STATE_SUBMITTED", "c")
        assert second["history"][0]["parts"] == [{"text": "two"}]
        assert (await begin(hub, "two", "m2"))["id"] == second["id"], "the same message again"
        assert await state_of(hub, second["id"]) == "SUBMITTED"
        assert await error_of(hub, "SendMessage", sent("more", taskId=second["id"])) == -32004
        assert await error_of(hub, "GetTask", {"id": second["id"]}, "poet") != 0
        canceled = (await rpc(hub, "CancelTask", {"id": second["id"]}))["result"]
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        assert await state_of(hub, second["id"]) == "CANCELED"
        assert await error_of(hub, "CancelTask", {"id": second["id"]}) == -32002
        assert await error_of(hub, "SubscribeToTask", {"id": second["id"]}) == -32004

        body = {"jsonrpc": "2.0", "id": 7, "method": "SendStreamingMessage"}
        body["params"] = sent("three", contextId="c", messageId="m3")
        async with hub.http.stream("POST", "/a2a/default", json=body, headers=VERSION) as response:
            lines = response.aiter_lines()
            third = await next_item(lines)
            assert third["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
            await rpc(hub, "CancelTask", {"id": first["id"]})
            items = [third]
            while not (items[-1].get("statusUpdate", {}).get("status", {}).get("state", "")).endswith(
                "COMPLETED"
            ):
                items.append(await next_item(lines))
                may_answer.set()
        assert [next(iter(item)) for item in items] == [
            "task",
            "statusUpdate",
            "artifactUpdate",
            "statusUpdate",
        ]
        assert items[2]["artifactUpdate"]["artifact"]["parts"] == [{"text": "the third"}]
        assert {item[next(iter(item))].get("taskId", third["task"]["id"]) for item in items} == {
            third["task"]["id"]
        }
        assert await state_of(hub, first["id"]) == "CANCELED"


async def next_item(lines: Any) -> Json:
    async for line in lines:
        if line.startswith("data: "):
            item: Json = msgspec.json.decode(line.removeprefix("data: "))["result"]
            return item
    raise AssertionError("the stream has ended")


async def test_whoever_subscribes_to_a_task_that_ends_meanwhile_is_told_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, [{"text": ["a ", "b"], "delay": 0.3}]) as hub:
        task = await begin(hub, "one", "m1")
        find = hub.hub.runs.find_active

        async def find_late(session_id: str) -> ActiveRun | None:
            found = await find(session_id)
            if found is not None:
                await found.wait_ended()  # behind the look at the task
            return None

        monkeypatch.setattr(hub.hub.runs, "find_active", find_late)
        assert await error_of(hub, "SubscribeToTask", {"id": task["id"]}) == -32004
        assert await state_of(hub, task["id"]) == "COMPLETED"


async def test_a_cancel_just_as_a_task_that_waited_begins_cancels_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_stored, may_begin = asyncio.Event(), asyncio.Event()

    async def wait_longer(storing: asyncio.Future[None]) -> None:
        await wait_stored(storing)
        is_stored.set()
        await may_begin.wait()

    async with serving(tmp_path, [SLOW, SLOW]) as hub:
        first, second = await begin(hub, "one", "m1"), await begin(hub, "two", "m2")
        monkeypatch.setattr(run_factory, "wait_stored", wait_longer)
        await rpc(hub, "CancelTask", {"id": first["id"]})
        await is_stored.wait()
        [starting] = hub.hub.runs.starting.values()
        canceling = asyncio.create_task(rpc(hub, "CancelTask", {"id": second["id"]}))
        await until(lambda: canceling.done() or starting.lock._waiters)
        may_begin.set()
        assert (await canceling)["result"]["status"]["state"] == "TASK_STATE_CANCELED"
        assert hub.active_run("c") is None


async def test_a_cancel_that_comes_too_late_does_not_stop_the_next_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = asyncio.Event()

    async def gated(peer: Peer, _: Received) -> None:
        await may_end.wait()
        await peer.send(tokens("a ", "b"))

    up = Site(gated, holding(tokens("slow", over=False)))
    async with placed(up), serving(tmp_path, providers={"up": up.provider}, model="up/m") as hub:
        first = await begin(hub, "one", "m1")
        second = await begin(hub, "two", "m2")
        find, seen = hub.hub.runs.find_active, asyncio.Event()

        async def find_late(session_id: str) -> ActiveRun | None:
            found = await find(session_id)
            if found is not None and found.row.id == first["id"] and not seen.is_set():
                seen.set()
                may_end.set()
                await found.wait_ended()  # the task ends behind the look at it
                await until(lambda: find_is(hub, second["id"]))
            return found

        monkeypatch.setattr(hub.hub.runs, "find_active", find_late)
        await rpc(hub, "CancelTask", {"id": first["id"]})
        assert seen.is_set()
        assert await state_of(hub, first["id"]) == "COMPLETED"
        assert await state_of(hub, second["id"]) == "WORKING"
        await rpc(hub, "CancelTask", {"id": second["id"]})


def find_is(hub: Served, id: str) -> bool:
    run = hub.active_run("c")
    return run is not None and run.row.id == id


async def test_who_lost_their_grant_reaches_no_task_of_the_session(tmp_path: Path) -> None:
    async with (
        receiving() as receiver,
        serving(
            tmp_path,
            TURNS,
            play="turns",
            keys=True,
            a2a={"push_networks": LOOPBACK, "push_ports": [receiver.port]},
        ) as hub,
    ):
        ann, bob, eve = await people_of(hub, bob="write", eve="read")
        task = await task_of(hub, contextId=SESSION, headers=bob)
        own = await task_of(hub, contextId="own", headers=bob)
        forbidden = await hub.http.post(
            "/a2a/default",
            json={"jsonrpc": "2.0", "id": 1, "method": "CancelTask", "params": {"id": task["id"]}},
            headers={**VERSION, **eve},
        )
        assert forbidden.status_code == 403
        assert await status(hub, "DELETE", f"/api/sessions/{SESSION}/grants?owner=bob", ann) in (200, 204)
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            assert await error_of(hub, method, {"id": task["id"]}, **bob) == -32001
        assert await error_of(hub, "SendMessage", sent("more", taskId=task["id"]), **bob) == -32001
        push = {"taskId": task["id"], "url": receiver.url}
        assert await error_of(hub, "CreateTaskPushNotificationConfig", push, **bob) == -32001
        listed = (await rpc(hub, "ListTasks", **bob))["result"]["tasks"]
        assert [each["id"] for each in listed] == [own["id"]]
        assert await error_of(hub, "ListTasks", {"pageToken": task["id"]}, **bob) == -32602


async def test_tasks_are_listed_by_when_they_came_into_their_state(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "1"}, {"text": "2"}]) as hub:
        first = await task_of(hub, contextId="c", messageId="m1")
        second = await task_of(hub, contextId="c", messageId="m2")
        since = {"statusTimestampAfter": second["status"]["timestamp"]}
        if first["status"]["timestamp"] < second["status"]["timestamp"]:
            listed = (await rpc(hub, "ListTasks", since))["result"]["tasks"]
            assert [task["id"] for task in listed] == [second["id"]]
        later = {"statusTimestampAfter": "2999-01-01T00:00:00Z"}
        assert (await rpc(hub, "ListTasks", later))["result"]["tasks"] == []
