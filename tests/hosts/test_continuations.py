"""Answers that people give at several hosts to one message: approvals, outputs of client-side tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.flows.test_approvals import DANGER, answer, ended
from tests.hosts import gate
from tests.hosts.conftest import HostCluster
from tests.hosts.test_remote_runs import OPERATIONS, reading
from tests.serving import Served, ask
from tests.waiting import until

TOOLS = [{"name": "colour", "inputSchema": {"type": "object"}}]
APPROVALS = [
    {"name": "danger_wipe", "input": {"disk": "a"}, "id": "c1"},
    {"name": "danger_wipe", "input": {"disk": "b"}, "id": "c2"},
]
MIXED = [APPROVALS[0], {"name": "colour", "input": {}, "id": "c2"}]


def script(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"tools": calls}, {"text": "All done."}]


async def continuation(host: Served, call_id: str) -> dict[str, Any]:
    """The body by which a page continues the answer with what its person said to one call."""
    question, waiting = await host.messages()
    parts = [dict(part) for part in waiting["parts"]]
    [call] = [part for part in parts if part.get("toolCallId") == call_id]
    if "approval" in call:
        call.update(state="approval-responded", approval={**call["approval"], "approved": True})
    else:
        call.update(state="output-available", output="blue")
    messages = [question, {**waiting, "parts": parts}]
    return {"id": "s", "messages": messages, "messageId": waiting["id"], "tools": TOOLS}


async def all_outputs(host: Served) -> list[Any]:
    last = await ended(host, "All done.")
    return [part["output"] for part in last["parts"] if "toolCallId" in part]


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["one host", "two hosts"])
@pytest.mark.parametrize("calls", [APPROVALS, MIXED], ids=["two approvals", "an approval and an output"])
async def test_two_pages_that_each_answer_one_call_of_a_step_are_both_heard(
    hosts: HostCluster, calls: Sequence[Mapping[str, Any]], *, is_elsewhere: bool
) -> None:
    first, second = await hosts.open(2, steps=script(calls), operations=[str(DANGER)], pinned=["danger.wipe"])
    other = second if is_elsewhere else first
    await first.http.post("/api/chat", json=ask("go", tools=TOOLS))
    bodies = [await continuation(first, "c1"), await continuation(first, "c2")]
    responses = await asyncio.gather(
        first.http.post("/api/chat", json=bodies[0]), other.http.post("/api/chat", json=bodies[1])
    )
    assert [each.status_code for each in responses] == [200, 200], [each.text for each in responses]
    assert await all_outputs(second) == ["wiped a", "wiped b" if calls is APPROVALS else "blue"]


async def test_an_approval_at_one_host_and_an_output_at_another_are_both_heard(hosts: HostCluster) -> None:
    first, second = await hosts.open(2, steps=script(MIXED), operations=[str(DANGER)], pinned=["danger.wipe"])
    await first.http.post("/api/chat", json=ask("go", tools=TOOLS))
    body = await continuation(first, "c2")
    [approval] = (await first.http.get("/api/approvals")).json()["approvals"]
    status, response = await asyncio.gather(
        answer(first, approval["id"]), second.http.post("/api/chat", json=body)
    )
    assert (status, response.status_code) == (200, 200), response.text
    assert await all_outputs(second) == ["wiped a", "blue"]


async def test_two_approvals_of_a_step_at_two_hosts_both_count(hosts: HostCluster) -> None:
    options: Any = {"operations": [str(DANGER)], "pinned": ["danger.wipe"]}
    first, second = await hosts.open(2, steps=script(APPROVALS), **options)
    await first.http.post("/api/chat", json=ask("go"))
    waiting = (await first.http.get("/api/approvals")).json()["approvals"]
    pairs = zip((first, second), waiting, strict=True)
    assert await asyncio.gather(*(answer(host, each["id"]) for host, each in pairs)) == [200, 200]
    assert await all_outputs(first) == ["wiped a", "wiped b"]


async def test_an_answer_at_another_host_ends_no_call_that_somebody_has_allowed_and_left(
    hosts: HostCluster,
) -> None:
    gate.MADE.clear()
    gate.opened = asyncio.Event()
    calls = [
        {"name": "lab_sign", "input": {"name": name}, "id": id} for id, name in (("c1", "a"), ("c2", "b"))
    ]
    options: Any = {"operations": [str(OPERATIONS)], "pinned": ["lab.sign"], "disconnect_grace": 3600}
    first, second = await hosts.open(2, steps=script(calls), **options)
    await first.http.post("/api/chat", json=ask("go"))
    bodies = [await continuation(first, "c1"), await continuation(first, "c2")]
    async with reading(first, "POST", "/api/chat", json=bodies[0]):
        await until(lambda: gate.MADE == ["sign a"])
        run = first.active_run()
        assert run is not None
    await until(lambda: run.is_abandoned)
    posted = asyncio.create_task(second.http.post("/api/chat", json=bodies[1]))
    await asyncio.wait([posted], timeout=0.3)  # it has found the run
    gate.opened.set()
    assert (await posted).status_code == 200
    assert await all_outputs(second) == ["signed a", "signed b"]
    assert gate.MADE == ["sign a", "sign b"]
