"""Push notifications of A2A tasks: signed, tried again, and never to what only the hub can reach."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import verify_webhook
from dragoman.errors import Unauthorized
from dragoman.server.a2a import push
from tests.databases import query
from tests.doors.test_a2a_rules import VERSION, error_of, key, rpc, sent
from tests.providers.servers import accepting
from tests.serving import Served, serving
from tests.waiting import LIMIT

DANGER = str(Path(__file__).parents[1] / "flows" / "approval_operation.py")
LOOPBACK = ["127.0.0.0/8"]
Json = dict[str, Any]


class Receiver:
    """A server that takes notifications; it answers the first ones with `statuses`, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.received: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
        self.port = 0
        self._statuses = list(statuses)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def next(self) -> tuple[dict[str, str], bytes]:
        async with asyncio.timeout(LIMIT):
            return await self.received.get()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        pairs = [line.split(": ", 1) for line in head.split("\r\n")[1:] if line]
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        status = self._statuses.pop(0) if self._statuses else 200
        writer.write(
            f"HTTP/1.1 {status} x\r\nlocation: http://127.0.0.1/\r\ncontent-length: 0\r\n\r\n".encode()
        )
        await writer.drain()
        writer.close()
        self.received.put_nowait((headers, body))


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver(*statuses)
    async with accepting(receiver.handle) as receiver.port:
        yield receiver


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(push, "MAX_WAIT", 0.05)


def allowed(receiver: Receiver) -> Json:
    return {"push_networks": LOOPBACK, "push_ports": [receiver.port]}


async def begin(hub: Served, config: Json, text: str = "hi", **headers: str) -> Json:
    params = sent(text) | {"configuration": {"returnImmediately": True, "taskPushNotificationConfig": config}}
    task: Json = (await rpc(hub, "SendMessage", params, **headers))["result"]["task"]
    return task


async def test_the_end_of_a_task_is_posted_and_signed(tmp_path: Path) -> None:
    async with receiving() as receiver, serving(tmp_path, [{"text": "Done."}], a2a=allowed(receiver)) as hub:
        config = {
            "url": receiver.url,
            "token": "the-token",
            "authentication": {"scheme": "Bearer", "credentials": "the-secret"},
        }
        task = await begin(hub, config)
        headers, body = await receiver.next()
        posted = msgspec.json.decode(body)["task"]
        assert (posted["id"], posted["status"]["state"]) == (task["id"], "TASK_STATE_COMPLETED")
        assert posted["artifacts"][0]["parts"] == [{"text": "Done."}]
        assert headers["x-a2a-notification-token"] == "the-token"
        assert headers["authorization"] == "Bearer the-secret"
        verify_webhook(headers, body, secret="the-token", now=time.time())
        with pytest.raises(Unauthorized):
            verify_webhook(headers, body + b" ", secret="the-token", now=time.time())


async def test_each_stop_for_a_person_is_posted_too(tmp_path: Path) -> None:
    steps: list[Json] = [{"tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]}, {"text": "Wiped."}]
    async with receiving() as receiver:
        settings: Json = {"operations": [DANGER], "pinned": ["danger.wipe"], "a2a": allowed(receiver)}
        async with serving(tmp_path, steps, **settings) as hub:
            task = await begin(hub, {"url": receiver.url})
            states = [msgspec.json.decode((await receiver.next())[1])["task"]["status"]["state"]]
            data = sent(taskId=task["id"], messageId="m2", parts=[{"data": {"approved": True}}])
            await rpc(hub, "SendMessage", data)
            states.append(msgspec.json.decode((await receiver.next())[1])["task"]["status"]["state"])
            assert states == ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"]


async def test_a_failed_delivery_is_tried_again_and_redirects_are_not_followed(tmp_path: Path) -> None:
    async with (
        receiving(500, 302) as receiver,
        serving(tmp_path, [{"text": "Done."}], a2a=allowed(receiver)) as hub,
    ):
        await begin(hub, {"url": receiver.url})
        first, second, third = [await receiver.next() for _ in range(3)]
        assert first[1] == second[1] == third[1]


async def test_what_was_not_posted_before_the_hub_stopped_is_posted_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as receiver:
        monkeypatch.setattr(push, "POLL_INTERVAL", 3_600.0)
        async with serving(tmp_path, [{"text": "Done."}], a2a=allowed(receiver)) as hub:
            task = await begin(hub, {"url": receiver.url})
            run = hub.hub.runs.get(task["id"])
            if run is not None:
                await run.done.wait()
        monkeypatch.setattr(push, "POLL_INTERVAL", 0.05)
        async with serving(tmp_path, [], a2a=allowed(receiver)):
            _, body = await receiver.next()
            assert msgspec.json.decode(body)["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/hook",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "http://10.0.0.7/",
        "http://localhost/",
        "http://hub.internal/",
        "https://example.com:22/",
        "ftp://example.com/",
        "http://user:secret@example.com/",
        "",
        "/hook",
    ],
)
async def test_a_url_that_only_the_hub_could_reach_is_refused(tmp_path: Path, url: str) -> None:
    async with serving(tmp_path) as hub:
        params = sent() | {"configuration": {"taskPushNotificationConfig": {"url": url}}}
        assert "error" in await rpc(hub, "SendMessage", params)
        assert hub.hub.runs.active_count == 0


async def test_configurations_are_managed_by_their_owner_without_their_secrets(tmp_path: Path) -> None:
    steps: list[Json] = [{"text": [f"word{n} " for n in range(2_000)], "delay": 0.05}]
    a2a = {"push_configs": 2}
    async with serving(tmp_path, steps, keys=True, a2a=a2a) as hub:
        ann, bob = await key(hub, "ann"), await key(hub, "bob")
        config = {"url": "https://example.com/a", "id": "one", "token": "hush-token"}
        config["authentication"] = {"scheme": "Bearer", "credentials": "hush-credentials"}  # type: ignore[assignment]
        task = await begin(hub, config, **ann)
        place = f"/a2a/default/tasks/{task['id']}/pushNotificationConfigs"
        second = await hub.http.post(place, json={"url": "https://example.com/b"}, headers={**VERSION, **ann})
        assert second.status_code == 200, second.text
        for field in ("url", "token"):
            large = {"taskId": task["id"], "url": "https://example.com/d"}
            large[field] = large.get(field, "") + "x" * 10_000
            assert await error_of(hub, "CreateTaskPushNotificationConfig", large, **ann) == -32602, field
        third = await hub.http.post(place, json={"url": "https://example.com/c"}, headers={**VERSION, **ann})
        assert third.status_code == 400
        listed = await rpc(hub, "ListTaskPushNotificationConfigs", {"taskId": task["id"]}, **ann)
        assert [each["url"][-1] for each in listed["result"]["configs"]] == ["a", "b"]
        assert "hush" not in str(listed)
        stored = query(tmp_path / "hub", "SELECT * FROM push_configs")
        assert len(stored) == 2
        assert "hush" not in str(stored)
        one = {"taskId": task["id"], "id": "one"}
        for method in ("GetTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"):
            assert await error_of(hub, method, one, **bob) == -32001
        assert (await hub.http.get(f"{place}/one", headers={**VERSION, **ann})).json()["url"][-1] == "a"
        assert (await hub.http.delete(f"{place}/one", headers={**VERSION, **ann})).status_code == 200
        assert (await hub.http.get(f"{place}/one", headers={**VERSION, **ann})).status_code == 404
        await rpc(hub, "CancelTask", {"id": task["id"]}, **ann)
        late = {"taskId": task["id"], "url": "https://example.com/d"}
        assert await error_of(hub, "CreateTaskPushNotificationConfig", late, **ann) == -32004
