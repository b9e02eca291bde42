"""A hub killed between any write and its acknowledgment: what is sent again is done once.

The others of this kind: `test_repeated_after_kill.py` for chats and the frames of runners, and those of runs,
queues, approvals and tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.runs import webhooks
from tests.databases import query
from tests.effort import rounds
from tests.faults.commits import Copies
from tests.flows.background import send_away
from tests.flows.test_durable_frames import AGENTS, CALLS
from tests.flows.test_webhooks import configure, hub_of, receiving, until_delivery
from tests.server.test_sockets import connected, create
from tests.serving import Served, ask, frames_in, serving, text_of, write_script
from tests.waiting import until

pytestmark = pytest.mark.anyio
KILLS = rounds(quick=3, thorough=1_000)
ANSWER = [{"text": ["So ", "it ", "is."]}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def hubs(copies: Copies) -> Iterator[Path]:
    """Some of the copies, each as the folder of `serving`: the first, the last, and others between them."""
    taken = copies.taken
    step = max(1, len(taken) // KILLS)
    for data in (copy for at, copy in enumerate(taken) if at % step == 0 or at + 1 == len(taken)):
        hub = data.with_name(f"{data.name}-hub")
        data.rename(hub)
        data.mkdir()
        hub.rename(data / "hub")
        yield data


async def are_ended(hub: Served, count: int) -> bool:
    return [run.status for run in await hub.runs()] == ["finished"] * count


async def test_a_prompt_of_a_socket_that_is_sent_again_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = {"id": "u1", "text": "go", "requestId": "r"}
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once="select 1 from sessions")
    with copies.after_each_commit(monkeypatch):
        async with serving(tmp_path, ANSWER, play="turns") as hub:
            await create(hub)
            async with connected(hub) as client:
                await client.send("prompt", **prompt)
                await client.until("message.updated")
    assert len(copies.taken) > 3
    for data in hubs(copies):
        async with serving(data, ANSWER, play="turns") as hub, connected(hub) as client:
            await client.send("prompt", **prompt)
            [*_, done] = await client.until("done")
            await until(lambda: are_ended(hub, 1))
            [user, answer] = await hub.messages()
            assert (user["id"], done["messageId"]) == ("u1", "u1")
            assert "".join(part.get("text", "") for part in answer["parts"]) == "So it is."


async def test_outputs_of_client_side_tools_that_are_sent_again_are_taken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[dict[str, Any]] = [CALLS, {"text": "Thanks."}]
    copies = Copies(
        tmp_path / "hub", tmp_path / "copies", once="select 1 from runs where finish_reason = 'tool-calls'"
    )
    with copies.after_each_commit(monkeypatch):
        async with serving(tmp_path, steps, play="turns", agents=AGENTS) as hub:
            await hub.chat()
            messages = await hub.messages()
            for part in messages[-1]["parts"]:
                if "toolCallId" in part:
                    part |= {"state": "output-available", "output": part["toolCallId"]}
            assert text_of(await hub.post({"id": "s", "messages": messages})) == "Thanks."
    assert len(copies.taken) > 3
    for data in hubs(copies):
        async with serving(data, steps, play="turns", agents=AGENTS) as hub:
            response = await hub.http.post("/api/chat", json={"id": "s", "messages": messages})
            assert response.status_code == 200, response.text
            assert text_of(frames_in(response.text)).endswith("Thanks.")
            await until(lambda: are_ended(hub, 2))
            [_, answer] = await hub.messages()
            outputs = [part["output"] for part in answer["parts"] if "toolCallId" in part]
            texts = [part["text"] for part in answer["parts"] if part["type"] == "text"]
            assert (outputs, texts) == (["c1", "c2"], ["Thanks."])


async def test_the_end_of_a_run_is_posted_until_that_is_stored_always_with_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice at most by each hub: what a killed one had claimed is due again after the lease."""
    monkeypatch.setattr(webhooks, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(webhooks, "LEASE", 0.5)
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once="select 1 from runs")
    async with receiving() as receiver:
        local = {"allow_networks": ["127.0.0.0/8"], "ports": [receiver.port]}
        config = configure(tmp_path, [], url=f"http://127.0.0.1:{receiver.port}/", **local)
        write_script(tmp_path, ANSWER, play="turns")
        with copies.after_each_commit(monkeypatch):
            async with hub_of(config, tmp_path / "hub") as hub:
                id = await send_away(hub)
                await until_delivery(hub, id, "delivered")
        ids = {headers["webhook-id"] for headers, _ in receiver.got}
        assert len(ids) == 1
        for data in hubs(copies):
            receiver.got.clear()
            is_delivered = query(data / "hub", "select 1 from webhook_deliveries where status = 'delivered'")
            async with hub_of(config, data / "hub") as hub:
                await until_delivery(hub, id, "delivered")
            assert {headers["webhook-id"] for headers, _ in receiver.got} == (set() if is_delivered else ids)


async def test_a_message_that_is_sent_again_waits_in_the_queue_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message for the background, whose acknowledgment is the id of its run."""
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once="select 1 from sessions")
    body = ask("go", background=True)
    with copies.after_each_commit(monkeypatch):
        async with serving(tmp_path, ANSWER, play="turns") as hub:
            id = (await hub.http.post("/api/chat", json=body)).json()["runId"]
            await until(lambda: are_ended(hub, 1))
    for data in hubs(copies):
        async with serving(data, ANSWER, play="turns") as hub:
            again = await hub.http.post("/api/chat", json=body)
            assert (again.status_code, again.json()["runId"]) == (202, id)
            await until(lambda: are_ended(hub, 1))
            assert [message["role"] for message in await hub.messages()] == ["user", "assistant"]
