"""Runs that wait for an approval: their cost, and answers at the wrong time."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from dragoman.agent.loop import Loop
from dragoman.identity import LOCAL
from dragoman.operations.approval import ApprovalRequest
from tests.effort import rounds
from tests.faults.subagent_approvals import ASK, CLERK, configure
from tests.serving import Served, ask, frames_in, hub_of, text_of
from tests.serving import serving as serve
from tests.waiting import poll

DANGER = Path(__file__).with_name("approval_operation.py")
WIPES: list[dict[str, Any]] = [
    {
        "tools": [
            {"name": "danger_wipe", "input": {"disk": "a"}, "id": "c1"},
            {"name": "danger_wipe", "input": {"disk": "b"}, "id": "c2"},
        ]
    },
    {"text": "Both are gone."},
]

RUNS = rounds(quick=12, thorough=40)


def tasks() -> set[str]:
    return {repr(task.get_coro()) for task in asyncio.all_tasks()}


@pytest.mark.promise("waiting-costs-nothing")
@pytest.mark.parametrize("asks", [ASK, CLERK], ids=["a question", "an agent's"])
async def test_a_run_that_waits_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: Any
) -> None:
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    async with hub_of(configure(tmp_path, asks), tmp_path / "hub") as served:
        before = len(asyncio.all_tasks())
        approvals, loops = count(ApprovalRequest), count(Loop)
        for number in range(RUNS):
            frames = await served.chat("paint", session=f"s{number}")
            assert frames[-1]["finishReason"] == "tool-calls"
        assert len(asyncio.all_tasks()) <= before + 2, tasks()
        assert served.hub.runs.active_count == 0
        waiting = await served.hub.store.approvals.list(status="pending")
        assert len(waiting) == RUNS
        assert max(len(each.state or b"") for each in waiting) < 10_000
        assert count(ApprovalRequest) - approvals <= len(waiting), (
            "none is held but those that were listed here"
        )
        assert count(Loop) - loops <= 1, "the last one may not be cleared away yet"


def count(kind: type) -> int:
    """How many there are of them in this process."""
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


async def answer(served: Served, id: str) -> int:
    response = await served.http.post(f"/api/approvals/{id}", json={"approved": True})
    return response.status_code


async def ended(served: Served, text: str) -> dict[str, Any]:

    async def look() -> dict[str, Any] | None:
        *_, last = await served.messages()
        return last if last["parts"][-1].get("text") == text else None

    return await poll(look)


async def no_call_waits(served: Served) -> bool:
    return not (await served.http.get("/api/calls?status=pending")).json()["calls"]


async def test_two_answers_at_once_both_count(tmp_path: Path) -> None:
    async with serve(tmp_path, WIPES, operations=[str(DANGER)], pinned=["danger.wipe"]) as served:
        frames = await served.chat("wipe both")
        ids = [frame["approvalId"] for frame in frames if frame["type"] == "tool-approval-request"]
        assert await asyncio.gather(*(answer(served, id) for id in ids)) == [200, 200]
        last = await ended(served, "Both are gone.")
        calls = [part for part in last["parts"] if part["type"] == "tool-danger_wipe"]
        assert [call["output"] for call in calls] == ["wiped a", "wiped b"]


async def test_of_two_answers_to_one_question_one_counts(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [{"tools": [{"name": ASK[0], "input": ASK[1]}]}, {"text": "I see."}]
    async with serve(tmp_path, steps, pinned=["user.question"]) as served:
        frames = await served.chat("paint it")
        [question] = [frame["data"] for frame in frames if frame["type"] == "data-question"]
        path = f"/api/approvals/{question['id']}"
        words = [f"colour {number}" for number in range(8)]
        responses = await asyncio.gather(*(served.http.post(path, json={"answer": each}) for each in words))
        assert sorted(each.status_code for each in responses) == [200, *[409] * 7]
        [taken] = [each.json()["answer"] for each in responses if each.status_code == 200]
        last = await ended(served, "I see.")
        [call] = [part for part in last["parts"] if part["type"] == "tool-user_question"]
        assert call["output"] == taken


async def test_an_answer_while_the_session_is_busy_is_taken_up_afterwards(tmp_path: Path) -> None:
    async with serve(tmp_path, WIPES, operations=[str(DANGER)], pinned=["danger.wipe"]) as served:
        frames = await served.chat("wipe both")
        ids = [frame["approvalId"] for frame in frames if frame["type"] == "tool-approval-request"]
        for id in ids:  # past the hub, as the command does in the data folder
            await served.hub.store.approvals.answer(id, approved=True, by=LOCAL)
        await ended(served, "Both are gone.")


WITHDRAWN = "withdrawn: another message was sent instead of an answer"
PASSED_OVER = {
    "a new message": ask("never mind"),
    "an edit": ask("never mind", id="u-go", messageId="u-go"),
    "a new answer": {**ask("go"), "trigger": "regenerate-message"},
}


@pytest.mark.parametrize("instead", PASSED_OVER)
async def test_requests_that_are_passed_over_are_withdrawn_with_a_reason(
    tmp_path: Path, instead: str
) -> None:
    calls_made = [*WIPES[0]["tools"], {"name": ASK[0], "input": ASK[1], "id": "c3"}]
    steps: list[dict[str, Any]] = [{"tools": calls_made}, {"text": "Very well."}]
    async with serve(
        tmp_path, steps, operations=[str(DANGER)], pinned=["danger.wipe", "user.question"]
    ) as served:
        await served.chat("go")
        [_, waiting] = await served.messages()
        assert text_of(await served.post(PASSED_OVER[instead])) == "Very well."
        listed = (await served.http.get("/api/approvals")).json()["approvals"]
        assert [(each["status"], each["reason"]) for each in listed] == [("denied", WITHDRAWN)] * 3
        assert await answer(served, listed[0]["id"]) == 409
        await poll(lambda: no_call_waits(served))
        messages = await served.messages()
        assert (messages[1]["id"] == waiting["id"]) == (instead == "a new message")
        if instead == "a new message":
            calls = [part for part in messages[1]["parts"] if part["type"].startswith("tool-")]
            states = ["output-denied", "output-denied", "output-error"]
            assert [call["state"] for call in calls] == states
            assert [call["approval"]["reason"] for call in calls[:2]] == [WITHDRAWN] * 2
            assert WITHDRAWN in calls[2]["errorText"]
        assert len(await served.runs()) == 2


async def test_who_types_instead_of_answering_leaves_no_call_waiting_for_ever(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [{"tools": [{"name": ASK[0], "input": ASK[1]}]}, {"text": "Very well."}]
    slow = [{"ask": "user.question", "expires": 3.0}]
    async with serve(tmp_path, steps, pinned=["user.question"], policy=slow) as served:
        await served.chat("paint it")
        response = await served.http.post("/api/chat", json=ask("never mind"))
        assert text_of(frames_in(response.text)) == "Very well."
        await poll(lambda: no_call_waits(served))
        assert len(await served.messages()) == 4
