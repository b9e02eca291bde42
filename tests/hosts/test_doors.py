"""Responses, A2A and AG-UI at another host than the one that makes the answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.server.gateway.responses import background
from dragoman.wire.sse import SSEParser
from tests.answer_gate import Gate
from tests.doors.test_a2a_rules import VERSION, error_of, rpc, sent
from tests.doors.test_ag_ui_rules import answer_text, bodies_in, run_input, user
from tests.gateway.test_responses import events_in
from tests.hosts.conftest import HostCluster, host_id
from tests.hosts.test_remote_runs import STEPS, WHOLE, gate, reading
from tests.serving import Served
from tests.waiting import until

__all__ = ["gate"]  # a fixture
Json = dict[str, Any]
UNDER_WAY = ("queued", "in_progress")


async def begin_response(host: Served, text: str = "go", **fields: Any) -> Json:
    """Begin a response in the background."""
    body = {"model": "sim/any", "input": text, "background": True, **fields}
    response = await host.http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    begun: Json = response.json()
    return begun


async def read_response(host: Served, id: str) -> Json:
    response = await host.http.get(f"/v1/responses/{id}")
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


async def until_response(host: Served, id: str, status: str) -> Json:
    async def has_status() -> bool:
        return bool((await read_response(host, id))["status"] == status)

    await until(has_status)
    return await read_response(host, id)


def text_of_response(response: Json) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


async def test_a_response_in_the_background_is_followed_read_and_continued_at_another_host(
    hosts: HostCluster, gate: Gate
) -> None:
    first, second, third = await hosts.open(3, steps=STEPS)
    body = {"model": "sim/any", "input": "go", "background": True, "stream": True}
    async with reading(first, "POST", "/v1/responses", json=body) as origin:
        await origin.until("three ")
        [begun] = [each for each in frames_so_far(origin.text) if each["type"] == "response.created"]
        path = f"/v1/responses/{begun['response']['id']}"
        async with reading(second, "GET", f"{path}?stream=true&starting_after=2") as follower:
            await follower.until("two ")
            assert (await read_response(third, begun["response"]["id"]))["status"] in UNDER_WAY
            gate.opened.set()
            whole, rest = await read_events(origin), await read_events(follower)
    assert [each["sequence_number"] for each in whole] == list(range(len(whole)))
    assert rest == whole[3:]
    ended = await read_response(third, begun["response"]["id"])
    assert (ended["status"], text_of_response(ended)) == ("completed", WHOLE)
    items = (await third.http.get(f"{path}/input_items")).json()["data"]
    assert items[0]["content"][0]["text"] == "go"
    more = {"model": "sim/any", "input": "more", "previous_response_id": ended["id"]}
    following = (await second.http.post("/v1/responses", json=more)).json()
    assert (following["status"], following["previous_response_id"]) == ("completed", ended["id"])
    assert (await third.http.delete(path)).status_code == 200
    assert (await first.http.get(path)).status_code == 404


def frames_so_far(text: str) -> list[Json]:
    return [msgspec.json.decode(frame) for frame in SSEParser().feed(text.encode())]


async def read_events(reader: Any) -> list[Json]:
    """Read a stream of events to its end."""
    async for piece in reader._pieces:
        reader.text += piece
    return events_in(reader.text.encode())


@pytest.mark.several_hosts
async def test_a_response_is_cancelled_at_another_host_and_its_provider_left(
    hosts: HostCluster, gate: Gate
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    begun = await begin_response(first)
    await until(lambda: gate.reached == 1)
    assert (await read_response(second, begun["id"]))["status"] in UNDER_WAY
    cancelled = await second.http.post(f"/v1/responses/{begun['id']}/cancel")
    assert cancelled.json()["status"] == "cancelled", cancelled.text
    await until(lambda: gate.closed == 1)
    assert (await read_response(first, begun["id"]))["status"] == "cancelled"


@pytest.mark.several_hosts
@pytest.mark.usefixtures("quick_ticks")
async def test_a_response_of_a_host_that_died_has_failed_at_the_others(
    hosts: HostCluster, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    begun = await begin_response(first)
    await until(lambda: gate.reached == 1)
    hosts.lose(first)
    await until(lambda: len(hosts.execute("SELECT id FROM hosts WHERE fenced_at IS NULL")) == 1)
    monkeypatch.setattr(background, "LOST_AFTER", 0.1)
    failed = await until_response(second, begun["id"], "failed")
    assert "has ended" in failed["error"]["message"]


async def test_an_a2a_task_is_read_followed_and_canceled_at_another_host(
    hosts: HostCluster, gate: Gate
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    away = {"configuration": {"returnImmediately": True}}
    task = (await rpc(first, "SendMessage", sent("go", contextId="c") | away))["result"]["task"]
    run = first.active_run("c")
    assert run is not None
    found = (await rpc(second, "GetTask", {"id": task["id"]}))["result"]
    assert found["status"]["state"] == "TASK_STATE_WORKING"
    following = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task["id"]}}
    async with reading(second, "POST", "/a2a/default", json=following, headers=VERSION) as follower:
        await follower.until("three ")
        canceled = (await rpc(second, "CancelTask", {"id": task["id"]}))["result"]
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        await follower.until("TASK_STATE_CANCELED")
    assert (gate.closed, run.done.is_set()) == (1, True)
    assert await error_of(first, "CancelTask", {"id": task["id"]}) == -32002
    again = (await rpc(second, "SendMessage", sent("more", contextId="c", messageId="m2") | away))["result"]
    assert (await rpc(first, "GetTask", {"id": again["task"]["id"]}))["result"]["contextId"] == "c"
    gate.opened.set()


@pytest.mark.several_hosts
async def test_an_ag_ui_request_that_is_sent_again_to_another_host_follows_its_run(
    hosts: HostCluster, gate: Gate
) -> None:
    first, second = await hosts.open(2, steps=STEPS)
    async with reading(first, "POST", "/agui/default", json=run_input(user())) as origin:
        await origin.until("three ")
        async with reading(second, "POST", "/agui/default", json=run_input(user())) as repeated:
            await repeated.until("three ")
            gate.opened.set()
            both = [await read_bodies(each) for each in (origin, repeated)]
    assert [answer_text(bodies) for bodies in both] == [WHOLE] * 2
    later = await second.http.post(
        "/agui/default",
        json=run_input(user(), {"id": "a", "role": "assistant", "content": WHOLE}, user("more", "u2")),
    )
    assert answer_text(bodies_in(later.text)) == WHOLE
    assert [run.host for run in await first.runs("t")] == [host_id(first), host_id(second)]


async def read_bodies(reader: Any) -> list[Json]:
    """Read a stream of AG-UI events to its end."""
    async for piece in reader._pieces:
        reader.text += piece
    return bodies_in(reader.text)
