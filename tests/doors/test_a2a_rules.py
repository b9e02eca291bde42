"""A2A over plain HTTP: versions, errors, other owners and agents, pages, hostile bodies, repeats."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.serving import Served, serving

DANGER = str(Path(__file__).parents[1] / "flows" / "approval_operation.py")
VERSION = {"a2a-version": "1.0"}
Json = dict[str, Any]


def sent(text: str = "hi", **fields: Any) -> Json:
    return {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": text}], **fields}}


async def rpc(hub: Served, method: str, params: Any = None, agent: str = "default", **headers: str) -> Json:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}}
    response = await hub.http.post(f"/a2a/{agent}", json=body, headers={**VERSION, **headers})
    assert response.status_code == 200, response.text
    reply: Json = response.json()
    assert (reply["jsonrpc"], reply["id"]) == ("2.0", 7)
    return reply


async def task_of(hub: Served, text: str = "hi", agent: str = "default", **fields: Any) -> Json:
    headers = fields.pop("headers", {})
    task: Json = (await rpc(hub, "SendMessage", sent(text, **fields), agent, **headers))["result"]["task"]
    return task


async def error_of(
    hub: Served, method: str, params: Any = None, agent: str = "default", **headers: str
) -> int:
    error = (await rpc(hub, method, params, agent, **headers))["error"]
    [details] = error["data"]
    assert details["domain"] == "a2a-protocol.org"
    code: int = error["code"]
    return code


async def key(hub: Served, owner: str, *scopes: str) -> dict[str, str]:
    _, secret = await hub.hub.store.keys.create(owner, scopes=scopes)
    return {"authorization": f"Bearer {secret}"}


@pytest.mark.parametrize(
    ("version", "code"), [(None, -32009), ("", -32009), ("0.3", -32009), ("2.0", -32009), ("1.0.3", None)]
)
async def test_only_clients_of_version_1_0_are_served(
    tmp_path: Path, version: str | None, code: int | None
) -> None:
    async with serving(tmp_path) as hub:
        headers = {} if version is None else {"a2a-version": version}
        body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        reply = (await hub.http.post("/a2a/default", json=body, headers=headers)).json()
        assert reply.get("error", {}).get("code") == code
        rest = await hub.http.get("/a2a/default/tasks", headers=headers)
        assert rest.status_code == (200 if code is None else 400)
        if code is not None:
            assert rest.json()["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"


async def test_what_is_wrong_has_the_code_of_the_protocol(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        assert await error_of(hub, "message/send", sent()) == -32601
        assert await error_of(hub, "GetTask", {"id": "run_x"}) == -32001
        assert await error_of(hub, "GetTask", {}) == -32602
        assert await error_of(hub, "CancelTask", {"id": "run_x"}) == -32001
        assert await error_of(hub, "SubscribeToTask", {"id": "run_x"}) == -32001
        assert await error_of(hub, "SendMessage", {}) == -32602
        assert await error_of(hub, "SendMessage", sent(taskId="run_x")) == -32001
        assert await error_of(hub, "SendMessage", sent(contextId="\n")) == -32602
        assert await error_of(hub, "SendMessage", sent(role="ROLE_AGENT")) == -32602
        assert await error_of(hub, "SendMessage", sent(parts=[])) == -32602
        assert await error_of(hub, "SendMessage", sent(parts=[{"text": "a", "url": "https://x"}])) == -32602
        assert await error_of(hub, "SendMessage", sent(parts=[{"raw": "%%"}])) == -32602
        assert await error_of(hub, "SendMessage", sent(parts=[{"url": "file:///etc/passwd"}])) == -32602
        assert await error_of(hub, "ListTasks", {"pageSize": 101}) == -32602
        assert await error_of(hub, "ListTasks", {"pageToken": "run_x"}) == -32602
        assert await error_of(hub, "ListTasks", {"statusTimestampAfter": "soon"}) == -32602
        for raw, code in ((b"{", -32700), (b"[]", -32600), (b'{"method":"GetTask"}', -32600)):
            reply = (await hub.http.post("/a2a/default", content=raw, headers=VERSION)).json()
            assert (reply["error"]["code"], reply["id"]) == (code, None)
        assert (await hub.http.get("/a2a/default/tasks/run_x", headers=VERSION)).status_code == 404
        assert (await hub.http.post("/a2a/nobody", json={}, headers=VERSION)).json()["error"]


async def test_a_task_is_its_owners_and_its_agents(tmp_path: Path) -> None:
    agents = {"poet": {"description": "Writes verses."}}
    steps = [{"text": "for ann"}, {"text": "for bob"}]
    async with serving(tmp_path, steps, agents=agents, keys=True) as hub:
        ann, bob = await key(hub, "ann"), await key(hub, "bob")
        task = await task_of(hub, contextId="c", headers=ann)
        assert task["artifacts"][0]["parts"][0]["text"] == "for ann"
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            assert await error_of(hub, method, {"id": task["id"]}, **bob) == -32001
            assert await error_of(hub, method, {"id": task["id"]}, "poet", **ann) == -32001
        assert await error_of(hub, "SendMessage", sent(taskId=task["id"]), **bob) == -32001
        assert (await rpc(hub, "ListTasks", **bob))["result"]["tasks"] == []
        other = await task_of(hub, contextId="c", headers=bob)
        assert other["artifacts"][0]["parts"][0]["text"] == "for bob", "a context is its owner's"
        assert [len((await rpc(hub, "ListTasks", **who))["result"]["tasks"]) for who in (ann, bob)] == [1, 1]
        assert (await hub.http.post("/a2a/default", json={}, headers=VERSION)).status_code == 401
        narrow = await key(hub, "ann", "gateway")
        assert (
            await hub.http.post("/a2a/default", json={}, headers={**VERSION, **narrow})
        ).status_code == 403


async def test_the_same_message_again_is_the_same_task(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": ["a ", "b"], "delay": 0.05}]) as hub:
        first, second = await asyncio.gather(*(task_of(hub, contextId="c") for _ in range(2)))
        third = await task_of(hub, contextId="c")
        assert first["id"] == second["id"] == third["id"]
        assert len(await hub.runs("c")) == 1


async def test_tasks_are_listed_in_pages_the_newest_first(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": str(number)} for number in range(5)]) as hub:
        ids = [
            (await task_of(hub, contextId=f"c{number % 2}", messageId=f"m{number}"))["id"]
            for number in range(5)
        ]
        page = (await rpc(hub, "ListTasks", {"pageSize": 3}))["result"]
        assert ([task["id"] for task in page["tasks"]], page["totalSize"]) == (ids[:1:-1], 5)
        rest = (await rpc(hub, "ListTasks", {"pageSize": 3, "pageToken": page["nextPageToken"]}))["result"]
        assert ([task["id"] for task in rest["tasks"]], rest["nextPageToken"]) == (ids[1::-1], "")
        url = "/a2a/default/tasks?contextId=c1&includeArtifacts=true&historyLength=1"
        url += "&status=TASK_STATE_COMPLETED"
        own = (await hub.http.get(url, headers=VERSION)).json()
        assert [task["artifacts"][0]["parts"][0]["text"] for task in own["tasks"]] == ["3", "1"]
        assert [len(task["history"]) for task in own["tasks"]] == [1, 1]
        assert (await hub.http.get("/a2a/default/tasks?contextId=c9", headers=VERSION)).json()["tasks"] == []


async def test_a_task_that_is_passed_over_is_canceled_and_one_that_runs_takes_no_message(
    tmp_path: Path,
) -> None:
    steps: list[Json] = [
        {"tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]},
        {"text": [f"word{n} " for n in range(2_000)], "delay": 0.05},
    ]
    async with serving(tmp_path, steps, operations=[DANGER], pinned=["danger.wipe"]) as hub:
        waiting = await task_of(hub, "wipe", contextId="c")
        assert waiting["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        follow = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": waiting["id"]}}
        stream = (await hub.http.post("/a2a/default", json=follow, headers=VERSION)).text
        assert stream.count("data: ") == 1  # it has not ended, and nobody works on it
        assert '"TASK_STATE_INPUT_REQUIRED"' in stream
        params = sent("never mind", contextId="c", messageId="m2")
        params["configuration"] = {"returnImmediately": True}
        running = (await rpc(hub, "SendMessage", params))["result"]["task"]
        passed = (await rpc(hub, "GetTask", {"id": waiting["id"]}))["result"]
        assert passed["status"]["state"] == "TASK_STATE_CANCELED"
        more = sent("more", taskId=running["id"], messageId="m3")
        assert await error_of(hub, "SendMessage", more) == -32004
        other = sent("more", taskId=waiting["id"], contextId="x", messageId="m3")
        assert await error_of(hub, "SendMessage", other) in (-32602, -32004)
        await rpc(hub, "CancelTask", {"id": running["id"]})
        assert await error_of(hub, "SubscribeToTask", {"id": running["id"]}) == -32004


async def test_the_size_of_a_list_is_that_of_what_the_filters_leave(tmp_path: Path) -> None:
    wipe: Json = {"tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]}
    steps: list[Json] = [
        {"text": "one"},
        {"error": {"message": "no"}},
        wipe,
        wipe,
        {"text": "on"},
        wipe,
        {"text": "two"},
    ]
    async with serving(tmp_path, steps, operations=[DANGER], pinned=["danger.wipe"]) as hub:
        tasks = [await task_of(hub, contextId=f"c{n}", messageId=f"m{n}") for n in range(4)]
        yes = [{"data": {"approved": True}}]
        await task_of(hub, taskId=tasks[3]["id"], messageId="m3b", parts=yes)
        tasks += [await task_of(hub, contextId="c4", messageId=f"m{n}") for n in (4, 5)]
        await rpc(hub, "CancelTask", {"id": tasks[2]["id"]})
        sizes = {}
        for state in ("COMPLETED", "FAILED", "CANCELED", "INPUT_REQUIRED", "WORKING", "UNSPECIFIED"):
            page = (await rpc(hub, "ListTasks", {"status": f"TASK_STATE_{state}"}))["result"]
            assert page["totalSize"] == len(page["tasks"]), state
            sizes[state] = page["totalSize"]
        assert sizes == {
            "COMPLETED": 3,
            "FAILED": 1,
            "CANCELED": 2,
            "INPUT_REQUIRED": 0,
            "WORKING": 0,
            "UNSPECIFIED": 6,
        }
        newest = {"statusTimestampAfter": tasks[-1]["status"]["timestamp"]}
        recent = (await rpc(hub, "ListTasks", newest))["result"]
        assert recent["totalSize"] == len(recent["tasks"]) == 1
        for more, size in ({"contextId": "c4"}, 1), ({"contextId": "none"}, 0), ({"pageSize": 1}, 3):
            page = (await rpc(hub, "ListTasks", {"status": "TASK_STATE_COMPLETED", **more}))["result"]
            assert page["totalSize"] == size


async def test_a_stream_has_as_much_history_as_its_client_asks_for(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "one"}, {"text": "two"}]) as hub:
        for length in (0, 1):
            params = sent(contextId="c", messageId=f"m{length}") | {
                "configuration": {"historyLength": length}
            }
            response = await hub.http.post("/a2a/default/message:stream", json=params, headers=VERSION)
            first = msgspec.json.decode(response.text.split("\n\n")[0].removeprefix("data: "))
            assert len(first["task"].get("history", [])) == length
        for bad in ({"configuration": {"historyLength": -1}}, {"configuration": {"historyLength": "x"}}):
            assert await error_of(hub, "SendMessage", sent(messageId="m") | bad) == -32602


async def test_files_and_data_of_a_message_reach_the_session(tmp_path: Path) -> None:
    parts = [
        {"text": "look"},
        {"raw": "aGk=", "mediaType": "text/plain; charset=utf-8", "filename": "a.txt"},
        {"url": "https://example.com/b.png", "mediaType": "image/png"},
        {"data": {"size": 3}},
    ]
    async with serving(tmp_path, [{"text": "seen"}]) as hub:
        await task_of(hub, contextId="c", parts=parts)
        [question, _] = await hub.messages("c")
        kinds = [part["type"] for part in question["parts"]]
        assert kinds == ["text", "file", "file", "text"]
        assert question["parts"][1]["url"] == "data:text/plain;base64,aGk="
        assert question["parts"][3]["text"] == '{"size":3}'


async def test_bodies_over_the_limits_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"body": 20_000, "part": 1_000}) as hub:
        assert await error_of(hub, "SendMessage", sent("x" * 1_001)) == -32602
        response = await hub.http.post("/a2a/default/message:send", json=sent("x" * 30_000), headers=VERSION)
        assert response.status_code == 413


async def test_cards_are_public_for_the_agents_that_the_configuration_names(tmp_path: Path) -> None:
    agents = {"poet": {"description": "Writes verses."}}
    a2a = {"agents": ["poet"], "url": "https://hub.example.com/"}
    async with serving(tmp_path, agents=agents, a2a=a2a, keys=True) as hub:
        card = (await hub.http.get("/a2a/poet/.well-known/agent-card.json")).json()
        assert card["supportedInterfaces"][0]["url"] == "https://hub.example.com/a2a/poet"
        assert card["securitySchemes"] == {"key": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
        for path in ("/.well-known/agent-card.json", "/a2a/default/.well-known/agent-card.json"):
            assert (await hub.http.get(path)).status_code == 401
            assert (await hub.http.get(path, headers=await key(hub, "ann"))).status_code == 200
        ann = await key(hub, "ann")
        assert (await hub.http.get("/a2a/nobody/.well-known/agent-card.json", headers=ann)).status_code == 404
