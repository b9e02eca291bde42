"""A hub or spoke is killed while calls run: their state is known, waiting calls continue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from tests.faults.operations_hub import Json, batch, configured, spoke, statuses, words
from tests.faults.process import Process, started
from tests.faults.test_kill import talk
from tests.serving import ask, frames_in
from tests.waiting import poll, until

WIPE: list[Json] = [
    {"tools": [{"name": "danger_wipe", "input": {"disk": "a"}, "id": "c1"}]},
    {"text": "Done."},
]
BURN: list[Json] = [
    {"tools": [{"name": "danger_burn", "input": {"disk": "a"}, "id": "c1"}]},
    {"text": "Done."},
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the operations write, in all processes."""
    monkeypatch.setenv("CHAIN_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def write(folder: Path, steps: list[Json], **more: Any) -> Path:
    """The configuration of a hub in a process of its own."""
    path = folder / "dragoman.yaml"
    path.write_bytes(msgspec.json.encode(configured(folder, steps, **more)))
    return path


async def get(hub: Process, path: str) -> Json:
    """The answer to a request that has to go well."""
    response = await hub.http.get(path)
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


async def has(hub: Process, *ids: str) -> None:
    """Wait until the hub has these operations."""

    async def look() -> bool:
        return set(ids) <= {each["id"] for each in (await get(hub, "/api/operations"))["operations"]}

    await poll(look)


async def listed(hub: Process, operation: str, status: str) -> None:
    """Wait until a call of it is written down, and its status: one that only reads begins before that."""

    async def look() -> bool:
        calls = (await get(hub, "/api/calls?limit=200"))["calls"]
        return (operation, status) in [(each["name"], each["status"]) for each in calls]

    await poll(look)


async def begin(hub: Process, folder: Path, operation: str, word: str) -> asyncio.Task[Any]:
    """A call over HTTP, once it is under way."""
    task = asyncio.create_task(hub.http.post(f"/api/operations/{operation}/call", json={}))
    await until(lambda: words(folder / "log")[f"begin {word}"] == 1)
    return task


@pytest.mark.promise("crash-calls")
async def test_calls_that_kill_9_cuts_off_are_uncertain_when_they_act_and_aborted_when_they_read(
    tmp_path: Path,
) -> None:
    agents = {"default": {"after_crash": "close"}}
    config = write(tmp_path, batch("near.start", "raw.hang", "near.quick"), agents=agents)
    async with started(config, tmp_path / "hub") as hub, spoke(str(hub.http.base_url)):
        await has(hub, "far.relay", "raw.hang", "near.start")
        turn = asyncio.create_task(talk(hub, "s", []))
        await until(lambda: words(tmp_path / "log")["begin wait"] == 1)
        await until(lambda: words(tmp_path / "raw.txt")["call hang"] == 1)
        await listed(hub, "near.wait", "running")
        await listed(hub, "near.quick", "done")
        await hub.kill()
        await turn
    async with started(config, tmp_path / "hub") as hub:
        await hub.http.get("/api/chat/s/stream")  # until the run is closed
        [newest, *_] = (await get(hub, "/api/calls?session=s"))["calls"]
        tree = (await get(hub, f"/api/calls/{newest['runId']}/tree"))["tree"]
        assert statuses(tree) == {
            "sim/any": "done",
            "hub.call": "uncertain",
            "near.start": "uncertain",
            "far.relay": "uncertain",
            "near.wait": "aborted",
            "raw.hang": "uncertain",
            "near.quick": "done",
        }
        assert tree["status"] == "aborted"
        part = (await hub.messages("s"))[1]["parts"][1]
        assert part["state"] == "output-error"
        assert 'do not repeat: near.quick returned "quick"' in part["errorText"]


async def test_calls_of_no_run_that_kill_9_cuts_off_are_ended_too(tmp_path: Path) -> None:
    config = write(tmp_path, [])
    async with started(config, tmp_path / "hub") as hub, spoke(str(hub.http.base_url)):
        await has(hub, "far.act")
        calls = [
            await begin(hub, tmp_path, "near.wait", "wait"),
            await begin(hub, tmp_path, "far.act", "act"),
        ]
        await hub.kill()
        await asyncio.gather(*calls, return_exceptions=True)
    async with started(config, tmp_path / "hub") as hub:
        await until(lambda: none_running(hub))  # a host that starts takes over the calls of one that ended
        found = {each["name"]: each for each in (await get(hub, "/api/calls"))["calls"]}
        assert {name: call["status"] for name, call in found.items()} == {
            "near.wait": "aborted",
            "far.act": "uncertain",
        }
        assert all(call["endedAt"] >= call["startedAt"] for call in found.values())


async def none_running(hub: Process) -> bool:
    return not any(each["status"] == "running" for each in (await get(hub, "/api/calls"))["calls"])


@pytest.mark.promise("crash-approvals")
async def test_what_waits_for_an_approval_survives_kill_9_and_its_answer_goes_on(tmp_path: Path) -> None:
    config = write(tmp_path, WIPE, pinned=["danger.wipe"])
    async with started(config, tmp_path / "hub") as hub:
        frames = frames_in((await hub.http.post("/api/chat", json=ask("go"))).text)
        [approval_id] = [frame["approvalId"] for frame in frames if frame["type"] == "tool-approval-request"]
        await hub.kill()
    async with started(config, tmp_path / "hub") as hub:
        answered = await hub.http.post(f"/api/approvals/{approval_id}", json={"approved": True})
        assert answered.status_code == 200, answered.text
        parts = await settled(hub)
        assert (parts[1]["state"], parts[1]["output"]) == ("output-available", "wiped a")
        assert parts[-1]["text"] == "Done."
        assert words(tmp_path / "log")["wiped a"] == 1
        again = await hub.http.post(f"/api/approvals/{approval_id}", json={"approved": True})
        assert again.status_code == 409
        assert words(tmp_path / "log")["wiped a"] == 1
        [call] = (await get(hub, "/api/calls?session=s"))["calls"]
        assert call["status"] == "done"


async def settled(hub: Process) -> list[Json]:
    """The parts of the answer, once nothing runs any more."""

    async def look() -> list[Json] | None:
        await hub.http.get("/api/chat/s/stream")  # until the active run ends
        message = (await hub.messages("s"))[1]
        parts: list[Json] = message["parts"]
        waits = any(str(part.get("state", "")).startswith("approval-") for part in parts)
        return parts if "finishReason" in message.get("metadata", {}) and not waits else None

    return await poll(look)


async def test_an_approved_call_that_kill_9_cuts_off_is_not_made_again_before_its_person_says_so(
    tmp_path: Path,
) -> None:
    config = write(tmp_path, BURN, pinned=["danger.burn"])
    async with started(config, tmp_path / "hub") as hub:
        frames = frames_in((await hub.http.post("/api/chat", json=ask("go"))).text)
        [approval_id] = [frame["approvalId"] for frame in frames if frame["type"] == "tool-approval-request"]
        with suppress(httpx2.TransportError):
            await hub.http.post(f"/api/approvals/{approval_id}", json={"approved": True})
        await hub.process.wait()
    async with started(config, tmp_path / "hub") as hub:
        await hub.http.get("/api/chat/s/stream")  # until the run waits for its person
        [approval] = (await get(hub, "/api/approvals?status=pending"))["approvals"]
        assert "danger.burn ran, and it is not known whether it took effect" in approval["question"]["text"]
        assert approval["question"]["options"] == ["done", "not done", "try again"]
        [call] = (await get(hub, "/api/calls?session=s"))["calls"]
        assert (call["id"], call["status"]) == (approval["callId"], "uncertain")
        answered = await hub.http.post(f"/api/approvals/{approval['id']}", json={"answer": "done"})
        assert answered.status_code == 200, answered.text
        parts = await settled(hub)
        assert parts[1]["state"] == "output-available"
        assert "a person says that it took effect" in parts[1]["output"].lower()
        assert parts[-1]["text"] == "Done."
        assert words(tmp_path / "log")["burnt a"] == 1
