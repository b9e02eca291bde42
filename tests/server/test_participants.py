"""People of a shared session: forks, rewinds, approvals, AG-UI and A2A, as their grant says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doors.test_a2a_rules import VERSION
from tests.doors.test_a2a_rules import rpc as call_a2a
from tests.doors.test_a2a_rules import task_of as a2a_task_of
from tests.doors.test_ag_ui_rules import answer_text, run_input, user
from tests.doors.test_ag_ui_rules import post as run_ag_ui
from tests.server.test_grants import SESSION, TURNS, grant, say, status
from tests.server.test_session_owners import Headers, get, key_of
from tests.serving import Served, frames_in, serving, text_of
from tests.waiting import until

CLOCK: list[dict[str, Any]] = [{"tools": [{"name": "time_now", "input": {}}]}, {"text": "It is late."}]
ASKING: dict[str, Any] = {"pinned": ["time.now"], "policy": [{"ask": "time.now"}]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def people_of(hub: Served, **roles: str | None) -> list[Headers]:
    """The keys of the owner `ann` of a session with one turn, and of others with these roles in it."""
    keys = [await key_of(hub, "ann"), *[await key_of(hub, name) for name in roles]]
    await say(hub, keys[0], "hello", "s")
    for name, role in roles.items():
        if role is not None:
            await grant(hub, keys[0], role, owner=name)
    return keys


@pytest.mark.parametrize("role", [None, "read", "write", "admin"])
async def test_who_may_write_forks_and_rewinds_and_the_fork_is_theirs(
    tmp_path: Path, role: str | None
) -> None:
    async with serving(tmp_path, TURNS, play="turns", keys=True) as hub:
        ann, bob = await people_of(hub, bob=role)
        messages = (await get(hub, "/api/sessions/s/messages", ann))["messages"]
        path = f"/api/sessions/{SESSION}"
        forked = await hub.http.post(
            f"{path}/fork", json={"messageId": messages[-1]["id"], "id": "mine"}, headers=bob
        )
        refusal = {None: 404, "read": 403}.get(role)
        assert forked.status_code == (refusal or 201)
        rewound = await status(hub, "POST", f"{path}/rewind", bob, {"messageId": messages[0]["id"]})
        assert rewound == (refusal or 200)
        if refusal is None:
            assert text_of(frames_in((await say(hub, bob, "more", "mine")).text)) == "one"
            assert len((await get(hub, "/api/sessions/mine/messages", bob))["messages"]) == 4
            fork = forked.json()["hubId"]
            assert await status(hub, "GET", f"/api/sessions/{fork}", ann) == 404
            assert len((await get(hub, "/api/sessions/s/messages", ann))["messages"]) == 1


async def test_people_see_and_answer_the_approvals_of_their_session_as_their_role_says(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, CLOCK, keys=True, **ASKING) as hub:
        ann, bob, eve, mallory = await people_of(hub, bob="write", eve="read", mallory=None)
        listed = f"/api/approvals?session={SESSION}&status=pending"
        path = f"/api/approvals/{(await get(hub, listed, ann))['approvals'][0]['id']}"
        for caller, may_answer in ((ann, True), (bob, True), (eve, False)):
            [approval] = (await get(hub, listed, caller))["approvals"]
            assert approval["mayAnswer"] is may_answer
            assert (await get(hub, path, caller)) == approval
        assert (await get(hub, "/api/approvals", bob))["approvals"] == [], "the inbox has what is bob's own"
        assert await status(hub, "GET", listed, mallory) == 404
        assert await status(hub, "GET", path, mallory) == 404
        assert await status(hub, "POST", path, eve, {"approved": True}) == 403
        assert await status(hub, "POST", path, bob, {"approved": True}) == 200
        assert (await get(hub, listed, bob))["approvals"] == []
        assert (await get(hub, path, eve))["answeredBy"] == "bob"

        async def is_answered() -> bool:
            last = (await get(hub, f"/api/sessions/{SESSION}/messages", bob))["messages"][-1]["parts"][-1]
            return bool(last.get("text") == "It is late.")

        await until(is_answered)  # the answer goes on by itself


async def test_an_ag_ui_client_uses_a_shared_session_as_its_thread(tmp_path: Path) -> None:
    async with serving(tmp_path, CLOCK, keys=True, **ASKING) as hub:
        ann, bob, eve = await people_of(hub, bob="write", eve="read")
        body = run_input(user("and now?"), thread=SESSION)
        assert await status(hub, "POST", "/agui/default", eve, body) == 403
        approval = (await get(hub, f"/api/approvals?session={SESSION}", bob))["approvals"][0]["id"]
        answer = {"interruptId": approval, "status": "resolved", "payload": {"approved": True}}
        resumed = await run_ag_ui(hub, run_input(thread=SESSION, resume=[answer]), headers=bob)
        assert answer_text(resumed) == "It is late."
        assert [run.owner for run in await hub.hub.store.runs.list(SESSION)] == ["ann", "ann"]
        assert (await get(hub, f"/api/approvals/{approval}", ann))["answeredBy"] == "bob"


async def test_an_a2a_client_uses_a_shared_session_as_its_context(tmp_path: Path) -> None:
    async with serving(tmp_path, TURNS, play="turns", keys=True) as hub:
        ann, bob, eve, mallory = await people_of(hub, bob="write", eve="read", mallory=None)
        task = await a2a_task_of(hub, contextId=SESSION, headers=bob)
        assert task["contextId"] == SESSION
        for caller in (ann, bob, eve):
            listed = (await call_a2a(hub, "ListTasks", {"contextId": SESSION}, **caller))["result"]
            assert (listed["tasks"][0]["id"], listed["totalSize"]) == (task["id"], 2)
            found = (await call_a2a(hub, "GetTask", {"id": task["id"]}, **caller))["result"]
            assert found["status"]["state"] == "TASK_STATE_COMPLETED"
        hidden = (await call_a2a(hub, "ListTasks", {"contextId": SESSION}, **mallory))["result"]
        assert hidden["totalSize"] == 0
        assert (await call_a2a(hub, "GetTask", {"id": task["id"]}, **mallory))["error"]["code"] == -32001
        path = f"/a2a/default/tasks/{task['id']}"
        cancelled = await hub.http.post(f"{path}:cancel", headers={**VERSION, **eve})
        assert cancelled.status_code == 403
        push = {"taskId": task["id"], "url": "https://example.com/hook"}
        refused = await call_a2a(hub, "CreateTaskPushNotificationConfig", push, **ann)
        assert "another owner" in refused["error"]["message"], "its owner would go on hearing of the session"
