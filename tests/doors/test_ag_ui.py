"""`POST /agui/{agent}` with the stock AG-UI clients, 1.0.0 and the one of CopilotKit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doors.ag_ui_client import VERSIONS, errors, play, texts
from tests.serving import Served, serving

DANGER = str(Path(__file__).parents[1] / "flows" / "approval_operation.py")
BOARD = str(Path(__file__).with_name("state_operation.py"))
NODE: list[dict[str, Any]] = [
    {"name": "paint", "description": "Paint the page", "parameters": {"type": "object"}}
]

pytestmark = pytest.mark.parametrize("version", VERSIONS)


def address(hub: Served, agent: str = "default") -> str:
    return f"{hub.url}/agui/{agent}"


async def test_text_and_reasoning_reach_the_client(tmp_path: Path, version: str) -> None:
    steps: list[dict[str, Any]] = [{"reasoning": "Let me think.", "text": ["Hel", "lo"]}, {"text": "Again."}]
    async with serving(tmp_path, steps) as hub:
        report = await play(version, address(hub), {"say": "hi"}, {"say": "once more"})
        assert errors(report) == []
        assert texts(report) == ["Hello", "Again."]
        assert [each["content"] for each in report["messages"] if each["role"] == "reasoning"] == [
            "Let me think."
        ]
        stored = await hub.messages("t")
        assert [message["role"] for message in stored] == ["user", "assistant"] * 2
        assert report["warnings"] == []


async def test_a_call_of_the_hub_is_shown_with_its_result(tmp_path: Path, version: str) -> None:
    call = {"name": "hub_call", "input": {"calls": [{"operation": "time.now", "input": {}}]}}
    async with serving(tmp_path, [{"text": "Looking.", "tools": [call]}, {"text": "Done."}]) as hub:
        report = await play(version, address(hub), {"say": "what time is it?"})
        assert errors(report) == []
        assert texts(report) == ["Looking.", "Done."]
        [shown] = [call for message in report["messages"] for call in message.get("toolCalls", ())]
        [result] = [message for message in report["messages"] if message["role"] == "tool"]
        assert result["toolCallId"] == shown["id"]
        assert "time" in result["content"]


async def test_a_front_end_tool_runs_in_the_client_and_its_result_goes_on(
    tmp_path: Path, version: str
) -> None:
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "paint", "input": {"colour": "red"}}]},
        {"text": "It is red now."},
    ]
    async with serving(tmp_path, steps) as hub:
        report = await play(version, address(hub), {"say": "paint it"}, {"result": "painted"}, tools=NODE)
        assert errors(report) == []
        assert texts(report) == ["It is red now."]
        assert [message["content"] for message in report["messages"] if message["role"] == "tool"] == [
            "painted"
        ]
        stored = await hub.messages("t")
        assert len(stored) == 2
        [part] = [part for part in stored[1]["parts"] if part["type"] == "tool-paint"]
        assert (part["state"], part["output"]) == ("output-available", "painted")


@pytest.mark.parametrize(
    ("resume", "outcome"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, "wiped a"),
        ({"status": "resolved", "payload": {"approved": False, "reason": "no"}}, "denied"),
        ({"status": "cancelled"}, "denied"),
    ],
    ids=["approved", "denied", "cancelled"],
)
async def test_an_approval_is_an_interrupt(tmp_path: Path, version: str, resume: Any, outcome: str) -> None:
    steps: list[dict[str, Any]] = [
        {"tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]},
        {"text": "So it is."},
    ]
    async with serving(tmp_path, steps, operations=[DANGER], pinned=["danger.wipe"]) as hub:
        report = await play(version, address(hub), {"say": "wipe it"}, {"resume": resume})
        assert errors(report) == []
        assert [len(run["interrupts"]) for run in report["runs"]] == [1, 0]
        assert [message["content"] for message in report["messages"] if message["role"] == "tool"] == [
            outcome
        ]
        assert texts(report) == ["So it is."]


async def test_a_free_text_is_not_an_approval(tmp_path: Path, version: str) -> None:
    steps: list[dict[str, Any]] = [{"tools": [{"name": "danger_wipe", "input": {"disk": "a"}}]}]
    async with serving(tmp_path, steps, operations=[DANGER], pinned=["danger.wipe"]) as hub:
        resume = {"status": "resolved", "payload": "yes, do it"}
        report = await play(version, address(hub), {"say": "wipe it"}, {"resume": resume})
        assert "400" in report["runs"][1]["failed"]
        [approval] = (await hub.http.get("/api/approvals")).json()["approvals"]
        assert approval["status"] == "pending"


async def test_a_question_is_an_interrupt_with_its_options(tmp_path: Path, version: str) -> None:
    question = {"name": "user_question", "input": {"text": "Which colour?", "options": ["red", "blue"]}}
    async with serving(
        tmp_path, [{"tools": [question]}, {"text": "Blue it is."}], pinned=["user.question"]
    ) as hub:
        resume = {"status": "resolved", "payload": {"answer": "blue"}}
        report = await play(version, address(hub), {"say": "paint it"}, {"resume": resume})
        assert errors(report) == []
        [interrupt] = report["runs"][0]["interrupts"]
        assert (interrupt["message"], interrupt["metadata"]["options"]) == ("Which colour?", ["red", "blue"])
        assert texts(report) == ["Blue it is."]


@pytest.mark.promise("shared-state")
async def test_state_of_operations_reaches_the_client_and_its_state_the_model(
    tmp_path: Path, version: str
) -> None:
    def step(name: str, **input: Any) -> dict[str, Any]:
        return {"tools": [{"name": f"board_{name}", "input": input}]}

    answer: list[dict[str, Any]] = [{"text": "Empty again."}, {"text": "I see."}, {"text": "I do."}]
    steps = [step("fill", count=2), step("clear"), step("ask"), *answer]
    pinned = ["board.fill", "board.clear", "board.ask"]
    async with serving(tmp_path, steps, operations=[BOARD], pinned=pinned) as hub:
        mine = {"cards": 7}
        turns: list[dict[str, Any]] = [{"say": "fill it"}, {"say": "look"}, {"say": "same?", "state": mine}]
        report = await play(version, address(hub), *turns, state={"cards": 1})
        assert errors(report) == []
        first, second, _ = report["runs"]
        shown = [each for each in first["events"] if each["type"].startswith("STATE_")]
        assert shown[0]["type"] == "STATE_SNAPSHOT"
        assert shown[-1] == {
            "type": "STATE_DELTA",
            "delta": [
                {"op": "remove", "path": "/of"},
                {"op": "replace", "path": "/cards", "value": 0},
            ],
        }
        assert (first["state"], second["state"], report["state"]) == ({"cards": 0}, {"cards": 0}, mine)
        stored = await hub.messages("t")
        texts_of = [
            [part["text"] for part in message["parts"] if part["type"] == "text"] for message in stored
        ]
        heading = "State of the app that the user looks at, as JSON: "
        assert texts_of[0] == ["fill it", f'{heading}{{"cards":1}}']
        assert texts_of[2] == ["look"]  # the agent has sent this state itself
        assert texts_of[4] == ["same?", f'{heading}{{"cards":7}}']
        [part] = [part for part in stored[1]["parts"] if part["type"] == "data-state"]
        assert part["data"] == {"cards": 0}
        [refused] = [part for part in stored[1]["parts"] if part["type"] == "tool-board_ask"]
        assert "the hub writes the data part 'question' itself" in refused["errorText"]


async def test_a_failed_answer_is_an_error_and_never_a_silent_end(tmp_path: Path, version: str) -> None:
    async with serving(tmp_path, [{"text": "Half", "error": {"message": "out of order"}}]) as hub:
        report = await play(version, address(hub), {"say": "hi"})
        assert report["runs"][0]["error"] is not None, report


async def test_a_client_that_runs_again_after_a_cut_gets_only_the_rest(tmp_path: Path, version: str) -> None:
    words = [f"word{n} " for n in range(30)]
    async with serving(tmp_path, [{"text": words, "delay": 0.01}]) as hub:
        report = await play(version, address(hub), {"say": "go", "abortAfter": 12}, {"again": True})
        assert report["runs"][1]["failed"] is None
        assert report["runs"][1]["error"] is None
        assert texts(report) == ["".join(words)]
        assert len(await hub.runs("t")) == 1
        first = [event["delta"] for event in report["runs"][0]["events"] if "delta" in event]
        rest = [event["delta"] for event in report["runs"][1]["events"] if "delta" in event]
        assert "".join(first + rest) == "".join(words)
