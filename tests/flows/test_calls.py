"""Calls as a chat shows them: progress, approvals, limits, repaired arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.hub_client.in_process import connect_to_data
from tests.databases import use_database
from tests.serving import Served, ask, serving, text_of, types, usage
from tests.waiting import poll

BENCH = str(Path(__file__).parent / "slow_operations.py")
DANGER = str(Path(__file__).parent / "approval_operation.py")


def calls(tool: str, input: Any, *, times: int = 1) -> list[dict[str, Any]]:
    """A model that calls this so often, and then is done."""
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": tool, "input": input, "id": f"c{number}"}]} for number in range(times)
    ]
    return [*steps, {"text": "Done."}]


async def test_a_chat_sees_how_far_a_call_is_before_its_output(tmp_path: Path) -> None:
    batch = {"calls": [{"tool": "lab.count", "input": {"to": 3}}]}
    async with serving(tmp_path, calls("hub_call", batch), operations=[BENCH]) as hub:
        frames = await hub.chat()
        outputs = [frame for frame in frames if frame["type"] == "tool-output-available"]
        assert [frame.get("preliminary") for frame in outputs] == [*[True] * (len(outputs) - 1), None]
        assert len(outputs) >= 3
        assert outputs[0]["output"] == [{"tool": "lab.count", "progress": {"at": 1}}]
        assert outputs[-1]["output"] == [{"success": True, "result": {"at": 3}}]
        stored = (await hub.messages())[1]["parts"][1]
        assert (stored["state"], stored["output"]) == ("output-available", outputs[-1]["output"])
        assert "preliminary" not in stored


async def test_a_pinned_operation_that_streams_tells_each_value(tmp_path: Path) -> None:
    async with serving(
        tmp_path, calls("lab_count", {"to": 2}), operations=[BENCH], pinned=["lab.count"]
    ) as hub:
        outputs = [f["output"] for f in await hub.chat() if f["type"] == "tool-output-available"]
        assert outputs[0] == {"at": 1}
        assert outputs[-1] == {"at": 2}


async def test_a_big_result_reaches_the_model_in_part_and_can_be_read(tmp_path: Path) -> None:
    batch = {"calls": [{"tool": "lab.pile", "input": {"size": 100_000}}]}
    async with serving(tmp_path, calls("hub_call", batch), operations=[BENCH]) as hub:
        [output] = [f["output"] for f in await hub.chat() if f["type"] == "tool-output-available"]
        result = output[0]["result"]
        assert result["size"] == 100_000
        assert len(str(result)) < 24_000
        read = {"id": result["artifact"], "offset": 99_990, "limit": 16}
        rest = (await hub.http.post("/api/operations/artifacts.read/call", json=read)).json()
        assert "0123456789" in str(rest["result"])


async def test_the_same_failing_call_is_refused_in_the_end(tmp_path: Path) -> None:
    steps = calls("lab_fail", {"name": "luck"}, times=4)
    async with serving(tmp_path, steps, operations=[BENCH], pinned=["lab.fail"]) as hub:
        errors = [f["errorText"] for f in await hub.chat() if f["type"] == "tool-output-error"]
        assert "failed" not in errors[0]
        assert "has now failed 2 times" in errors[1]
        assert errors[3].startswith("The call did not run: it failed 3 times")


async def test_arguments_of_broken_json_are_read_as_they_were_meant(tmp_path: Path) -> None:
    broken = "{'to': 1,}"
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "lab_count", "input": broken, "id": "c1"}]},
        {"text": "Done."},
    ]
    async with serving(tmp_path, steps, operations=[BENCH], pinned=["lab.count"]) as hub:
        frames = await hub.chat()
        [arguments] = [f["input"] for f in frames if f["type"] == "tool-input-available"]
        assert arguments == {"to": 1}
        session = (await hub.runs())[0]
        [call] = await hub.hub.store.calls.list_for_run(session.id)
        assert call.notes == ("the arguments were broken JSON; read as what was meant",)


async def test_an_approval_that_is_given_elsewhere_lets_the_chat_go_on(tmp_path: Path) -> None:
    steps = calls("danger_wipe", {"disk": "a"})
    async with serving(tmp_path, steps, operations=[DANGER], pinned=["danger.wipe"]) as hub:
        frames = await hub.chat()
        [approval_request] = [frame for frame in frames if frame["type"] == "tool-approval-request"]
        waiting = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
        assert [each["id"] for each in waiting] == [approval_request["approvalId"]]
        assert (waiting[0]["operation"], waiting[0]["input"]) == ("danger.wipe", {"disk": "a"})
        answer = await hub.http.post(
            f"/api/approvals/{approval_request['approvalId']}", json={"approved": True}
        )
        assert answer.status_code == 200
        parts = await settled(hub)
        assert (parts[1]["state"], parts[1]["output"]) == ("output-available", "wiped a")
        assert parts[-1]["text"] == "Done."


async def test_an_approval_that_is_given_in_the_data_folder_lets_the_chat_go_on_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = calls("danger_wipe", {"disk": "a"})
    async with serving(tmp_path, steps, operations=[DANGER], pinned=["danger.wipe"]) as hub:
        frames = await hub.chat()
        [approval_request] = [frame for frame in frames if frame["type"] == "tool-approval-request"]
        use_database(tmp_path / "hub", monkeypatch)
        async with connect_to_data(tmp_path / "hub") as client:
            await client.decide(approval_request["approvalId"], approved=True)

        async def is_resumed() -> bool:
            return len((await hub.messages())[1]["parts"]) >= 3

        await poll(is_resumed)
        parts = await settled(hub)
        assert (parts[1]["output"], parts[-1]["text"]) == ("wiped a", "Done.")


async def settled(hub: Served) -> list[dict[str, Any]]:
    """The parts of the answer, once nothing runs any more, and no decided call waits for its turn."""

    async def look() -> list[dict[str, Any]] | None:
        while (run := hub.active_run()) is not None:
            await run.done.wait()
        parts: list[dict[str, Any]] = (await hub.messages())[1]["parts"]
        waits = any(
            part.get("state", "").startswith("approval-") or part.get("preliminary") for part in parts
        )
        return None if waits else parts

    return await poll(look)


async def test_an_agent_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    agents = {"default": {"timeout": 3.0, "operations": ["lab.wait"]}}
    async with serving(tmp_path, calls("lab_wait", {})[:1], operations=[BENCH], agents=agents) as hub:
        frames = await hub.chat()
        errors = [f["errorText"] for f in frames if f["type"] == "tool-output-error"]
        assert errors
        assert types(frames)[-1] == "finish"


async def test_an_agent_makes_no_more_calls_than_it_may(tmp_path: Path) -> None:
    agents = {"default": {"max_calls": 2}}
    batch = {"calls": [{"tool": "lab.pile", "input": {"size": size}} for size in (10, 20, 30)]}
    async with serving(tmp_path, calls("hub_call", batch), operations=[BENCH], agents=agents) as hub:
        [output] = [f["output"] for f in await hub.chat() if f["type"] == "tool-output-available"]
        assert [entry["success"] for entry in output] == [True, True, False]
        assert "The budget of 2 calls is used up." in output[2]["error"]["message"]


async def test_an_agent_spends_no_more_than_it_may(tmp_path: Path) -> None:
    steps = calls("hub_list", {}, times=2)[:2]
    for step in steps:
        step["usage"] = usage(1_000_000, 0)
    agents = {"default": {"max_usd": 2.5}}
    prices = {"sim/any": {"input": 1.0, "output": 1.0}}
    async with serving(tmp_path, steps, agents=agents, prices=prices) as hub:
        frames = await hub.chat()
        stopped = text_of(frames).partition("Stopped: ")[2]
        assert stopped.startswith("The budget of 2.5 USD has 0.500000 left; this call may cost 1.0")
        assert frames[-1]["finishReason"] == "other"
        assert types(frames).count("start-step") == 3
        assert "error" not in types(frames)


async def test_a_rule_of_the_policy_holds_for_models_and_programs_alike(tmp_path: Path) -> None:
    policy = [{"deny": "lab.*", "agent": "default"}, {"ask": "lab.pile"}]
    batch = {"calls": [{"tool": "lab.pile", "input": {"size": 10}}]}
    steps = calls("hub_call", batch)[:1]
    async with serving(tmp_path, steps, operations=[BENCH], policy=policy) as hub:
        body = ask("hi")
        frames = await hub.post(body)
        assert "tool-approval-request" in types(frames), "the exact rule is more specific"
        call = (await hub.http.post("/api/operations/lab.pile/call", json={"size": 10})).json()
        assert (call["status"], call["success"]) == ("pending", False)
        seen = (await hub.http.get("/api/operations?namespace=lab")).json()["operations"]
        assert [each["id"] for each in seen] == [
            "lab.count",
            "lab.fail",
            "lab.pass_gate",
            "lab.pile",
            "lab.wait",
        ]
