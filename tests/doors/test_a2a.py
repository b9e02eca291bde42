"""A2A with the stock clients: the Python SDK's, over JSON-RPC and REST, and the JavaScript SDK's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import (  # type: ignore[import-untyped] # it has no types
    MessageToDict,
    ParseDict,
)

from tests.serving import Served, serving

DANGER = str(Path(__file__).parents[1] / "flows" / "approval_operation.py")
BINDINGS = ("JSONRPC", "HTTP+JSON")
pytestmark = pytest.mark.parametrize("binding", BINDINGS)
Json = dict[str, Any]


@asynccontextmanager
async def connected(
    hub: Served, binding: str, *, agent: str = "default", streaming: bool = True, key: str = ""
) -> AsyncIterator[Client]:
    """The SDK's client of an agent, from its card."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(trust_env=False, timeout=30, headers=headers) as http:
        config = ClientConfig(streaming=streaming, supported_protocol_bindings=[binding], httpx_client=http)
        client = await ClientFactory(config).create_from_url(f"{hub.url}/a2a/{agent}")
        yield client


def message(text: str | None = None, *, data: Any = None, **fields: Any) -> pb.SendMessageRequest:
    parts: list[Json] = [] if text is None else [{"text": text}]
    parts += [] if data is None else [{"data": data}]
    body = {"messageId": fields.pop("id", "m1"), "role": "ROLE_USER", "parts": parts}
    body |= {name: fields.pop(name) for name in ("contextId", "taskId") if name in fields}
    request = pb.SendMessageRequest()
    ParseDict({"message": body, **fields}, request)
    return request


async def send(client: Client, request: pb.SendMessageRequest) -> list[Json]:
    return [MessageToDict(item) async for item in client.send_message(request)]


def states(items: list[Json]) -> list[str]:
    found = [item.get("task") or item.get("statusUpdate") or {} for item in items]
    return [each["status"]["state"].removeprefix("TASK_STATE_") for each in found if "status" in each]


def text_of(items: list[Json]) -> str:
    chunks = [item["artifactUpdate"]["artifact"] for item in items if "artifactUpdate" in item]
    return "".join(part.get("text", "") for chunk in chunks for part in chunk["parts"])


def last_status(items: list[Json]) -> Json:
    status: Json = items[-1]["statusUpdate"]["status"]
    return status


async def test_a_message_is_streamed_as_a_task(tmp_path: Path, binding: str) -> None:
    words = ["This is ", "one sentence. ", "This is another", "."]
    async with serving(tmp_path, [{"text": words}]) as hub, connected(hub, binding) as client:
        items = await send(client, message("hi", contextId="c"))
        assert states(items) == ["SUBMITTED", "WORKING", "COMPLETED"]
        assert text_of(items) == "".join(words)
        task = items[0]["task"]
        assert (task["contextId"], task["history"][0]["parts"]) == ("c", [{"text": "hi"}])
        [_, answer] = await hub.messages("c")
        assert answer["parts"][-1]["text"] == "".join(words)


async def test_a_client_that_does_not_stream_gets_the_task_when_it_has_ended(
    tmp_path: Path, binding: str
) -> None:
    async with (
        serving(tmp_path, [{"text": "Done."}]) as hub,
        connected(hub, binding, streaming=False) as client,
    ):
        [item] = await send(client, message("hi"))
        task = item["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert task["artifacts"] == [{"artifactId": "text-1", "parts": [{"text": "Done."}]}]
        assert task["metadata"]["finishReason"] == "stop"
        again = MessageToDict(await client.get_task(pb.GetTaskRequest(id=task["id"])))
        assert again == task
        listed = MessageToDict(await client.list_tasks(pb.ListTasksRequest(include_artifacts=True)))
        assert [each["artifacts"] for each in listed["tasks"]] == [task["artifacts"]]


async def test_a_task_can_be_left_alone_followed_and_canceled(tmp_path: Path, binding: str) -> None:
    steps: list[Json] = [{"text": [f"word{n} " for n in range(2_000)], "delay": 0.05}]
    async with (
        serving(tmp_path, steps, disconnect_grace=0) as hub,
        connected(hub, binding) as client,
        connected(hub, binding, streaming=False) as patient,
    ):
        [item] = await send(patient, message("go", configuration={"returnImmediately": True}))
        task = item["task"]
        assert task["status"]["state"] == "TASK_STATE_WORKING"
        items: list[Json] = []
        canceled: Any = None
        async for event in client.subscribe(pb.SubscribeToTaskRequest(id=task["id"])):
            items.append(MessageToDict(event))
            if canceled is None and "word3" in text_of(items):
                canceled = await client.cancel_task(pb.CancelTaskRequest(id=task["id"]))
        assert MessageToDict(canceled)["status"]["state"] == "TASK_STATE_CANCELED"
        assert states(items) == ["WORKING", "CANCELED"], "a task that runs is not submitted once more"
        with pytest.raises(Exception, match="has ended"):
            await client.cancel_task(pb.CancelTaskRequest(id=task["id"]))


async def test_an_approval_needs_data_and_a_free_text_is_none(tmp_path: Path, binding: str) -> None:
    steps: list[Json] = [{"tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]}, {"text": "Wiped."}]
    async with (
        serving(tmp_path, steps, operations=[DANGER], pinned=["danger.wipe"]) as hub,
        connected(hub, binding) as client,
    ):
        items = await send(client, message("wipe it", contextId="c"))
        assert states(items)[-1] == "INPUT_REQUIRED"
        [_, details] = last_status(items)["message"]["parts"]
        [request] = details["data"]["requests"]
        assert (request["tool"], request["input"]) == ("danger_wipe", {"disk": "a"})
        id = items[0]["task"]["id"]
        stays = await send(client, message("yes, do it", id="m2", taskId=id))
        assert states(stays) == ["INPUT_REQUIRED"]
        data = {"approved": True, "approvalId": request["approvalId"]}
        ended = await send(client, message(data=data, id="m3", taskId=id, contextId="c"))
        assert (states(ended)[-1], text_of(ended)) == ("COMPLETED", "Wiped.")
        assert ended[0]["task"]["id"] == id
        with pytest.raises(Exception, match="has ended"):
            await send(client, message("more", id="m4", taskId=id))


async def test_a_question_is_answered_by_a_text(tmp_path: Path, binding: str) -> None:
    question = {"name": "user_question", "input": {"text": "Which colour?", "options": ["red", "blue"]}}
    steps: list[Json] = [{"tools": [question]}, {"text": "Blue it is."}]
    async with serving(tmp_path, steps, pinned=["user.question"]) as hub, connected(hub, binding) as client:
        items = await send(client, message("paint it"))
        assert last_status(items)["message"]["parts"][0]["text"] == "Which colour?"
        ended = await send(client, message("blue", id="m2", taskId=items[0]["task"]["id"]))
        assert (states(ended)[-1], text_of(ended)) == ("COMPLETED", "Blue it is.")


async def test_a_task_that_waits_can_be_canceled(tmp_path: Path, binding: str) -> None:
    steps: list[Json] = [{"tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]}]
    async with (
        serving(tmp_path, steps, operations=[DANGER], pinned=["danger.wipe"]) as hub,
        connected(hub, binding) as client,
    ):
        items = await send(client, message("wipe it"))
        id = items[0]["task"]["id"]
        canceled = MessageToDict(await client.cancel_task(pb.CancelTaskRequest(id=id)))
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        [approval] = (await hub.http.get("/api/approvals")).json()["approvals"]
        assert approval["status"] == "denied"
        assert hub.hub.runs.active_count == 0


async def test_a_failed_answer_is_a_failed_task(tmp_path: Path, binding: str) -> None:
    steps: list[Json] = [{"text": "Half", "error": {"message": "out of order"}}]
    async with serving(tmp_path, steps) as hub, connected(hub, binding) as client:
        items = await send(client, message("hi"))
        assert states(items)[-1] == "FAILED"
        assert "out of order" in last_status(items)["message"]["parts"][0]["text"]


async def test_a_card_says_what_an_agent_is(tmp_path: Path, binding: str) -> None:
    agents = {"poet": {"description": "Writes verses.", "operations": ["time.now"]}}
    async with serving(tmp_path, [{"text": "Roses."}], agents=agents, keys=True) as hub:
        _, key = await hub.hub.store.keys.create("ann")
        assert (await hub.http.get("/a2a/poet/.well-known/agent-card.json")).status_code == 401
        host_wide = (await hub.http.get("/.well-known/agent-card.json")).json()
        assert host_wide["supportedInterfaces"][0]["url"] == f"{hub.url}/a2a/default"
        async with connected(hub, binding, agent="poet", key=key) as client:
            card = MessageToDict(await client.get_extended_agent_card(pb.GetExtendedAgentCardRequest()))
            assert [skill["id"] for skill in card["skills"]] == ["poet", "time"]
            assert text_of(await send(client, message("hi"))) == "Roses."
